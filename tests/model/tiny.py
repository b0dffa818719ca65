"""Tiny random models of the architectures that matter, a few thousand parameters each, saved as whole model folders."""

from functools import cache
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    NemotronHConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3MoeConfig,
)

from cascade_rl.model.nano import train_tokenizer
from cascade_rl.model.sources import quiet

ARCHITECTURES = ("llama", "qwen3", "qwen3_moe", "gemma3", "nemotron_h")
TEXT = "the quick brown fox jumps over the lazy dog; what is 2+3? user assistant system thinking it is five. "


@cache
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, the nine marks and a few merges: 300 tokens."""
    return train_tokenizer([TEXT] * 4, vocab_size=300, max_context=512)


def make_tiny(arch: str, folder: Path | str, seed: int = 0, **changes: object) -> Path:
    """Saves a random model of `arch` (one of ARCHITECTURES) with a tiny tokenizer into `folder` and returns it.

    `changes` override config values: `make_tiny("llama", folder, num_hidden_layers=1)`. Weights are larger than usual (standard
    deviation 0.1), so that logits differ clearly.
    """
    folder, tokenizer = Path(folder), tiny_tokenizer()
    config = _config(arch, len(tokenizer), {**_common(tokenizer), **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    with quiet():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _common(tokenizer: PreTrainedTokenizerFast) -> dict[str, object]:
    return {
        "hidden_size": 16,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 512,
        "initializer_range": 0.1,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
        "dtype": "float32",
    }


def _config(arch: str, vocab_size: int, common: dict[str, object]) -> PreTrainedConfig:
    match arch:
        case "llama":
            return LlamaConfig(vocab_size=vocab_size, **{"num_hidden_layers": 2, "tie_word_embeddings": False, **common})
        case "qwen3":
            shape = {"num_hidden_layers": 2, "head_dim": 8, "tie_word_embeddings": True}
            return Qwen3Config(vocab_size=vocab_size, **{**shape, **common})
        case "qwen3_moe":
            moe = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "norm_topk_prob": True}
            return Qwen3MoeConfig(vocab_size=vocab_size, **{"num_hidden_layers": 2, "head_dim": 8, **moe, **common})
        case "gemma3":
            # A window shorter than the tests' sequences, and one layer of each kind.
            layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8, "query_pre_attn_scalar": 8}
            return Gemma3TextConfig(vocab_size=vocab_size, **{"num_hidden_layers": 2, "head_dim": 8, **layers, **common})
        case "nemotron_h":
            layers = {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"], "head_dim": 8, "chunk_size": 8}
            mamba = {"ssm_state_size": 8, "mamba_num_heads": 4, "mamba_head_dim": 8, "n_groups": 2, "expand": 2}
            moe = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
            moe["moe_shared_expert_intermediate_size"] = 8
            return NemotronHConfig(vocab_size=vocab_size, **{**layers, **mamba, **moe, **common})
        case _:
            raise ValueError(f'arch "{arch}" is not known; known: {", ".join(ARCHITECTURES)}')
