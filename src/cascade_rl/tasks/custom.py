"""Rows of a file with a reward function of one's own, in TRL's signature: no class to write, nothing to register.

    def close(completions, answer, **kwargs):
        return [1.0 if a in c else 0.0 for c, a in zip(completions, answer)]

is called once for each rollout, with lists of length 1: `prompts` and `completions` as texts where the row's prompt is a text, as
lists of messages where it is a conversation, and every other column of the row under its own name.
"""

import asyncio
import contextlib
import functools
import inspect
import json
import math
import numbers
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from cascade_rl.errors import DataError, GraderError, RecipeError
from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Reward, Rollout
from cascade_rl.tasks import load_task_class
from cascade_rl.tasks.files import FileTask, Item, told
from cascade_rl.tasks.rows import conversation, read_placed
from cascade_rl.tasks.threads import TooSlow, in_thread

MAX_REWARD = 1e100  # what is larger, or not a number, is no verdict; the squares of these can still be summed
CALL_TIMEOUT_S = 30.0  # of one call of a function that is not async
_OWN = ("prompts", "completions", "completion_ids")  # what every reward function is offered besides the columns
_ANSWER = {"role": "assistant", "content": "x"}


@dataclass(frozen=True, kw_only=True)
class RowsTask(FileTask):
    """Rows with a `prompt` (a text, or messages) or `messages`, and any further columns; graded by functions of the user's.

    path: a JSON Lines or Parquet file; or a folder or hub id, of which the files of split `split` (else "train") are read.
    reward: "package.module:function", or several of them; weights: one for each, all 1 when left out. The reward is the weighted
    sum. A function's None means that it does not apply: the rollout is unscored if no function applies, and the sum runs over
    the others if some do. NaN and anything beyond 1e100 are no rewards: the rollout is unscored, with the reason.
    gold: whether the row's `completion`, or the last assistant message of `messages`, is an answer that must score full marks;
    it serves demonstrations and audits. Either is never part of the prompt, nor given to the functions.
    """

    reward: str | tuple[str, ...]
    weights: tuple[float, ...] = ()
    gold: bool = False
    name: str = "rows"
    domain: str = "custom"
    reads_hub: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.reward, list):
            object.__setattr__(self, "reward", tuple(self.reward))
        where = f'task "{self.name}"'
        if not self.places:
            raise RecipeError(f'{where}: reward is empty; expected "package.module:function", or a list of them')
        if len(set(self.places)) < len(self.places):
            raise RecipeError(f"{where}: reward names a function twice; give it the sum of the weights instead")
        if self.weights and len(self.weights) != len(self.places):
            raise RecipeError(
                f"{where}: {len(self.weights)} weights for {len(self.places)} reward functions; expected one for each"
            )
        if not all(math.isfinite(weight) for weight in self.weights):
            raise RecipeError(f"{where}: weights {self.weights} must be finite numbers")
        for place in self.places:
            _load(place, where)

    @property
    def places(self) -> tuple[str, ...]:
        return (self.reward,) if isinstance(self.reward, str) else tuple(self.reward)

    def items(self) -> Iterator[Item]:
        rows = read_placed(self.path, self.split or "train")
        asked = ("prompt", "messages", "completion")
        columns = list(dict.fromkeys(key for _, row in rows for key in row if key not in asked))
        for key in columns:
            if key in _OWN:
                raise DataError(f'{self.path}: a column is named "{key}", which is what reward functions are given; rename it')
        for place in self.places:
            _check_parameters(place, _load(place, f'task "{self.name}"'), columns, self.path)
        for where, row in rows:
            yield self._item(where, row, columns)

    def _item(self, where: str, row: Mapping[str, Any], columns: Sequence[str]) -> Item:
        asked, answer = _asked(row, where)
        if isinstance(asked, str):
            messages, tools = (Message("user", asked),), ()
        else:
            messages, tools, _ = conversation({"messages": [*asked, _ANSWER], "tools": row.get("tools")}, where)
            messages = messages[:-1]
        gold: tuple[Message, ...] = ()
        if self.gold and answer is not None:
            turns = [{"role": "assistant", "content": answer}] if isinstance(answer, str) else answer
            gold = conversation({"messages": turns}, where)[0]
        reference = {"prompt": asked, "columns": {key: row.get(key) for key in columns}}
        try:
            key = json.dumps([asked, row.get("tools")], sort_keys=True)
            json.dumps(reference)
        except (TypeError, ValueError) as error:
            raise DataError(f"{where}: holds a value that JSON has not ({error}); convert the column, or drop it") from None
        return Item(key=key, messages=messages, reference=reference, gold=gold, tools=tuple(tools))

    async def grade(self, rollout: Rollout, tools: Tools | None = None) -> Reward:
        """The weighted sum. Raises GraderError for a function that does not give one number (or None) for one completion."""
        names = [place.partition(":")[2] for place in self.places]
        names = names if len(set(names)) == len(names) else list(self.places)
        parts: dict[str, float] = {}
        total = 0.0
        for place, name, weight in zip(self.places, names, self.weights or (1.0,) * len(names), strict=True):
            value = await _score(place, rollout, f'task "{self.name}"')
            if value is None:
                continue
            if not abs(value) <= MAX_REWARD:
                return Reward(None, parts, f'reward function "{place}" gave {value}')
            parts[name] = value
            total += weight * value
        if not parts:
            return Reward(None, why=f"no verdict: {' and '.join(names)} gave None")
        if not abs(total) <= MAX_REWARD:
            return Reward(None, parts, f"the weighted sum of the rewards is {total}")
        return Reward(total, parts, ", ".join(f"{name} {value:g}" for name, value in parts.items()))


def _asked(row: Mapping[str, Any], where: str) -> tuple[str | list[Any], str | list[Any] | None]:
    """(the prompt as the row has it, the answer that it has too, or None)."""
    prompt, messages = row.get("prompt"), row.get("messages")
    if (prompt is None) == (messages is None):
        raise DataError(f'{where}: expected either "prompt" or "messages"; it has {", ".join(row) or "nothing"}')
    asked, answer = (prompt, row.get("completion")) if messages is None else (messages, None)
    if isinstance(messages, list) and len(messages) > 1 and _role(messages[-1]) == "assistant":
        asked, answer = messages[:-1], messages[-1:]
    if not (isinstance(asked, str) and asked.strip()) and not (isinstance(asked, list) and asked):
        raise DataError(f"{where}: the prompt is {str(asked)[:60]!r}; expected a text or a list of messages")
    if isinstance(asked, list) and _role(asked[-1]) == "assistant":
        raise DataError(
            f"{where}: the prompt ends with an assistant message, so there is nothing to answer; remove it, or the row"
        )
    return asked, answer


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, Mapping) else None


# --- calling ------------------------------------------------------------------------------------------------------------------------


@functools.cache
def _load(place: str, where: str) -> Callable[..., Any]:
    if ":" not in place:
        raise RecipeError(f'{where}: reward "{place}" must read "package.module:function"')
    function: Any = load_task_class(place, f"{where}: reward")
    if not callable(function):
        raise RecipeError(f'{where}: reward "{place}" is a {type(function).__name__}; expected a function')
    return function


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """The named parameters of a function, or None for one that takes everything (**kwargs, or a signature hidden from Python)."""
    with contextlib.suppress(TypeError, ValueError):
        parameters = inspect.signature(function).parameters
        if all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
            return parameters
    return None


def _check_parameters(place: str, function: Callable[..., Any], columns: Sequence[str], path: str) -> None:
    """Raises GraderError when the function needs a column that the rows do not have."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some compiled functions do not tell
        return
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for name, parameter in parameters.items():
        if parameter.kind in named and parameter.default is inspect.Parameter.empty and name not in (*_OWN, *columns):
            raise GraderError(
                f'reward function "{place}" needs "{name}", and {path} has no such column;'
                f" it is given {', '.join((*_OWN, *columns))}"
            )


async def _score(place: str, rollout: Rollout, where: str) -> float | None:
    """What one function says of one rollout."""
    function = _load(place, where)
    given = _arguments(rollout)
    parameters = _parameters(function)
    if parameters is not None:
        given = {name: value for name, value in given.items() if name in parameters}
    try:
        if inspect.iscoroutinefunction(function):
            scores = await function(**given)
        else:
            async with _one_at_a_time():
                scores = await in_thread("reward-function", lambda: function(**given), CALL_TIMEOUT_S)
            scores = await scores if inspect.isawaitable(scores) else scores
    except TooSlow:
        raise RuntimeError(f'reward function "{place}" gave no answer in {CALL_TIMEOUT_S:g} s') from None
    except (Exception, SystemExit) as error:  # anyone's code: what grades must see a failure of the function, not of ours
        raise RuntimeError(f'reward function "{place}" raised {type(error).__name__}: {error}') from error
    return _one_number(scores, place)


def _arguments(rollout: Rollout) -> dict[str, list[Any]]:
    asked, columns = rollout.prompt.reference["prompt"], rollout.prompt.reference["columns"]
    message = told(rollout)
    completion: Any = message.content
    if not isinstance(asked, str):
        said: dict[str, Any] = {"role": "assistant", "content": message.content}
        if message.thinking:
            said["reasoning_content"] = message.thinking
        if message.tool_calls:
            said["tool_calls"] = [
                {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
                for call in message.tool_calls
            ]
        completion = [said]
    ids = [token for turn in rollout.turns for token in turn.answer_ids]
    given = {"prompts": [asked], "completions": [completion], "completion_ids": [ids]}
    return {**given, **{key: [value] for key, value in columns.items()}}


def _one_number(scores: Any, place: str) -> float | None:
    """The single entry of what a function gave for a single completion."""
    if isinstance(scores, (str, bytes, Mapping)) or not hasattr(scores, "__len__") or not hasattr(scores, "__getitem__"):
        raise GraderError(
            f'reward function "{place}" gave {_short(scores)} for 1 completion; expected a list with 1 number or None'
        )
    if len(scores) != 1:
        raise GraderError(
            f'reward function "{place}" gave {len(scores)} scores for 1 completion; expected a list with 1 number or None'
        )
    score = scores[0]
    if hasattr(score, "item"):  # a NumPy or torch scalar
        score = score.item()
    if score is None:
        return None
    if not isinstance(score, numbers.Real):
        raise GraderError(f'reward function "{place}" gave the score {_short(score)}; expected a number, or None for no verdict')
    try:
        return float(score)
    except OverflowError:
        return math.inf


def _short(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


# Functions that are not async run one at a time, as TRL calls them.

_locks: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]" = weakref.WeakKeyDictionary()


def _one_at_a_time() -> asyncio.Lock:
    return _locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
