"""Teachers: who is asked what, how often weights are loaded, and what makes a folder no teacher at all."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from cascade_rl.algo.distill_loss import DistillLoss
from cascade_rl.errors import ModelError
from cascade_rl.model.divergence import Divergence
from cascade_rl.model.optim import AdamW
from cascade_rl.model.policy import Policy
from cascade_rl.model.scoring import score_samples
from cascade_rl.model.sources import load_tokenizer
from cascade_rl.model.teachers import Teachers, check_same_tokens
from cascade_rl.records import Sample
from cascade_rl.stages.step import StepStats, update
from tests.model.tiny import make_tiny


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("teachers")
    found = {name: make_tiny("qwen3", place / name, seed) for seed, name in enumerate(("student", "one", "two"))}
    found["wide"] = make_tiny("qwen3", place / "wide", 3, hidden_size=32)
    shutil.copytree(found["one"], place / "copy")
    return found | {"copy": place / "copy"}


def samples(*domains: str) -> list[Sample]:
    rng = np.random.default_rng(0)
    told = []
    for domain, length in zip(domains, (3, 5, 9, 4, 12, 7), strict=False):  # answers of 1, 3, 7, ... tokens
        mask = np.arange(length) >= 2
        ids = rng.integers(9, 290, length).astype(np.int32)
        zeros = np.zeros(length, dtype=np.float32)
        told.append(Sample(ids, mask, logp_sampler=zeros - 5, advantage=zeros, domain=domain))
    return told


DOMAINS = ("a", "b", "a", "b", "a", "b")


def judged(teachers: Teachers, *, hidden: bool = False) -> list[Sample]:
    return teachers.judge(samples(*DOMAINS), list(DOMAINS), 1000, 0.7, hidden=hidden)


def logps(told: list[Sample]) -> list[list[float]]:
    return [sample.logp_teacher.tolist() for sample in told if sample.logp_teacher is not None]


def test_each_sample_is_judged_by_its_own_teacher(folders: dict[str, Path]) -> None:
    told = logps(judged(Teachers({"a": folders["one"], "b": folders["wide"]})))
    for place, domain in enumerate(DOMAINS):
        alone = score_samples(
            Policy(folders["one" if domain == "a" else "wide"]), samples(*DOMAINS)[place : place + 1], 1000, 0.7
        )
        assert told[place] == pytest.approx(alone[0].tolist(), abs=1e-5)


@pytest.mark.parametrize("hidden", [False, True])
def test_two_names_of_one_checkpoint_are_one_teacher_bit_for_bit(hidden: bool, folders: dict[str, Path]) -> None:
    one = Teachers({"a": folders["one"], "b": folders["one"]})
    other = Teachers({"a": folders["one"], "b": folders["copy"]})
    assert (len(one), len(other)) == (1, 1)
    assert logps(judged(one, hidden=hidden)) == logps(judged(other, hidden=hidden))
    assert other.num_loads == 1


@pytest.mark.parametrize("memory_gb", [0.0, 1.0])
def test_a_teacher_is_loaded_at_most_once_a_step_and_memory_changes_no_bit(memory_gb: float, folders: dict[str, Path]) -> None:
    teachers = Teachers({"a": folders["one"], "b": folders["two"]}, memory_gb=memory_gb)
    first = judged(teachers)
    assert teachers.num_loads == 2
    assert logps(judged(teachers)) == logps(first)
    assert teachers.num_loads == 3  # the one that is in the modules comes first


def gradients(
    student: Path, told: list[Sample], loss: DistillLoss, divergence: Divergence | None, max_tokens: int = 1000
) -> tuple[StepStats, torch.Tensor]:
    class Kept(AdamW):
        def step(self, lr, grads=None, grad_scale=1.0):
            self.last = torch.cat([grad.float().flatten() * grad_scale for grad in grads if grad is not None])

    policy = Policy(student)
    optim = Kept(policy.model)
    stats = update(
        policy, optim, told, loss, lr=1.0, max_tokens_per_microbatch=max_tokens, temperature=0.7, divergence=divergence
    )
    return stats, optim.last


def with_samplers(student: Path, told: list[Sample]) -> list[Sample]:
    logp = score_samples(Policy(student), told, 1000, 0.7)
    return [replace(sample, logp_sampler=logp_T) for sample, logp_T in zip(told, logp, strict=True)]


@pytest.mark.parametrize("top_k", [0, 20])
def test_the_update_with_the_whole_kl_is_that_of_the_formula(top_k: int, folders: dict[str, Path]) -> None:
    """Whole logits of both models, one sample at a time, KL by the definition; teachers of two domains."""
    teachers = Teachers({"a": folders["one"], "b": folders["two"]})
    told = with_samplers(folders["student"], judged(teachers, hidden=True))
    stats, found = gradients(folders["student"], told, DistillLoss(divergence=True), Divergence(teachers.heads(), top_k))
    student = AutoModelForCausalLM.from_pretrained(folders["student"], attn_implementation="eager")
    of = {"a": folders["one"], "b": folders["two"]}
    total = torch.zeros(())
    for sample in told:
        teacher = AutoModelForCausalLM.from_pretrained(of[sample.domain], attn_implementation="eager")
        p_TV, q_TV = (logits(model, sample) for model in (student, teacher))
        if top_k:
            q_TV, place_TK = q_TV.topk(top_k, dim=-1)
            p_TV = p_TV.gather(-1, place_TK)
        kl_T = (p_TV.exp() * (p_TV - q_TV.detach()) + q_TV.detach().exp() - p_TV.exp()).sum(-1)
        total = total + kl_T.mean() / len(told)
    total.backward()
    expected = torch.cat([weight.grad.flatten() for weight in student.parameters() if weight.grad is not None])
    assert stats.loss == pytest.approx(total.item(), rel=1e-4)
    assert (found - expected).norm() < 1e-4 * expected.norm()
    for max_tokens in (1, 12):
        again, other = gradients(
            folders["student"], told, DistillLoss(divergence=True), Divergence(teachers.heads(), top_k), max_tokens
        )
        assert again.num_batches > 1
        assert (other - found).norm() < 1e-5 * found.norm()


def logits(model: Any, sample: Sample) -> torch.Tensor:
    """Log-probs over the whole vocabulary at temperature 0.7, at the places whose next token is trained."""
    ids_T = torch.tensor(sample.token_ids, dtype=torch.long)
    return (model(ids_T[None]).logits[0, :-1] / 0.7).log_softmax(-1)[torch.tensor(sample.mask[1:])]


def test_micro_batches_do_not_change_the_sampled_tokens_update(folders: dict[str, Path]) -> None:
    told = with_samplers(folders["student"], judged(Teachers({"a": folders["one"], "b": folders["two"]})))
    whole, found = gradients(folders["student"], told, DistillLoss(), None)
    for max_tokens in (1, 12):
        stats, other = gradients(folders["student"], told, DistillLoss(), None, max_tokens)
        assert stats.num_batches > whole.num_batches
        assert stats.loss == pytest.approx(whole.loss, rel=1e-4)
        assert (other - found).norm() < 1e-5 * found.norm()


@pytest.mark.parametrize("hidden", [False, True])
def test_a_teacher_that_is_the_student_gives_no_gradient(hidden: bool, folders: dict[str, Path]) -> None:
    teachers = Teachers({"a": folders["student"], "b": folders["student"]})
    told = with_samplers(folders["student"], judged(teachers, hidden=hidden))
    divergence = Divergence(teachers.heads()) if hidden else None
    _, found = gradients(folders["student"], told, DistillLoss(divergence=hidden), divergence)
    _, far = gradients(
        folders["student"], with_samplers(folders["student"], judged(Teachers({"a": folders["one"], "b": folders["one"]}))),
        DistillLoss(), None,
    )  # fmt: skip
    assert found.norm() < 1e-4 * far.norm()


def test_lengths_one_and_three_in_one_batch_are_finite(folders: dict[str, Path]) -> None:
    teachers = Teachers({"a": folders["one"], "b": folders["two"]})
    told = with_samplers(folders["student"], teachers.judge(samples("a", "b"), ["a", "b"], 1000, 0.7, hidden=True))
    assert [int(sample.mask.sum()) for sample in told] == [1, 3]
    for loss, divergence in ((DistillLoss(), None), (DistillLoss(divergence=True), Divergence(teachers.heads()))):
        stats, found = gradients(folders["student"], told, loss, divergence)
        assert np.isfinite([stats.loss, stats.grad_norm, *stats.means.values()]).all()
        assert found.isfinite().all()


def test_heads_of_unequal_sizes_are_refused_with_a_way_out(folders: dict[str, Path]) -> None:
    with pytest.raises(ModelError, match=r'wide has 32.*set form = "sampled_token"'):
        Teachers({"a": folders["one"], "b": folders["wide"]}).heads()


@pytest.mark.parametrize("what", ["vocabulary", "tokenizer", "chat template", "vocabulary size"])
def test_another_tokenizer_or_template_is_no_teacher(what: str, folders: dict[str, Path], tmp_path: Path) -> None:
    template = str(load_tokenizer(folders["student"]).chat_template)
    check_same_tokens(folders["student"], folders["wide"], "teacher", template)
    other = tmp_path / "other"
    shutil.copytree(folders["one"], other)
    file = other / {"chat template": "chat_template.jinja", "vocabulary size": "config.json"}.get(what, "tokenizer.json")
    text = file.read_text()
    if what == "chat template":
        text += "{# another #}"
    else:
        told = json.loads(text)
        if what == "vocabulary":
            words = told["model"]["vocab"]
            first, second = list(words)[-2:]
            words[first], words[second] = words[second], words[first]
        elif what == "tokenizer":
            told["model"]["merges"] = told["model"]["merges"][:-1]
        else:
            told["vocab_size"] += 8
        text = json.dumps(told)
    file.write_text(text)
    with pytest.raises(ModelError, match=f"^teacher: .*other has another {what} than the student"):
        check_same_tokens(folders["student"], other, "teacher", template)
    if what == "chat template":
        check_same_tokens(folders["student"], other, "teacher", None)  # a checkpoint of the run is read in the run's format
