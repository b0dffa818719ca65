"""The default format: exact texts, exact masks, and the tokens of plain transformers."""

import copy

import pytest
from transformers import PreTrainedTokenizerFast

from cascade_rl.errors import RenderError
from cascade_rl.model.render import RenderConfig, Renderer, load_renderer
from cascade_rl.model.toolcalls import format_tool_call
from cascade_rl.records import Message, ToolCall
from tests.model.tiny import tiny_tokenizer

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Where.", "enum": ["Rome", "Oslo"], "title": "City"},
                "days": {"type": "integer"},
            },
            "required": ["city"],
        },
    },
}
HI = Message("user", "hi")
CALL = Message("assistant", "I look.", thinking="which?", tool_calls=(ToolCall("weather", {"city": "Rome", "days": 2}),))
CALL_TEXT = (
    "I look.\n<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
)
NO_SYSTEM = "<|im_start|>system\n<|im_end|>\n"


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return copy.deepcopy(tiny_tokenizer())


@pytest.fixture
def renderer(tokenizer: PreTrainedTokenizerFast) -> Renderer:
    return load_renderer(tokenizer)


def sampled(renderer: Renderer, rendered) -> list[str]:
    """The trained stretches, as text."""
    texts, run = [], []
    for number, trained in zip([*rendered.token_ids, 0], [*rendered.mask, False], strict=True):
        if trained:
            run.append(number)
        elif run:
            texts.append(renderer.tokenizer.decode(run))
            run = []
    return texts


def test_generation_prompts(renderer: Renderer):
    text = f"{NO_SYSTEM}<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert renderer.tokenizer.decode(renderer.prompt([HI])) == text + "<think>\n"
    assert renderer.tokenizer.decode(renderer.prompt([HI], thinking=False)) == text + "<think></think>"


def test_tools_follow_the_system_text(renderer: Renderer):
    text = renderer.tokenizer.decode(renderer.prompt([Message("system", "Be brief."), HI], [WEATHER]))
    assert text.startswith(
        "<|im_start|>system\nBe brief.\n\n# Tools\n\nYou have access to the following functions:\n\n<tools>\n<function>\n"
        "<name>weather</name>\n<description>The weather of a city.</description>\n<parameters>\n<parameter>\n<name>city</name>\n"
        '<type>string</type>\n<description>Where.</description>\n<enum>["Rome", "Oslo"]</enum>\n<title>City</title>\n'
        "</parameter>\n"
        "<parameter>\n<name>days</name>\n<type>integer</type>\n</parameter>\n"
        '<required>["city"]</required>\n</parameters>\n</function>\n</tools>\n\n'
        "If you choose to call a function ONLY reply in the following format with NO suffix:\n\n<tool_call>\n<function="
    )
    assert "\n</IMPORTANT><|im_end|>\n<|im_start|>user\nhi<|im_end|>\n" in text
    assert renderer.tokenizer.decode(renderer.prompt([HI], [WEATHER])).startswith("<|im_start|>system\n# Tools\n\n")


def test_a_tool_loop_is_one_sequence_with_its_reasoning(renderer: Renderer):
    messages = [HI, CALL, Message("tool", "sun"), Message("tool", "rain"), Message("assistant", "Mixed.", thinking="both")]
    (one,) = renderer.conversations(messages, [WEATHER])
    text = renderer.tokenizer.decode(one.token_ids)
    assert text.endswith(
        f"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\nwhich?\n</think>\n{CALL_TEXT}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nsun\n</tool_response>\n<tool_response>\nrain\n</tool_response>\n<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nboth\n</think>\nMixed.<|im_end|>"
    )
    assert sampled(renderer, one) == [f"which?\n</think>\n{CALL_TEXT}<|im_end|>", "both\n</think>\nMixed.<|im_end|>"]


def test_history_loses_its_reasoning_only_before_the_last_user_message(renderer: Renderer):
    messages = [HI, Message("assistant", "A.", thinking="a"), Message("user", "more"), Message("assistant", "B.", thinking="b")]
    first, second = renderer.conversations(messages)
    assert sampled(renderer, first) == ["a\n</think>\nA.<|im_end|>"]
    assert sampled(renderer, second) == ["b\n</think>\nB.<|im_end|>"]
    assert renderer.tokenizer.decode(second.token_ids) == (
        f"{NO_SYSTEM}<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think></think>\nA.<|im_end|>\n"
        "<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n<think>\nb\n</think>\nB.<|im_end|>"
    )


def test_without_thinking_all_turns_are_one_sequence(renderer: Renderer):
    messages = [HI, Message("assistant", "A.", thinking="a"), Message("user", "more"), Message("assistant", "B.")]
    (one,) = renderer.conversations(messages, thinking=False)
    assert renderer.tokenizer.decode(one.token_ids) == (
        f"{NO_SYSTEM}<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think></think>A.<|im_end|>\n"
        "<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n<think></think>B.<|im_end|>"
    )
    assert sampled(renderer, one) == ["A.<|im_end|>", "B.<|im_end|>"]


def test_context_turns_never_train(renderer: Renderer):
    messages = [HI, Message("assistant", "A."), Message("user", "more"), Message("assistant", "B.")]
    (one,) = renderer.conversations(messages, context=3)
    assert sampled(renderer, one) == ["B.<|im_end|>"]
    with pytest.raises(RenderError, match="no assistant message"):
        renderer.conversations(messages, context=4)


def test_history_can_be_kept(tokenizer: PreTrainedTokenizerFast):
    renderer = load_renderer(tokenizer, RenderConfig("chatml", strip_history=False))
    messages = [HI, Message("assistant", "A.", thinking="a"), Message("user", "more"), Message("assistant", "B.", thinking="b")]
    (one,) = renderer.conversations(messages)
    assert sampled(renderer, one) == ["a\n</think>\nA.<|im_end|>", "b\n</think>\nB.<|im_end|>"]
    (first,) = renderer.conversations(messages[:2])
    assert one.token_ids[: len(first.token_ids)] == first.token_ids
    begun = first.token_ids + renderer.extend([Message("user", "more")])
    assert one.token_ids[: len(begun)] == begun


def test_the_newline_at_a_tool_boundary_stays(renderer: Renderer):
    """[verl 6921]: the template writes a newline after the stop token; a sampler never does."""
    messages = [HI, CALL]
    (one,) = renderer.conversations(messages, [WEATHER])
    results = [Message("tool", "sun"), Message("tool", "rain")]
    extended = one.token_ids + renderer.extend(results)
    assert renderer.tokenizer.decode(renderer.extend(results)).startswith("\n<|im_start|>user\n<tool_response>\nsun\n")
    assert extended == renderer.prompt([*messages, *results], [WEATHER])


def test_extend_refuses_what_would_rewrite_history(renderer: Renderer):
    with pytest.raises(RenderError, match="rewrites earlier assistant turns"):
        renderer.extend([Message("user", "more")])
    text = renderer.tokenizer.decode(renderer.extend([Message("user", "more")], thinking=False))
    assert text == "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n<think></think>"
    with pytest.raises(RenderError, match="only tool and user messages"):
        renderer.extend([Message("assistant", "x")])


@pytest.mark.parametrize("tool_format", ["xml", "hermes"])
def test_same_ids_as_plain_transformers(tokenizer: PreTrainedTokenizerFast, tool_format):
    """The template is saved with the tokenizer: apply_chat_template gives our ids, and a newline after the last stop token."""
    renderer = load_renderer(tokenizer, RenderConfig("chatml", tool_format=tool_format))
    messages = [Message("system", "Be brief."), HI, CALL, Message("tool", "sun"), Message("assistant", "Sun.", thinking="so")]
    theirs = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "which?",
            "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome", "days": 2}}}],
        },
        {"role": "tool", "content": "sun"},
        {"role": "assistant", "content": "Sun.", "reasoning_content": "so"},
    ]
    apply = tokenizer.apply_chat_template
    (ours,) = renderer.conversations(messages, [WEATHER])
    newline = tokenizer("\n").input_ids
    assert apply(theirs, tools=[WEATHER], return_dict=False) == ours.token_ids + newline
    for thinking in (True, False):
        ids = apply(theirs[:4], tools=[WEATHER], add_generation_prompt=True, enable_thinking=thinking, return_dict=False)
        assert ids == renderer.prompt(messages[:4], [WEATHER], thinking)
    assert format_tool_call(CALL.tool_calls[0], tool_format) in tokenizer.decode(ours.token_ids)


def test_think_tags_are_a_setting(tokenizer: PreTrainedTokenizerFast):
    renderer = load_renderer(tokenizer, RenderConfig("chatml", think_open="<reason>", think_close="</reason>"))
    (one,) = renderer.conversations([HI, Message("assistant", "A.", thinking="a")])
    assert sampled(renderer, one) == ["a\n</reason>\nA.<|im_end|>"]
    answer = [number for number, trained in zip(one.token_ids, one.mask, strict=True) if trained]
    assert renderer.parse(answer).message == Message("assistant", "A.", thinking="a")


def test_a_default_system_text_is_only_used_where_there_is_none(tokenizer: PreTrainedTokenizerFast):
    renderer = load_renderer(tokenizer, RenderConfig(default_system="Be kind."))
    decode = renderer.tokenizer.decode
    assert decode(renderer.prompt([HI])).startswith("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n")
    assert decode(renderer.prompt([Message("system", "Be brief."), HI])).startswith("<|im_start|>system\nBe brief.<|im_end|>\n")
    (one,) = renderer.conversations([HI, Message("assistant", "A.")])
    assert sampled(renderer, one) == ["A.<|im_end|>"]


def test_parse_takes_an_answer_apart(renderer: Renderer):
    def parse(text: str, tools=(), thinking: bool = True):
        return renderer.parse(renderer.tokenizer(text).input_ids, tools, thinking)

    assert parse("why\n</think>\nbecause<|im_end|>").message == Message("assistant", "because", thinking="why")
    assert parse("</think>because<|im_end|>").message == Message("assistant", "because", thinking="")
    assert parse("still thinking").message == Message("assistant", "", thinking="still thinking")
    assert parse("because<|im_end|>", thinking=False).message == Message("assistant", "because")
    called = parse(f"why\n</think>\n{CALL_TEXT}<|im_end|>", [WEATHER])
    assert called.message == Message("assistant", "I look.", thinking="why", tool_calls=CALL.tool_calls)
    assert called.format_errors == 0
    broken = parse("</think>\n<tool_call>\n<function=weather>\n<parameter=city>\nRome", [WEATHER])
    assert (broken.message.tool_calls, broken.format_errors) == ((), 1)
    in_thought = parse(f"{CALL_TEXT}\n</think>\nNo.<|im_end|>", [WEATHER])
    assert in_thought.message.tool_calls == ()
    assert parse(f"</think>\n{CALL_TEXT}<|im_end|>").message.content == CALL_TEXT, "without tools a call is text"


def test_stop_and_context(renderer: Renderer, tmp_path):
    assert renderer.stop_ids == (renderer.tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    assert renderer.max_context == 512
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 77}')
    renderer.tokenizer.name_or_path = str(tmp_path)
    assert load_renderer(renderer.tokenizer).max_context == 77


@pytest.mark.parametrize(
    "messages, complaint",
    [
        ([], "no messages"),
        ([HI, Message("system", "late")], "message 1 is a system message"),
        ([Message("user", "x", tool_calls=CALL.tool_calls)], "only the assistant"),
        ([HI, Message("assistant", "", tool_calls=(ToolCall("f", {"x": float("nan")}),))], "not a JSON value"),
        ([HI, Message("assistant", "", tool_calls=(ToolCall("f", {"x": "</parameter>\n</function>"}),))], "hermes"),
    ],
)
def test_refuses_what_cannot_be_written(renderer: Renderer, messages, complaint):
    with pytest.raises(RenderError, match=complaint):
        renderer.prompt(messages)


@pytest.mark.parametrize(
    "settings, complaint",
    [
        ({"format": "chatlm"}, 'did you mean "chatml"'),
        ({"tool_format": "json"}, "known: auto, hermes, xml"),
        ({"think_open": ""}, "two different texts"),
    ],
)
def test_refuses_bad_settings(settings, complaint):
    with pytest.raises(RenderError, match=complaint):
        RenderConfig(**settings)
