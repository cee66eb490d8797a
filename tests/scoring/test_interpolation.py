"""`score_every`: what is drawn, what is interpolated between, and what is refused."""

from typing import ClassVar

import numpy as np
import pytest
from counting_env import Counting, Paid
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from reward_models import FaultyReward, PixelReward

import vlmrm_gym
from vlmrm_gym.scoring.select import choose_every, interpolate


class WavyReward(PixelReward):
    """Rises from 0 to 95 within 40 numbers, ever faster, and falls to 0 at once."""

    scored: ClassVar[list[int]] = []
    """The numbers that have been scored."""

    def encode(self, frames):
        numbers = super().encode(frames)
        self.scored.extend(numbers[:, 0].astype(int).tolist())
        return wavy(numbers)


def wavy(numbers):
    """What `WavyReward` gives."""
    return (np.asarray(numbers) % 40 / 4).astype(np.float32) ** 2


class WavyFeatures(PixelReward):
    """Features, float32 (B, 2), whose head makes the rewards of `WavyReward`: it squares the first."""

    feature_size = 2

    def encode(self, frames):
        roots = super().encode(frames) % 40 / 4
        return np.concatenate([roots, np.ones_like(roots)], axis=1)

    def head(self, features):
        return (features[..., 0] ** 2).mean(1)


def make(bases, reward="WavyReward", batch_size=None, **kwargs):
    kwargs |= {"reward": f"test_interpolation:{reward}", "reward_kwargs": {"batch_size": batch_size}}
    return vlmrm_gym.VLMRewardVectorEnv([lambda base=base: base for base in bases], autoreset_mode="SameStep", **kwargs)


def play(envs, steps, flush_at=()):
    """Step with zeros and flush at some steps, and at the end: for each environment the arrays that have arrived."""
    arrived = [[] for _ in range(envs.num_envs)]

    def take(infos):
        for i in np.flatnonzero(infos["_vlm_rewards"]):
            arrived[i].append({key: infos[key][i] for key in infos if key[:4] == "vlm_"})

    envs.reset(seed=0)
    for step in range(steps):
        take(envs.step(np.zeros(envs.num_envs, dtype=int))[4])
        if step in flush_at:
            take(envs.flush())
    take(envs.flush())
    assert envs.pending_bytes == 0
    return arrived


def joined(arrived, key):
    return [np.concatenate([infos[key] for infos in own]) for own in arrived]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.lists(st.integers(6, 25), min_size=1, max_size=3), min_size=1, max_size=3),
    every=st.integers(2, 5),
    flush_at=st.sets(st.integers(0, 40)),
)
def test_every_kth_state_of_what_is_scored_together_is_drawn(lengths, every, flush_at):
    """Its first and its last too, and no other; rewards between them are linear."""
    WavyReward.scored.clear()
    bases = [Counting(own, first=10_000 * number) for number, own in enumerate(lengths)]
    envs = make(bases, score_every=every)
    arrived = play(envs, 40, flush_at)
    envs.close()
    drawn = []
    for base, own in zip(bases, arrived, strict=True):
        numbers = np.array(base.expected_rewards)
        assert sum(len(infos["vlm_rewards"]) for infos in own) == len(numbers)
        for infos in own:
            count, start = len(infos["vlm_rewards"]), infos["vlm_reward_start"]
            chosen = np.unique([*range(0, count, every), count - 1])
            assert infos["vlm_scored"].dtype == bool
            assert np.flatnonzero(infos["vlm_scored"]).tolist() == chosen.tolist()
            always = wavy(numbers[start : start + count])
            assert infos["vlm_rewards"].dtype == np.float32
            assert infos["vlm_rewards"][chosen].tobytes() == always[chosen].tobytes()
            expected = np.interp(np.arange(count), chosen, always[chosen])
            np.testing.assert_allclose(infos["vlm_rewards"], expected, rtol=1e-6)
            drawn += numbers[start + chosen].tolist()
    assert sorted(WavyReward.scored) == sorted(drawn)


def test_where_rewards_are_scored_never_changes_what_is_interpolated():
    """Workers, batches and overlap: the same states are scored."""

    def results(**how):
        envs = make([Counting([29, 40], first=1000 * i) for i in range(2)], score_every=4, **how)
        arrived = play(envs, 80)
        envs.close()
        return [*joined(arrived, "vlm_rewards"), *joined(arrived, "vlm_scored")]

    expected = results()
    for how in ({"batch_size": 3}, {"num_workers": 2, "overlap": True}):
        for first, second in zip(expected, results(**how), strict=True):
            np.testing.assert_array_equal(first, second)


def test_the_environments_own_reward_is_added_step_by_step():
    arrived = []
    for weight in (0.0, 10.0):
        envs = make([Paid([20])], score_every=6, task_reward_weight=weight)
        arrived.append(joined(play(envs, 20), "vlm_rewards")[0])
        envs.close()
    np.testing.assert_allclose(arrived[1] - arrived[0], 10 * (np.arange(2, 22) % 7), rtol=1e-5)


def test_features_are_interpolated_and_rewards_are_the_heads():
    """So a relabelling makes the same rewards of what a buffer keeps."""
    base = Counting([41])
    envs = make([base], "WavyFeatures", return_features=True, score_every=4)
    ((infos,),) = play(envs, 41)
    head = envs.head
    envs.close()
    chosen, states = np.flatnonzero(infos["vlm_scored"]), np.arange(41)
    roots = np.array(base.expected_rewards) % 40 / 4
    expected = np.interp(states, chosen, roots[chosen])
    np.testing.assert_allclose(infos["vlm_features"][:, 0, 0], expected, rtol=1e-6)
    np.testing.assert_allclose(infos["vlm_rewards"], expected**2, rtol=1e-5)
    np.testing.assert_array_equal(infos["vlm_rewards"], head(infos["vlm_features"]))
    assert infos["vlm_scored"].mean() < 0.6


class EventReward(PixelReward):
    """Says nothing of the states in between."""

    interpolate = False


class ClipsOfTwo(PixelReward):
    """Sees two frames."""

    clip_length = 2


def test_what_cannot_be_interpolated_is_refused():
    for options, message in (
        ({"scoring": "step", "score_every": 2}, '`score_every` needs scoring="episode"'),
        ({"reward": EventReward(), "score_every": 3}, "`score_every` is not for this reward: it says"),
        ({"reward": ClipsOfTwo(), "score_every": 3}, "`score_every` is not for this reward: it is of clips"),
    ):
        with pytest.raises(ValueError, match=message):
            vlmrm_gym.VLMRewardVectorEnv([Counting], **{"reward": WavyReward(), **options})


class FaultyWavyReward(FaultyReward):
    """`FaultyReward` with the rewards of `WavyReward`."""

    def encode(self, frames):
        return wavy(super().encode(frames))


def test_scoring_that_fails_is_repeated(tmp_path):
    """No reward is lost, and none arrives twice. The 7th state fails."""
    mark = tmp_path / "repaired"
    base, reward = Counting([25]), FaultyWavyReward(prompt=str(mark))
    envs = vlmrm_gym.VLMRewardVectorEnv([lambda: base], reward=reward, autoreset_mode="SameStep", score_every=5)
    envs.reset(seed=0)
    for _ in range(25):
        *_, infos = envs.step(np.zeros(1, dtype=int))
    assert not infos["_vlm_rewards"][0]
    with pytest.raises(ArithmeticError, match="seven"):
        envs.flush()
    mark.touch()
    infos = envs.flush()
    scored = infos["vlm_scored"][0]
    assert scored[5]
    np.testing.assert_array_equal(infos["vlm_rewards"][0][scored], wavy(base.expected_rewards)[scored])
    assert len(scored) == 25
    assert not envs.flush()["_vlm_rewards"][0]
    envs.close()


CURVES = arrays(np.float32, st.integers(1, 60), elements=st.floats(-100, 100, width=32))


@given(curve=CURVES, every=st.integers(1, 60), size=st.integers(0, 2))
def test_values_are_exact_where_they_are_known_and_linear_between(curve, every, size):
    """Rewards (T,) and features (T, 1, D); the first, every k-th and the last are known."""
    chosen = choose_every(len(curve), every)
    assert chosen.tolist() == sorted({*range(0, len(curve), every), len(curve) - 1})
    columns = curve if size == 0 else np.stack([curve, -curve][:size], axis=-1)[:, None]
    values = interpolate(chosen, columns[chosen])
    assert values.dtype == np.float32
    assert values[chosen].tobytes() == columns[chosen].tobytes()
    expected = np.interp(np.arange(len(curve)), chosen, curve[chosen])
    np.testing.assert_allclose(values if size == 0 else values[:, 0, 0], expected, atol=1e-4)


def test_differences_of_large_values_do_not_overflow():
    high = np.array([-3e38, 3e38], dtype=np.float32)
    assert interpolate(np.array([0, 2]), high).tolist() == [high[0], 0, high[1]]
