"""Messages to tokens and back, with the exact mask of sampled tokens.

Every model renders through a Jinja chat template: ours (`chatml.py`) or the one its tokenizer brings. What a template drops is
found out at load, by rendering a few probes; a conversation that needs it is refused. The sampled tokens of an assistant turn are
what the template adds to its own generation prompt, up to and with the stop token. Nothing is inferred where that does not hold.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from cascade_rl.errors import RenderError, unknown
from cascade_rl.model.chatml import chat_template, tool_block_template
from cascade_rl.model.controls import Controls, Shield
from cascade_rl.model.messages import Told, as_dicts, hidden, with_tools_as_text
from cascade_rl.model.template_probe import Abilities, probe
from cascade_rl.model.toolcalls import ToolFormat, format_tool_call, parse_tool_calls
from cascade_rl.records import Message, ToolCall

Tool = Mapping[str, Any]
Format = Literal["auto", "chatml", "template"]


@dataclass(frozen=True, slots=True)
class RenderConfig:
    """How to render: `RenderConfig(format="chatml", tool_format="hermes")`.

    format           "chatml" (ours), "template" (the tokenizer's own), or "auto": its own if it has one, else ours.
    tool_format      how calls are written: "xml", "hermes", or "auto": as the template writes them; ours writes XML.
    think_open       the tags around reasoning; a template of the model's own must use the same.
    strip_history    (ours) whether assistant turns before the last user message lose their reasoning.
    default_system   system text for conversations that have none; none is ever invented.
    tools_in_system  for a template without tools: describe them in the system message, write calls into the content and give
                     results under the user role, all in our own format.
    template_kwargs  more variables for the template, such as {"date_string": "1 Jan 2026"}.
    """

    format: Format = "auto"
    tool_format: Literal["auto"] | ToolFormat = "auto"
    think_open: str = "<think>"
    think_close: str = "</think>"
    strip_history: bool = True
    default_system: str = ""
    tools_in_system: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.format not in get_args(Format):
            raise RenderError(unknown("renderer: format", self.format, get_args(Format)))
        if self.tool_format not in ("auto", "xml", "hermes"):
            raise RenderError(unknown("renderer: tool_format", self.tool_format, ("auto", "xml", "hermes")))
        if not self.think_open or not self.think_close or self.think_open == self.think_close:
            raise RenderError(f"renderer: think tags {self.think_open!r} and {self.think_close!r} must be two different texts")


@dataclass(frozen=True, slots=True)
class Rendered:
    """What trains: `Rendered([1, 5, 9, 2], [False, False, True, True])`.

    mask: the tokens that the assistant would have sampled, the stop token included.
    """

    token_ids: list[int]
    mask: list[bool]


@dataclass(frozen=True, slots=True)
class Parsed:
    """A sampled answer as a message: `Parsed(Message("assistant", "12", thinking="7 + 5"), 0)`.

    format_errors: malformed tool calls and tags out of place.
    """

    message: Message
    format_errors: int


class Renderer:
    """One format for one tokenizer; see `load_renderer`.

    stop_ids     ids that end an assistant turn; the first is the one that training teaches.
    max_context  how many tokens the model can see, or None if nobody says.
    template     the Jinja source in use.
    abilities    what the template can express.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, config: RenderConfig, template: str, max_context: int | None) -> None:
        self.tokenizer = tokenizer
        self.config = config
        self.template = template
        self.max_context = max_context
        self.controls = Controls(tokenizer)
        self.abilities: Abilities = probe(self._apply, config.think_open, config.think_close, self.controls.pattern)
        self.tool_format: ToolFormat | None = self._choose_tool_format()
        stop = self.controls.ids[self.abilities.stop]
        eos = tokenizer.eos_token_id
        self.stop_ids: tuple[int, ...] = (stop,) if eos is None or eos == stop else (stop, cast(int, eos))
        self._check_ids()

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids, special tokens and spaces as they are: for people to read."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    # The four questions.

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = (), thinking: bool = True) -> list[int]:
        """Ids of the conversation so far and of the generation prompt: what a sampler continues."""
        shield = self.controls.shield()
        told = self._told(messages, tools, shield)
        return self.controls.encode(self._render(told, generate=True, thinking=thinking), shield)

    def extend(self, messages: Sequence[Message], thinking: bool = True) -> list[int]:
        """Ids that follow a finished assistant turn, whose stop token is already there: `messages`, then the generation prompt.

        For tool results; for a user message only where the template leaves earlier turns as they were sampled (else RenderError:
        that is a new prompt).
        """
        if not messages or any(message.role not in ("tool", "user") for message in messages):
            raise RenderError("renderer: only tool and user messages can follow an assistant turn; for others call prompt()")
        if not self.abilities.keeps_history[thinking] and any(message.role == "user" for message in messages):
            raise RenderError(
                "renderer: this format rewrites earlier assistant turns when a user message follows them, so the sampled tokens"
                " cannot be extended; render the whole conversation with prompt() (a fork)"
            )
        marker = "marker-of-the-last-answer"
        calls = tuple(ToolCall("call", {}) for message in messages if message.role == "tool")
        shield = self.controls.shield()
        before = [Message("user", "x"), Message("assistant", marker, tool_calls=calls)]
        text = self._render(self._told([*before, *messages], (), shield), generate=True, thinking=thinking)
        stop = self.abilities.stop
        return self.controls.encode(text[text.index(stop, text.index(marker)) + len(stop) :], shield)

    def conversations(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), thinking: bool = True, context: int = 0
    ) -> list[Rendered]:
        """The training view: every assistant turn from index `context` on trains exactly once.

        A turn that extends the one before it as a text prefix joins its sequence; where the template rewrites history (reasoning
        that is stripped at the next user message), a new sequence begins with that history as context. thinking=False leaves all
        reasoning out. A turn without reasoning is rendered in non-thinking mode, in either case. Nothing follows the last stop.
        """
        if not thinking:
            messages = [replace(message, thinking=None) for message in messages]
        trained = [i for i, message in enumerate(messages) if message.role == "assistant" and i >= context]
        if not trained:
            raise RenderError("conversation: no assistant message to train on; it needs at least one")
        shield = self.controls.shield()
        told = self._told(messages, tools, shield)
        done: list[Rendered] = []
        reached = ""
        for i in trained:
            prompt = self._render(told.until(i), generate=True, thinking=messages[i].thinking is not None)
            whole = self._render(told.until(i + 1), generate=False, thinking=messages[i].thinking is not None)
            whole = whole[: whole.rindex(self.abilities.stop) + len(self.abilities.stop)]
            if not whole.startswith(prompt):
                raise RenderError(
                    f"conversation: message {i} does not continue this template's generation prompt, so its sampled tokens cannot"
                    ' be determined; use format = "chatml"'
                )
            if not reached or not prompt.startswith(reached):
                reached = ""
                done.append(Rendered([], []))
            for text, sampled in ((prompt[len(reached) :], False), (whole[len(prompt) :], True)):
                ids = self.controls.encode(text, shield)
                done[-1].token_ids.extend(ids)
                done[-1].mask.extend([sampled] * len(ids))
            reached = whole
        return done

    def parse(self, answer_ids: Sequence[int], tools: Sequence[Tool] = (), thinking: bool = True) -> Parsed:
        """The message that sampled ids say, with its reasoning and calls taken apart.

        Reasoning that never ends leaves no content. Tags count only as the tokens that the format writes, where it has tokens for
        them: spelled out in other tokens they are text. Without tools, call tags are text.
        """
        ids = list(answer_ids)
        if ids and ids[-1] in self.stop_ids:
            ids.pop()
        shield = self.controls.shield()
        reasoning, content = self._split_thinking(self.controls.decode(ids, shield), thinking)
        calls: tuple[ToolCall, ...] = ()
        errors = 0
        if tools and content:
            parsed = parse_tool_calls(content, self._need_tool_format(), tools)
            content, calls, errors = parsed.content, parsed.calls, parsed.errors
        return Parsed(
            Message(
                "assistant",
                shield.reveal(content),
                None if reasoning is None else shield.reveal(reasoning),
                tuple(ToolCall(shield.reveal(call.name), shield.reveal_all(call.arguments)) for call in calls),
            ),
            errors,
        )

    # How.

    def _split_thinking(self, text: str, thinking: bool) -> tuple[str | None, str]:
        """(reasoning, content). Takes away one separator on each side of a tag, as the template writes them."""
        able, config = self.abilities, self.config
        if able.opens_thinking[thinking]:
            inside = text
        elif text.lstrip().startswith(config.think_open):
            inside = text.lstrip().removeprefix(config.think_open).removeprefix(able.after_open)
        else:
            return None, text
        reasoning, closed, content = inside.partition(config.think_close)
        if not closed:
            return inside, ""
        return reasoning.removesuffix(able.before_close), content.removeprefix(able.after_close)

    def _told(self, messages: Sequence[Message], tools: Sequence[Tool], shield: Shield) -> Told:
        """The conversation, checked, with everything from data behind the shield."""
        self._check(messages, tools)
        added = []
        if self.config.default_system and messages[0].role != "system":
            added = [Message("system", self.config.default_system)]
        return Told(
            [hidden(message, shield) for message in [*added, *messages]], [shield.hide_schema(t) for t in tools], len(added)
        )

    def _render(self, told: Told, *, generate: bool, thinking: bool) -> str:
        if not self.config.tools_in_system:
            return self._apply(as_dicts(told.messages), told.tools, generate, thinking)
        block = self._tool_block(told.tools) if told.tools else ""
        return self._apply(as_dicts(with_tools_as_text(told.messages, block, self._need_tool_format())), (), generate, thinking)

    def _tool_block(self, tools: Sequence[Tool]) -> str:
        return self._jinja(tool_block_template(self._need_tool_format()), [{"role": "user", "content": ""}], tools)

    def _apply(self, messages: list[dict[str, Any]], tools: Sequence[Tool], generate: bool, thinking: bool) -> str:
        variables = {"add_generation_prompt": generate, "enable_thinking": thinking, **self.config.template_kwargs}
        return self._jinja(self.template, messages, tools, **variables)

    def _jinja(self, template: str, messages: list[dict[str, Any]], tools: Sequence[Tool], **variables: Any) -> str:
        """What a template says. Raises RenderError with the template's own complaint."""
        apply: Any = self.tokenizer.apply_chat_template
        try:
            return str(apply(messages, tools=list(tools) or None, chat_template=template, tokenize=False, **variables))
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise RenderError(f'chat template: refuses the conversation ({error}); use format = "chatml"') from error

    def _choose_tool_format(self) -> ToolFormat | None:
        wanted, found = self.config.tool_format, self.abilities.tool_format
        if self.config.tools_in_system:
            return "xml" if wanted == "auto" else wanted
        if wanted == "auto":
            return found
        if found is not None and wanted != found:
            raise RenderError(
                f'renderer: tool_format "{wanted}" is not what this template writes ("{found}"); drop the setting, or use'
                ' format = "chatml"'
            )
        return wanted

    def _need_tool_format(self) -> ToolFormat:
        if self.tool_format is None:
            raise RenderError(
                "chat template: the way it writes tool calls is not known, or it drops them; set tools_in_system = true to"
                ' describe tools in the system message, or use format = "chatml"'
            )
        return self.tool_format

    def _check(self, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        """Refuses a conversation that needs what the template drops."""
        able, own = self.abilities, self.config.tools_in_system
        if not messages:
            raise RenderError("conversation: no messages; it needs at least one")
        for i, message in enumerate(messages):
            if message.role == "system" and i:
                raise RenderError(f"conversation: message {i} is a system message; only the first message can be one")
            if message.tool_calls and message.role != "assistant":
                raise RenderError(f"conversation: message {i} ({message.role}) has tool calls; only the assistant makes them")
            if message.tool_calls and (own or able.calls):
                for call in message.tool_calls:
                    format_tool_call(call, self._need_tool_format())
        has_system = messages[0].role == "system" or bool(self.config.default_system) or bool(own and tools)
        needs = {
            "the system message": (has_system, able.system),
            "tools": (bool(tools), own or able.tools),
            "tool calls": (any(message.tool_calls for message in messages), own or able.calls),
            "tool results": (any(message.role == "tool" for message in messages), own or able.results),
            "reasoning": (any(message.thinking for message in messages), able.thinking),
        }
        dropped = [what for what, (needed, kept) in needs.items() if needed and not kept]
        if dropped:
            with_tools = any("tool" in what for what in dropped)
            hint = "tools_in_system = true (describes them in the system message), or " if with_tools else ""
            raise RenderError(
                f"chat template: drops {', '.join(dropped)}, which this conversation needs; use {hint}"
                'format = "chatml", or leave it out of the data'
            )

    def _check_ids(self) -> None:
        """For a harmless conversation, our ids must be those of plain transformers."""
        messages = [Message("user", "What is 2+3?"), Message("assistant", "It is 5."), Message("user", "And 4+5?")]
        shield = self.controls.shield()
        text = self._render(self._told(messages, (), shield), generate=True, thinking=True)
        theirs = self.tokenizer(shield.reveal(text), add_special_tokens=False)["input_ids"]
        if self.controls.encode(text, shield) != theirs:
            raise RenderError("tokenizer: a rendered conversation gets other ids than in transformers; use another tokenizer")


def load_renderer(
    tokenizer: PreTrainedTokenizerBase, config: RenderConfig | None = None, max_context: int | None = None
) -> Renderer:
    """The renderer of a tokenizer, probed. Raises RenderError when the template or the tokenizer cannot be used.

    With our format the template also becomes the tokenizer's own, so that a checkpoint saved with it renders the same anywhere.
    max_context: by default what config.json says beside the tokenizer, else what the tokenizer says.
    """
    config = config or RenderConfig()
    own = tokenizer.chat_template
    if config.format == "chatml" or (config.format == "auto" and not own):
        template = _chatml_for(tokenizer, config)
        tokenizer.chat_template = template
    elif isinstance(own, str) and own:
        template = own
    else:
        raise RenderError('renderer: format = "template", but the tokenizer has no single chat template; use format = "chatml"')
    return Renderer(tokenizer, config, template, max_context or _max_context(tokenizer))


def _chatml_for(tokenizer: PreTrainedTokenizerBase, config: RenderConfig) -> str:
    added = {token.content for token in tokenizer.added_tokens_decoder.values()}
    missing = [name for name in ("<|im_start|>", "<|im_end|>") if name not in added]
    if missing:
        raise RenderError(
            f'renderer: format = "chatml" needs the token "{missing[0]}", which this tokenizer lacks; use format = "template", or'
            " add it to tokenizer and model"
        )
    tool_format: ToolFormat = "xml" if config.tool_format == "auto" else config.tool_format
    return chat_template(tool_format, config.think_open, config.think_close, config.strip_history)


def _max_context(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """max_position_embeddings of the config.json beside the tokenizer, or what the tokenizer itself says."""
    beside = Path(tokenizer.name_or_path or ".") / "config.json"
    if tokenizer.name_or_path and beside.is_file():
        fields = json.loads(beside.read_text(encoding="utf-8"))
        fields = fields.get("text_config", fields)
        if isinstance(found := fields.get("max_position_embeddings"), int):
            return found
    said = tokenizer.model_max_length
    return said if said and said < 10**9 else None  # transformers says 10**30 for "unknown"
