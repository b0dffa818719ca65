"""Answers while they grow: what was asked, the ids so far, and when to stop."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from cascade_rl.records import Finish, SamplingParams
from cascade_rl.sample.choose import choose_rows, uniforms

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(eq=False, slots=True)
class Answer:
    """Answer `index` to a context, so far. `limit` is how many tokens it may have; `finish` is None while it is live."""

    context: tuple[int, ...]
    params: SamplingParams
    seed: int
    index: int
    limit: int
    tokenizer: "PreTrainedTokenizerBase | None" = None
    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    finish: Finish | None = None

    def push(self, token: int, logp: float) -> None:
        self.ids.append(token)
        self.logps.append(logp)
        if token in self.params.stop_ids or (self.params.stop and self._ends_with_stop_string()):
            self.finish = "stop"
        elif len(self.ids) >= self.limit:
            self.finish = "length"

    def _ends_with_stop_string(self) -> bool:
        """Whether the text now holds a stop string, looking only at the tail in which the last token can complete one.

        A token is at least a byte, so as many tokens as the longest string has bytes hold it; a few more keep a character that
        the window's start cuts in two away from it.
        """
        assert self.tokenizer is not None
        window = max(len(text.encode()) for text in self.params.stop) + 4
        tail = self.tokenizer.decode(self.ids[-window:], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return any(text in tail for text in self.params.stop)


def push_chosen(logits_RV: Tensor, answers: Sequence[Answer]) -> None:
    """Chooses the next token of each answer from its row of logits."""
    uniform_R = uniforms([a.seed for a in answers], [a.index for a in answers], [len(a.ids) for a in answers])
    ids, logps = choose_rows(logits_RV, [a.params for a in answers], uniform_R)
    for answer, token, logp in zip(answers, ids, logps, strict=True):
        answer.push(token, logp)
