"""The tiny models: saved whole, small, different, and usable by plain transformers."""

import pytest
import torch

from cascade_rl.model.sources import fingerprint, load_model, load_tokenizer
from tests.model.tiny import ARCHITECTURES, make_tiny

KINDS = {
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_each_architecture(arch, tmp_path):
    folder = make_tiny(arch, tmp_path)
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    assert type(model).__name__ == KINDS[arch]
    assert 5_000 < model.num_parameters() < 30_000
    assert model.config.vocab_size == len(tokenizer)
    ids = torch.tensor([tokenizer("the quick fox<|im_end|>").input_ids])
    logits = model(ids).logits
    assert logits.shape == (1, ids.shape[1], len(tokenizer))
    assert 0.1 < logits.std() < 2, "differences one can see"
    assert torch.equal(load_model(folder)(ids).logits, logits)


def test_seeds_and_changes_change_the_model(tmp_path):
    first = fingerprint(make_tiny("qwen3", tmp_path / "a"))
    assert fingerprint(make_tiny("qwen3", tmp_path / "b")) == first
    assert fingerprint(make_tiny("qwen3", tmp_path / "c", seed=1)) != first
    assert load_model(make_tiny("qwen3", tmp_path / "d", num_hidden_layers=3)).config.num_hidden_layers == 3
