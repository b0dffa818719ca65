"""The slower way to sample: any transformers causal LM through its own forward and its own cache.

Rows that run together have contexts of one length, so there is no padding and no mask to get wrong, whatever state a model keeps
(attention, sliding windows, Mamba). Rows that finish stay in the batch until the last one has; their tokens are thrown away.
"""

import inspect
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cascade_rl.sample.answers import Answer, push_chosen

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# What a model's forward calls its cache, newest name first.
CACHE_NAMES = ("cache", "past_key_values", "cache_params")


@torch.inference_mode()
def sample_generic(model: "PreTrainedModel", answers: Sequence[Answer], max_batch: int) -> Iterator[int]:
    """Runs answers (sorted, so that contexts of one length are neighbours) to their end; yields how many live each round."""
    for _, alike in groupby(answers, key=lambda answer: len(answer.context)):
        rows = list(alike)
        for at in range(0, len(rows), max_batch):
            yield from _sample_batch(model, rows[at : at + max_batch])


def _sample_batch(model: "PreTrainedModel", rows: Sequence[Answer]) -> Iterator[int]:
    known = inspect.signature(model.forward).parameters
    cache_name = next((name for name in CACHE_NAMES if name in known), None)
    last_only = {"logits_to_keep": 1} if "logits_to_keep" in known else {}
    inputs_RT, kept = torch.tensor([row.context for row in rows]), dict[str, object]()
    while True:
        out = model(input_ids=inputs_RT, use_cache=cache_name is not None, **kept, **last_only)
        live = [number for number, row in enumerate(rows) if row.finish is None]
        push_chosen(out.logits[live, -1], [rows[number] for number in live])
        num_live = sum(row.finish is None for row in rows)
        yield num_live
        if not num_live:
            return
        next_R1 = torch.tensor([[row.ids[-1]] for row in rows])
        cache = out.get(cache_name) if cache_name else None
        # Without a cache that we know how to hand back, the whole sequence runs again.
        inputs_RT, kept = (torch.cat((inputs_RT, next_R1), 1), {}) if cache is None else (next_R1, {str(cache_name): cache})


@torch.inference_mode()
def score_generic(model: "PreTrainedModel", ids: Sequence[int], temperature: float) -> list[float]:
    """Log-prob of each id after the first; see `protocols.Scorer`."""
    logits_TV: Tensor = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, :-1].float() / temperature
    target_T1 = torch.tensor(ids[1:])[:, None]
    return (logits_TV.gather(1, target_T1)[:, 0] - logits_TV.logsumexp(-1)).tolist()
