"""The nano world: nine tasks that are made, not collected, and small enough for a model of a few million parameters.

One for each domain of a post-training cascade: instructions (if), choice, tools, schema, math, chat, needle (long), program
(code) and repair (swe). Each makes its prompts, demonstrations and verdicts from a seed; nothing is
downloaded, and answers are run only in the sandbox.
"""

import re
from collections.abc import Iterator
from typing import Any

from cascade_rl.model.chatml import chat_template
from cascade_rl.records import Message
from cascade_rl.tasks.drawn import DrawnTask
from cascade_rl.tasks.nano.chat import ChatTask
from cascade_rl.tasks.nano.choice import ChoiceTask
from cascade_rl.tasks.nano.instructions import InstructionsTask
from cascade_rl.tasks.nano.math import MathTask
from cascade_rl.tasks.nano.needle import NeedleTask
from cascade_rl.tasks.nano.program import ProgramTask
from cascade_rl.tasks.nano.repair import RepairTask
from cascade_rl.tasks.nano.schema import SchemaTask
from cascade_rl.tasks.nano.tools import ToolsTask
from cascade_rl.tasks.nano.words import COPIED

__all__ = [
    "NANO_TASKS",
    "ChatTask",
    "ChoiceTask",
    "InstructionsTask",
    "MathTask",
    "DrawnTask",
    "NeedleTask",
    "ProgramTask",
    "RepairTask",
    "SchemaTask",
    "ToolsTask",
    "corpus",
]

NANO_TASKS: dict[str, type[DrawnTask]] = {
    "instructions": InstructionsTask,
    "choice": ChoiceTask,
    "tools": ToolsTask,
    "schema": SchemaTask,
    "math": MathTask,
    "chat": ChatTask,
    "needle": NeedleTask,
    "program": ProgramTask,
    "repair": RepairTask,
}
_CORPUS_ROWS = 400  # of each task; more rows move hardly a merge
_CORPUS_WORD_REPEATS = 100


_MARKS = re.compile(r"<\|\w+\|>|</?(?:think|tool_call|tool_response)>")  # tokens of their own: no text to learn from


def corpus() -> Iterator[str]:
    """The text that a nano model's tokenizer is trained on: rendered training prompts of all tasks, with their demonstrations."""
    from transformers.utils.chat_template_utils import render_jinja_template

    for task in NANO_TASKS.values():
        for prompt in task(num_train=_CORPUS_ROWS).prompts("train"):
            messages = [_as_dict(message) for message in (*prompt.messages, *prompt.gold)]
            (text,), _ = render_jinja_template(
                [messages], tools=[dict(tool) for tool in prompt.tools] or None, chat_template=chat_template()
            )
            yield from filter(None, _MARKS.split(text))
    for word in COPIED:
        yield from [f"{word} {word}"] * _CORPUS_WORD_REPEATS


def _as_dict(message: Message) -> dict[str, Any]:
    calls = [{"type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in message.tool_calls]
    return {"role": message.role, "content": message.content, "reasoning_content": message.thinking, "tool_calls": calls}
