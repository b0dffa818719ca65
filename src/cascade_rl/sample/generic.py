"""The slower way to sample: any transformers causal LM through its own forward and its own cache.

Rows that run together have contexts of one length, so there is no padding and no mask to get wrong, whatever state a model keeps
(attention, sliding windows, Mamba). A long context goes in passes where a model keeps nothing but keys and values. Rows that finish
stay in the batch until the last one has; their tokens are thrown away.
"""

import inspect
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cascade_rl.model.policy import why_not_packed
from cascade_rl.sample.answers import Answer, push_chosen

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# What a model's forward calls its cache, newest name first.
CACHE_NAMES = ("cache", "past_key_values", "cache_params")


@torch.inference_mode()
def sample_generic(model: "PreTrainedModel", answers: Sequence[Answer], max_batch: int, prefill_tokens: int) -> Iterator[int]:
    """Runs answers (sorted, so that contexts of one length are neighbours) to their end; yields how many live each round."""
    for _, alike in groupby(answers, key=lambda answer: len(answer.context)):
        rows = list(alike)
        for at in range(0, len(rows), max_batch):
            yield from _sample_batch(model, rows[at : at + max_batch], prefill_tokens)


def _sample_batch(model: "PreTrainedModel", rows: Sequence[Answer], prefill_tokens: int) -> Iterator[int]:
    inputs_RT = torch.tensor([row.context for row in rows])
    (*_, (logits_RTV, kept)) = _passes(model, inputs_RT, prefill_tokens, last_only=True)
    while True:
        live = [number for number, row in enumerate(rows) if row.finish is None]
        push_chosen(logits_RTV[live, -1], [rows[number] for number in live])
        num_live = sum(row.finish is None for row in rows)
        yield num_live
        if not num_live:
            return
        next_R1 = torch.tensor([[row.ids[-1]] for row in rows])
        # Without a cache that we know how to hand back, the whole sequence runs again.
        inputs_RT = next_R1 if kept else torch.cat((inputs_RT, next_R1), 1)
        (*_, (logits_RTV, kept)) = _passes(model, inputs_RT, prefill_tokens, last_only=True, **kept)


def _passes(
    model: "PreTrainedModel", inputs_RT: Tensor, most: int, last_only: bool, **kept: object
) -> Iterator[tuple[Tensor, dict[str, object]]]:
    """Runs tokens behind those in the cache `kept`, in passes of at most `most`; gives each pass's logits and the cache then.

    A model that keeps more than keys and values, or no cache that we know, takes all of them at once.
    """
    known = inspect.signature(model.forward).parameters
    cache_name = next((name for name in CACHE_NAMES if name in known), None)
    only = {"logits_to_keep": 1} if last_only and "logits_to_keep" in known else {}
    num_rows, length = inputs_RT.shape
    size = length if cache_name is None or why_not_packed(model) else max(1, most // num_rows)
    for at in range(0, length, size):
        out = model(input_ids=inputs_RT[:, at : at + size], use_cache=cache_name is not None, **kept, **only)
        cache = out.get(cache_name) if cache_name else None
        kept = {} if cache is None else {str(cache_name): cache}
        assert kept or at + size >= length, f"{type(model).__name__} takes a cache and gives none"
        yield out.logits, kept


@torch.inference_mode()
def score_generic(model: "PreTrainedModel", ids: Sequence[int], temperature: float, prefill_tokens: int) -> list[float]:
    """Log-prob of each id after the first; see `protocols.Scorer`."""
    scores: list[float] = []
    for logits_1TV, _ in _passes(model, torch.tensor([list(ids)]), prefill_tokens, last_only=False):
        target_T1 = torch.tensor(ids[len(scores) + 1 : len(scores) + 1 + logits_1TV.shape[1]])[:, None]
        logits_TV = logits_1TV[0, : len(target_T1)].float() / temperature
        scores += (logits_TV.gather(1, target_T1)[:, 0] - logits_TV.logsumexp(-1)).tolist()
    return scores
