"""Conversations to imitate: the demonstrations of a task, or rows of a file, as messages and as ids."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cascade_rl.errors import DataError, RenderError
from cascade_rl.model.render import Renderer, Tool
from cascade_rl.protocols import Task
from cascade_rl.records import Message, Sample
from cascade_rl.tasks.rows import conversation, num_context, read_placed

# More than a chat template writes around a message, and around a list of tools, in tokens.
AROUND_MESSAGE, AROUND_TOOLS = 48, 512


class Demonstration(NamedTuple):
    """where: the prompt's id, or file and line. context: how many messages at the start are never trained."""

    where: str
    messages: tuple[Message, ...]
    tools: Sequence[Tool]
    thinking: bool
    context: int

    @property
    def most_tokens(self) -> int:
        """It has no more tokens than this, as each is a byte at least: found without a tokenizer."""
        calls = [call.name + _text(call.arguments) for m in self.messages for call in m.tool_calls]
        told = [text for m in self.messages for text in (m.content, m.thinking or "")]
        around = AROUND_MESSAGE * (len(self.messages) + 1) + (AROUND_TOOLS + len(_text(self.tools)) if self.tools else 0)
        return sum(len(text.encode()) for text in (*told, *calls)) + around


def demonstrations(tasks: Mapping[str, Task], task: str, rows: str, num: int) -> Iterator[Demonstration]:
    """Those of a task's training prompts, or of a file's rows; at most `num` (0: all). Raises DataError for a bad row."""
    if task:
        for prompt in [prompt for prompt in tasks[task].prompts("train") if prompt.gold][: num or None]:
            told = (*prompt.messages, *prompt.gold)
            yield Demonstration(prompt.id, told, prompt.tools, prompt.thinking, len(prompt.messages))
    else:
        for where, row in read_placed(rows)[: num or None]:
            yield Demonstration(where, *conversation(row, where), num_context(row, where))


def samples(renderer: Renderer, found: Iterable[Demonstration], domain: str) -> Iterator[Sample]:
    """As ids and masks, with where they came from. Assistant messages of the prompt itself are context: only what follows them is
    trained. Raises DataError with the place for a conversation that the format cannot express."""
    for where, messages, tools, thinking, context in found:
        try:
            parts = renderer.conversations(messages, tools, thinking, context)
        except RenderError as error:
            raise DataError(f"{where}: {error}") from None
        for part in parts:
            ids, mask = np.array(part.token_ids, dtype=np.int32), np.array(part.mask, dtype=bool)
            yield Sample(ids, mask, domain=domain, source=where)


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=True)
