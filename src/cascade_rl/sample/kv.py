"""Keys and values, and attention over them: of prompts while they are prefilled, and of the answers that grow behind them.

Letters besides the usual: K key-value heads, J query heads that share one, P prompt columns, W answer columns, D head size,
R live rows, G live prompts, N rows of the fullest group.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from cascade_rl.sample.decoder import Shape

# Answer columns come in multiples of this: attention runs over the whole width, since a slice would be copied at each step.
COLUMNS = 32


class PromptKV:
    """The keys and values of one sequence, filled piece by piece: per layer [K, T, D], allocated when first written.

    waiting, read_by: how many rows that answer it have yet to join the batch, and are in it. last_hidden: the final hidden state [d]
    of its last token.
    """

    def __init__(self, shape: Shape, num_tokens: int, dtype: torch.dtype, waiting: int = 0) -> None:
        self.num_tokens, self.waiting, self.read_by = num_tokens, waiting, 0
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.last_hidden = torch.empty(0, dtype=dtype)
        self._size = (shape.num_kv_heads, num_tokens, shape.head_dim)

    def write(
        self, layer: int, start: int, k_TKD: Tensor, v_TKD: Tensor, stem: "PromptKV | None" = None
    ) -> tuple[Tensor, Tensor]:
        """Stores a piece's keys and values, behind those of `stem` where they begin there; gives all up to its end, each [K, T, D]."""
        stop = start + len(k_TKD)
        for name, new_TKD in (("keys", k_TKD), ("values", v_TKD)):
            store = getattr(self, name)
            if layer not in store:
                store[layer] = new_TKD.new_empty(self._size)
            if stem is not None:
                store[layer][:, :start] = getattr(stem, name)[layer][:, :start]
            store[layer][:, start:stop] = new_TKD.transpose(0, 1)
        return self.keys[layer][:, :stop], self.values[layer][:, :stop]

    def release(self) -> None:
        self.keys, self.values = {}, {}


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens start..stop of the sequence whose keys and values are in `kv`; those before `start` are the same in `stem`, if given."""

    kv: PromptKV
    start: int
    stop: int
    stem: PromptKV | None = None


class PrefillAttention:
    """The `attend` of a pass over packed pieces: each sees its own sequence up to itself, and never another.

    Where it gets fewer queries than keys, these are of the last token of each piece.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        # Not for pieces at the start, which are plainly causal.
        self.masks = [
            torch.ones(p.stop - p.start, p.stop, dtype=torch.bool).tril_(p.start) if p.start else None for p in pieces
        ]  # fmt: skip

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        out_THD = torch.empty_like(q_THD, memory_format=torch.contiguous_format)
        at = first = 0
        for piece, mask in zip(self.pieces, self.masks, strict=True):
            end = at + piece.stop - piece.start
            stored = piece.kv.write(layer, piece.start, k_TKD[at:end], v_TKD[at:end], piece.stem)
            if len(q_THD) < len(k_TKD):
                queries, mask = slice(first, first + 1), None
            else:
                queries = slice(at, end)
            repeat = q_THD.shape[1] // len(stored[0])
            keys, values = (x_KTD[None] if repeat == 1 else x_KTD[None].repeat_interleave(repeat, 1) for x_KTD in stored)
            query = q_THD[None, queries].transpose(1, 2)
            causal = mask is None and query.shape[2] > 1
            attended = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, is_causal=causal)
            out_THD[queries] = attended[0].transpose(0, 1)
            at, first = end, first + 1
        return out_THD.flatten(1)


class LiveKV:
    """The keys and values that live rows attend to: each prompt's once, and each row's own answer.

    Prompts lie in a grid, padded to the longest, so that the scores of all rows of a group against their prompt are one matmul;
    answers lie in buffers that grow by COLUMNS and are never concatenated. Rows are dense: the last takes the place of one that
    leaves.
    """

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        self.shape, self.dtype = shape, dtype
        self.prompts: list[PromptKV] = []  # in grid order; their tensors live in the grid
        self.prompt_of: list[PromptKV] = []  # of each row
        self.lengths: list[int] = []  # row -> answer tokens whose keys are here
        self.slots = self.width = self.prompt_width = 0
        empty = torch.empty(0, shape.head_dim, dtype=dtype)
        self.prompt_keys = [empty] * shape.num_layers  # [K * G, P, D]
        self.prompt_values = [empty] * shape.num_layers
        self.keys = [empty] * shape.num_layers  # [slots * K, W, D]
        self.values = [empty] * shape.num_layers
        self.step: _Step | None = None

    @property
    def num_rows(self) -> int:
        return len(self.prompt_of)

    def add_prompts(self, new: Sequence[PromptKV]) -> None:
        """Takes prompts into the grid (emptying them) and drops those that no row needs any more."""
        kept = [number for number, prompt in enumerate(self.prompts) if self.needs(prompt)]
        prompts = [self.prompts[number] for number in kept] + list(new)
        width = max((prompt.num_tokens for prompt in prompts), default=0)
        num_kv, head_dim, shared = self.shape.num_kv_heads, self.shape.head_dim, min(width, self.prompt_width)
        for store, name in ((self.prompt_keys, "keys"), (self.prompt_values, "values")):
            for layer, old in enumerate(store):
                grid_KGPD = torch.zeros(num_kv, len(prompts), width, head_dim, dtype=self.dtype)
                if kept:
                    old_KGPD = old.view(num_kv, -1, self.prompt_width, head_dim)
                    grid_KGPD[:, : len(kept), :shared] = old_KGPD[:, kept, :shared]
                for number, prompt in enumerate(new, len(kept)):
                    grid_KGPD[:, number, : prompt.num_tokens] = getattr(prompt, name).pop(layer)
                store[layer] = grid_KGPD.flatten(0, 1)
        self.prompts, self.prompt_width, self.step = prompts, width, None

    @staticmethod
    def needs(prompt: PromptKV) -> bool:
        """Whether a row reads the prompt or has yet to join."""
        return prompt.waiting > 0 or prompt.read_by > 0

    def drop_idle_prompts(self) -> None:
        """Packs the grid anew once much of it serves no row."""
        needed = [prompt.num_tokens for prompt in self.prompts if self.needs(prompt)]
        if len(needed) * max(needed, default=0) <= 0.7 * len(self.prompts) * self.prompt_width:
            self.add_prompts([])

    def add_row(self, prompt: PromptKV) -> None:
        prompt.read_by += 1
        self.prompt_of.append(prompt)
        self.lengths.append(0)
        self.step = None

    def remove_row(self, row: int) -> None:
        """Takes a row out; the last row moves into its place."""
        last, heads = self.num_rows - 1, self.shape.num_kv_heads
        if row != last:
            for store in (*self.keys, *self.values):
                store[row * heads : (row + 1) * heads] = store[last * heads : (last + 1) * heads]
        self.prompt_of[row].read_by -= 1
        self.prompt_of[row], self.lengths[row] = self.prompt_of[last], self.lengths[last]
        self.prompt_of.pop()
        self.lengths.pop()
        self.step = None

    def positions(self) -> Tensor:
        """int64 [R]: where each row's next token stands in its sequence."""
        return torch.tensor([p.num_tokens + length for p, length in zip(self.prompt_of, self.lengths, strict=True)])

    def begin_step(self, max_rows: int) -> None:
        """Makes room for one more token in every row and works out where it goes and what it sees.

        max_rows: how many rows there may soon be, so that those who join find a place.
        """
        needed = max(self.lengths) + 1
        if self.num_rows > self.slots or needed > self.width or needed + 2 * COLUMNS < self.width / 2:
            self._resize(needed, max(max_rows, self.num_rows))
        if self.step is None:
            self.step = _Step.of(self)
        self.step.advance(self.lengths, self.width)

    def end_step(self) -> None:
        self.lengths = [length + 1 for length in self.lengths]

    def _resize(self, needed: int, slots: int) -> None:
        """Buffers of a new size, one layer at a time: an eighth wider than needed, in multiples of COLUMNS."""
        width = -(-(needed + needed // 8) // COLUMNS) * COLUMNS
        num_kv, shared = self.shape.num_kv_heads, min(width, self.width)
        used = min(slots, self.slots, self.num_rows) * num_kv
        for store in (self.keys, self.values):
            for layer, old in enumerate(store):
                new = torch.zeros(slots * num_kv, width, self.shape.head_dim, dtype=self.dtype)
                if shared:
                    new[:used, :shared] = old[:used, :shared]
                store[layer] = new
        self.slots, self.width, self.step = slots, width, None

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        """The `attend` of a decode step: one token of each live row against its prompt and its own answer."""
        step, (num_rows, _, head_dim), num_kv = self.step, q_THD.shape, self.shape.num_kv_heads
        assert step is not None
        keys, values = self.keys[layer], self.values[layer]
        keys.view(-1, head_dim).index_copy_(0, step.write, k_TKD.reshape(-1, head_dim))
        values.view(-1, head_dim).index_copy_(0, step.write, v_TKD.reshape(-1, head_dim))
        keys, values = keys[: num_rows * num_kv], values[: num_rows * num_kv]
        prompt_keys, prompt_values = self.prompt_keys[layer], self.prompt_values[layer]
        width = prompt_keys.shape[1]

        q_RKJD = q_THD.contiguous().view(num_rows, num_kv, -1, head_dim)
        j = q_RKJD.shape[2]
        q_grid = q_RKJD.transpose(0, 1).index_select(1, step.row_of_cell).view(len(prompt_keys), -1, head_dim)
        to_prompt = torch.bmm(q_grid, prompt_keys.transpose(1, 2)).view(num_kv, -1, j, width)
        to_answer = torch.bmm(q_RKJD.view(-1, j, head_dim), keys.transpose(1, 2)).view(num_rows, num_kv, j, -1)
        score_KRJC = torch.empty(num_kv, num_rows, j, width + to_answer.shape[3])
        score_KRJC[..., :width] = to_prompt.index_select(1, step.cell_of_row)
        score_KRJC[..., width:] = to_answer.transpose(0, 1)
        torch.add(step.mask_R1C, score_KRJC, alpha=head_dim**-0.5, out=score_KRJC)
        share_KRJC = torch.softmax(score_KRJC, -1).to(self.dtype)

        on_prompt = share_KRJC[..., :width].index_select(1, step.row_of_cell).view(len(prompt_keys), -1, width)
        on_answer = share_KRJC[..., width:].transpose(0, 1).reshape(num_rows * num_kv, j, -1)
        from_prompt = torch.bmm(on_prompt, prompt_values).view(num_kv, -1, j, head_dim).index_select(1, step.cell_of_row)
        from_answer = torch.bmm(on_answer, values).view(num_rows, num_kv, j, head_dim)
        return (from_answer + from_prompt.transpose(0, 1)).view(num_rows, -1)


@dataclass(slots=True)
class _Step:
    """Index tensors of a decode step, kept while the rows stay the same.

    row_of_cell  int64 [G * N]: the row whose query stands in a cell of the grid (row 0 where there is none; nobody reads that).
    cell_of_row  int64 [R].
    write        int64 [R * K]: where in the flattened buffers the new keys go.
    mask_R1C     float32 [R, 1, P + W]: 0 where a row may look, -inf elsewhere.
    """

    row_of_cell: Tensor
    cell_of_row: Tensor
    first_column: Tensor
    write: Tensor
    mask_R1C: Tensor
    prompt_width: int

    @classmethod
    def of(cls, kv: LiveKV) -> "_Step":
        number_of = {id(prompt): number for number, prompt in enumerate(kv.prompts)}
        rows_of: list[list[int]] = [[] for _ in kv.prompts]
        for row, prompt in enumerate(kv.prompt_of):
            rows_of[number_of[id(prompt)]].append(row)
        fullest = max(len(rows) for rows in rows_of)
        row_of_cell = torch.zeros(len(rows_of), fullest, dtype=torch.int64)
        cell_of_row = torch.zeros(kv.num_rows, dtype=torch.int64)
        for number, rows in enumerate(rows_of):
            row_of_cell[number, : len(rows)] = torch.tensor(rows, dtype=torch.int64)
            cell_of_row[rows] = torch.arange(len(rows)) + number * fullest
        mask_R1C = torch.zeros(kv.num_rows, 1, kv.prompt_width + kv.width)
        length_R1 = torch.tensor([prompt.num_tokens for prompt in kv.prompt_of])[:, None]
        mask_R1C[:, 0, : kv.prompt_width].masked_fill_(torch.arange(kv.prompt_width) >= length_R1, -torch.inf)
        first_column = torch.arange(kv.num_rows * kv.shape.num_kv_heads) * kv.width
        return cls(row_of_cell.flatten(), cell_of_row, first_column, first_column, mask_R1C, kv.prompt_width)

    def advance(self, lengths: Sequence[int], width: int) -> None:
        """For rows that hold so many tokens: the new one goes behind them and sees them and itself."""
        length_R = torch.tensor(lengths)
        heads = len(self.first_column) // len(lengths)
        self.write = self.first_column + length_R.repeat_interleave(heads)
        answer_RW = self.mask_R1C[:, 0, self.prompt_width :]
        answer_RW.fill_(0.0).masked_fill_(torch.arange(width) > length_R[:, None], -torch.inf)
