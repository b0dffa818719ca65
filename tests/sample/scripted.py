"""A sampler that says what it is told, and a task with tools whose reward is their final state."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.model.tiny import tiny_tokenizer

from cascade_rl.errors import ToolError
from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Prompt, Reward, Rollout, ToolCall, Turn

ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}},
}
CALL = "<tool_call>\n<function=add>\n<parameter=n>\n{}\n</parameter>\n</function>\n</tool_call>"


@dataclass
class Counter:
    """Tools with a state: what was added."""

    total: int = 0
    closed: bool = False
    closing: str = ""

    async def call(self, call: ToolCall) -> str:
        n = call.arguments.get("n")
        if n == 13:
            raise ToolError("13 is not liked")
        if n == 666:
            raise RuntimeError("the database is gone")
        if n == 99:
            await asyncio.sleep(60)
        self.total += int(n)
        return f"total {self.total}"

    async def close(self) -> None:
        self.closed = True
        if self.closing == "hangs":
            await asyncio.sleep(60)
        if self.closing == "crashes":
            raise OSError("the container is gone")


@dataclass
class Adding:
    """A task whose reward is the tools' final state."""

    name: str = "adding"
    domain: str = "tools"
    max_turns: int = 3
    opened: list[Counter] = field(default_factory=list)
    grading: Any = None
    opening: Any = None

    def prompts(self, split: str) -> list[Prompt]:
        return []

    def open_tools(self, prompt: Prompt) -> Tools | None:
        self.opened.append(self.opening() if self.opening else Counter())
        return self.opened[-1]

    async def grade(self, rollout: Rollout, tools: Tools | None) -> Reward:
        if self.grading is not None:
            return await self.grading(rollout)
        assert isinstance(tools, Counter)
        return Reward(float(tools.total), why=rollout.answer)


class Scripted:
    """A sampler that says what it is told, turn by turn (texts, or ids), and remembers what it was asked."""

    def __init__(self, *script: list[Any]) -> None:
        self.tokenizer = tiny_tokenizer()
        self.script = [list(turns) for turns in script]
        self.asked: list[tuple[list[list[int]], Any]] = []

    def sample(self, contexts: Sequence[Sequence[int]], n: int, params: Any, seeds: Sequence[int]) -> list[list[Turn]]:
        self.asked.append(([list(c) for c in contexts], params))
        turns = []
        for _ in contexts:
            row = []
            for _ in range(n):
                said = self.script.pop(0)[0]
                ids = tuple(self.tokenizer.encode(said, add_special_tokens=False) if isinstance(said, str) else said)
                ended = self.tokenizer.decode(ids).endswith("<|im_end|>")
                row.append(Turn((), ids, (-0.5,) * len(ids), "stop" if ended else "length"))
            turns.append(row)
        return turns


def prompt(number: int = 0) -> Prompt:
    return Prompt(f"adding/train/{number}", "adding", "tools", "train", (Message("user", "add"),), tools=(ADD,), thinking=False)
