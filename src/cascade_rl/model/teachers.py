"""Teachers: frozen models that say how likely they find what the student wrote. One copy of the modules serves all of one shape."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from cascade_rl.errors import ModelError
from cascade_rl.model.head import Head
from cascade_rl.model.policy import Policy
from cascade_rl.model.scoring import hidden_and_scores, score_samples
from cascade_rl.model.sources import fingerprint, load_tokenizer
from cascade_rl.records import Sample


class Teachers:
    """Named teachers over model folders.

    folders    name -> folder. Names whose folders hold the same model are one teacher.
    dtype      the precision they run in: the student's.
    memory_gb  weights of so many GB stay in memory between steps; the others are read from disk (mapped, not copied twice) each time.

    Modules exist once for each shape of model, not for each teacher: `score` goes through the teachers one after the other and puts
    their weights into the modules, so that each is loaded at most once a call.
    """

    def __init__(self, folders: Mapping[str, Path], dtype: str = "float32", memory_gb: float = 1.0) -> None:
        self._content = {name: fingerprint(folder) for name, folder in folders.items()}
        self._folders = {self._content[name]: folder for name, folder in folders.items()}
        self._order = list(self._folders)
        self._dtype = dtype
        self._room = int(memory_gb * 1e9)
        self._resident: dict[str, Mapping[str, Tensor]] = {}
        self._shells: dict[str, Policy] = {}
        self._inside: dict[str, str] = {}  # shape -> whose weights its modules hold
        self._heads: dict[str, Head] = {}
        self.num_loads = 0

    def __len__(self) -> int:
        """How many different models."""
        return len(self._order)

    def number(self, name: str) -> int:
        """The teacher's place among the different models; that of its head in `heads`."""
        return self._order.index(self._content[name])

    def score(
        self, samples: Sequence[Sample], names: Sequence[str], max_tokens: int, temperature: float = 1.0
    ) -> list[np.ndarray]:
        """Float32 [T] for each sample: what the teacher that `names` gives it thinks of its trained tokens; 0 elsewhere."""
        told: list[np.ndarray] = [np.zeros(0, np.float32)] * len(samples)
        for content, members in self._by_teacher(names):
            mine = [samples[i] for i in members]
            for i, logp_T in zip(members, score_samples(self._load(content), mine, max_tokens, temperature), strict=True):
                told[i] = logp_T
        return told

    def judge(
        self, samples: Sequence[Sample], names: Sequence[str], max_tokens: int, temperature: float = 1.0, *, hidden: bool = False
    ) -> list[Sample]:
        """The samples with `logp_teacher`; with `hidden` also with what the KL over the whole vocabulary needs, see `heads`."""
        if not hidden:
            logps = self.score(samples, names, max_tokens, temperature)
            return [dataclasses.replace(s, logp_teacher=logp_T) for s, logp_T in zip(samples, logps, strict=True)]
        told = list(samples)
        for content, members in self._by_teacher(names):
            policy = self._load(content)
            if content not in self._heads:
                self._heads[content] = _copy(policy.head)
            answers = hidden_and_scores(policy, [samples[i] for i in members], max_tokens, temperature)
            number = self._order.index(content)
            for i, (states, logp_T) in zip(members, answers, strict=True):
                told[i] = dataclasses.replace(samples[i], logp_teacher=logp_T, teacher=number, teacher_hidden=states)
        return told

    def heads(self) -> list[Head]:
        """The heads of all teachers by number; those not asked yet are loaded for it. Raises ModelError for unequal hidden sizes."""
        for content in self._order:
            if content not in self._heads:
                self._heads[content] = _copy(self._load(content).head)
        sizes = {self._heads[content].weight_VD.shape[1]: self._folders[content] for content in self._order}
        if len(sizes) > 1:
            told = ", ".join(f"{folder} has {size}" for size, folder in sizes.items())
            raise ModelError(
                f"teachers of different hidden sizes ({told}) cannot be compared over the vocabulary in one batch;"
                f' set form = "sampled_token", or choose teachers of one size'
            )
        return [self._heads[content] for content in self._order]

    # --- weights ----------------------------------------------------------------------------------------------------------------

    def _by_teacher(self, names: Sequence[str]) -> list[tuple[str, list[int]]]:
        """The places of each teacher's samples. One that is inside its modules already comes first: it need not be loaded."""
        members: dict[str, list[int]] = {}
        for i, name in enumerate(names):
            members.setdefault(self._content[name], []).append(i)
        return sorted(members.items(), key=lambda item: (item[0] not in self._inside.values(), self._order.index(item[0])))

    def _load(self, content: str) -> Policy:
        """The modules with this teacher's weights in them."""
        folder = self._folders[content]
        shape = _shape(folder)
        if self._inside.get(shape) == content:
            return self._shells[shape]
        self.num_loads += 1
        weights = self._resident.get(content) or _mapped(folder)
        shell = self._shells.get(shape)
        if shell is None or weights.keys() != shell.weights().keys():
            # The first of its shape, or a folder in which the weights have other names than in the modules.
            shell = self._shells[shape] = Policy(folder, dtype=self._dtype)
            shell.model.requires_grad_(False)
        else:
            shell.load_weights(weights)
        self._inside[shape] = content
        self._keep(content, shell)
        return shell

    def _keep(self, content: str, shell: Policy) -> None:
        """Keeps a copy of the weights that were just loaded, where there is room; who is kept stays."""
        size = sum(tensor.nbytes for tensor in shell.weights().values())
        if content not in self._resident and size <= self._room and len(self) > 1:
            self._room -= size
            self._resident[content] = {name: tensor.clone() for name, tensor in shell.weights().items()}


def check_same_tokens(student: Path, teacher: Path, who: str, template: str | None) -> None:
    """Raises ModelError unless both folders read and write the same token ids: vocabulary, tokenizer, template, size of the head.

    template: the run's, which the teacher must have learnt; None for a checkpoint of the run itself, whose start may bring another.
    """
    ours, theirs = load_tokenizer(student), load_tokenizer(teacher)
    told: dict[str, tuple[Any, Any]] = {
        "vocabulary": (ours.get_vocab(), theirs.get_vocab()),
        "tokenizer": (_rules(ours), _rules(theirs)),
        "chat template": (template, theirs.chat_template if template is not None else None),
        "vocabulary size": (_config(student).get("vocab_size"), _config(teacher).get("vocab_size")),
    }
    for what, (here, there) in told.items():
        if here != there:
            raise ModelError(
                f"{who}: {teacher} has another {what} than the student; a teacher must read the very tokens that the student writes:"
                f" choose a checkpoint of the same lineage, or a model with the same tokenizer and template"
            )


def _rules(tokenizer: Any) -> Any:
    """How text becomes ids; padding and truncation are left out, since nothing here uses them."""
    told = json.loads(tokenizer.backend_tokenizer.to_str())
    return {key: value for key, value in told.items() if key not in ("padding", "truncation")}


def _config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def _shape(folder: Path) -> str:
    """Equal for folders whose weights fit the same modules."""
    config = {key: value for key, value in _config(folder).items() if key not in ("dtype", "torch_dtype", "transformers_version")}
    return json.dumps(config, sort_keys=True)


def _mapped(folder: Path) -> dict[str, Tensor]:
    """The weights as the files have them, mapped: pages are read when they are copied from."""
    weights: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= load_file(file)
    return weights


def _copy(head: Head) -> Head:
    with torch.no_grad():
        bias_V = None if head.bias_V is None else head.bias_V.detach().clone()
        return Head(head.weight_VD.detach().clone(), bias_V, head.softcap)
