"""The example is the product's own step: on the same rollouts the same loss, gradient and weights."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.model.tiny import tiny_tokenizer

from cascade_rl.algo.advantages import ADVANTAGES
from cascade_rl.algo.policy_loss import PolicyLoss
from cascade_rl.algo.samples import to_samples
from cascade_rl.model.optim import AdamW
from cascade_rl.model.policy import Policy
from cascade_rl.model.sources import quiet
from cascade_rl.records import Group, Message, Prompt, Reward, Rollout, Turn
from cascade_rl.stages.step import update

EXAMPLE = Path(__file__).parents[2] / "examples" / "grpo_in_one_file.py"
LR = 1e-2


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE), run_name="example")


def as_groups(ids_BT: torch.Tensor, mask_BT: torch.Tensor, logp_BT: torch.Tensor, rewards_PG: torch.Tensor) -> list[Group]:
    """The example's answers as the product's records."""
    groups, size = [], rewards_PG.shape[1]
    for number, told in enumerate(rewards_PG.tolist()):
        prompt = Prompt(f"sort/train/{number}", "sort", "sort", "train", (Message("user", "sort"),))
        rollouts = []
        for index in range(size):
            row = number * size + index
            mask = mask_BT[row]
            context = tuple(ids_BT[row][: int(mask.nonzero()[0])].tolist())
            turn = Turn(context, tuple(ids_BT[row][mask].tolist()), tuple(logp_BT[row][mask].tolist()), "stop")
            rollouts.append(Rollout(prompt, (turn,), (), "stop", index))
        groups.append(Group(prompt, tuple(rollouts), tuple(Reward(value) for value in told)))
    return groups


def test_one_update_is_the_products_update(example: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(1)
    model = example["make_model"]()
    example["imitate"](model, 20, generator)
    with quiet():
        model.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)  # a model folder has one; nothing here reads text
    ids_BT, mask_BT = example["sample"](model, example["draw_prompts"](4, generator), 4, generator)
    # Rewards of three kinds of groups: mixed, graded finely, and all alike, which trains nothing.
    rewards_PG = torch.tensor([[1.0, 0, 0, 1], [0.2, 0.4, 0.1, 0.9], [1, 1, 1, 1], [0, 0, 0, 1]])
    assert len({int(mask.sum()) for mask in mask_BT}) > 1  # answers of several lengths, so that padding matters
    with torch.no_grad():
        logp_BT = example["logps"](model, ids_BT)

    policy = Policy(tmp_path)
    samples = to_samples(as_groups(ids_BT, mask_BT, logp_BT, rewards_PG), ADVANTAGES["group_normalised"])
    assert len(samples) == 12
    optim = AdamW(policy.model, betas=(0.9, 0.95), weight_decay=0.0)
    stats = update(policy, optim, samples, PolicyLoss(), lr=LR, max_tokens_per_microbatch=40, max_grad_norm=1.0)

    advantage_PG, trains_PG = example["advantages"](rewards_PG)
    loss = example["grpo_loss"](model, ids_BT, mask_BT, advantage_PG.flatten(), trains_PG.flatten())
    model.zero_grad()  # of imitation's last step
    loss.backward()
    norm = torch.sqrt(sum(p.grad.square().sum() for p in model.parameters()))
    assert stats.loss == pytest.approx(loss.item(), abs=1e-6)
    assert abs(stats.loss) > 0.01  # longer answers weigh more, so advantages that are 0 on average are not over tokens
    assert stats.grad_norm == pytest.approx(norm.item(), rel=1e-4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.0)
    example["grpo_step"](model, optimizer, ids_BT, mask_BT, rewards_PG)
    theirs = dict(model.named_parameters())
    assert policy.weights().keys() == theirs.keys()
    # AdamW's first step is LR x sign(gradient) wherever the gradient is not tiny, so this is about the sign of every gradient.
    for name, weight in policy.weights().items():
        assert torch.allclose(weight, theirs[name], atol=LR * 0.02), name


def test_groups_that_are_all_alike_change_nothing(example: dict[str, Any]) -> None:
    model = example["make_model"]()
    before = [weight.clone() for weight in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    ids_BT, mask_BT = example["sample"](model, example["draw_prompts"](2, None), 3, None)
    assert example["grpo_step"](model, optimizer, ids_BT, mask_BT, torch.ones(2, 3)) == 0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    # Advantages by hand: rewards 1, 0, 0, 1 have mean and std 1/2.
    advantage_PG, trains_PG = example["advantages"](torch.tensor([[1.0, 0, 0, 1]]))
    assert np.allclose(advantage_PG, [[1, -1, -1, 1]])
    assert trains_PG.all()


def test_rewards_ask_for_the_whole_answer(example: dict[str, Any]) -> None:
    prompt = torch.tensor([[5, 3, 4, 6, 7, 1]])
    answers = torch.tensor([[3, 4, 5, 6, 7, 2, 0], [3, 4, 5, 6, 7, 3, 2], [5, 4, 3, 6, 7, 2, 0]])
    ids_BT = torch.cat([prompt.repeat(3, 1), answers], dim=1)
    assert example["rewards"](ids_BT, 3).tolist() == [[1, 0, 0]]


def test_it_runs(example: dict[str, Any]) -> None:
    told = example["main"](imitation_steps=8, steps=2, num_prompts=4, group_size=4)
    assert len(told) == 2
    assert all(0 <= share <= 1 for share in told)
