"""TransitionStore: stored rewards are of one head, or a buffer is not sampled."""

import numpy as np

from vlmrm_gym.data.late import Late
from vlmrm_gym.data.store import TransitionStore
from vlmrm_gym.rewards.current_head import CurrentHead


def late(versions, number=1.0, reward=None):
    """What arrives: features (T, 1, 2) of this number, and rewards of heads of these versions."""
    count = len(versions)
    return Late(
        env=0,
        start=0,
        rewards=np.full(count, number if reward is None else reward, dtype=np.float32),
        scored=np.full(count, True),
        features=np.full((count, 1, 2), number, dtype=np.float32),
        task_rewards=np.full(count, 0.25, dtype=np.float32),
        versions=np.array(versions, dtype=np.int64),
    )


def columns(*arrivals):
    made = TransitionStore(100, "capacity")
    for versions in arrivals:
        made.arrive(late(versions))
    return made


def test_rewards_of_several_versions_are_not_settled():
    for arrivals, is_settled in [
        ([[1, 1], [1]], True),
        ([[2], [2, 2]], True),
        ([[1], [2]], False),  # a newer head's
        ([[2], [1]], False),  # an older head's, late
        ([[2], [2, 1, 2]], False),
        ([[1, 2]], False),
        ([[2, 1]], False),
        ([[], [1]], True),
    ]:
        assert columns(*arrivals).is_settled is is_settled, arrivals


def three_times(features):
    return 3 * features[:, 0, 0]


def test_after_a_relabel_what_arrives_is_made_anew():
    """Of older heads: 3 times the number, plus the weighted task reward. A newer head's stay, and are not settled."""
    made, head = columns([2]), CurrentHead(three_times)
    made.relabel(three_times)
    rewards, features, task_rewards = made.arrive(late([1, 1], number=2.0))
    assert rewards.tolist() == [6.25, 6.25]
    assert (features.tolist(), task_rewards.tolist()) == ([[[2.0, 2.0]]] * 2, [0.25, 0.25])
    assert made.is_settled
    made.relabel(head)
    assert made.arrive(late([2], number=2.0))[0].tolist() == [2.0]
    assert not made.is_settled


def test_a_reward_that_is_not_known_is_not_settled():
    """No late reward changes nothing."""
    made = columns([2])
    assert [len(column) for column in made.arrive(late([]))] == [0, 0, 0]
    assert made.is_settled
    made.arrive(late([2], reward=np.nan))
    made.arrive(late([2]))
    assert not made.is_settled


def test_the_version_is_saved_unless_a_relabel_made_the_rewards():
    """Environments that are made anew count their heads from 1: theirs are older than what was loaded."""
    assert columns([2], [1]).state["reward_version"] == -1
    made = columns([2])
    assert made.state["reward_version"] == 2
    again = TransitionStore(100, "capacity")
    again.load(made.state, 0, lambda name: [])
    assert again.is_settled
    again.arrive(late([1]))
    assert not again.is_settled
    made.relabel(three_times)
    assert made.state["reward_version"] == -1
    again.load(made.state, 0, lambda name: [])
    assert not again.is_settled
