"""What depends on the states before: heads of sequences and sub-tasks give by parts what they give for the whole."""

import numpy as np
import pytest
import torch
from counting_env import Counting, take
from hypothesis import given, settings
from hypothesis import strategies as st
from reward_models import PixelReward

import vlmrm_gym
from vlmrm_gym import SequenceHead
from vlmrm_gym.rewards.program.spec import ProgramError


class Gains(SequenceHead):
    """The gain since the state before, plus 1,000 times the maximum so far."""

    def advance(self, features, carry):
        scores = features[:, 0, 0]
        before, top = (scores[:1], scores[:1]) if carry is None else carry
        tops = torch.maximum(scores.cummax(0).values, top)
        return scores - torch.cat([before, scores[:-1]]) + 1000 * tops, (scores[-1:], tops[-1:])


def gains(numbers):
    """What `Gains` pays for an episode of `Scattered`, by definition."""
    scores = scattered(np.array(numbers))
    return (np.diff(scores, prepend=scores[0]) + 1000 * np.maximum.accumulate(scores)).tolist()


def scattered(numbers):
    return numbers * 7919 % 1000


class Scattered(PixelReward):
    """Rises and falls with the number that a frame encodes. Some calls fail."""

    fails = ()

    def encode(self, frames):
        if self.fails and self.fails.pop():
            raise ArithmeticError("not now")
        return scattered(super().encode(frames).astype(np.int64)).astype(np.float32)


class Model(Scattered):
    head = Gains()


def retry(call):
    """Call until no encoding fails."""
    while True:
        try:
            return call()
        except ArithmeticError:
            pass


def make(bases, model, **options):
    options = {"autoreset_mode": "SameStep", **options}
    return vlmrm_gym.VLMRewardVectorEnv([lambda base=base: base for base in bases], reward=model, **options)


def expected(base, of_episode):
    """The rewards of all steps of an environment, by those of whole episodes."""
    numbers, episodes = np.array(base.expected_rewards), np.array(base.episodes)
    return [reward for episode in np.unique(episodes) for reward in of_episode(numbers[episodes == episode])]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=3),
    calls=st.lists(st.sampled_from(["step"] * 6 + ["flush", "reset"]), min_size=1, max_size=40),
    fails=st.lists(st.booleans(), max_size=10),
    options=st.sampled_from([{}, {"overlap": True}, {"max_pending_bytes": 100}, {"scoring": "step"}]),
    replaces=st.booleans(),
)
def test_a_head_of_sequences_pays_by_parts_what_it_pays_for_the_whole(lengths, calls, fails, options, replaces):
    """Wherever flushes and memory cut an episode, whatever was encoded again, as the model's head or a later one."""
    bases = [Counting(own, first=500 * number) for number, own in enumerate(lengths)]
    model = (Scattered if replaces else Model)(batch_size=3)
    model.fails = [] if "scoring" in options else list(fails)
    envs = make(bases, model, return_features=replaces, **options)
    if replaces:
        envs.head.replace(Gains())
    found, stepwise = [[] for _ in bases], [[] for _ in bases]
    take(found, envs.reset(seed=0)[1])
    for call in calls:
        if call == "step":
            _, rewards, *_, infos = retry(lambda: envs.step(np.zeros(len(bases), dtype=int)))
            for own, reward in zip(stepwise, rewards.tolist(), strict=True):
                own.append(reward)
        else:
            infos = retry(envs.flush if call == "flush" else lambda: envs.reset()[1])
        take(found, infos)
    take(found, retry(envs.flush))
    envs.close()
    assert found == [expected(base, gains) for base in bases]
    if "scoring" in options:
        assert stepwise == found


def test_a_head_that_replaces_another_within_an_episode_begins_anew():
    """What the other carried says nothing to it."""
    base = Counting([6])
    envs = make([base], Scattered(), return_features=True)
    envs.reset(seed=0)
    found = [[]]
    for step in range(6):
        if step in (0, 2):
            envs.head.replace(Gains())
        take(found, envs.step(np.zeros(1, dtype=int))[4])
        take(found, envs.flush())
    envs.close()
    numbers = base.expected_rewards
    assert found == [[*gains(numbers[:2]), *gains(numbers[2:])]]


PROGRAM = """
import os

class Second:
    def reset(self):
        self.count = 0

    def __call__(self, frame):
        self.count += 1
        return self.count == 2

class Rises:
    def reset(self):
        self.first = None

    def __call__(self, frame):
        if frame[0, 0, 0] == 7 and not os.path.exists({path!r}):
            raise ValueError("not now")
        if self.first is None:
            self.first = int(frame[0, 0, 0])
        return (frame[0, 0, 0] - self.first) / 100
"""


@pytest.mark.parametrize(("overlap", "pending"), [(False, 2**30), (True, 2**30), (True, 2)])
def test_sub_tasks_in_parts_of_which_one_is_scored_again(overlap, pending, tmp_path):
    """The second of three parts, or of nine, fails until there is a file: it goes on from where the first has ended.

    The parts after it fail with it, and are scored again with it.
    """
    path, base = tmp_path / "cure", Counting([9])
    reward = vlmrm_gym.Program(source=PROGRAM.format(path=str(path)), isolate=False)
    envs, found = make([base], reward, overlap=overlap, max_pending_bytes=pending), [[]]
    envs.reset(seed=0)
    for step in range(9):
        take(found, retry_program(lambda: envs.step(np.zeros(1, dtype=int))[4], path))
        if step in (2, 6):
            take(found, retry_program(envs.flush, path))
    take(found, envs.flush())
    envs.close()
    assert path.exists(), "it has failed"
    rises = [0, *((1 + count / 100) / 2 for count in range(8))]
    np.testing.assert_allclose(found[0], rises, rtol=1e-6)


def retry_program(call, path):
    try:
        return call()
    except ProgramError:
        path.touch()
        return call()
