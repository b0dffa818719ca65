"""The embedded sampler: token ids in, token ids and log-probs out, on the processor it runs on.

Llama-like and Qwen3-like models run through a forward of our own (`decoder`): each prompt is prefilled once and its keys and
values are shared by its answers; answers that finish leave the batch and waiting ones join; where there is work for all cores each
runs a batch of its own (`lanes`). Any other transformers model runs through its own forward (`generic`), which is slower and says so.
"""

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from cascade_rl.errors import ModelError, NonFiniteError, unknown
from cascade_rl.model.families import why_not
from cascade_rl.model.policy import choose_dtype
from cascade_rl.model.sources import load_model, load_tokenizer
from cascade_rl.records import SamplingParams, Turn
from cascade_rl.sample.answers import Answer
from cascade_rl.sample.batching import Batching
from cascade_rl.sample.decoder import Decoder, check_weights
from cascade_rl.sample.generic import sample_generic, score_generic
from cascade_rl.sample.lanes import deal, num_lanes, run_lanes

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a call of `sample` stands: `Progress(tokens=512, live=16, done=3, total=32)`. Answers, except for `tokens`."""

    tokens: int = 0
    live: int = 0
    done: int = 0
    total: int = 0


class LocalSampler:
    """Sampler, Scorer and Loadable over one model in this process.

    model          a model folder in the Hugging Face layout, or a live transformers causal LM (its weights are copied).
    dtype          "float32", "bfloat16", or "auto": what the trainer's "auto" takes on this machine (bf16 where it is faster).
    max_batch      how many answers run at once, on each core where there is work for several: a smaller batch pays more for each token.
    prefill_tokens how many prompt tokens one pass takes; longer prompts go in several.
    cache_gb       bound on the keys and values of the answers that run at once, at their longest; fewer run where it is reached.
    tokenizer      for stop strings; by default the folder's, loaded when first needed.

    `version` is what `load` was last given (0 at first); `progress` may be read from another thread while `sample` runs.
    """

    def __init__(
        self,
        model: "str | Path | PreTrainedModel",
        dtype: str = "auto",
        max_batch: int = 128,
        *,
        prefill_tokens: int = 1024,
        cache_gb: float = 8.0,
        tokenizer: "PreTrainedTokenizerBase | None" = None,
    ) -> None:
        for name, value in (("max_batch", max_batch), ("prefill_tokens", prefill_tokens)):
            if value < 1:
                raise ValueError(f"sampler: {name} {value} must be at least 1")
        if dtype not in (*DTYPES, "auto"):
            raise ModelError(unknown("sampler: dtype", dtype, (*DTYPES, "auto")))
        self.max_batch, self.prefill_tokens, self.cache_gb = max_batch, prefill_tokens, cache_gb
        self.version = 0
        self.progress = Progress()
        self._folder = None if hasattr(model, "state_dict") else Path(cast(str, model))
        self._tokenizer = tokenizer
        source = cast("PreTrainedModel", model) if self._folder is None else load_model(self._folder, "auto")
        self.config = source.config
        self.dtype = DTYPES[choose_dtype(self.config, torch.device("cpu")) if dtype == "auto" else dtype]
        self._shapes = {name: tensor.shape for name, tensor in source.state_dict().items()}
        self._tied = {k: v for k, v in (source.all_tied_weights_keys or {}).items() if k in self._shapes}
        self._decoder: Decoder | None = None
        self._generic: PreTrainedModel | None = None
        reason = why_not(self.config)
        if reason:
            log.warning('sampler: "%s" runs through transformers, several times slower: %s', _name(self.config), reason)
            self._generic = _copied(source, self.dtype)
        else:
            self._rotary = source.get_decoder().rotary_emb
            self._decoder = Decoder(self.config, source.state_dict(), self._rotary, self.dtype)

    @property
    def path(self) -> str:
        """How the model runs: "own forward", or "transformers" with the reason."""
        return "own forward" if self._decoder else f"transformers: {why_not(self.config)}"

    @property
    def max_context(self) -> int | None:
        """The longest sequence, prompt and answer together, that the model takes; None if it has no bound."""
        return getattr(self.config, "max_position_embeddings", None)

    # --- Loadable -------------------------------------------------------------------------------------------------------------

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Takes new weights under their Hugging Face names (tied ones once or twice); they are cast and packed, never referenced.

        Raises ModelError on missing, foreign or misshapen names, and then keeps the old weights and version.
        """
        checked = check_weights(weights, self._shapes, self._tied)
        if self._decoder is not None:
            self._decoder = Decoder(self.config, checked, self._rotary, self.dtype)
        else:
            assert self._generic is not None
            self._generic.load_state_dict(checked)
        self.version = version

    # --- Sampler --------------------------------------------------------------------------------------------------------------

    def sample(
        self,
        contexts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams | Sequence[SamplingParams],
        seeds: Sequence[int],
    ) -> list[list[Turn]]:
        """n turns for each context, in input order; see `protocols.Sampler`.

        An answer that reaches the model's longest context ends there with finish "length"; a context that leaves no room for one
        token is an error, before any work. Log-probs are at the sampling temperature (at 1 when that is 0), in the untruncated
        distribution. Raises ValueError for bad requests and NonFiniteError for logits that are not finite.
        """
        answers = self._ask(contexts, n, params, seeds)
        for _ in self._ended(answers):
            pass
        return [[self._turn(answer) for answer in group] for group in answers]

    def finished(
        self,
        contexts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams | Sequence[SamplingParams],
        seeds: Sequence[int],
    ) -> Iterator[tuple[int, int, Turn]]:
        """The turns of `sample`, one by one as they end; see `protocols.EagerSampler`. Raises what `sample` raises."""
        answers = self._ask(contexts, n, params, seeds)
        place = {id(answer): number for number, group in enumerate(answers) for answer in group}
        for answer in self._ended(answers):
            yield place[id(answer)], answer.index, self._turn(answer)

    def _ended(self, answers: Sequence[Sequence[Answer]]) -> Iterator[Answer]:
        """Runs all answers to their end; gives each when it is there."""
        flat = [answer for group in answers for answer in group]
        # One canonical order, so that the make-up of every batch, and with it every rounding, is the same for any input order.
        # Long contexts first: neighbours then have similar lengths, which the grid of prompts pads.
        flat.sort(key=lambda a: (-len(a.context), a.context, a.seed, a.index))
        self.progress = Progress(total=len(flat))
        going = flat
        for live in self._rounds(flat):
            self._report(flat, live)
            ended = {id(answer) for answer in going if answer.finish is not None}  # looked at once: lanes go on meanwhile
            if ended:
                yield from (answer for answer in going if id(answer) in ended)
                going = [answer for answer in going if id(answer) not in ended]
        yield from going

    def _ask(
        self,
        contexts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams | Sequence[SamplingParams],
        seeds: Sequence[int],
    ) -> list[list[Answer]]:
        each = [params] * len(contexts) if isinstance(params, SamplingParams) else list(params)
        if n < 1:
            raise ValueError(f"sampler: n {n} must be at least 1")
        if not len(contexts) == len(seeds) == len(each):
            raise ValueError(
                f"sampler: {len(contexts)} contexts came with {len(seeds)} seeds and {len(each)} params; give one each"
            )
        tokenizer = self._stop_tokenizer() if any(p.stop for p in each) else None
        asked = []
        for number, (context, p, seed) in enumerate(zip(contexts, each, seeds, strict=True)):
            ids = tuple(int(i) for i in context)
            self._check(ids, number)
            room = p.max_new_tokens if self.max_context is None else min(p.max_new_tokens, self.max_context - len(ids))
            if room < 1:
                raise ValueError(
                    f"sampler: context {number} has {len(ids)} tokens, which leaves no room to answer in the model's"
                    f" {self.max_context}; shorten it"
                )
            asked.append([Answer(ids, p, int(seed), k, room, tokenizer) for k in range(n)])
        return asked

    def _check(self, ids: tuple[int, ...], number: int) -> None:
        if not ids:
            raise ValueError(f"sampler: context {number} is empty; it needs at least one token to predict from")
        if min(ids) < 0 or max(ids) >= self.config.vocab_size:
            bad = next(i for i in ids if not 0 <= i < self.config.vocab_size)
            raise ValueError(f"sampler: context {number} holds id {bad}; the model knows 0 to {self.config.vocab_size - 1}")

    def _stop_tokenizer(self) -> "PreTrainedTokenizerBase":
        if self._tokenizer is None:
            if self._folder is None:
                raise ValueError("sampler: stop strings need a tokenizer; pass tokenizer= to LocalSampler, or use stop_ids")
            self._tokenizer = load_tokenizer(self._folder)
        return self._tokenizer

    def _turn(self, answer: Answer) -> Turn:
        assert answer.finish is not None
        return Turn(answer.context, tuple(answer.ids), tuple(answer.logps), answer.finish, self.version)

    def _rounds(self, answers: Sequence[Answer]) -> Iterator[int]:
        if self._decoder is not None:
            contexts = len({answer.context for answer in answers})
            num = num_lanes(contexts, len(answers), torch.get_num_threads())
            if num == 1:
                return self._batching(self._decoder).run(answers)
            return run_lanes([self._batching(self._decoder, num) for _ in range(num)], deal(answers, num))
        assert self._generic is not None
        return sample_generic(self._generic, answers, self.max_batch, self.prefill_tokens)

    def _batching(self, decoder: Decoder, lanes: int = 1) -> Batching:
        """A batch of one of so many lanes, with its part of the memory."""
        shape = decoder.shape
        token_bytes = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * decoder.dtype.itemsize
        max_cached = int(self.cache_gb * 1e9) // token_bytes // lanes
        return Batching(decoder, self.max_batch, self.prefill_tokens, max_cached)

    def _report(self, answers: Sequence[Answer], live: int) -> None:
        done = sum(answer.finish is not None for answer in answers)
        self.progress = Progress(sum(len(answer.ids) for answer in answers), live, done, len(answers))

    # --- Scorer ---------------------------------------------------------------------------------------------------------------

    def score(self, token_ids: Sequence[Sequence[int]], temperature: float = 1.0) -> list[list[float]]:
        """Log-probs of given sequences, T-1 for T ids; see `protocols.Scorer`. Raises what `sample` raises."""
        if not temperature > 0:
            raise ValueError(f"sampler: temperature {temperature} must be above 0 to score at")
        sequences = [tuple(int(i) for i in ids) for ids in token_ids]
        for number, ids in enumerate(sequences):
            self._check(ids, number)
            if self.max_context is not None and len(ids) > self.max_context:
                raise ValueError(f"sampler: sequence {number} has {len(ids)} tokens, the model takes {self.max_context}; cut it")
        if self._decoder is not None:
            scores = self._batching(self._decoder).score(sequences, temperature)
        else:
            assert self._generic is not None
            scores = [score_generic(self._generic, ids, temperature, self.prefill_tokens) for ids in sequences]
        if any(logp != logp for row in scores for logp in row):
            raise NonFiniteError("sampler: the model gave logits that are not finite; its weights are damaged or it overflowed")
        return scores


def _copied(model: "PreTrainedModel", dtype: torch.dtype) -> "PreTrainedModel":
    return copy.deepcopy(model).to(dtype).eval()  # type: ignore[arg-type]


def _name(config: object) -> str:
    return str(getattr(config, "name_or_path", "") or getattr(config, "model_type", "model"))
