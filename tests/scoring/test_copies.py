"""`VLMReward` is the vector of one without threads: it can be copied, pickled and forked, also after an exception."""

import copy
import os
import pickle

import gymnasium as gym
import numpy as np
import pytest
from counting_env import Counting
from reward_models import PixelReward

import vlmrm_gym
from vlmrm_gym import SequenceHead


class Sum(SequenceHead):
    """The sum of all features so far."""

    def advance(self, features, carry):
        sums = features[:, 0, 0].cumsum(0) + (0 if carry is None else carry)
        return sums, sums[-1:]


class TwoReasons(ArithmeticError):
    """Cannot be unpickled."""

    def __init__(self, first, second):
        super().__init__(first)


class Summed(PixelReward):
    """Sums the numbers of the last frames, of clips of 2, over the episode. Raises at 7 the first time."""

    clip_length = 2
    head = Sum()
    raises = True

    def encode(self, frames):
        numbers = super().encode(frames[:, 0]) + super().encode(frames[:, 1])
        if 7 in frames[:, -1, 0, 0, 0] and self.raises:
            self.raises = False
            raise TwoReasons("seven", "is odd")
        return numbers


def fork(env):
    """What a forked process goes on with."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, pickle.dumps(go_on(env)))
        os._exit(0)
    os.waitpid(child, 0)
    found = pickle.loads(os.read(reader, 10_000))
    os.close(reader), os.close(writer)
    return found


def go_on(env):
    return [env.step(0)[1] for _ in range(3)]


@pytest.mark.parametrize("case", ["counting", "bundled", "counting that raised"])
def test_copies_pickles_and_forks_go_on_as_the_original(case):
    """With its clips, the carry of its head and its own reward; the one that a step has left needs its reset too."""
    raised = case == "counting that raised"
    if case == "bundled":
        env = gym.make("VLMRM/CartPole-v1")
    else:
        env = vlmrm_gym.VLMReward(Counting([20]), reward=Summed(), task_reward_weight=0.5)
    env.reset(seed=0)
    env.step(0), env.step(1)
    if raised:
        env.step(0), env.step(0), env.step(0)
        with pytest.raises(TwoReasons):
            env.step(0)
    copies = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
    for one in (env, *copies) if raised else ():
        with pytest.raises(RuntimeError, match="Call `reset`"):
            one.step(0)
        one.reset(seed=0)
    rewards = [fork(env), *(go_on(one) for one in (env, *copies))]
    assert all(own == rewards[0] for own in rewards)
    assert len(set(rewards[0])) > 1
    if case == "counting":  # after 2 and 3: twice 2, and the pairs since
        np.testing.assert_array_equal(rewards[0], np.array([4 + 5 + 7, 16 + 9, 25 + 11]) + 0.25)
    for one in (env, *copies):
        one.close()


class Remembering(PixelReward):
    """Counts the states of an episode, in 1,000 bytes of memory."""

    ordered = True

    def continue_episode(self, frames, memory):
        count = int(memory or 0)
        return np.arange(count, count + len(frames))[:, None], b"%1000d" % (count + len(frames))


def test_what_is_remembered_does_not_grow_with_the_episode():
    """Only what the next state needs is kept, so a copy costs the same at any step."""
    env, sizes = vlmrm_gym.VLMReward(Counting([200]), reward=Remembering()), []
    env.reset(seed=0)
    for step in range(100):
        assert env.step(0)[1] == step
        sizes.append(len(pickle.dumps(env)))
    assert sizes[99] - sizes[9] < 2_000  # 90 states would be 90,000; `Counting` has lists
    env.close()
