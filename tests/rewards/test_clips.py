"""Clips: rewards of the last states of an episode."""

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmrm_gym import RewardModel
from vlmrm_gym.rewards.model import ClipShape
from vlmrm_gym.scoring.select import EpisodeClips
from vlmrm_gym.states import States

STEPS = 11


class Motion(RewardModel):
    """Mean difference of the first and the last frame of clips of 3 frames, 2 steps apart."""

    clip_length, clip_stride, batch_size = 3, 2, 4

    def encode(self, clips):
        assert clips.ndim == 5
        assert clips.shape[1] == 3
        return np.abs(clips[:, -1].astype(np.float32) - clips[:, 0]).mean((1, 2, 3))[:, None]

    def render_size(self, height, width):
        return 60, 90


class JointMotion(Motion):
    """The same over all views at once."""

    encodes = "views"

    def encode(self, clips):
        assert clips.ndim == 6
        return np.abs(clips[:, -1].astype(np.float32) - clips[:, 0]).mean((1, 2, 3, 4))[:, None]


def expected_clip(length, stride, t):
    """The steps of the clip of step t, by definition."""
    return [max(0, t - stride * back) for back in range(length - 1, -1, -1)]


@settings(deadline=None, max_examples=60)
@given(
    length=st.integers(1, 5),
    stride=st.integers(1, 3),
    parts=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    data=st.data(),
)
def test_clips_are_those_of_the_definition_however_an_episode_is_cut(length, stride, parts, data):
    """Parts of an episode have the clips that the whole one has, also sliced and concatenated with others."""
    clips, made, t = EpisodeClips([ClipShape(length, stride)]), [], 0
    for count in parts:
        rows = np.arange(t, t + count, dtype=np.float64)[:, None]
        made.append(clips.extend(States(rows)))
        t += count
    whole = States.concatenate(made)
    start = data.draw(st.integers(0, t - 1))
    stop = data.draw(st.integers(start + 1, t))
    chosen = whole[start:stop]
    seen = (chosen.rows if chosen.clips is None else chosen.rows[chosen.clips])[..., 0].reshape(stop - start, length)
    np.testing.assert_array_equal(seen, [expected_clip(length, stride, t) for t in range(start, stop)])
    np.testing.assert_array_equal(chosen.newest.rows[:, 0], np.arange(start, stop))
    clips.begin_episode()
    anew = clips.extend(States(np.full((1, 1), 99.0)))
    assert set(anew.rows[:, 0]) == {99}


def rewards_of(envs, *, flush_at=()):
    """The rewards of two episodes of every environment, in order."""
    envs.action_space.seed(1)
    envs.reset(seed=1)
    found = [[] for _ in range(envs.num_envs)]
    at_once = []
    for t in range(2 * STEPS + 2):
        _, rewards, _, _, infos = envs.step(envs.action_space.sample())
        at_once.append(rewards)
        for arrived in [infos, *([envs.flush()] if t in flush_at else [])]:
            for i in np.flatnonzero(arrived.get("_vlm_rewards", ())):
                found[i].append(arrived["vlm_rewards"][i])
    if envs.defers_rewards:
        for i, rest in enumerate(envs.flush()["vlm_rewards"]):
            found[i] += [] if rest is None else [rest]
        return np.stack([np.concatenate(own)[: 2 * STEPS] for own in found])
    return np.delete(np.stack(at_once), STEPS, axis=0)[: 2 * STEPS].T


def make(**options):
    return gym.make_vec("VLMRM/CartPole-v1", 2, episode_length=STEPS, reward=Motion(), **options)


@pytest.fixture(scope="module")
def expected():
    """Worked out from frames that one environment at a time renders."""
    frames_only = type(
        "Frames",
        (Motion,),
        {"clip_length": 1, "clip_stride": 1, "encode": lambda self, frames: frames.mean((1, 2, 3))[:, None]},
    )
    envs = gym.make_vec("VLMRM/CartPole-v1", 2, episode_length=STEPS, reward=frames_only(), scoring="step")
    frames = []
    envs.action_space.seed(1)
    envs.reset(seed=1)
    for _ in range(2 * STEPS + 2):
        envs.step(envs.action_space.sample())
        states = np.stack([env.unwrapped.state[[0, 2]] for env in envs.unwrapped.envs])
        frames.append(envs.scorer.frames(States(states))[:, 0])
    envs.close()
    frames = np.delete(np.stack(frames), STEPS, axis=0)[: 2 * STEPS].astype(np.float32)
    rewards = np.empty((2, 2 * STEPS))
    for t in range(2 * STEPS):
        begin = t // STEPS * STEPS
        first, _, last = (begin + step for step in expected_clip(3, 2, t - begin))
        rewards[:, t] = np.abs(frames[last] - frames[first]).mean((1, 2, 3))
    return rewards


@pytest.mark.parametrize(
    ("options", "flush_at"),
    [
        ({"scoring": "step"}, ()),
        ({}, (3, 4, 15)),
        ({"max_pending_bytes": 200, "num_workers": 1, "overlap": True}, (7,)),
    ],
    ids=["step", "flushed", "memory is full, in a worker"],
)
def test_a_clips_reward_does_not_depend_on_how_it_is_scored(options, flush_at, expected):
    envs = make(**options)
    np.testing.assert_allclose(rewards_of(envs, flush_at=flush_at), expected, atol=1e-5)
    envs.close()


def test_a_single_environment_has_the_same_rewards_of_clips(expected):
    env = gym.make("VLMRM/CartPole-v1", episode_length=STEPS, reward=Motion())
    envs = make()
    envs.action_space.seed(1)
    actions = [envs.action_space.sample()[0] for _ in range(2 * STEPS + 2)]
    envs.close()
    env.reset(seed=1)
    rewards = [env.step(action)[1] for action in actions[:STEPS]]
    env.reset()
    rewards += [env.step(action)[1] for action in actions[STEPS + 1 : 2 * STEPS + 1]]
    np.testing.assert_allclose(rewards, expected[0], atol=1e-5)
    env.close()


def test_clips_of_several_views():
    """Each view's clips are scored for themselves, or all views of a clip at once."""
    rewards = {}
    for name, options in {
        "front": {"reward": Motion(), "camera": "paper"},
        "both": {"reward": Motion(), "camera": ["paper", {"azimuth": 90.0}], "combine_views": "mean"},
        "side": {"reward": Motion(), "camera": {"azimuth": 90.0}},
        "joint": {"reward": JointMotion(), "camera": ["paper", {"azimuth": 90.0}]},
    }.items():
        envs = gym.make_vec("VLMRM/Humanoid-stand-v0", 1, textured=False, episode_length=6, **options)
        envs.action_space.seed(0)
        envs.reset(seed=0)
        for _ in range(6):
            infos = envs.step(envs.action_space.sample())[4]
        rewards[name] = infos["vlm_rewards"][0]
        envs.close()
    mean = (rewards["front"] + rewards["side"]) / 2
    np.testing.assert_allclose(rewards["both"], mean, atol=1e-4)
    np.testing.assert_allclose(rewards["joint"], mean, atol=1e-3)


def test_clips_of_no_length_and_those_longer_than_an_episode_are_refused():
    """With both lengths; a clip as long as an episode fits."""
    for name in ("clip_length", "clip_stride"):
        with pytest.raises(ValueError, match=rf"`reward.{name}` must be an integer of at least 1"):
            gym.make("VLMRM/CartPole-v1", reward=type("Odd", (Motion,), {name: 0})())
    rule = r"fit into an episode, of 4 steps .* Received 3 frames, 2 steps apart: 5 steps"
    for options in ({}, {"num_workers": 1}):
        with pytest.raises(ValueError, match=rule):
            gym.make_vec("VLMRM/CartPole-v1", 1, reward="test_clips:Motion", episode_length=4, **options)
    gym.make("VLMRM/CartPole-v1", reward="test_clips:Motion", episode_length=5).close()
