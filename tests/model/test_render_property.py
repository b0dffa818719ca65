"""What is trained is what would be sampled: prompt + answer, extended by tool results, for random conversations."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from cascade_rl.model.nano import train_tokenizer
from cascade_rl.model.render import RenderConfig, Renderer, load_renderer
from cascade_rl.records import Message, ToolCall

TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {"x": {"type": "string"}, "n": {"type": "integer"}, "l": {"type": "array"}},
        },
    },
}
TEXT = st.lists(st.sampled_from([*"ab 1\n<>/|é😀", "think", "</think>", "<|im_end|>"]), max_size=12).map("".join)
# Around calls the parser strips the content.
TRIMMED = TEXT.map(str.strip)
CALL = st.builds(
    lambda x, n, items: ToolCall("f", {"x": x, "n": n, "l": items}),
    st.text(st.sampled_from("ab 1é\n"), max_size=6),
    st.integers(-5, 5),
    st.lists(st.integers(0, 9), max_size=2),
)
THINKING = st.none() | TEXT
# Merges across line ends and blanks, where tokens of a prompt and of an answer could run together.
MERGING = ["a\n\nb\n\n\n1  b   a\n a\n  ", "a>\n\nb <a </ab"] * 9
RENDERERS = {
    name: load_renderer(train_tokenizer(MERGING, 300), config)
    for name, config in {
        "xml": RenderConfig(),
        "hermes": RenderConfig("chatml", tool_format="hermes"),
        "kept": RenderConfig("chatml", strip_history=False),
    }.items()
}
ANY = st.sampled_from(sorted(RENDERERS)).map(RENDERERS.__getitem__)


@st.composite
def conversations(draw) -> list[Message]:
    messages = [Message("system", draw(TEXT))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        messages.append(Message("user", draw(TEXT)))
        for _ in range(draw(st.integers(0, 2))):
            calls = tuple(draw(st.lists(CALL, min_size=1, max_size=2)))
            messages.append(Message("assistant", draw(TRIMMED), draw(THINKING), calls))
            messages += [Message("tool", draw(TEXT)) for _ in calls]
        messages.append(Message("assistant", draw(TEXT.filter(bool)), draw(THINKING)))
    return messages


def trained_runs(rendered) -> list[list[int]]:
    runs, before = [], False
    for number, trained in zip(rendered.token_ids, rendered.mask, strict=True):
        if trained and not before:
            runs.append([])
        if trained:
            runs[-1].append(number)
        before = trained
    return runs


def rolled_out(renderer: Renderer, messages: list[Message], i: int) -> list[int]:
    """The tokens that a rollout would hold just before assistant turn i: what it sampled stays as it is, the rest is added."""
    turns = [j for j in range(i + 1) if messages[j].role == "assistant"]
    if not renderer.abilities.keeps_history[True]:  # the last user message begins anew
        last_user = max(j for j in range(i) if messages[j].role == "user")
        turns = [j for j in turns if j > last_user]
    ids = renderer.prompt(messages[: turns[0]], [TOOL], messages[turns[0]].thinking is not None)
    for turn, following in itertools.pairwise(turns):
        added = renderer.extend(messages[turn + 1 : following], messages[following].thinking is not None)
        ids = ids + answer_of(renderer, messages, turn) + added
    return ids


def answer_of(renderer: Renderer, messages: list[Message], i: int) -> list[int]:
    (one,) = renderer.conversations(messages[: i + 1], [TOOL], context=i)
    (answer,) = trained_runs(one)
    return answer


@settings(max_examples=60, deadline=None)
@given(ANY, conversations())
def test_training_is_prompt_plus_answer(renderer: Renderer, messages):
    """Each sequence is what a rollout would hold, each assistant turn trains exactly once, and no token of anything else does."""
    turns = [i for i, message in enumerate(messages) if message.role == "assistant"]
    trained = [run for rendered in renderer.conversations(messages, [TOOL]) for run in trained_runs(rendered)]
    assert trained == [answer_of(renderer, messages, i) for i in turns]
    for i in turns:
        (last,) = renderer.conversations(messages[: i + 1], [TOOL], context=i)
        assert last.token_ids == renderer.prompt(messages[:i], [TOOL], messages[i].thinking is not None) + answer_of(
            renderer, messages, i
        )


@settings(max_examples=60, deadline=None)
@given(ANY, conversations())
def test_rollouts_are_prefixes_of_training(renderer: Renderer, messages):
    """prompt + sampled answer + extend(...) + ... equals the trained sequence token for token, tool boundaries included."""
    sequences = renderer.conversations(messages, [TOOL])
    for i in (i for i, message in enumerate(messages) if message.role == "assistant"):
        ids = rolled_out(renderer, messages, i) + answer_of(renderer, messages, i)
        assert any(one.token_ids[: len(ids)] == ids and one.mask[len(ids) - 1] for one in sequences)


@settings(max_examples=60, deadline=None)
@given(ANY, conversations())
def test_parse_undoes_rendering(renderer: Renderer, messages):
    for i in (i for i, message in enumerate(messages) if message.role == "assistant"):
        answer = answer_of(renderer, messages, i)
        assert answer[-1] == renderer.stop_ids[0]
        parsed = renderer.parse(answer, [TOOL], messages[i].thinking is not None)
        assert (parsed.message, parsed.format_errors) == (messages[i], 0)
