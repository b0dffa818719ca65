"""Which models the forwards of our own know: the sampler's (`sample.decoder`) and the trainer's (`model.forward`)."""

from typing import Any

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
# Ropes whose frequencies do not change with the length of the sequence.
STATIC_ROPES = ("default", "linear", "llama3", "yarn")


def why_not(config: Any) -> str:
    """Why a forward of our own cannot run a model with that (transformers) config; "" when it can."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if config.model_type not in FAMILIES:
        return f'its family is "{config.model_type}"'
    if config.hidden_act not in ("silu", "swish"):
        return f'its activation is "{config.hidden_act}"'
    if kinds or getattr(config, "sliding_window", None):
        return "it has sliding windows"
    if rope.get("rope_type", "default") not in STATIC_ROPES:
        return f'its rope is "{rope["rope_type"]}"'
    if getattr(config, "quantization_config", None):
        return "its weights are quantised"
    return ""
