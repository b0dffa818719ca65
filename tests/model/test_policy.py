"""The policy against plain transformers: every architecture, forward and backward, save and load."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from cascade_rl.algo.batch import pack
from cascade_rl.errors import ModelError, NonFiniteError
from cascade_rl.model import attention
from cascade_rl.model.optim import AdamW
from cascade_rl.model.policy import Policy
from cascade_rl.model.scoring import score_samples
from cascade_rl.records import Sample
from tests.model.tiny import ARCHITECTURES, make_tiny

LENGTHS = (5, 33, 7, 8, 30, 31, 3)


def samples(seed: int = 0, lengths: tuple[int, ...] = LENGTHS) -> list[Sample]:
    rng = np.random.default_rng(seed)
    return [Sample(rng.integers(0, 290, n).astype(np.int32), np.r_[False, rng.random(n - 2) < 0.6, True]) for n in lengths]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def folder(request, tmp_path_factory) -> Path:
    return make_tiny(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("llama"))


def groups(seed: int = 0) -> list[Sample]:
    """Answers to three prompts of 40 and more tokens, two of which start alike, and two samples that share nothing."""
    rng = np.random.default_rng(seed)
    preamble = rng.integers(0, 290, 30)
    prompts = [*(np.r_[preamble, rng.integers(0, 290, n)] for n in (25, 19)), rng.integers(0, 290, 40)]
    told = samples(seed, (33, 5))
    for prompt in prompts:
        for own in (20, 19, 18, 4, 1):
            ids = np.r_[prompt, rng.integers(0, 290, own)].astype(np.int32)
            mask = np.r_[np.zeros(len(prompt), bool), True, rng.random(own - 1) < 0.7]
            told.append(Sample(ids, mask))
    return told


def separately(model, told: list[Sample], temperature: float = 1.0) -> torch.Tensor:
    """Log-probs of the trained tokens from whole logits, one sample after another."""
    parts = []
    for sample in told:
        ids = torch.tensor(sample.token_ids, dtype=torch.long)
        logp_TV = (model(input_ids=ids[None], use_cache=False).logits[0].float() / temperature).log_softmax(-1)
        parts.append(logp_TV[:-1].gather(1, ids[1:, None])[:, 0][torch.from_numpy(sample.mask[1:])])
    return torch.cat(parts)


@pytest.mark.parametrize("make", [samples, groups])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_packed_equals_separate_forwards_and_backwards(folder, checkpointing, make):
    policy = Policy(folder, checkpointing=checkpointing)
    plain = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    told = make()
    (batch,) = pack(told, 1000, share=policy.packs)
    ours, theirs = policy.logps(batch, 0.7), separately(plain, [told[i] for i in batch.order], 0.7)
    assert torch.allclose(ours, theirs, rtol=0, atol=2e-6)
    ours.sum().backward()
    theirs.sum().backward()
    grads = {name: weight.grad for name, weight in plain.named_parameters()}
    for name, weight in policy.model.named_parameters():
        if grads[name] is None:
            assert weight.grad is None, name
        else:
            assert torch.allclose(weight.grad, grads[name], rtol=1e-4, atol=2e-5), name


def test_only_recurrent_models_go_one_sample_at_a_time(folder):
    policy = Policy(folder)
    if "nemotron" in folder.name:
        assert policy.path == "one sample at a time: NemotronHForCausalLM keeps a recurrent state"
    else:
        assert policy.path == "packed"


def test_plain_families_train_through_a_forward_of_our_own(folder):
    own = Policy(folder)._forward is not None
    assert own == (folder.name.startswith(("llama", "qwen3")) and "moe" not in folder.name)


def test_long_samples_in_many_blocks_equal_separate_forwards(folder, monkeypatch):
    monkeypatch.setattr(attention, "MAX_SCORE_BYTES", 1024)
    monkeypatch.setattr(attention, "MIN_QUERIES", 3)
    plain = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    policy = Policy(folder)
    for told in (samples(lengths=(90, 41)), groups()):
        (batch,) = pack(told, 1000, share=policy.packs)
        with torch.no_grad():
            theirs = separately(plain, [told[i] for i in batch.order])
        assert torch.allclose(policy.score(batch), theirs, rtol=0, atol=2e-6)


def test_groups_are_computed_once_and_samples_keep_their_order(folder):
    policy, told = Policy(folder), groups()
    batches = pack(told, 90, share=policy.packs)
    if policy.packs:
        assert sum(batch.num_tokens for batch in batches) < 0.7 * sum(len(sample) for sample in told)
    with torch.no_grad():
        for sample, logps in zip(told, score_samples(policy, told, 90, 0.7), strict=True):
            theirs = separately(policy.model, [sample], 0.7)
            assert np.allclose(logps[sample.mask], theirs.numpy(), rtol=0, atol=2e-6)
            assert not logps[~sample.mask].any()


def test_bf16_is_near_float32(folder):
    (batch,) = pack(samples(), 1000)
    gap = (Policy(folder, dtype="bfloat16").score(batch) - Policy(folder).score(batch)).abs()
    assert gap.mean() < 0.01


def test_saved_folder_loads_with_plain_transformers(folder, tmp_path):
    policy = Policy(folder)
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.add_(0.01)
    policy.save(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert attention.NAME not in json.dumps(config)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    (batch,) = pack(samples(), 1000)
    with torch.no_grad():
        assert torch.allclose(policy.score(batch), separately(plain, [samples()[i] for i in batch.order]), rtol=0, atol=2e-6)


def test_weights_have_plain_names_and_tied_ones_once(folder):
    policy = Policy(folder)
    weights = policy.weights()
    assert weights.keys() <= AutoModelForCausalLM.from_pretrained(folder).state_dict().keys()
    tied = bool(policy.model.config.tie_word_embeddings)
    assert ("lm_head.weight" in weights) is not tied
    other = Policy(folder)
    with torch.no_grad():
        for tensor in weights.values():
            if tensor.is_floating_point():
                tensor.add_(0.01)
    other.load_weights(weights)
    (batch,) = pack(samples(), 1000)
    assert torch.equal(other.score(batch), policy.score(batch))


def test_loading_weights_of_another_model_is_refused(llama):
    policy = Policy(llama)
    weights = policy.weights()
    with pytest.raises(ModelError, match="on one side only"):
        policy.load_weights({name: tensor for name, tensor in weights.items() if "norm" not in name})
    with pytest.raises(ModelError, match="has shape"):
        policy.load_weights({name: tensor[:1] for name, tensor in weights.items()})


def test_an_unknown_dtype_is_refused_with_a_suggestion(llama):
    with pytest.raises(ModelError, match="bfloat16"):
        Policy(llama, dtype="bfloat")


def test_auto_keeps_a_tiny_model_in_float32(llama):
    assert Policy(llama, dtype="auto").dtype == torch.float32


def test_a_head_with_an_unknown_scaling_is_refused(tmp_path):
    from transformers import GraniteConfig, GraniteForCausalLM

    from tests.model.tiny import tiny_tokenizer

    shape = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16}
    config = GraniteConfig(vocab_size=300, num_hidden_layers=1, logits_scaling=8.0, initializer_range=1.0, **shape)
    GraniteForCausalLM(config).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="scaling that is not known"):
        Policy(tmp_path)


def test_damaged_weights_are_called_that(llama, tmp_path):
    policy = Policy(llama)
    next(policy.model.parameters()).data.fill_(float("nan"))
    policy.model.save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="logits that are not finite; its weights are damaged"):
        Policy(tmp_path)


def test_masters_start_as_the_weights(llama):
    policy = Policy(llama, dtype="bfloat16")
    state = AdamW(policy.model).state()
    for name, weight in policy.model.named_parameters():
        assert torch.equal(state[f"master/{name}"], weight.float())


def test_scoring_leaves_no_gradient(llama):
    (batch,) = pack(samples(), 1000)
    assert not Policy(llama).score(batch).requires_grad


@pytest.mark.slow
def test_compiled_layers_give_the_same_and_compile_once_for_all_batches(llama):
    import torch._dynamo

    plain, compiled = Policy(llama), Policy(llama, compile=True)
    shapes = [LENGTHS, (60, 20), (9,) * 7, (50, 49, 48, 5), (12, 3, 2), (200,)]
    told = [*(samples(lengths=lengths) for lengths in shapes), groups()]

    def gap(told: list[Sample]) -> float:
        (batch,) = pack(told, 1000)
        ours = compiled.logps(batch)
        ours.sum().backward()
        return (ours - plain.logps(batch)).abs().max().item()

    assert max(gap(some) for some in told[:2]) < 2e-6
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert max(gap(some) for some in told[2:]) < 2e-6


def test_weights_that_are_not_finite_are_not_saved(llama, tmp_path):
    policy = Policy(llama)
    next(iter(policy.weights().values())).view(-1)[3] = torch.inf
    with pytest.raises(NonFiniteError, match="is not finite after the last update"):
        policy.save(tmp_path / "out")
    assert not (tmp_path / "out").exists()
