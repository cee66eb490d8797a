"""Several rewards of the same episodes: what depends on earlier states begins anew with each episode."""

from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
from backends import frames_of
from reward_models import PixelReward, TwoFeatures

from vlmrm_gym.scoring.several import SeveralRewards
from vlmrm_gym.states.drawing import FrameStore


class Before(PixelReward):
    """The number that the frame before encodes."""

    clip_length = 2

    def encode(self, frames):
        return super().encode(frames[:, 0])


class Steps(PixelReward):
    """Counts the states of an episode."""

    ordered = True

    def continue_episode(self, frames, memory):
        count = int(memory or 0)
        return np.arange(count, count + len(frames))[:, None], str(count + len(frames)).encode()


class Double(TwoFeatures):
    """The reward of `TwoFeatures`, of the same features."""

    def head(self, features):
        return 2 * super().head(features)


@pytest.fixture
def rewards():
    specs = [
        SimpleNamespace(build=lambda device, own=own: own(), task_reward_weight=0.0)
        for own in (Before, Steps, TwoFeatures, Double)
    ]
    with closing(SeveralRewards(specs, "cpu")) as several:
        several.open(lambda render_size: FrameStore())
        yield several


def test_episodes_and_parts_of_one(rewards):
    made = []
    for numbers in ([5, 6, 7], [20, 21]):
        rewards.begin_episode()
        made.append(rewards(frames_of(numbers)))
    assert np.concatenate(made).T.tolist() == [
        [5, 5, 6, 20, 20],
        [0, 1, 2, 0, 1],
        [11, 13, 15, 41, 43],
        [22, 26, 30, 82, 86],
    ]
    assert rewards(frames_of([22, 23])).T.tolist() == [[21, 22], [2, 3], [45, 47], [90, 94]]
