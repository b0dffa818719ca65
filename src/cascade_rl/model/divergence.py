"""The KL to a teacher over the whole vocabulary, or its likeliest tokens, chunk by chunk: no [tokens, vocabulary] matrix is kept.

What is kept of the teacher is its last hidden state at each trained token; its logits are made from it, beside the student's, for a
chunk of tokens at a time, and once more in the backward pass.

Letters: N tokens, C tokens of a chunk, D hidden size of the student, E of the teacher, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cascade_rl.algo.batch import Targets
from cascade_rl.algo.distill_loss import generalised_kl
from cascade_rl.model.head import Head

CHUNK = 256


@dataclass(frozen=True, eq=False, slots=True)
class Divergence:
    """What an update needs to find the KL: the teachers' heads, by number, and how many of their tokens count (0: all)."""

    heads: Sequence[Head]
    top_k: int = 0

    def logps(self, hidden_ND: Tensor, head: Head, targets: Targets, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Float32 [N] each, differentiable: the log-prob of the trained token, and the generalised KL to its teacher."""
        assert targets.teacher_N is not None and targets.teacher_hidden_NE is not None, "the samples carry no teacher"
        order_N = torch.argsort(targets.teacher_N, stable=True)
        counts = torch.bincount(targets.teacher_N, minlength=len(self.heads)).tolist()
        parts = []
        for teacher, of_teacher in zip(self.heads, order_N.split(counts), strict=True):
            for places in of_teacher.split(CHUNK):
                told = hidden_ND[places], targets.teacher_hidden_NE[places], targets.token_ids_N[places]
                parts.append(
                    checkpoint(self._chunk, head, teacher, *told, temperature, use_reentrant=False, preserve_rng_state=False)
                )
        back_N = torch.argsort(order_N)
        logp_N, kl_N = (torch.cat(column)[back_N] for column in zip(*parts, strict=True))
        return logp_N, kl_N

    def _chunk(
        self, head: Head, teacher: Head, hidden_CD: Tensor, teacher_hidden_CE: Tensor, target_C: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        logp_CV = head.logps(hidden_CD, temperature)
        with torch.no_grad():
            logp_teacher_CV = teacher.logps(teacher_hidden_CE.to(teacher.weight_VD.dtype), temperature)
        return logp_CV.gather(1, target_C[:, None])[:, 0], generalised_kl(logp_CV, logp_teacher_CV, self.top_k)
