"""What a chat template can express, found out by rendering a few harmless conversations."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cascade_rl.errors import RenderError
from cascade_rl.model.toolcalls import ToolFormat

# Words that no template writes by itself.
_USER, _MORE, _SYSTEM, _ANSWER, _THOUGHT = "Zuser", "Zmore", "Zsystem", "Zanswer", "Zthought"
_NAME, _VALUE, _RESULT = "zname", "Zvalue", "Zresult"
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string", "description": "Text."}}, "required": ["x"]},
    },
}


class Apply(Protocol):
    """Renders messages in the layout of chat templates; raises RenderError where the template refuses them."""

    def __call__(
        self, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]], generate: bool, thinking: bool
    ) -> str: ...


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a template keeps of a conversation, and the texts around an assistant turn.

    system ... thinking   whether the template shows the system message, tools, calls, results and the reasoning of the last turn.
    tool_format           how it writes calls, or None if it does not, or in another way.
    stop                  the control token that ends an assistant turn.
    opens_thinking        by thinking mode: whether the generation prompt ends inside a think block.
    keeps_history         by thinking mode: whether a turn stays as it was sampled when a user message follows it.
    after_open ...        what stands between the think tags and what is around them.
    """

    system: bool
    tools: bool
    calls: bool
    results: bool
    thinking: bool
    tool_format: ToolFormat | None
    stop: str
    opens_thinking: Mapping[bool, bool]
    keeps_history: Mapping[bool, bool]
    after_open: str = ""
    before_close: str = ""
    after_close: str = ""


def probe(apply: Apply, think_open: str, think_close: str, controls: re.Pattern[str]) -> Abilities:
    """Raises RenderError when the template cannot render a plain exchange or does not end a turn with a control token."""
    user, answer = {"role": "user", "content": _USER}, {"role": "assistant", "content": _ANSWER}
    plain = apply([user, answer], [], False, False)
    ending = controls.match(plain, plain.rindex(_ANSWER) + len(_ANSWER)) if _ANSWER in plain else None
    if ending is None:
        raise RenderError(
            "chat template: does not end an assistant turn with a control token, so its sampled tokens cannot be determined;"
            ' use format = "chatml"'
        )
    thoughtful = answer | {"reasoning_content": _THOUGHT}
    shown = _try(apply, [user, thoughtful], [], False, True)
    tags = re.search(
        f"{re.escape(think_open)}([^<]*){_THOUGHT}([^<]*){re.escape(think_close)}([^<]*){_ANSWER}", shown, flags=re.DOTALL
    )
    call = {"id": "call00000", "type": "function", "function": {"name": _NAME, "arguments": {"x": _VALUE}}}
    calling = answer | {"tool_calls": [call]}
    called = _try(apply, [user, calling], [_TOOL], False, False)
    calls = _NAME in called[called.find(_ANSWER) :] and _VALUE in called
    result = {"role": "tool", "content": _RESULT, "name": _NAME, "tool_call_id": "call00000"}
    return Abilities(
        system=_SYSTEM in _try(apply, [{"role": "system", "content": _SYSTEM}, user], [], True, True),
        tools=_NAME in _try(apply, [user], [_TOOL], True, True),
        calls=calls,
        results=_RESULT in _try(apply, [user, calling, result], [_TOOL], True, True),
        thinking=tags is not None,
        tool_format=_tool_format(called) if calls else None,
        stop=ending.group(),
        opens_thinking={mode: _after_user(apply, user, mode).rstrip().endswith(think_open) for mode in (True, False)},
        keeps_history={
            True: _keeps_history(apply, user, thoughtful if tags else answer, ending.group(), True),
            False: _keeps_history(apply, user, answer, ending.group(), False),
        },
        after_open=tags.group(1) if tags else "",
        before_close=tags.group(2) if tags else "",
        after_close=tags.group(3) if tags else "",
    )


def _try(apply: Apply, messages: list[dict[str, Any]], tools: list[Any], generate: bool, thinking: bool) -> str:
    """The rendering, or "" where the template refuses."""
    try:
        return apply(messages, tools, generate, thinking)
    except RenderError:
        return ""


def _after_user(apply: Apply, user: dict[str, Any], thinking: bool) -> str:
    text = apply([user], [], True, thinking)
    return text[text.rindex(_USER) + len(_USER) :]


def _keeps_history(apply: Apply, user: dict[str, Any], answer: dict[str, Any], stop: str, thinking: bool) -> bool:
    sampled = apply([user, answer], [], False, thinking)
    sampled = sampled[: sampled.rindex(stop) + len(stop)]
    begun = apply([user], [], True, thinking)
    return sampled.startswith(begun) and apply([user, answer, {"role": "user", "content": _MORE}], [], True, thinking).startswith(
        sampled
    )


def _tool_format(called: str) -> ToolFormat | None:
    if f"<tool_call>\n<function={_NAME}>" in called:
        return "xml"
    return "hermes" if re.search(rf'<tool_call>\s*{{"name": "{_NAME}", "arguments": {{"x": "{_VALUE}"}}}}', called) else None
