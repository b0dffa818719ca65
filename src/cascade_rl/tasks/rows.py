"""Rows of conversations from files and the hub, in the layouts that TRL reads.

    {"messages": [{"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "5", "reasoning_content": "..."}]}
    {"prompt": "2+3?", "completion": "5"}                 or both as lists of messages; only the completion is to be trained
    {"instruction": "Add.", "input": "2+3", "output": "5"}   as Alpaca has it; or as Self-Instruct, with "instances": [{"input", "output"}]
    the first two with "tools": [...] (a list of schemas, or its JSON text), "tool_calls" in messages, "tool" messages for results

Reasoning stands in `reasoning_content` or `thinking`, or inline as <think>...</think> at the start of the content; an empty one
is none. A row that cannot be read is an error with its place, never skipped.
"""

import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade_rl import strict_json
from cascade_rl.errors import DataError, unknown
from cascade_rl.records import Message, Role, ToolCall

Row = dict[str, Any]
Tool = dict[str, Any]

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
MAX_DEPTH = 100  # of lists and objects in a row; real ones have about ten
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")
_ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_SPLITS = {"train": ("train",), "dev": ("dev", "validation", "valid", "val"), "test": ("test",)}


# Reading.


def read_rows(source: str | Path, split: str = "train") -> list[Row]:
    """The rows of a JSONL(.gz) or Parquet file, of a folder of them, or of a hub data set; see `read_placed`."""
    return [row for _, row in read_placed(source, split)]


def read_placed(source: str | Path, split: str = "train") -> list[tuple[str, Row]]:
    """(place, row) of every row, in file order; places read "data.jsonl:7".

    source: a file; a folder laid out as on the hub ("train.jsonl", "data/train-00000-of-00002.parquet"); or a hub id "org/name"
    or "org/name:config". split: which files of a folder, or which split of a hub data set. Null fields of Parquet and hub rows
    are left out: their tables hold every key of every row. Raises DataError.
    """
    path = Path(source).expanduser()
    if path.is_file():
        rows = _read_file(path)
    elif path.is_dir():
        rows = (placed for file in _files_of(path, split) for placed in _read_file(file))
    elif is_hub_id(source):
        rows = _read_hub(str(source), split)
    else:
        raise DataError(
            f'data "{source}": no such file or folder, and no hub id ("org/name" or "org/name:config"); check the path'
        )
    found = list(rows)
    if not found:
        raise DataError(f'data "{source}": holds no rows; expected at least one')
    return found


def is_hub_id(source: str | Path) -> bool:
    """Whether a source that is neither file nor folder is looked for on the hub: "org/name" or "org/name:config"."""
    return bool(_HUB_ID.fullmatch(str(source))) and not str(source).endswith(SUFFIXES)


def _read_file(path: Path) -> Iterator[tuple[str, Row]]:
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        return _read_jsonl(path)
    if path.suffix == ".parquet":
        return _read_parquet(path)
    raise DataError(f'data "{path}": cannot read this kind of file; expected one of {", ".join(SUFFIXES)}')


def _read_jsonl(path: Path) -> Iterator[tuple[str, Row]]:
    number = 0
    with gzip.open(path, "rt", encoding="utf-8-sig") if path.suffix == ".gz" else path.open(encoding="utf-8-sig") as file:
        try:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"{path}:{number}", _json_row(line, f"{path}:{number}")
        except (OSError, EOFError, UnicodeDecodeError) as error:
            raise DataError(
                f"{path}:{number + 1}: cannot be read ({error}); expected UTF-8 text, one JSON object a line"
            ) from error


def _json_row(line: str, where: str) -> Row:
    try:
        row = _read_json(line)
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error}); expected one object a line") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: a JSON {type(row).__name__}, expected an object with named fields")
    return row


def _read_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError, also for what cannot be tokenised or is nested beyond all use."""
    value = strict_json.loads(text)
    if text.count("[") + text.count("{") > MAX_DEPTH and _is_deep(value):
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    if "\\ud" in text.lower():  # json joins the two halves of a pair; one that is left alone is no character
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = ord(error.object[error.start])
            raise ValueError(
                f"\\u{half:04x} is half of a surrogate pair and no character; write the pair, or remove it"
            ) from None
    return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(level)


def _read_parquet(path: Path) -> Iterator[tuple[str, Row]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(f"{path}: reading Parquet needs pyarrow; run: pip install 'cascade-rl[parquet]'") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}:{number}", _without_nulls(row)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({error}); write it again") from error


def _read_hub(source: str, split: str) -> Iterator[tuple[str, Row]]:
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f'data "{source}": no such file, and reading it from the hub needs datasets; check the path, or run:'
            " pip install 'cascade-rl[hub]'"
        ) from error
    name, _, config = source.partition(":")
    wanted = "validation" if split == "dev" else split
    try:
        table = datasets.load_dataset(name, config or None, split=wanted)
    except Exception as error:  # the library and what it calls raise dozens of kinds
        reason = str(error).strip().split("\n")[0]
        raise DataError(
            f'data "{source}": the hub did not give its split "{wanted}" ({reason}); check name and network'
        ) from error
    for number, row in enumerate(table, start=1):
        yield f"{source}:{wanted}:{number}", _without_nulls(dict(row))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _files_of(folder: Path, split: str) -> list[Path]:
    """The files of a split, by their own name or their folder's; all files where none is named after a split."""
    files = sorted(path for path in folder.rglob("*") if path.name.endswith(SUFFIXES) and not path.name.startswith("."))
    named: dict[str, list[Path]] = {}
    for path in files:
        words = set(re.split(r"[-_.]", path.name)) | {path.parent.name}
        for name, aliases in _SPLITS.items():
            if words & set(aliases):
                named.setdefault(name, []).append(path)
    if split in named:
        return named[split]
    if not files:
        raise DataError(f'data folder "{folder}": holds no file that can be read; expected {", ".join(SUFFIXES)}')
    if named:
        raise DataError(unknown(f'data folder "{folder}": split', split, named))
    return files


# Understanding.


def conversation(row: Mapping[str, Any], where: str) -> tuple[tuple[Message, ...], tuple[Tool, ...], bool]:
    """(messages, tools, thinking) of a row in any layout; `thinking` is whether some assistant message has reasoning.

    where: the row's place, for the message of a DataError. `chat_template_kwargs: {"enable_thinking": false}` in a row turns
    thinking off: what reasoning it has is then left out.
    """
    prompt, answer = _parts(row, where)
    messages = (*prompt, *answer)
    _check_order(messages, where)
    tools = _tools(row.get("tools"), where)
    thinking = any(message.thinking is not None for message in messages)
    wanted = (row.get("chat_template_kwargs") or {}).get("enable_thinking", True)
    if not isinstance(wanted, bool):
        raise DataError(f"{where}: enable_thinking is {wanted!r}, expected true or false")
    return messages, tools, thinking and wanted


def num_context(row: Mapping[str, Any], where: str) -> int:
    """How many messages at the start are context only: the prompt's in prompt + completion, none in messages."""
    return len(_parts(row, where)[0])


def _parts(row: Mapping[str, Any], where: str) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """(context, to be trained)."""
    has_messages = row.get("messages") is not None
    has_pair = row.get("prompt") is not None and row.get("completion") is not None
    if has_messages and has_pair:
        raise DataError(f'{where}: has both "messages" and "prompt" with "completion"; keep one of them')
    if has_messages:
        return (), _messages(row["messages"], f'{where}: "messages"')
    if has_pair:
        prompt, completion = (_unpacked(row[key], f'{where}: "{key}"') for key in ("prompt", "completion"))
        if isinstance(prompt, str) != isinstance(completion, str):
            raise DataError(f'{where}: "prompt" and "completion" must both be texts or both be lists of messages')
        if isinstance(prompt, str):
            return (Message("user", prompt),), (_message({"role": "assistant", "content": completion}, f'{where}: "completion"'),)
        return _messages(prompt, f'{where}: "prompt"'), _messages(completion, f'{where}: "completion"')
    if isinstance(row.get("instruction"), str):
        return _instruction(row, where)
    hints = {
        "conversations": 'rename "conversations" to "messages", with "role" and "content" in each',
        "chosen": "this is a preference row; SFT needs one answer",
        "text": "plain text has no turns; put it into messages",
    }
    hint = next((text for key, text in hints.items() if key in row), "see the layouts of SFT data")
    keys = ", ".join(map(str, row)) or "none"
    raise DataError(f'{where}: expected the field "messages", or "prompt" and "completion"; it has {keys}; {hint}')


def _instruction(row: Mapping[str, Any], where: str) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """An instruction with what it is about, if anything, below it; of several instances the first."""
    instances = row.get("instances", [row])
    told = instances[0] if isinstance(instances, list) and instances and isinstance(instances[0], Mapping) else {}
    about, answer = told.get("input") or "", told.get("output")
    if not isinstance(about, str) or not isinstance(answer, str):
        raise DataError(f'{where}: a row with "instruction" needs "input" and "output" as texts, or "instances" that hold them')
    asked = "\n\n".join(filter(None, (row["instruction"].strip(), about.strip())))
    return (Message("user", asked),), (_message({"role": "assistant", "content": answer}, f'{where}: "output"'),)


def _unpacked(value: Any, where: str) -> Any:
    """A list of messages that was stored as JSON text, read; anything else as it is."""
    if isinstance(value, str) and value.lstrip().startswith('[{"'):
        try:
            return _read_json(value)
        except json.JSONDecodeError:
            return value
        except ValueError as error:
            raise DataError(f"{where}: {error}") from error
    return value


def _messages(value: Any, where: str) -> tuple[Message, ...]:
    value = _unpacked(value, where)
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise DataError(f"{where} is {_short(value)}, expected a list of messages with at least one in it")
    return tuple(_message(entry, f"{where}[{i}]") for i, entry in enumerate(value))


def _message(entry: Any, where: str) -> Message:
    if not isinstance(entry, Mapping):
        raise DataError(f'{where} is {_short(entry)}, expected an object with "role" and "content"')
    name = entry.get("role")
    if not isinstance(name, str) or name not in _ROLES:
        way_out = 'rename "from" and "value" to "role" and "content"' if "from" in entry else ""
        raise DataError(unknown(f"{where}: role", str(name), _ROLES, way_out))
    role = _ROLES[name]
    content = _content(entry.get("content"), f"{where}: content")
    thinking = _thinking_field(entry, where)
    calls = tuple(_call(call, f"{where}: tool_calls[{i}]") for i, call in enumerate(entry.get("tool_calls") or ()))
    if role != "assistant" and (calls or thinking):
        raise DataError(f"{where}: a {role} message has tool calls or reasoning; only assistant messages can")
    if role == "assistant":
        content, inline = _split_inline(content, where)
        if thinking is not None and inline is not None:
            raise DataError(f"{where}: has its reasoning twice, in a field and inline as <think>...</think>; keep one of them")
        thinking = thinking if inline is None else inline
        if not (content or calls or thinking):
            raise DataError(
                f"{where}: an assistant message without content, reasoning or tool calls; give it one or remove the row"
            )
    return Message(role, content, thinking or None, calls)


def _content(value: Any, where: str) -> str:
    """Text; null is the empty text; a list of text parts is their concatenation."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, Sequence):
        texts = [part["text"] for part in value if isinstance(part, Mapping) and part.get("type") == "text" and "text" in part]
        if len(texts) == len(value) and all(isinstance(text, str) for text in texts):
            return "".join(texts)
    raise DataError(
        f"{where} is {_short(value)}, expected text or a list of text parts (images and other parts cannot be trained on)"
    )


def _thinking_field(entry: Mapping[str, Any], where: str) -> str | None:
    found = {key: entry[key] for key in ("reasoning_content", "thinking") if entry.get(key) is not None}
    for key, text in found.items():
        if not isinstance(text, str):
            raise DataError(f"{where}: {key} is {_short(text)}, expected text")
    if len(set(found.values())) > 1:
        raise DataError(f"{where}: reasoning_content and thinking differ; keep one of them")
    return next(iter(found.values()), None)


def _split_inline(content: str, where: str) -> tuple[str, str | None]:
    """(content, reasoning) of a content that starts with a think block; an empty block means that there is none."""
    text = content.lstrip()
    if not text.startswith("<think>"):
        return content, None
    reasoning, closed, rest = text.removeprefix("<think>").partition("</think>")
    if not closed:
        raise DataError(f"{where}: its <think> is never closed; add </think>, or remove the row")
    return rest.lstrip("\n"), reasoning.strip("\n")


def _call(entry: Any, where: str) -> ToolCall:
    """A call in the OpenAI layout or as a bare {"name", "arguments"}; arguments as an object, its JSON text, or nothing."""
    if not isinstance(entry, Mapping):
        raise DataError(f'{where} is {_short(entry)}, expected an object with "function"')
    function = entry.get("function", entry)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise DataError(f'{where} has no function name; expected {{"function": {{"name": ..., "arguments": ...}}}}')
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = _read_json(arguments or "{}")
        except ValueError as error:
            raise DataError(f"{where}: arguments are not JSON ({error}); expected an object") from error
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, Mapping):
        raise DataError(f"{where}: arguments are {_short(arguments)}, expected an object")
    return ToolCall(function["name"], dict(arguments))


def _tools(value: Any, where: str) -> tuple[Tool, ...]:
    """Schemas in the OpenAI layout, from a list of them or of bare function objects, or the JSON text of such a list."""
    if isinstance(value, str):
        try:
            value = _read_json(value or "[]")
        except ValueError as error:
            raise DataError(f'{where}: "tools" is text but not JSON ({error}); expected a list of function schemas') from error
    if value is None:
        return ()
    if not isinstance(value, Sequence):
        raise DataError(f'{where}: "tools" is {_short(value)}, expected a list of function schemas')
    tools = []
    for i, entry in enumerate(value):
        entry = _json_object(entry)
        function = entry.get("function", entry) if isinstance(entry, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise DataError(f'{where}: "tools"[{i}] has no function name; expected {{"type": "function", "function": {{...}}}}')
        tools.append({"type": "function", "function": dict(function)})
    return tuple(tools)


def _json_object(entry: Any) -> Any:
    try:
        return _read_json(entry) if isinstance(entry, str) else entry
    except ValueError:
        return entry


def _check_order(messages: Sequence[Message], where: str) -> None:
    for i, message in enumerate(messages):
        before = messages[i - 1].role if i else None
        if message.role == "system" and i:
            raise DataError(f"{where}: message {i} is a system message; only the first can be one")
        if message.role == "tool" and not (before == "tool" or (before == "assistant" and messages[i - 1].tool_calls)):
            raise DataError(f"{where}: message {i} is a tool result, but no tool call stands before it")
    if messages[-1].role != "assistant":
        raise DataError(f"{where}: ends with a {messages[-1].role} message, which nothing answers; remove it, or the row")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
