"""The embedded sampler against transformers' own forward, and its promises: any order, any batch, any prefill, same answers."""

import functools
import logging
from collections import deque
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
import torch
from tests.model.tiny import ARCHITECTURES, make_tiny, tiny_tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PreTrainedModel, Qwen2Config

from cascade_rl.errors import ModelError, NonFiniteError
from cascade_rl.model.sources import load_model
from cascade_rl.records import SamplingParams, Turn
from cascade_rl.sample import decoder, generic
from cascade_rl.sample.answers import Answer
from cascade_rl.sample.batching import Batching, packed
from cascade_rl.sample.decoder import Decoder
from cascade_rl.sample.kv import Piece, PrefillAttention, PromptKV
from cascade_rl.sample.local import LocalSampler

FAST = ("llama", "qwen3")
CONTEXTS = [[5, 6, 7, 8], [9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21], [42], [9, 8, 9, 8], [250, 3, 77, 120, 130, 140]]
SEEDS = [3, 1, 4, 1, 5]
# One id in six ends an answer, so that answers are ragged.
RAGGED = SamplingParams(max_new_tokens=18, stop_ids=tuple(range(0, 300, 6)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def get(arch: str) -> Path:
        if arch not in made:
            # Wild weights show mistakes; but transformers' own Mamba steps and scans then differ among themselves.
            spread = 0.1 if arch == "nemotron_h" else 0.5
            made[arch] = make_tiny(arch, tmp_path_factory.mktemp(arch), initializer_range=spread)
        return made[arch]

    return get


def own(model: PreTrainedModel | Path, **settings: object) -> LocalSampler:
    return LocalSampler(model, dtype="float32", **settings)  # type: ignore[arg-type]


def small(config_class: type, **changes: object) -> PreTrainedModel:
    """A random model of the family of `config_class`, 60 ids, two layers."""
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 60}
    common = {"num_hidden_layers": 2, "max_position_embeddings": 256, "initializer_range": 0.5, "eos_token_id": None}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config_class(**{**shape, **common, **changes}))
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.data.normal_()
    return model.eval()


@torch.no_grad()
def logps_of(model: PreTrainedModel, turn: Turn, temperature: float = 1.0) -> torch.Tensor:
    ids = torch.tensor([turn.context_ids + turn.answer_ids])
    logps = (model(ids).logits[0].float() / temperature).log_softmax(-1)[len(turn.context_ids) - 1 : -1]
    return logps.gather(1, torch.tensor(turn.answer_ids)[:, None])[:, 0]


def assert_logps_are_the_models(model: PreTrainedModel, groups: list[list[Turn]], temperature: float = 1.0) -> None:
    for turn in (turn for group in groups for turn in group):
        assert (torch.tensor(turn.logps) - logps_of(model, turn, temperature)).abs().max() < 2e-5


def ids(groups: list[list[Turn]]) -> list[list[tuple[int, ...]]]:
    return [[turn.answer_ids for turn in group] for group in groups]


# --- the same numbers as transformers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_log_probs_are_those_of_transformers(arch: str, folder: Callable[[str], Path]) -> None:
    sampler, model = own(folder(arch), max_batch=4), load_model(folder(arch))
    assert (sampler.path == "own forward") == (arch in FAST)
    groups = sampler.sample(CONTEXTS, 3, RAGGED, SEEDS)
    lengths = {len(turn.answer_ids) for group in groups for turn in group}
    assert len(lengths) > 3, "answers should be ragged"
    assert_logps_are_the_models(model, groups)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_greedy_tokens_are_those_of_generate(arch: str, folder: Callable[[str], Path]) -> None:
    model = load_model(folder(arch))
    groups = own(folder(arch), max_batch=3).sample(CONTEXTS, 1, SamplingParams(temperature=0, max_new_tokens=16), SEEDS)
    model.generation_config.eos_token_id = None
    for context, (turn,) in zip(CONTEXTS, groups, strict=True):
        out = model.generate(torch.tensor([context]), max_new_tokens=16, do_sample=False)
        assert out[0, len(context) :].tolist() == list(turn.answer_ids)
        assert turn.finish == "length"


@pytest.mark.parametrize("arch", ["qwen3", "qwen3_moe"])
@pytest.mark.parametrize("settings", [{"temperature": 0.7}, {"temperature": 1.5, "top_k": 5}, {"top_p": 0.5}])
def test_log_probs_are_at_the_temperature_whatever_is_cut(
    arch: str, settings: dict[str, float], folder: Callable[[str], Path]
) -> None:
    groups = own(folder(arch)).sample(CONTEXTS, 2, SamplingParams(max_new_tokens=9, **settings), SEEDS)  # type: ignore[arg-type]
    assert_logps_are_the_models(load_model(folder(arch)), groups, settings.get("temperature", 1.0))


@pytest.mark.parametrize(
    "config_class, changes",
    [
        (LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
        (LlamaConfig, {"tie_word_embeddings": True, "num_key_value_heads": 4, "head_dim": 6}),
        (LlamaConfig, {"num_key_value_heads": 1}),
        (Qwen2Config, {}),
        (MistralConfig, {"sliding_window": None}),
        (LlamaConfig, {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 100.0}}),
        (
            LlamaConfig,
            {
                "rope_parameters": {
                    "rope_type": "llama3", "factor": 8.0, "rope_theta": 100.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 32,
                }
            },
        ),
        (
            LlamaConfig,
            {
                "rope_parameters": {
                    "rope_type": "yarn", "factor": 4.0, "rope_theta": 100.0, "original_max_position_embeddings": 64
                }
            },
        ),
    ],
)  # fmt: skip
def test_variants_of_the_fast_families(config_class: type, changes: dict[str, object]) -> None:
    model = small(config_class, **changes)
    sampler = own(model, prefill_tokens=20)
    assert sampler.path == "own forward"
    contexts = [[i % 60 for i in range(3, 3 + length)] for length in (1, 9, 90)]
    assert_logps_are_the_models(model, sampler.sample(contexts, 2, SamplingParams(max_new_tokens=12), [1, 2, 3]))


@pytest.mark.parametrize(
    "config_class, changes, reason",
    [
        (LlamaConfig, {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 100.0}}, "rope"),
        (MistralConfig, {"sliding_window": 4}, "sliding"),
        (LlamaConfig, {"hidden_act": "gelu"}, "activation"),
    ],
)
def test_what_the_own_forward_cannot_do_runs_through_transformers_and_says_so_once(
    config_class: type, changes: dict[str, object], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = small(config_class, **changes)
    with caplog.at_level(logging.WARNING):
        sampler = own(model)
        groups = sampler.sample([[1, 2, 3, 4, 5, 6, 7]], 2, SamplingParams(max_new_tokens=8), [1])
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("cascade_rl")]
    assert len(lines) == 1
    assert "slower" in lines[0]
    assert reason in lines[0]
    assert_logps_are_the_models(model, groups)


def test_the_generic_path_is_right_without_a_cache_too(folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = own(folder("gemma3"))
    want = sampler.sample(CONTEXTS, 2, RAGGED, SEEDS)
    monkeypatch.setattr(generic, "CACHE_NAMES", ())
    assert ids(sampler.sample(CONTEXTS, 2, RAGGED, SEEDS)) == ids(want)


def test_plain_linears_where_torch_cannot_prepack(folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    want = own(folder("llama")).sample(CONTEXTS, 2, RAGGED, SEEDS)
    monkeypatch.setattr(decoder, "_can_prepack", lambda dtype: False)
    assert ids(own(folder("llama")).sample(CONTEXTS, 2, RAGGED, SEEDS)) == ids(want)


@pytest.mark.parametrize("arch", ["qwen3", "gemma3"])
def test_bf16_stays_near_float32(arch: str, folder: Callable[[str], Path]) -> None:
    sampler, model = LocalSampler(folder(arch), dtype="bfloat16"), load_model(folder(arch))
    gaps = [
        (torch.tensor(turn.logps) - logps_of(model, turn)).abs()
        for group in sampler.sample(CONTEXTS, 4, RAGGED, SEEDS)
        for turn in group
    ]
    assert torch.cat(gaps).mean() < 0.1


def test_auto_is_float32_for_a_small_model(folder: Callable[[str], Path]) -> None:
    assert LocalSampler(folder("qwen3"), dtype="auto").dtype == torch.float32


# --- the same answers, however they are batched -------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_order_of_the_contexts_changes_nothing(arch: str, folder: Callable[[str], Path]) -> None:
    sampler = own(folder(arch), max_batch=4)
    straight = sampler.sample(CONTEXTS, 3, RAGGED, SEEDS)
    order = [3, 0, 4, 2, 1]
    shuffled = sampler.sample([CONTEXTS[i] for i in order], 3, RAGGED, [SEEDS[i] for i in order])
    assert shuffled == [straight[i] for i in order], "the same to the last bit"


@pytest.mark.parametrize("settings", [{"max_batch": 3}, {"max_batch": 1}, {"prefill_tokens": 5}, {"cache_gb": 1e-6}])
def test_batch_and_pass_sizes_change_no_answer(settings: dict[str, float], folder: Callable[[str], Path]) -> None:
    want = own(folder("qwen3")).sample(CONTEXTS, 5, RAGGED, SEEDS)
    got = own(folder("qwen3"), **settings).sample(CONTEXTS, 5, RAGGED, SEEDS)
    assert ids(got) == ids(want)
    assert_logps_are_the_models(load_model(folder("qwen3")), got)


@pytest.mark.parametrize("arch", ["llama", "nemotron_h"])
def test_an_answer_depends_on_nothing_beside_it(arch: str, folder: Callable[[str], Path]) -> None:
    sampler = own(folder(arch))
    together = ids(sampler.sample(CONTEXTS, 4, RAGGED, SEEDS))
    for context, seed, group in zip(CONTEXTS, SEEDS, together, strict=True):
        (alone,) = ids(sampler.sample([context], 2, RAGGED, [seed]))
        assert alone == group[:2]


def test_seeds_and_places_in_the_group_make_the_difference(folder: Callable[[str], Path]) -> None:
    sampler, params = own(folder("llama")), SamplingParams(max_new_tokens=12)
    one, two, again = ids(sampler.sample([CONTEXTS[0]] * 3, 3, params, [1, 2, 1]))
    assert one == again
    assert len({*one, *two}) == 6


def test_requests_may_have_settings_of_their_own(folder: Callable[[str], Path]) -> None:
    sampler = own(folder("qwen3"))
    params = [SamplingParams(max_new_tokens=m, temperature=t) for m, t in ((3, 0.0), (9, 1.0), (1, 1.0), (5, 0.5), (12, 2.0))]
    groups = sampler.sample(CONTEXTS, 2, params, SEEDS)
    assert [len(group[1].answer_ids) for group in groups] == [3, 9, 1, 5, 12]
    for context, p, seed, group in zip(CONTEXTS, params, SEEDS, groups, strict=True):
        assert ids(sampler.sample([context], 2, p, [seed])) == ids([group])


def test_prompts_of_very_different_lengths(folder: Callable[[str], Path]) -> None:
    model = small(LlamaConfig, max_position_embeddings=4096)
    contexts = [[i % 60 for i in range(length)] for length in (1300, 3, 900, 70, 1299)]
    groups = own(model, prefill_tokens=256).sample(contexts, 2, SamplingParams(max_new_tokens=6), [1, 2, 3, 4, 5])
    assert_logps_are_the_models(model, groups)


def test_answers_longer_than_a_block_of_columns_and_rows_that_leave_and_join() -> None:
    model = small(LlamaConfig)
    contexts = [[i, i + 1, i + 2][: 1 + i % 3] for i in range(9)]
    params = [SamplingParams(max_new_tokens=m) for m in (100, 1, 2, 150, 33, 31, 32, 65, 5)]
    groups = own(model, max_batch=5).sample(contexts, 2, params, list(range(9)))
    assert [len(turn.answer_ids) for group in groups for turn in group[:1]] == [100, 1, 2, 150, 33, 31, 32, 65, 5]
    assert_logps_are_the_models(model, groups)


def test_a_prompt_is_run_once_however_many_answers_wait(folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    prompt_tokens = []
    forward = Decoder.forward

    def counting(
        self: Decoder, ids_T: torch.Tensor, position_T: torch.Tensor, attend: decoder.Attend, *told: object
    ) -> torch.Tensor:
        prompt_tokens.extend(ids_T.tolist() if isinstance(attend, PrefillAttention) else [])
        return forward(self, ids_T, position_T, attend, *told)  # type: ignore[arg-type]

    monkeypatch.setattr(Decoder, "forward", counting)
    for max_batch in (1, 3, 64):
        prompt_tokens.clear()
        own(folder("llama"), max_batch=max_batch).sample([[5, 6, 7], [8, 9], [5, 6, 7]], 4, RAGGED, [1, 2, 3])
        assert sorted(prompt_tokens) == [5, 6, 7, 8, 9]


def test_what_runs_at_once_is_bounded_by_number_and_by_cached_tokens() -> None:
    def joining(max_batch: int, max_cached: int) -> int:
        batching = Batching(Decoder.__new__(Decoder), max_batch, prefill_tokens=8, max_cached=max_cached)
        params = SamplingParams(max_new_tokens=5)
        answers = [Answer((number // 2,) * 10, params, seed=0, index=number % 2, limit=5) for number in range(6)]
        return len(batching._next(deque(answers), [], {}))

    assert joining(max_batch=4, max_cached=1000) == 4
    assert joining(max_batch=9, max_cached=1000) == 6
    assert joining(max_batch=9, max_cached=39) == 3  # 3 answers of 5 and 2 prompts of 10 are 35; a fourth answer makes 40
    assert joining(max_batch=9, max_cached=1) == 1


def test_packed_passes_hold_at_most_their_limit_and_every_token_once() -> None:
    shape = decoder.Shape(num_layers=1, num_heads=1, num_kv_heads=1, head_dim=2, eps=1e-6)
    stores = [PromptKV(shape, length, torch.float32) for length in (3, 10, 1, 4)]
    whole = [Piece(store, 0, store.num_tokens) for store in stores]
    spans = [[(stores.index(p.kv), p.start, p.stop) for p in pieces] for pieces in packed(whole, 4)]
    assert spans == [[(0, 0, 3), (1, 0, 1)], [(1, 1, 5)], [(1, 5, 9)], [(1, 9, 10), (2, 0, 1), (3, 0, 2)], [(3, 2, 4)]]


@pytest.mark.parametrize("prefill_tokens", [7, 1024])
def test_what_contexts_begin_with_is_computed_once_and_changes_nothing(
    prefill_tokens: int, folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tree of two levels: a preamble of 20, two prompts of 20 more, and the next turns of a conversation each."""
    preamble, first, second = list(range(20)), list(range(40, 60)), list(range(60, 80))
    turns = [[*first, *range(100, 100 + n)] for n in (1, 5, 9)] + [[*second, *range(120, 120 + n)] for n in (2, 3)]
    contexts = [[*preamble, *turn] for turn in turns] + [[7, 8, 9]]
    sampler = own(folder("qwen3"), prefill_tokens=prefill_tokens)
    alone = [sampler.sample([context], 2, RAGGED, [3])[0] for context in contexts]
    run, computed = Decoder.forward, 0

    def counted(self: Decoder, ids: torch.Tensor, position: torch.Tensor, attend: object, *told: object) -> torch.Tensor:
        nonlocal computed
        computed += len(ids) if isinstance(attend, PrefillAttention) else 0
        return run(self, ids, position, attend, *told)  # type: ignore[arg-type]

    monkeypatch.setattr(Decoder, "forward", counted)
    together = sampler.sample(contexts, 2, RAGGED, [3] * len(contexts))
    # The last two also share the token 120; a context's last token is always its own.
    assert computed == 20 + 20 + (1 + 5 + 9) + 21 + (1 + 2) + 3
    for ours, theirs in zip(chain(*together), chain(*alone), strict=True):
        assert ours.answer_ids == theirs.answer_ids
        assert ours.logps == pytest.approx(theirs.logps, abs=1e-5)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_long_prompt_goes_in_passes_and_answers_are_those_of_one_pass(
    arch: str, folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass holds at most `prefill_tokens`, so memory beyond keys and values does not grow with a prompt. Mamba takes all at once."""
    context = [(7 * i * i + i) % 300 for i in range(400)]
    sampler, whole, model = own(folder(arch), prefill_tokens=64), own(folder(arch), prefill_tokens=4096), load_model(folder(arch))
    passes: list[int] = []
    if arch in FAST:
        run = Decoder.forward

        def counted(self: Decoder, ids: torch.Tensor, *told: object) -> torch.Tensor:
            passes.append(len(ids))
            return run(self, ids, *told)  # type: ignore[arg-type]

        monkeypatch.setattr(Decoder, "forward", counted)
    else:
        own_forward = sampler._generic.forward  # type: ignore[union-attr]

        @functools.wraps(own_forward)
        def noted(*args: object, **kwargs: object) -> object:
            passes.append(kwargs["input_ids"].numel())  # type: ignore[union-attr,attr-defined]
            return own_forward(*args, **kwargs)

        monkeypatch.setattr(sampler._generic, "forward", noted)
    groups = sampler.sample([context], 2, RAGGED, [5])
    prefill = passes[: len(passes) - max(len(turn.answer_ids) for turn in groups[0]) + 1]
    assert max(prefill) == (800 if arch == "nemotron_h" else 64)
    assert_logps_are_the_models(model, groups)
    assert ids(groups) == ids(whole.sample([context], 2, RAGGED, [5]))
    passes.clear()
    (row,) = sampler.score([context])
    assert row == pytest.approx(
        logps_of(model, Turn(tuple(context[:1]), tuple(context[1:]), tuple(row), "stop")).tolist(), abs=3e-5
    )
    assert max(passes) == (400 if arch == "nemotron_h" else 64)


# --- when answers stop --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["qwen3", "qwen3_moe"])
def test_a_stop_id_may_come_first_and_belongs_to_the_answer(arch: str, folder: Callable[[str], Path]) -> None:
    every_id = SamplingParams(stop_ids=tuple(range(300)))
    for group in own(folder(arch), max_batch=2).sample(CONTEXTS, 3, every_id, SEEDS):
        assert [(len(turn.answer_ids), turn.finish) for turn in group] == [(1, "stop")] * 3


def test_a_stop_string_is_seen_across_tokens_and_its_last_token_is_kept() -> None:
    tokenizer = tiny_tokenizer()
    text = "no E ND yet, now END of it"
    tokens = [token for character in text for token in tokenizer.encode(character, add_special_tokens=False)]
    answer = Answer((1,), SamplingParams(stop=("zebra", "END")), seed=0, index=0, limit=99, tokenizer=tokenizer)
    while answer.finish is None:
        answer.push(tokens[len(answer.ids)], -1.0)
    assert tokenizer.decode(answer.ids) == "no E ND yet, now END"
    assert answer.finish == "stop"


def test_a_stop_string_of_many_bytes_behind_many_characters() -> None:
    tokenizer = tiny_tokenizer()
    tokens = tokenizer.encode("日本語" * 5 + "。終わり。" + "日本", add_special_tokens=False)
    answer = Answer((1,), SamplingParams(stop=("。終わり。",)), seed=0, index=0, limit=999, tokenizer=tokenizer)
    while answer.finish is None:
        answer.push(tokens[len(answer.ids)], -1.0)
    assert tokenizer.decode(answer.ids) == "日本語" * 5 + "。終わり。"


def test_stop_strings_work_from_a_folder_and_need_a_tokenizer(folder: Callable[[str], Path]) -> None:
    free = own(folder("llama")).sample(CONTEXTS, 2, SamplingParams(max_new_tokens=30), SEEDS)
    text = tiny_tokenizer().decode(free[0][0].answer_ids[3:5])
    stopped = own(folder("llama")).sample(CONTEXTS, 2, SamplingParams(max_new_tokens=30, stop=(text,)), SEEDS)
    whole, cut = free[0][0].answer_ids, stopped[0][0].answer_ids
    assert cut == whole[: len(cut)]
    assert len(cut) <= 5
    assert stopped[0][0].finish == "stop"
    with pytest.raises(ValueError, match="need a tokenizer"):
        own(small(LlamaConfig)).sample([[1]], 1, SamplingParams(stop=("x",)), [0])


def test_an_answer_ends_with_the_models_context() -> None:
    model = small(LlamaConfig, max_position_embeddings=20)
    ((turn,),) = own(model).sample([[7] * 15], 1, SamplingParams(max_new_tokens=50), [0])
    assert (len(turn.answer_ids), turn.finish) == (5, "length")
    with pytest.raises(ValueError, match="context 1 has 20 tokens, which leaves no room"):
        own(model).sample([[7], [7] * 20], 1, SamplingParams(), [0, 0])


# --- scoring, loading, errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_score_gives_the_log_prob_of_each_id_after_the_first(
    arch: str, temperature: float, folder: Callable[[str], Path]
) -> None:
    sampler, model = own(folder(arch), prefill_tokens=6), load_model(folder(arch))
    scores = sampler.score(CONTEXTS, temperature)
    for context, row in zip(CONTEXTS, scores, strict=True):
        assert len(row) == len(context) - 1
        if row:
            want = logps_of(model, Turn(tuple(context[:1]), tuple(context[1:]), tuple(row), "stop"), temperature)
            assert (torch.tensor(row) - want).abs().max() < 2e-5


def test_sampled_and_scored_log_probs_agree(folder: Callable[[str], Path]) -> None:
    sampler = own(folder("qwen3"))
    for group in sampler.sample(CONTEXTS, 2, RAGGED, SEEDS):
        for turn in group:
            (row,) = sampler.score([turn.context_ids + turn.answer_ids])
            assert row[len(turn.context_ids) - 1 :] == pytest.approx(turn.logps, abs=2e-5)


@pytest.mark.parametrize("arch", ["llama", "qwen3", "gemma3"])
def test_load_takes_new_weights_and_their_version(arch: str, folder: Callable[[str], Path], tmp_path: Path) -> None:
    other = load_model(make_tiny(arch, tmp_path, seed=9, initializer_range=0.5))
    sampler = own(folder(arch))
    before = sampler.sample(CONTEXTS, 1, RAGGED, SEEDS)
    assert before[0][0].version == 0
    weights = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    if other.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    sampler.load(weights, version=7)
    for tensor in weights.values():
        tensor.zero_()  # the sampler keeps copies
    after = sampler.sample(CONTEXTS, 1, RAGGED, SEEDS)
    assert sampler.version == after[0][0].version == 7
    assert ids(after) != ids(before)
    assert_logps_are_the_models(other, after)


@pytest.mark.parametrize("arch", ["llama", "qwen3_moe"])
def test_a_load_that_does_not_fit_is_refused_and_changes_nothing(arch: str, folder: Callable[[str], Path]) -> None:
    sampler = own(folder(arch))
    before = sampler.sample(CONTEXTS, 1, RAGGED, SEEDS)
    good = {name: tensor * 2 for name, tensor in load_model(folder(arch)).state_dict().items()}
    missing = {name: tensor for name, tensor in good.items() if name != "model.norm.weight"}
    with pytest.raises(ModelError, match=r'1 are missing \("model.norm.weight"\)'):
        sampler.load(missing, 1)
    with pytest.raises(ModelError, match=r'"model.norn.weight" is not known; did you mean "model.norm.weight"'):
        sampler.load(good | {"model.norn.weight": torch.zeros(16)}, 1)
    with pytest.raises(ModelError, match=r'"model.norm.weight" has shape \[17\], the model has \[16\]'):
        sampler.load(good | {"model.norm.weight": torch.zeros(17)}, 1)
    assert sampler.sample(CONTEXTS, 1, RAGGED, SEEDS) == before


def test_tied_weights_that_differ_are_refused(folder: Callable[[str], Path]) -> None:
    good = load_model(folder("qwen3")).state_dict()
    with pytest.raises(ModelError, match="ties"):
        own(folder("qwen3")).load(good | {"lm_head.weight": good["lm_head.weight"] + 1}, 1)


@pytest.mark.parametrize("config_class", [LlamaConfig, MistralConfig])
def test_a_live_models_weights_are_copied(config_class: type) -> None:
    model = small(config_class, sliding_window=8) if config_class is MistralConfig else small(config_class)
    sampler = own(model)
    before = sampler.sample([[1, 2, 3]], 2, SamplingParams(max_new_tokens=5), [0])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert sampler.sample([[1, 2, 3]], 2, SamplingParams(max_new_tokens=5), [0]) == before


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_weights_that_overflow_stop_the_sampling(arch: str, folder: Callable[[str], Path]) -> None:
    sampler = own(folder(arch))
    weights = {name: tensor.clone() for name, tensor in load_model(folder(arch)).state_dict().items()}
    weights["model.norm.weight"][3] = torch.nan
    sampler.load(weights, 1)
    with pytest.raises(NonFiniteError):
        sampler.sample(CONTEXTS, 1, RAGGED, SEEDS)
    with pytest.raises(NonFiniteError):
        sampler.score(CONTEXTS)


def test_nothing_asked_nothing_given(folder: Callable[[str], Path]) -> None:
    assert own(folder("llama")).sample([], 4, RAGGED, []) == []
    assert own(folder("llama")).score([]) == []


def test_bad_requests_are_errors_before_any_work(folder: Callable[[str], Path]) -> None:
    sampler = own(folder("llama"))
    for contexts, n, seeds, message in (
        ([[1], []], 1, [0, 0], "context 1 is empty"),
        ([[1], [2, 300]], 1, [0, 0], "holds id 300; the model knows 0 to 299"),
        ([[1], [-1]], 1, [0, 0], "holds id -1"),
        ([[1]], 0, [0], "n 0 must be at least 1"),
        ([[1]], 1, [0, 0], "1 contexts came with 2 seeds"),
    ):
        with pytest.raises(ValueError, match=message):
            sampler.sample(contexts, n, RAGGED, seeds)
    with pytest.raises(ValueError, match="3 params"):
        sampler.sample([[1]], 1, [RAGGED] * 3, [0])
    with pytest.raises(ValueError, match="has 513 tokens, the model takes 512"):
        sampler.score([[1] * 513])
    with pytest.raises(ValueError, match="temperature 0"):
        sampler.score([[1, 2]], temperature=0)
    with pytest.raises(ModelError, match='did you mean "float32"'):
        LocalSampler(folder("llama"), dtype="float23")
    with pytest.raises(ValueError, match="max_batch 0"):
        LocalSampler(folder("llama"), max_batch=0)


def test_progress_counts_tokens_and_answers(folder: Callable[[str], Path]) -> None:
    sampler = own(folder("llama"))
    groups = sampler.sample(CONTEXTS, 3, RAGGED, SEEDS)
    tokens = sum(len(turn.answer_ids) for group in groups for turn in group)
    assert (sampler.progress.tokens, sampler.progress.live) == (tokens, 0)
    assert sampler.progress.done == sampler.progress.total == 15


@pytest.mark.parametrize("arch", ["qwen3", "gemma3"])
def test_answers_are_handed_back_as_they_end(arch: str, folder: Callable[[str], Path]) -> None:
    """Short ones first, those that wait for room last; together they are what `sample` gives."""
    sampler = own(folder(arch), max_batch=6)
    ended = list(sampler.finished(CONTEXTS, 3, RAGGED, SEEDS))
    whole = sampler.sample(CONTEXTS, 3, RAGGED, SEEDS)
    assert {(place, index): turn for place, index, turn in ended} == {
        (place, index): turn for place, turns in enumerate(whole) for index, turn in enumerate(turns)
    }
    assert len(ended) == 15
    alone = [len(turn.answer_ids) for _, _, turn in sampler.finished(CONTEXTS[:1], 6, RAGGED, SEEDS[:1])]
    assert alone == sorted(alone)
    assert len(set(alone)) > 1
    first = next(iter(sampler.finished(CONTEXTS[:1], 6, RAGGED, SEEDS[:1])))
    assert sampler.progress.done < 6  # the others had not ended
    assert len(first[2].answer_ids) == alone[0]
