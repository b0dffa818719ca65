"""A small language model made from scratch: a byte-level BPE tokenizer trained on given text and fresh Qwen3 weights.

A few million parameters, so that a whole cascade runs on a laptop's CPU in minutes. Made once and kept by content.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from cascade_rl.model.chatml import chat_template

PAD = "<|endoftext|>"
CONTROL = (PAD, "<|im_start|>", "<|im_end|>")
# Marks that decoding keeps: a tool call without its tags would be no call.
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
MAX_VOCAB = 1024


@dataclass(frozen=True, slots=True)
class NanoConfig:
    """The shape of a nano model: `NanoConfig(hidden_size=256, num_layers=6)`. The default has about 2 million parameters.

    rope_theta: with 16 frequencies (head_dim 32) a theta of 10,000 puts the longest wavelength at 2 pi 10000^(15/16), about
    35,000 tokens: just above max_context.
    """

    vocab_size: int = MAX_VOCAB
    hidden_size: int = 192
    num_layers: int = 4
    num_heads: int = 6
    num_kv_heads: int = 6
    head_dim: int = 32
    intermediate_size: int = 640
    max_context: int = 32768
    rope_theta: float = 10_000.0
    initializer_range: float = 0.02
    seed: int = 0

    def __post_init__(self) -> None:
        smallest = 256 + len(CONTROL) + len(MARKS)
        if not smallest <= self.vocab_size <= MAX_VOCAB:
            raise ValueError(f"nano: vocab_size {self.vocab_size} must be in [{smallest}, {MAX_VOCAB}] (bytes and marks fit in)")


def nano_key(texts: Iterable[str], config: NanoConfig) -> str:
    """What a nano model is made of, as a short hash: the text, the shape, the seed, and how it is made."""
    digest = hashlib.sha256(json.dumps([1, chat_template(), asdict(config)], sort_keys=True).encode())
    for text in texts:
        digest.update(hashlib.sha256(text.encode()).digest())
    return digest.hexdigest()[:16]


def make_nano(folder: Path, texts: Iterable[str], config: NanoConfig | None = None) -> None:
    """Writes tokenizer and fresh weights into `folder`, in the Hugging Face layout."""
    config = config or NanoConfig()
    tokenizer = train_tokenizer(texts, config.vocab_size, config.max_context)
    tokenizer.save_pretrained(folder)
    control_ids: Any = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    shape = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.max_context,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        initializer_range=config.initializer_range,
        tie_word_embeddings=True,
        dtype="float32",
        **control_ids,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = Qwen3ForCausalLM(shape)
    model.save_pretrained(folder)


def train_tokenizer(texts: Iterable[str], vocab_size: int = MAX_VOCAB, max_context: int = 32768) -> PreTrainedTokenizerFast:
    """A byte-level BPE of at most `vocab_size` tokens, marks included. Digits never merge: sums are learnt digit by digit."""
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(MARKS),
        special_tokens=list(CONTROL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    core.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token="<|im_end|>",
        clean_up_tokenization_spaces=False,
        model_max_length=max_context,
    )
    tokenizer.chat_template = chat_template()
    return tokenizer
