"""The order of events in the fast path: packed passes over prompts, and a batch that answers join and leave."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from cascade_rl.algo.sharing import Node, forest
from cascade_rl.records import Sample
from cascade_rl.sample.answers import Answer, push_chosen
from cascade_rl.sample.decoder import Decoder
from cascade_rl.sample.kv import LiveKV, Piece, PrefillAttention, PromptKV

# A prompt joins those that live only if it is at least (longest - PADDING) / 2 tokens long: the grid pads it to the longest.
PADDING = 512
# Logits of so many tokens at a time when scoring.
SCORE_ROWS = 256


class Batching:
    """Continuous batching over one decoder.

    max_batch: answers that run at once. prefill_tokens: tokens of a pass over prompts. max_cached: bound on the tokens whose keys
    and values are held, each answer counted at its longest; at least one answer always runs.
    """

    def __init__(self, decoder: Decoder, max_batch: int, prefill_tokens: int, max_cached: int) -> None:
        self.decoder, self.max_batch, self.prefill_tokens, self.max_cached = decoder, max_batch, prefill_tokens, max_cached

    @torch.inference_mode()
    def run(self, answers: Sequence[Answer]) -> Iterator[int]:
        """Runs answers to their end, joining in the order given (answers to one context are neighbours).

        Yields the number of live ones after each round of one token for each.
        """
        waiting, rows = deque(answers), list[Answer]()
        contexts = Counter(answer.context for answer in answers)
        prompts: dict[tuple[int, ...], PromptKV] = {}  # those that live rows read or waiting ones will
        kv = LiveKV(self.decoder.shape, self.decoder.dtype)
        while waiting or rows:
            # A join costs a pass over prompts, so it waits until there is room for a few rows.
            if not rows or self.max_batch - len(rows) >= max(1, self.max_batch // 8):
                joining = self._next(waiting, rows, prompts)
                self._prefill(joining, contexts, prompts, kv)
                rows += [row for row in joining if row.finish is None]
            if rows:
                self._step(rows, kv, min(self.max_batch, len(rows) + len(waiting)))
            for context in [context for context, prompt in prompts.items() if not kv.needs(prompt)]:
                del prompts[context]
            kv.drop_idle_prompts()
            yield len(rows)

    def _next(self, waiting: deque[Answer], rows: Sequence[Answer], prompts: dict[tuple[int, ...], PromptKV]) -> list[Answer]:
        """Takes from the queue what fits beside the live rows: by number, by memory, and by padding."""
        joining = list[Answer]()
        contexts = set(prompts)
        longest = max((len(context) for context in contexts), default=0)
        answer_tokens = sum(row.limit for row in rows)
        while waiting and len(rows) + len(joining) < self.max_batch:
            row = waiting[0]
            longest = max(longest, len(row.context))
            answer_tokens += row.limit
            held = answer_tokens + longest * len(contexts | {row.context})
            if (rows or joining) and (held > self.max_cached or 2 * len(row.context) < longest - PADDING):
                break
            contexts.add(row.context)
            joining.append(waiting.popleft())
        return joining

    def _prefill(
        self, joining: Sequence[Answer], contexts: Counter[tuple[int, ...]], prompts: dict[tuple[int, ...], PromptKV], kv: LiveKV
    ) -> None:
        """Runs the prompts that are new, and draws the first token of each answer that joins."""
        if not joining:
            return
        new = [context for context in dict.fromkeys(row.context for row in joining) if context not in prompts]
        stores = [PromptKV(self.decoder.shape, len(context), self.decoder.dtype, contexts[context]) for context in new]
        for pieces, hidden_Td in self.passes(new, stores, sharing(new, stores), last_only=True):
            for piece, hidden_d in zip(pieces, hidden_Td, strict=True):
                piece.kv.last_hidden = hidden_d.clone()
        prompts.update(zip(new, stores, strict=True))
        if new:
            kv.add_prompts(stores)
        hidden_Rd = torch.stack([prompts[row.context].last_hidden for row in joining])
        push_chosen(self.decoder.head(hidden_Rd), joining)
        for row in joining:
            prompts[row.context].waiting -= 1
            if row.finish is None:
                kv.add_row(prompts[row.context])

    def _step(self, rows: list[Answer], kv: LiveKV, max_rows: int) -> None:
        """One token for each live row; rows that finish leave, the last row taking their place here and in `kv`."""
        kv.begin_step(max_rows)
        hidden_Rd = self.decoder.forward(torch.tensor([row.ids[-1] for row in rows]), kv.positions(), kv)
        kv.end_step()
        push_chosen(self.decoder.head(hidden_Rd), rows)
        for number in reversed(range(len(rows))):
            if rows[number].finish is not None:
                kv.remove_row(number)
                rows[number] = rows[-1]
                rows.pop()

    def passes(
        self, sequences: Sequence[Sequence[int]], stores: Sequence[PromptKV], pieces: Sequence[Piece], last_only: bool = False
    ) -> Iterator[tuple[list[Piece], Tensor]]:
        """Runs pieces of sequences through the model in packed passes of at most `prefill_tokens`; gives the hidden states of each,
        or of each piece's last token.

        Memory beyond the keys and values is that of one pass, so it does not grow with a sequence's length.
        """
        ids_of = {id(store): ids for ids, store in zip(sequences, stores, strict=True)}
        for part in packed(pieces, self.prefill_tokens):
            ids_T = torch.tensor([i for piece in part for i in ids_of[id(piece.kv)][piece.start : piece.stop]])
            position_T = torch.cat([torch.arange(piece.start, piece.stop) for piece in part])
            ends_U = torch.tensor([piece.stop - piece.start for piece in part]).cumsum(0) - 1 if last_only else None
            yield part, self.decoder.forward(ids_T, position_T, PrefillAttention(part), ends_U)

    @torch.inference_mode()
    def score(self, sequences: Sequence[tuple[int, ...]], temperature: float) -> list[list[float]]:
        """Log-prob of each id after the first, for each sequence, in order."""
        stores = [PromptKV(self.decoder.shape, len(ids), self.decoder.dtype) for ids in sequences]
        number_of = {id(store): number for number, store in enumerate(stores)}
        scores: list[list[float]] = [[] for _ in sequences]
        for pieces, hidden_Td in self.passes(sequences, stores, [Piece(store, 0, store.num_tokens) for store in stores]):
            at = 0
            for piece in pieces:
                number, length = number_of[id(piece.kv)], piece.stop - piece.start
                targets = sequences[number][piece.start + 1 : piece.stop + 1]
                scores[number] += self._logps(hidden_Td[at : at + len(targets)], targets, temperature)
                at += length
                if piece.stop == piece.kv.num_tokens:
                    piece.kv.release()
        return scores

    def _logps(self, hidden_Td: Tensor, targets: Sequence[int], temperature: float) -> list[float]:
        logps: list[float] = []
        for at in range(0, len(targets), SCORE_ROWS):
            target_T1 = torch.tensor(targets[at : at + SCORE_ROWS])[:, None]
            logits_TV = self.decoder.head(hidden_Td[at : at + SCORE_ROWS]).float() / temperature
            logps += (logits_TV.gather(1, target_T1)[:, 0] - logits_TV.logsumexp(-1)).tolist()
        return logps


def sharing(sequences: Sequence[Sequence[int]], stores: Sequence[PromptKV]) -> list[Piece]:
    """The pieces that hold each sequence once, what several begin with computed for the first of them alone.

    A conversation's next turn begins like that of its group's other rollouts, and the prompts of a task with the same preamble.
    A piece comes after its stem's.
    """
    samples = [Sample(np.array(ids, np.int32), np.zeros(len(ids), bool)) for ids in sequences]

    def walk(nodes: Sequence[Node], stem: PromptKV | None) -> Iterator[Piece]:
        for node in nodes:
            store = stores[node.sample]
            yield Piece(store, node.start, node.stop, None if stem is store else stem)
            yield from walk(node.children, store)

    return list(walk(forest(samples), None))


def packed(pieces: Sequence[Piece], limit: int) -> Iterator[list[Piece]]:
    """Cuts pieces into passes of at most `limit` tokens, in order: a long one is spread over several, short ones share one."""
    part: list[Piece] = []
    room = limit
    for piece in pieces:
        start, stem = piece.start, piece.stem
        while start < piece.stop:
            part.append(Piece(piece.kv, start, min(piece.stop, start + room), stem))
            room -= part[-1].stop - start
            start, stem = part[-1].stop, None
            if not room:
                yield part
                part, room = [], limit
    if part:
        yield part
