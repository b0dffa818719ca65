"""From rollouts to samples by hand: exact prefixes, each sampled token trained once, unscored and masked rollouts left out."""

import numpy as np

from cascade_rl.algo.advantages import mean_centred
from cascade_rl.algo.batch import pack
from cascade_rl.algo.samples import rollout_samples, to_samples
from cascade_rl.records import Group, Message, Prompt, Reward, Rollout, Turn

PAD = STOP = 2  # one id for both, as many models have it
PROMPT = Prompt("t/train/0", "t", "toy", "train", (Message("user", "?"), Message("assistant", "earlier"), Message("user", "!")))


def rollout(*turns: Turn, index: int = 0) -> Rollout:
    return Rollout(PROMPT, turns, (Message("assistant", "x"),), turns[-1].finish, index=index)


def test_turns_are_laid_end_to_end_and_what_was_sampled_trains() -> None:
    (told,) = rollout_samples(
        rollout(Turn((7, 8), (5, STOP), (-0.5, -0.25), "stop"), Turn((9, 9), (6, 4), (-1.0, -2.0), "length")), advantage=0.5
    )
    assert told.token_ids.tolist() == [7, 8, 5, STOP, 9, 9, 6, 4]
    assert told.mask.tolist() == [False, False, True, True, False, False, True, True]
    assert told.logp_sampler is not None
    assert told.advantage is not None
    assert told.logp_sampler.tolist() == [0, 0, -0.5, -0.25, 0, 0, -1.0, -2.0]
    assert told.advantage.tolist() == [0, 0, 0.5, 0.5, 0, 0, 0.5, 0.5]
    assert (told.domain, told.source) == ("toy", "t/train/0#0")


def test_pads_are_a_matter_of_position_and_the_stop_token_is_trained() -> None:
    """The id that pads elsewhere, sampled in the middle and at the end, and in the prompt: only the place decides."""
    (told,) = rollout_samples(rollout(Turn((PAD, 8), (PAD, 5, STOP), (-1.0, -1.0, -1.0), "stop")), 1.0)
    assert told.mask.tolist() == [False, False, True, True, True]
    (batch,) = pack([told, told], 100)
    assert batch.targets.token_ids_N.tolist() == [PAD, 5, STOP] * 2
    assert batch.num_tokens == 10  # nothing was padded


def test_assistant_turns_of_the_prompt_are_context() -> None:
    context = tuple(range(10, 30))  # with the earlier answer in it
    (told,) = rollout_samples(rollout(Turn(context, (5, STOP), (-1.0, -1.0), "stop")), 1.0)
    assert told.token_ids[told.mask].tolist() == [5, STOP]


def test_a_fork_trains_nothing_twice() -> None:
    """The third turn could not extend the second: its context, earlier answers in it, is not trained again."""
    turns = (
        Turn((7,), (5, STOP), (-1.0, -1.0), "stop"),
        Turn((9,), (6, STOP), (-1.0, -1.0), "stop"),
        Turn((7, 5, STOP, 9, 6, STOP, 9), (4, STOP), (-1.0, -1.0), "stop", fork=True),
    )
    first, second = rollout_samples(rollout(*turns), 1.0)
    assert first.token_ids.tolist() == [7, 5, STOP, 9, 6, STOP]
    assert second.token_ids.tolist() == [7, 5, STOP, 9, 6, STOP, 9, 4, STOP]
    trained = [*first.token_ids[first.mask], *second.token_ids[second.mask]]
    assert trained == [5, STOP, 6, STOP, 4, STOP]


def test_each_rollouts_advantage_is_its_own() -> None:
    """Rewards 1, none, 0: a mean of 0.5 over the two that are scored; the unscored one gives no sample, and no place in the count."""
    rollouts = tuple(rollout(Turn((7,), (i, STOP), (-1.0, -1.0), "stop"), index=i) for i in range(3, 6))
    group = Group(PROMPT, rollouts, (Reward(1.0), Reward(None, why="?"), Reward(0.0)))
    told = to_samples([group], mean_centred)
    assert [sample.source for sample in told] == ["t/train/0#3", "t/train/0#5"]
    assert [sample.advantage.tolist() for sample in told if sample.advantage is not None] == [[0, 0.5, 0.5], [0, -0.5, -0.5]]
    assert sum(int(sample.mask.sum()) for sample in told) == 4


def test_advantages_are_written_one_by_one() -> None:
    """Nothing is an expanded view, in which a write to one token would change them all."""
    (told,) = rollout_samples(rollout(Turn((7,), (5, 6, STOP), (-1.0,) * 3, "stop")), 1.0)
    assert told.advantage is not None
    told.advantage[2] = 9.0
    assert told.advantage.tolist() == [0, 1, 9, 1]
    (batch,) = pack([told], 100)
    assert batch.targets.advantage_N is not None
    batch.targets.advantage_N[0] = 7.0
    assert batch.targets.advantage_N.tolist() == [7, 9, 1]
    assert np.array_equal(told.advantage, [0, 1, 9, 1])


def test_groups_without_signal_give_no_samples() -> None:
    rollouts = (rollout(Turn((7,), (5, STOP), (-1.0, -1.0), "stop")),) * 2
    for rewards in ((Reward(0.1), Reward(0.1)), (Reward(1.0), Reward(None, why="?")), (Reward(None, why="?"),) * 2):
        assert to_samples([Group(PROMPT, rollouts, rewards)], mean_centred) == []
