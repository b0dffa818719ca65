"""Tool calls on a small database in memory, graded by the state they leave behind."""

import contextlib
import copy
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from cascade_rl.errors import RecipeError, ToolError, unknown
from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Prompt, Reward, Rollout, ToolCall
from cascade_rl.tasks.drawn import Draft, DrawnTask, quote, verdict
from cascade_rl.tasks.nano.words import DAYS, EVENTS, FOODS, NAMES, THINGS

State = dict[str, Any]

# Small talk that needs no call: what is said, the reply, and a word that any fit reply holds.
_TALK = (
    (("Thank you!", "Thanks a lot!", "Many thanks!"), "You are welcome.", "welcome"),
    (("Good day!", "Hello!", "Hi!"), "How can I help?", "help"),
    (("Goodbye!", "Bye!", "See you!"), "Bye!", "bye"),
    (("That is all.", "No more now.", "I am done."), "Good.", "good"),
)


def _tool(name: str, /, **properties: str) -> dict[str, Any]:
    """A function schema in the OpenAI layout, every parameter required."""
    parameters = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": list(properties),
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of database: one mapping from `key` to `value`, with a tool that looks a key up and one that sets it."""

    tools: tuple[dict[str, Any], dict[str, Any]]
    key: str
    value: str
    looks_up: tuple[str, ...]
    sets: tuple[str, ...]
    copies: tuple[str, ...]  # from key a to key b; a stock has changes in their place
    tells: str


KINDS: Mapping[str, Kind] = {
    "stock": Kind(
        (_tool("get_count", item="string"), _tool("set_count", item="string", count="integer")),
        "item",
        "count",
        ("How many {a}s do we have?", "What is the count of {a}s?", "Count of {a}s?"),
        ("Set the {a} count to {v}.", "We now have {v} {a}s, note it.", "Note {v} for the {a}."),
        (),
        "There are {v}.",
    ),
    "phones": Kind(
        (_tool("get_phone", name="string"), _tool("set_phone", name="string", phone="integer")),
        "name",
        "phone",
        ("What is the phone of {a}?", "How can I call {a}?", "Phone of {a}?"),
        ("Set the phone of {a} to {v}.", "{a} now has phone {v}, note it.", "Note {v} for {a}."),
        ("{b} has the same phone as {a} now.", "Give {b} the phone of {a}."),
        "It is {v}.",
    ),
    "calendar": Kind(
        (_tool("get_event", day="string"), _tool("set_event", day="string", event="string")),
        "day",
        "event",
        ("What is on {a}?", "What do I do on {a}?", "Event on {a}?"),
        ("Put {v} on {a}.", "On {a} I have {v}, note it.", "Note {v} for {a}."),
        ("On {b} I do the same as on {a}.", "Put on {b} what is on {a}."),
        "It is {v}.",
    ),
}
_CHANGES = (("{c} more {a}s came in.", 1), ("We got {c} {a}s.", 1), ("We sold {c} {a}s.", -1), ("{c} {a}s are gone.", -1))


class Database:
    """The live tools of one rollout: one mapping and the two tools of its kind."""

    def __init__(self, kind: str, state: State) -> None:
        self.state: State = copy.deepcopy(state)
        self._kind = KINDS[kind]

    async def call(self, call: ToolCall) -> str:
        return self.run(call)

    async def close(self) -> None:
        pass

    def run(self, call: ToolCall) -> str:
        """The value looked up, or "ok" for a value set; ToolError for a tool, argument or key that does not exist."""
        kind = self._kind
        tools = {tool["function"]["name"]: tool["function"]["parameters"]["properties"] for tool in kind.tools}
        if call.name not in tools:
            raise ToolError(f"no tool {call.name[:40]}; tools: {', '.join(tools)}")
        wanted = tools[call.name]
        if set(call.arguments) != set(wanted):
            raise ToolError(f"{call.name} takes {', '.join(wanted)}")
        for key, schema in wanted.items():
            if not _is_a(schema["type"], call.arguments[key]):
                raise ToolError(f"{key} must be a {schema['type']}")
        key = call.arguments[kind.key]
        if kind.value in wanted:
            self.state[key] = call.arguments[kind.value]
            return "ok"
        if key not in self.state:
            raise ToolError(f"no {key[:40]}")
        return str(self.state[key])


def _is_a(kind: str, value: Any) -> bool:
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, str) and len(value) <= 100


@dataclass(frozen=True, kw_only=True)
class ToolsTask(DrawnTask):
    """`"We sold 2 cups."` asks for a look into the stock, then for a write; `"Thank you!"` asks for no call at all.

    kinds: the kinds of database ("stock", "phones", "calendar"). num_keys: how many entries one has.
    talk_share: the share of prompts that need no call. missing_share: the share of look-ups of what is not there, where the tool
    gives an error.
    """

    kinds: tuple[str, ...] = ("stock", "phones")
    num_keys: int = 3
    talk_share: float = 0.2
    missing_share: float = 0.2
    thinking: bool = False

    name: str = "nano.tools"
    domain: str = "tools"
    metric: ClassVar[str] = "final_state"

    def __post_init__(self) -> None:
        super().__post_init__()
        for kind in self.kinds:
            if kind not in KINDS:
                raise RecipeError(unknown(f'task "{self.name}": kinds: name', kind, KINDS))
        if not self.kinds:
            raise RecipeError(f'task "{self.name}": kinds is empty; name at least one of {", ".join(KINDS)}')
        if not 2 <= self.num_keys <= 3:
            raise RecipeError(f'task "{self.name}": num_keys {self.num_keys} must be 2 or 3 (a calendar has 4 different events)')

    @property
    def max_turns(self) -> int:
        return 4

    def open_tools(self, prompt: Prompt) -> Database:
        return Database(prompt.reference["kind"], prompt.reference["state"])

    def draw(self, rng: random.Random) -> Draft:
        kind = rng.choice(self.kinds)
        spec = KINDS[kind]
        keys, values = _entries(rng, kind, self.num_keys + 1)
        new_value = values.pop()
        state = dict(zip(keys, values, strict=False))
        if rng.random() < self.talk_share:
            asks, reply, says = rng.choice(_TALK)
            question = f"{rng.choice(asks)} I am {rng.choice(NAMES)}."
            return self._draft(kind, state, ["talk", question], question, [], reply, says)
        a, b, *_ = rng.sample(keys[:-1], self.num_keys)
        action = rng.choice(("look up", "set", "change"))
        if action == "look up":
            a = keys[-1] if rng.random() < self.missing_share else a
            found = a in state
            reply = spec.tells.format(v=state[a]) if found else f"There is no {a}."
            question = rng.choice(spec.looks_up).format(a=a)
            says = str(state[a]) if found else "no"
            return self._draft(kind, state, [kind, action, a], question, [_get(spec, a)], reply, says)
        if action == "set":
            question = rng.choice(spec.sets).format(a=a, v=new_value)
            return self._draft(kind, state, [kind, action, a, new_value], question, [_set(spec, a, new_value)], "Done.")
        if kind == "stock":
            form, sign = rng.choice(_CHANGES)
            change = sign * (rng.randint(2, 9) if sign > 0 else rng.randint(1, state[a]))
            question = form.format(a=a, c=abs(change))
            calls = [_get(spec, a), _set(spec, a, state[a] + change)]
            return self._draft(kind, state, [kind, action, a, change], question, calls, "Done.")
        question = rng.choice(spec.copies).format(a=a, b=b)
        return self._draft(kind, state, [kind, action, a, b], question, [_get(spec, a), _set(spec, b, state[a])], "Done.")

    def _draft(
        self, kind: str, state: State, key: list[Any], question: str, calls: list[ToolCall], reply: str, says: str = ""
    ) -> Draft:
        """One call a turn, each followed by the database's result, then the reply; `says` is a word that the reply must hold."""
        database = Database(kind, state)
        gold = []
        for call in calls:
            try:
                result = database.run(call)
            except ToolError as error:
                result = f"Error: {error}"  # as a live tool's error reads
            gold += [Message("assistant", tool_calls=(call,)), Message("tool", result)]
        gold.append(Message("assistant", reply))
        reference = {"kind": kind, "state": state, "final": database.state, "says": says, "needs_calls": bool(calls)}
        return Draft(key, question, tuple(gold), reference, False, KINDS[kind].tools)

    def judge(self, rollout: Rollout, answer: str, tools: Tools | None) -> Reward:
        reference = rollout.prompt.reference
        calls = [call for message in rollout.messages for call in message.tool_calls]
        if calls and not reference["needs_calls"]:
            return verdict(False, "called a tool where none was needed")
        database = tools if isinstance(tools, Database) else self._replay(rollout.prompt, calls)
        if not _same(database.state, reference["final"]):
            return verdict(False, "the database is not in the state that the request asks for")
        if reference["says"] and reference["says"] not in re.findall(r"\w+", answer.casefold()):
            return verdict(False, f'the answer does not say "{reference["says"]}"')
        others = sorted(set(re.findall(r"\d+", answer)) - {reference["says"]})
        if reference["says"].isdecimal() and others:
            return verdict(False, f"the answer also says {quote(', '.join(others))}, which is a list of guesses")
        return verdict(True, "the right state and an answer")

    def _replay(self, prompt: Prompt, calls: list[ToolCall]) -> Database:
        """The database after the calls, where the live one is not at hand."""
        database = self.open_tools(prompt)
        for call in calls:
            with contextlib.suppress(ToolError):
                database.run(call)
        return database


def _entries(rng: random.Random, kind: str, num: int) -> tuple[list[str], list[Any]]:
    """`num` different keys and `num` different values for a database of this kind: a value set always changes something."""
    if kind == "stock":
        return rng.sample(THINGS + FOODS, num), rng.sample(range(2, 10), num)
    if kind == "phones":
        return rng.sample(NAMES, num), rng.sample(range(10, 100), num)
    return rng.sample(DAYS, num), rng.sample(EVENTS, num)


def _get(kind: Kind, key: str) -> ToolCall:
    return ToolCall(kind.tools[0]["function"]["name"], {kind.key: key})


def _set(kind: Kind, key: str, value: Any) -> ToolCall:
    return ToolCall(kind.tools[1]["function"]["name"], {kind.key: key, kind.value: value})


def _same(one: State, other: State) -> bool:
    """Equal states, where 1, 1.0 and True are three different values."""
    return one == other and all(type(one[key]) is type(other[key]) for key in one)
