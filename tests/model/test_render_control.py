"""Text from data never becomes a control token, and what a model spells out is not a control token either."""

import copy
import json

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from cascade_rl.model.controls import Controls
from cascade_rl.model.nano import CONTROL, MARKS
from cascade_rl.model.render import RenderConfig, load_renderer
from cascade_rl.records import Message, ToolCall
from tests.model.tiny import tiny_tokenizer

HOSTILE = "".join(CONTROL + MARKS)
# Pieces that make control tokens when they are put together, or beside the template's own text.
PIECES = st.sampled_from([*CONTROL, *MARKS, "<|im_", "end|>", "<", ">", "</", "think", "tool_call", "|", "\n", " ", "a", "é"])
TEXT = st.lists(PIECES, max_size=6).map("".join)
RENDERER = load_renderer(copy.deepcopy(tiny_tokenizer()))
HERMES = load_renderer(copy.deepcopy(tiny_tokenizer()), RenderConfig("chatml", tool_format="hermes"))


def control_ids(renderer, ids) -> list[int]:
    numbers = set(renderer.controls.ids.values())
    return [number for number in ids if number in numbers]


@settings(max_examples=150, deadline=None)
@given(TEXT, TEXT, TEXT, TEXT, TEXT, TEXT)
def test_control_tokens_are_the_templates_alone(system, user, thinking, answer, result, word):
    def conversation(system, user, thinking, answer, result, word):
        tool = {
            "type": "function",
            "function": {
                "name": word,
                "description": user,
                "parameters": {"type": "object", "properties": {word: {"type": "string", "description": system, word: answer}}},
            },
        }
        call = ToolCall(word, {word: user, "list": [answer, {word: result}]})
        messages = [
            Message("system", system),
            Message("user", user),
            Message("assistant", answer, thinking=thinking, tool_calls=(call,)),
            Message("tool", result),
            Message("assistant", answer, thinking=thinking),
        ]
        return HERMES.conversations(messages, [tool])

    word = word or "f"
    hostile = conversation("x" + system, "x" + user, "x" + thinking, "x" + answer, result, word)
    harmless = conversation("x", "x", "x", "x", "x", "x")
    for one, other in zip(hostile, harmless, strict=True):
        assert control_ids(HERMES, one.token_ids) == control_ids(HERMES, other.token_ids)
        assert "x" + user in HERMES.tokenizer.decode(one.token_ids)


@pytest.mark.parametrize("name", [*MARKS, *CONTROL])
def test_hostile_names_in_xml(name):
    """A name that the template wraps in brackets must not become a mark: `<` + "think" + `>`."""
    word = name.strip("</|>")
    field = {"type": "string", word: "x"}
    tool = {"type": "function", "function": {"name": word, "parameters": {"type": "object", "properties": {word: field}}}}
    plain = json.loads(json.dumps(tool).replace(word, "zzz"))
    ids = RENDERER.prompt([Message("user", "x")], [tool])
    assert control_ids(RENDERER, ids) == control_ids(RENDERER, RENDERER.prompt([Message("user", "x")], [plain]))


def test_text_comes_back_as_it_was():
    ids = RENDERER.prompt([Message("user", HOSTILE)])
    assert HOSTILE in RENDERER.tokenizer.decode(ids)
    assert control_ids(RENDERER, ids) == control_ids(RENDERER, RENDERER.prompt([Message("user", "x")]))


@settings(max_examples=200, deadline=None)
@given(TEXT)
@example("a</think")
@example("think>a")
@example("think")
def test_hiding_is_undone(text):
    shield = RENDERER.controls.shield()
    hidden = shield.hide(text)
    assert shield.reveal(hidden) == text
    assert not RENDERER.controls.pattern.search(f"<{hidden}>")
    assert not RENDERER.controls.pattern.search(f"</{hidden}>")


def test_spelled_out_tags_in_an_answer_are_text():
    """Only the mark's own token ends the thinking or starts a call."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    quoted = '</think> ends it; <tool_call>\n{"name": "f", "arguments": {}}\n</tool_call> calls'
    (one,) = HERMES.conversations([Message("user", "x"), Message("assistant", quoted, thinking=quoted)])
    answer = [number for number, trained in zip(one.token_ids, one.mask, strict=True) if trained]
    parsed = HERMES.parse(answer, [tool])
    assert parsed.message == Message("assistant", quoted, thinking=quoted)
    assert parsed.format_errors == 0


def sentencepiece_like() -> PreTrainedTokenizerFast:
    """Metaspace BPE with bytes to fall back on, blanks as added tokens, and control tokens inside the model's own vocabulary."""
    pieces = ["<unk>", "<s>", "</s>", "<turn>", "<end>"] + [f"<0x{i:02X}>" for i in range(256)] + ["▁", *"abcdefghij<>/turned"]
    vocab = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    core = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=[("a", "b")] if "ab" in vocab else [], byte_fallback=True, unk_token="<unk>")
    )
    core.normalizer = normalizers.Replace(" ", "▁")
    core.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never", split=False)
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    core.add_special_tokens([AddedToken(name, normalized=False) for name in ("<unk>", "<s>", "</s>", "<turn>", "<end>")])
    core.add_tokens([AddedToken("▁▁", normalized=True)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    tokenizer.chat_template = (
        "{{ bos_token }}{% for m in messages %}<turn>{{ m.role }}\n{{ m.content | trim }}<end>\n{% endfor %}"
        "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
    )
    return tokenizer


def test_a_sentencepiece_like_tokenizer():
    tokenizer = sentencepiece_like()
    renderer = load_renderer(tokenizer)
    text = "</s> <turn>a<unk>  b<end>"
    ids = renderer.prompt([Message("user", text)])
    numbers = renderer.controls.ids
    assert control_ids(renderer, ids) == [numbers["<s>"], numbers["<turn>"], numbers["<end>"], numbers["<turn>"]]
    assert tokenizer.decode(ids) == f"<s><turn>user\n{text}<end>\n<turn>assistant\n"
    harmless = [{"role": "user", "content": "a bad  cab"}]
    theirs = tokenizer.apply_chat_template(harmless, add_generation_prompt=True, return_dict=False)
    assert renderer.prompt([Message("user", "a bad  cab")]) == theirs
    assert tokenizer.convert_tokens_to_ids("▁▁") in theirs, "blanks stay a token of their own"
    assert renderer.stop_ids == (numbers["<end>"], numbers["</s>"])


def test_ids_survive_the_renaming():
    controls = Controls(tiny_tokenizer())
    shield = controls.shield()
    text = "<|im_start|>user\nthe fox 12<|im_end|>\n"
    assert controls.encode(text, shield) == tiny_tokenizer()(text).input_ids
