"""Chat templates that models bring: probed for what they drop, refused where that is needed, rendered exactly otherwise."""

import copy

import pytest
from transformers import PreTrainedTokenizerFast

from cascade_rl.errors import RenderError
from cascade_rl.model.render import RenderConfig, Renderer, load_renderer
from cascade_rl.records import Message, ToolCall
from tests.model.tiny import tiny_tokenizer

HI, YES = Message("user", "hi"), Message("assistant", "Yes.")
TOOL = {"type": "function", "function": {"name": "f", "description": "F.", "parameters": {"type": "object", "properties": {}}}}
CALLING = Message("assistant", "Look.", tool_calls=(ToolCall("f", {}),))

# Knows no tools and no reasoning, and has a system text of its own.
PLAIN = """\
{% if messages[0].role != 'system' %}<|im_start|>system\nI am a model.<|im_end|>\n{% endif %}\
{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>\n{% endfor %}\
{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"""

# Refuses system and tool messages, trims contents, and calls the assistant something else.
STERN = """\
{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('no ' + m.role + ' here') }}{% endif %}\
<|im_start|>{{ 'model' if m.role == 'assistant' else 'user' }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}\
{% if add_generation_prompt %}<|im_start|>model\n{% endif %}"""

# The model opens its own think block; only the last turns keep theirs; non-thinking mode starts with an empty block; JSON calls.
REASONING = """\
{% set ns = namespace(last=-1) %}\
{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}\
{% if tools %}<|im_start|>system\nTools:{% for t in tools %} {{ t | tojson }}{% endfor %}<|im_end|>\n{% endif %}\
{% for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}\n\
{% if m.role == 'assistant' and loop.index0 > ns.last and (loop.last or m.reasoning_content) %}\
<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n{% endif %}\
{{ m.content }}{% for c in m.tool_calls or [] %}{{ '\n' }}<tool_call>\n{"name": "{{ c.function.name }}", "arguments": \
{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}\
{% if add_generation_prompt %}<|im_start|>assistant\n\
{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"""

ENDLESS = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
# The history of a turn does not begin like its generation prompt.
TWO_FACED = PLAIN.replace(
    "{% if add_generation_prompt %}<|im_start|>assistant\n", "{% if add_generation_prompt %}<|im_start|>ai\n"
)


def with_template(template: str, **config) -> Renderer:
    tokenizer: PreTrainedTokenizerFast = copy.deepcopy(tiny_tokenizer())
    tokenizer.chat_template = template
    return load_renderer(tokenizer, RenderConfig(**config))


def sampled(renderer: Renderer, rendered) -> str:
    return renderer.tokenizer.decode([i for i, trained in zip(rendered.token_ids, rendered.mask, strict=True) if trained])


def test_a_plain_template():
    renderer = with_template(PLAIN)
    (one,) = renderer.conversations([HI, YES])
    assert renderer.tokenizer.decode(one.token_ids) == (
        "<|im_start|>system\nI am a model.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>"
    )
    assert sampled(renderer, one) == "Yes.<|im_end|>"
    assert renderer.parse(renderer.tokenizer("Yes.<|im_end|>").input_ids).message == YES
    assert renderer.tokenizer.decode(renderer.extend([HI])) == "\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    "messages, tools, dropped",
    [
        ([HI], [TOOL], "drops tools, which"),
        ([HI, CALLING], [], "drops tool calls, which"),
        ([HI, Message("assistant", "Yes.", thinking="why")], [], "drops reasoning, which"),
    ],
)
def test_what_a_template_drops_is_refused(messages, tools, dropped):
    with pytest.raises(RenderError, match=dropped) as caught:
        with_template(PLAIN).prompt(messages, tools)
    assert 'format = "chatml"' in str(caught.value)
    assert ("tools_in_system = true" in str(caught.value)) == ("tool" in dropped)


def test_what_a_template_refuses_is_refused():
    renderer = with_template(STERN)
    assert not renderer.abilities.system
    assert not renderer.abilities.results
    with pytest.raises(RenderError, match="drops the system message"):
        renderer.prompt([Message("system", "x"), HI])
    with pytest.raises(RenderError, match="drops the system message"):
        with_template(STERN, default_system="x").prompt([HI])
    (one,) = renderer.conversations([Message("user", "  hi "), Message("assistant", " Yes. ")])
    assert sampled(renderer, one) == "Yes.<|im_end|>", "the template's own trimming"
    with pytest.raises(RenderError, match="drops tool calls, tool results"):
        renderer.prompt([HI, CALLING, Message("tool", "x")])


def test_tools_in_the_system_message():
    renderer = with_template(PLAIN, tools_in_system=True)
    messages = [Message("system", "Be brief."), HI, CALLING, Message("tool", "sun"), Message("tool", "rain"), YES]
    (one,) = renderer.conversations(messages, [TOOL])
    text = renderer.tokenizer.decode(one.token_ids)
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n\n")
    assert text.endswith(
        "<|im_start|>assistant\nLook.\n<tool_call>\n<function=f>\n</function>\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nsun\n</tool_response>\n<tool_response>\nrain\n</tool_response>\n<|im_end|>\n"
        "<|im_start|>assistant\nYes.<|im_end|>"
    )
    assert sampled(renderer, one) == "Look.\n<tool_call>\n<function=f>\n</function>\n</tool_call><|im_end|>Yes.<|im_end|>"
    assert (
        renderer.parse(renderer.tokenizer(sampled(renderer, one)).input_ids[:-6], [TOOL]).message.tool_calls == CALLING.tool_calls
    )
    (begun,) = renderer.conversations(messages[:3], [TOOL])
    assert begun.token_ids + renderer.extend(messages[3:5]) == renderer.prompt(messages[:5], [TOOL])


def test_a_reasoning_template():
    renderer = with_template(REASONING)
    able = renderer.abilities
    assert able.thinking
    assert able.tool_format == "hermes"
    assert able.opens_thinking == {True: False, False: False}
    assert able.keeps_history == {True: False, False: False}
    messages = [HI, Message("assistant", "A.", thinking="a"), HI, Message("assistant", "B.", thinking="b")]
    first, second = renderer.conversations(messages)
    assert sampled(renderer, first) == "<think>\na\n</think>\n\nA.<|im_end|>"
    assert sampled(renderer, second) == "<think>\nb\n</think>\n\nB.<|im_end|>"
    assert "assistant\nA.<|im_end|>" in renderer.tokenizer.decode(second.token_ids)
    (plain,) = renderer.conversations(messages[:2], thinking=False)
    assert sampled(renderer, plain) == "A.<|im_end|>"
    parsed = renderer.parse(renderer.tokenizer("<think>\na\n</think>\n\nA.<|im_end|>").input_ids)
    assert parsed.message == messages[1]


def test_a_tool_loop_whose_history_changes_is_split():
    """Without reasoning this template writes an empty block only for the last turn, so turn two cannot extend turn one."""
    renderer = with_template(REASONING)
    messages = [HI, CALLING, Message("tool", "sun"), YES]
    first, second = renderer.conversations(messages, [TOOL], thinking=False)
    assert sampled(renderer, first) == 'Look.\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call><|im_end|>'
    assert sampled(renderer, second) == "Yes.<|im_end|>"


@pytest.mark.parametrize(
    "template, config, complaint",
    [
        (ENDLESS, {}, "sampled tokens cannot be determined"),
        ("{{ raise_exception('never') }}", {}, "refuses the conversation .never"),
        ("{% if %}", {}, "refuses the conversation"),
        (REASONING, {"tool_format": "xml"}, 'not what this template writes ."hermes"'),
        (None, {"format": "template"}, "no single chat template"),
    ],
)
def test_templates_that_cannot_be_used(template, config, complaint):
    with pytest.raises(RenderError, match=complaint):
        with_template(template, **config)


def test_an_undeterminable_mask_is_an_error():
    renderer = with_template(TWO_FACED)
    with pytest.raises(RenderError, match="does not continue this template's generation prompt"):
        renderer.conversations([HI, YES])


def test_chatml_needs_its_tokens():
    tokenizer = copy.deepcopy(tiny_tokenizer())
    bare = PreTrainedTokenizerFast(tokenizer_object=type(tokenizer.backend_tokenizer)(tokenizer.backend_tokenizer.model))
    with pytest.raises(RenderError, match=r'needs the token "<\|im_start\|>"'):
        load_renderer(bare)


def test_our_format_becomes_the_tokenizers_own():
    tokenizer = copy.deepcopy(tiny_tokenizer())
    tokenizer.chat_template = PLAIN
    renderer = load_renderer(tokenizer, RenderConfig("chatml"))
    assert tokenizer.chat_template == renderer.template != PLAIN
    assert load_renderer(tokenizer).prompt([HI]) == renderer.prompt([HI])


def test_variables_of_a_template():
    template = PLAIN.replace("I am a model.", "Today is {{ date_string }}.")
    renderer = with_template(template, template_kwargs={"date_string": "1 May"})
    assert "Today is 1 May." in renderer.tokenizer.decode(renderer.prompt([HI]))
