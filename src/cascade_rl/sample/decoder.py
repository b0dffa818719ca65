"""The embedded sampler's own forward over the weights of Llama-like and Qwen3-like models, on a CPU.

Same numbers as the transformers model (a test holds them equal), fewer and larger operations: q, k, v as one matmul, weights
prepacked for oneDNN, activation and residual sums fused into the matmuls that feed them. What keys and values a token attends
to is the caller's business: `forward` takes a function for it, so prompts (prefill) and answers (decode) share one layer loop.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cascade_rl.errors import ModelError, unknown

# (layer, q [U, H, D], k [T, K, D], v [T, K, D]) -> [U, H * D]; keys and values are the caller's to keep. U is T, but in a last layer
# of which less is wanted.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]

# The batch that prepacked weights are laid out for; other batches work too.
PACKED_FOR = 128


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes a forward needs, from a transformers config."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float

    @classmethod
    def of(cls, config: Any) -> "Shape":
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(
            config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads, head_dim, config.rms_norm_eps
        )  # fmt: skip


class Linear:
    """x W^T + b with W prepacked for oneDNN where torch has that, and what follows it fused into the same pass."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.packed = _can_prepack(weight.dtype)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_FOR) if self.packed else weight.clone()
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)

    def silu(self, x: Tensor) -> Tensor:
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "swish", [], "")
        return F.silu(self(x))

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise.binary(x, other, self.weight, self.bias, "mul")
        return self(x) * other

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise.binary(x, other, self.weight, self.bias, "add")
        return self(x) + other


def _can_prepack(dtype: torch.dtype) -> bool:
    """Private operators of torch (what its own compiler emits), so their absence only costs speed."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):
        return False
    if not all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise")):
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


@dataclass(frozen=True, slots=True)
class Layer:
    attention_norm: Tensor
    qkv: Linear
    qk_norm_HD: Tensor | None
    out: Linear
    mlp_norm: Tensor
    gate: Linear
    up: Linear
    down: Linear


class Decoder:
    """A causal language model ready to run: packed weights, rope tables, and the layer loop.

    weights: Hugging Face names to tensors, cast to `dtype` here. rotary: the transformers model's own rotary embedding, whose
    frequencies and scaling are taken as they are (that covers linear, llama3 and yarn ropes).
    """

    def __init__(self, config: Any, weights: Mapping[str, Tensor], rotary: Any, dtype: torch.dtype) -> None:
        self.shape = Shape.of(config)
        self.dtype = dtype
        self.inv_freq = rotary.inv_freq.detach().float()
        self.rope_scale = float(rotary.attention_scaling)
        self.rope_PD = (torch.empty(0, self.shape.head_dim, dtype=dtype),) * 2  # cos and signed sin
        self._pack(weights)

    @torch.inference_mode()
    def _pack(self, weights: Mapping[str, Tensor]) -> None:
        def get(name: str) -> Tensor:
            return weights[name].detach().to(self.dtype)

        self.embedding = get("model.embed_tokens.weight").clone()
        self.final_norm = get("model.norm.weight").clone()
        self.head = Linear(get("lm_head.weight") if "lm_head.weight" in weights else self.embedding)
        self.layers = [self._pack_layer(f"model.layers.{i}.", weights, get) for i in range(self.shape.num_layers)]

    def _pack_layer(self, prefix: str, weights: Mapping[str, Tensor], get: Callable[[str], Tensor]) -> Layer:
        def linear(*names: str) -> Linear:
            bias = torch.cat([get(f"{prefix}{n}.bias") for n in names]) if f"{prefix}{names[0]}.bias" in weights else None
            return Linear(torch.cat([get(f"{prefix}{n}.weight") for n in names]), bias)

        qk_norm = None
        if prefix + "self_attn.q_norm.weight" in weights:
            shape = self.shape
            q_norm = get(prefix + "self_attn.q_norm.weight").expand(shape.num_heads, -1)
            qk_norm = torch.cat([q_norm, get(prefix + "self_attn.k_norm.weight").expand(shape.num_kv_heads, -1)])
        return Layer(
            attention_norm=get(prefix + "input_layernorm.weight").clone(),
            qkv=linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            qk_norm_HD=qk_norm,
            out=linear("self_attn.o_proj"),
            mlp_norm=get(prefix + "post_attention_layernorm.weight").clone(),
            gate=linear("mlp.gate_proj"),
            up=linear("mlp.up_proj"),
            down=linear("mlp.down_proj"),
        )

    def forward(self, ids_T: Tensor, position_T: Tensor, attend: Attend, wanted_U: Tensor | None = None) -> Tensor:
        """The final normed hidden states [T, d] of tokens at given positions; each layer's keys and values go to `attend`.

        wanted_U: places of the tokens whose states are asked for, [U, d]: in the last layer the others have no more than keys and
        values, and `attend` gets the queries of these alone.
        """
        shape = self.shape
        num_qk = shape.num_heads + shape.num_kv_heads
        cos_T1D, sin_T1D = self._rope(position_T)
        x_Td = self.embedding[ids_T]
        for number, layer in enumerate(self.layers):
            qkv_THD = layer.qkv(self._norm(x_Td, layer.attention_norm)).view(len(x_Td), -1, shape.head_dim)
            qk_THD = qkv_THD[:, :num_qk]
            if layer.qk_norm_HD is not None:
                qk_THD = F.rms_norm(qk_THD, (shape.head_dim,), eps=shape.eps) * layer.qk_norm_HD
            # rotate_half(x) is roll(x, D / 2) with the sign of its first half turned, and `sin` carries that sign.
            qk_THD = torch.addcmul(qk_THD * cos_T1D, qk_THD.roll(shape.head_dim // 2, -1), sin_T1D)
            q_THD, k_TKD = qk_THD.split((shape.num_heads, shape.num_kv_heads), 1)
            if wanted_U is not None and number == shape.num_layers - 1:
                q_THD, x_Td = q_THD[wanted_U], x_Td[wanted_U]
            x_Td = layer.out.plus(attend(number, q_THD, k_TKD, qkv_THD[:, num_qk:]), x_Td)
            normed_Td = self._norm(x_Td, layer.mlp_norm)
            x_Td = layer.down.plus(layer.up.times(normed_Td, layer.gate.silu(normed_Td)), x_Td)
        return self._norm(x_Td, self.final_norm)

    def _norm(self, x_Td: Tensor, weight_d: Tensor) -> Tensor:
        return F.rms_norm(x_Td, weight_d.shape, weight_d, self.shape.eps)

    def _rope(self, position_T: Tensor) -> tuple[Tensor, Tensor]:
        """cos and signed sin, each [T, 1, D], from tables that grow with the longest sequence seen.

        The tables change in one assignment, as lanes may ask for them at once.
        """
        needed = int(position_T.max()) + 1
        cos_PD, sin_PD = self.rope_PD
        if needed > len(cos_PD):
            angle_PF = torch.arange(max(needed, 2 * len(cos_PD)), dtype=torch.float32)[:, None] * self.inv_freq
            cos_PF, sin_PF = angle_PF.cos() * self.rope_scale, angle_PF.sin() * self.rope_scale
            cos_PD = torch.cat((cos_PF, cos_PF), -1).to(self.dtype)
            sin_PD = torch.cat((-sin_PF, sin_PF), -1).to(self.dtype)
            self.rope_PD = (cos_PD, sin_PD)
        return cos_PD[position_T, None], sin_PD[position_T, None]


def check_weights(weights: Mapping[str, Tensor], shapes: Mapping[str, torch.Size], tied: Mapping[str, str]) -> dict[str, Tensor]:
    """The weights under exactly the names of `shapes`; raises ModelError on a missing, foreign or misshapen one.

    tied: name -> name it shares its tensor with (in transformers' way: the head's name to the embedding's). One of the two
    suffices; where both come they must be equal.
    """
    given = dict(weights)
    for pair in tied.items():
        here = [given[name] for name in pair if name in given]
        if len(here) == 2 and here[0] is not here[1] and not torch.equal(here[0], here[1]):
            raise ModelError(f'weights: the model ties "{pair[0]}" and "{pair[1]}" but they differ; give one, or untie them')
        given |= {name: here[0] for name in pair if here}
    if missing := sorted(set(shapes) - set(given)):
        raise ModelError(f'weights: {len(missing)} are missing ("{missing[0]}"); a load replaces all of them')
    if foreign := sorted(set(given) - set(shapes)):
        raise ModelError(unknown("weights:", foreign[0], shapes))
    for name, shape in shapes.items():
        if given[name].shape != shape:
            raise ModelError(f'weights: "{name}" has shape {list(given[name].shape)}, the model has {list(shape)}')
    return given
