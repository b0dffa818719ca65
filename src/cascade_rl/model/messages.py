"""Messages on their way into a chat template."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cascade_rl.model.controls import Shield
from cascade_rl.model.toolcalls import ToolFormat, format_tool_call
from cascade_rl.records import Message, ToolCall


@dataclass(frozen=True, slots=True)
class Told:
    """A conversation as a template is to see it. offset: how many messages were put before the conversation's own."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    offset: int

    def until(self, i: int) -> "Told":
        return Told(self.messages[: i + self.offset], self.tools, self.offset)


def hidden(message: Message, shield: Shield) -> Message:
    """A message with everything that data wrote behind the shield."""
    return Message(
        message.role,
        shield.hide(message.content),
        None if message.thinking is None else shield.hide(message.thinking),
        tuple(ToolCall(shield.hide(call.name), shield.hide_all(call.arguments)) for call in message.tool_calls),
    )


def as_dicts(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as chat templates know them. Calls get ids, and results the id and the name of the call that they answer."""
    told: list[dict[str, Any]] = []
    waiting: list[tuple[str, str]] = []
    num_calls = 0
    for message in messages:
        entry: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.thinking is not None:
            entry["reasoning_content"] = message.thinking
        if message.role != "tool":
            waiting = []
        elif waiting:
            entry["tool_call_id"], entry["name"] = waiting.pop(0)
        if message.tool_calls:
            entry["tool_calls"] = []
            for call in message.tool_calls:
                waiting.append((f"call{num_calls:05d}", call.name))
                function = {"name": call.name, "arguments": dict(call.arguments)}
                entry["tool_calls"].append({"id": waiting[-1][0], "type": "function", "function": function})
                num_calls += 1
        told.append(entry)
    return told


def with_tools_as_text(messages: Sequence[Message], block: str, tool_format: ToolFormat) -> list[Message]:
    """The same conversation for a template without tools: tools under system, calls in the content, results under user.

    block: the description of the tools, or "" if there are none. Consecutive results share one user message.
    """
    told: list[Message] = []
    if block:
        system = messages[0].content if messages[0].role == "system" else ""
        messages = messages[1:] if messages[0].role == "system" else messages
        told.append(Message("system", f"{system}\n\n{block}" if system else block))
    last = ""
    for message in messages:
        if message.role == "tool":
            before = told.pop().content if last == "tool" else ""
            told.append(Message("user", f"{before}<tool_response>\n{message.content}\n</tool_response>\n"))
        elif message.tool_calls:
            calls = [format_tool_call(call, tool_format) for call in message.tool_calls]
            content = "\n".join([*([message.content] if message.content else []), *calls])
            told.append(replace(message, content=content, tool_calls=()))
        else:
            told.append(message)
        last = message.role
    return told
