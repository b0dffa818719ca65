"""The model that trains: log-probs with gradients over packed batches, its weights, and its folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from cascade_rl.algo.batch import Batch
from cascade_rl.errors import ModelError, NonFiniteError, unknown
from cascade_rl.model import attention
from cascade_rl.model.divergence import Divergence
from cascade_rl.model.families import why_not
from cascade_rl.model.forward import Forward
from cascade_rl.model.head import Head, target_logps
from cascade_rl.model.memory import keep_freed_memory
from cascade_rl.model.norms import use_fast_norms
from cascade_rl.model.pieces import plan_attention
from cascade_rl.model.sources import load_model, load_tokenizer, quiet

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

DType = Literal["float32", "bfloat16", "auto"]
DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Layers whose tokens meet only in attention; anything else carries state from one token to the next.
PACKABLE_LAYERS = {"full_attention", "sliding_attention", "chunked_attention", "moe", "mlp", "attention"}
# Below this hidden size bf16's casts cost more than its matmuls save.
MIN_HIDDEN_BF16 = 192


class Policy:
    """A causal language model as training sees it.

    folder         a model folder in the Hugging Face layout.
    dtype          "float32", "bfloat16" (float32 masters then live in the optimizer), or "auto": bf16 where the processor
                   multiplies it in hardware and the model is large enough for that to be faster. A function of machine and
                   model only, never of a timing, so that a resumed run decides alike.
    checkpointing  recompute each layer's activations in the backward pass: less memory, about a third more time.
    compile        torch.compile each layer: faster steps after a slow start.

    `path` says how batches run: "packed", or "one sample at a time" with the reason; the latter takes only batches in which nothing
    is shared (`pack(..., share=policy.packs)`). Dropout is off: the sampler must agree.
    """

    def __init__(
        self,
        folder: str | Path,
        dtype: str = "float32",
        checkpointing: bool = False,
        compile: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        from transformers import AutoConfig

        if dtype == "auto":
            dtype = choose_dtype(AutoConfig.from_pretrained(str(folder), local_files_only=True), torch.device(device))
        if dtype not in DTYPES:
            raise ModelError(unknown("policy: dtype", dtype, [*DTYPES, "auto"]))
        self.dtype = DTYPES[dtype]
        self.device = torch.device(device)
        if self.device.type == "cpu":
            keep_freed_memory()
        self.model: PreTrainedModel = load_model(folder, dtype)
        self.model.to(self.device)  # type: ignore[arg-type]
        self.tokenizer = load_tokenizer(folder)
        reason = why_not_packed(self.model)
        self.packs = not reason
        self.path = "packed" if self.packs else f"one sample at a time: {reason}"
        if self.packs:
            attention.register()
            self.model.set_attn_implementation(attention.NAME)
        _turn_off_dropout(self.model)
        if checkpointing:
            # The old name, for transformers before 5.24, where the new one does not exist.
            model: Any = self.model
            switch = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            switch({"use_reentrant": False})
        # Checkpointing works only in training mode; with dropout off nothing else depends on the mode.
        self.model.train(checkpointing)
        self._check_head()
        # The compiler takes transformers' own layers; the norms that it fuses with what is around them are left alone for it.
        self._forward = (
            Forward(self.model, checkpointing) if self.packs and not compile and not why_not(self.model.config) else None
        )
        if not compile:
            use_fast_norms(self.model)
        else:
            for layer in self._layers():
                layer.compile(dynamic=True)

    # --- questions to the model -----------------------------------------------------------------------------------------------

    def logps(self, batch: Batch, temperature: float = 1.0, alike: bool = False) -> Tensor:
        """Float32 [N]: the log-prob of each trained token at the temperature, with gradients.

        alike: the loss is expected to pull on every token with the same weight, which makes its gradient cheaper.
        """
        batch = batch.to(self.device)
        return self._target_logps(self._at_targets(batch), batch.targets.token_ids_N, temperature, alike)

    @torch.no_grad()
    def score(self, batch: Batch, temperature: float = 1.0) -> Tensor:
        """The same numbers without gradients."""
        return self.logps(batch, temperature)

    def logps_and_divergence(self, batch: Batch, divergence: Divergence, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Float32 [N] each, with gradients: the log-probs, and the generalised KL to the teacher that each sample names."""
        batch = batch.to(self.device)
        return divergence.logps(self._at_targets(batch), self.head, batch.targets, temperature)

    @torch.no_grad()
    def hidden_and_logps(self, batch: Batch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Without gradients, the hidden states [N, D] from which `head` predicts the trained tokens, and their log-probs [N]."""
        batch = batch.to(self.device)
        hidden_ND = self._at_targets(batch)
        return hidden_ND, self._target_logps(hidden_ND, batch.targets.token_ids_N, temperature)

    @property
    def head(self) -> Head:
        layer: nn.Linear = self.model.get_output_embeddings()  # type: ignore[assignment]
        return Head(layer.weight, layer.bias, getattr(self.model.config, "final_logit_softcapping", None))

    def _target_logps(self, hidden_ND: Tensor, target_N: Tensor, temperature: float, alike: bool = False) -> Tensor:
        head = self.head
        return target_logps(hidden_ND, head.weight_VD, target_N, head.bias_V, temperature, head.softcap, alike=alike)

    def _at_targets(self, batch: Batch) -> Tensor:
        """Hidden states where the next token is trained, [N, D]."""
        if self._forward is not None:
            return self._forward(batch)
        # A lookup, since that is what sums the gradients of a repeated place in a fixed order; indexing would not.
        return nn.functional.embedding(batch.query_N, self._hidden(batch))

    def _hidden(self, batch: Batch) -> Tensor:
        """Hidden states after the last norm, [T, D]."""
        body = self.model.base_model
        if self.packs:
            plan = plan_attention(batch.segments, self.device)
            row = {"input_ids": batch.token_ids_T[None], "position_ids": batch.position_ids_T[None]}
            return body(**row, use_cache=False, plan=plan).last_hidden_state[0]
        assert all(segment.parent < 0 for segment in batch.segments), "a model that does not pack takes whole samples"
        rows = batch.token_ids_T.split(batch.lengths)
        return torch.cat([body(input_ids=row[None], use_cache=False).last_hidden_state[0] for row in rows])

    # --- weights --------------------------------------------------------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        """The current weights by their Hugging Face names, tied ones once; views, not copies."""
        seen: set[int] = set()
        weights: dict[str, Tensor] = {}
        for name, tensor in self.model.state_dict().items():
            if tensor.data_ptr() not in seen or not tensor.numel():
                seen.add(tensor.data_ptr())
                weights[name] = tensor.detach()
        return weights

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Takes over weights as `weights()` gives them; an optimizer's masters follow at its next step. Raises ModelError."""
        own = self.weights()
        if missing := sorted(own.keys() ^ weights.keys()):
            raise ModelError(f'policy: weights of another model: "{missing[0]}" is on one side only ({len(missing)} in all)')
        for name, tensor in own.items():
            if tensor.shape != weights[name].shape:
                told, wanted = list(weights[name].shape), list(tensor.shape)
                raise ModelError(f'policy: weight "{name}" has shape {told}; this model needs {wanted}')
            tensor.copy_(weights[name])

    def check_finite(self) -> None:
        """Raises NonFiniteError for a weight that is not finite: what follows from it must not be saved."""
        for name, tensor in self.weights().items():
            if not torch.isfinite(tensor).all():
                raise NonFiniteError(
                    f'policy: weight "{name}" is not finite after the last update; nothing of it was saved: lower the learning rate'
                )

    def save(self, folder: str | Path) -> None:
        """Writes a folder that plain transformers loads: config, weights in the policy's type, tokenizer. Checks the weights first."""
        self.check_finite()
        with quiet():
            self.model.save_pretrained(str(folder))
        self.tokenizer.save_pretrained(str(folder))

    # --- parts ----------------------------------------------------------------------------------------------------------------

    def _layers(self) -> nn.ModuleList:
        layers = getattr(self.model.base_model, "layers", None)
        if not isinstance(layers, nn.ModuleList):
            raise ModelError(f"policy: {type(self.model).__name__} has no list of layers to compile; leave compile off")
        return layers

    @torch.no_grad()
    def _check_head(self) -> None:
        """Asks the model itself for two tokens' logits: a head with an unknown scaling is an error now, never a wrong loss."""
        ids = torch.tensor([[1, 2]], device=self.device) % self.model.config.vocab_size
        told = self.model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
        hidden_TD = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
        targets = told.argmax(-1)
        ours = self._target_logps(hidden_TD, targets, 1.0)
        if not torch.isfinite(told).all():
            raise ModelError(f"policy: {type(self.model).__name__} gives logits that are not finite; its weights are damaged")
        gap = (ours - told.gather(1, targets[:, None])[:, 0]).abs().max().item()
        if not gap <= (1e-3 if self.dtype == torch.float32 else 0.1):
            raise ModelError(
                f"policy: log-probs of {type(self.model).__name__} differ by {gap:.3g} from those read off its output head here;"
                f" its logits pass through a scaling that is not known (known: final_logit_softcapping)"
            )


def choose_dtype(config: "PretrainedConfig", device: torch.device) -> str:
    """ "bfloat16" where it is faster than float32, else "float32"."""
    large = config.get_text_config().hidden_size >= MIN_HIDDEN_BF16
    return "bfloat16" if large and multiplies_bf16(device) else "float32"


def multiplies_bf16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 in hardware. A processor that does not is slower at it than at float32, up to a hundred
    times (measured: 1 GFLOP/s against 89 on a core with AVX2)."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def why_not_packed(model: "PreTrainedModel") -> str:
    """Why samples must not share a row ("" if they may): a state that runs over tokens would cross into the next sample."""
    name = type(model).__name__
    if model._is_stateful or getattr(model.base_model, "_is_stateful", False):
        return f"{name} keeps a recurrent state"
    strange = set(getattr(model.config, "layer_types", None) or ()) - PACKABLE_LAYERS
    if strange:
        return f"{name} has layers of type {', '.join(sorted(strange))}"
    if any(isinstance(module, nn.Conv1d) for module in model.modules()):
        return f"{name} convolves over tokens"
    if not model._supports_attention_backend:
        return f"{name} does not let its attention be replaced"
    return ""


def _turn_off_dropout(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout", "hidden_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
