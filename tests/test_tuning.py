"""Heads that are tuned to the successes in an episode log."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import TASK_PROMPT
from hypothesis import given, settings
from hypothesis import strategies as st

import vlmrm_gym
from vlmrm_gym.rewards import TunedHead
from vlmrm_gym.tuning import HeadTuner, TuningOptions, count_success_steps, fit, ranking_loss

CAR_PROMPT = "a car at the peak of the mountain, next to the yellow flag"
CART_POLE = "VLMRM/CartPole-v1"
cosines = st.lists(st.tuples(*[st.floats(-1, 1, width=32)] * 2), min_size=1, max_size=8)


def test_the_ranking_loss_is_the_hinge():
    """By hand: 0.1 - 0.3 is below 0; 0.1 - 0.02 = 0.08; 0.1 + 0.4 = 0.5."""
    better, worse = torch.tensor([0.5, 0.42, 0.1]), torch.tensor([0.2, 0.4, 0.5])
    assert float(ranking_loss(better, worse, 0.1)) == pytest.approx((0 + 0.08 + 0.5) / 3)


@settings(deadline=None)
@given(cosines, st.floats(0.01, 1), st.floats(-1, 1))
def test_only_the_differences_count_and_only_up_to_the_margin(pairs, margin, shift):
    better, worse = torch.tensor(pairs, dtype=torch.float64).T
    loss = float(ranking_loss(better, worse, margin))
    assert (loss == 0) == bool((better - worse >= margin).all())
    assert float(ranking_loss(better + shift, worse + shift, margin)) == pytest.approx(loss, abs=1e-9)
    assert loss >= margin - float((better - worse).mean()) - 1e-9


@settings(deadline=None)
@given(cosines, st.floats(0.01, 1))
def test_the_gradients_are_those_of_furl(pairs, margin):
    """FuRL's code: where worse - better + margin is above 0, the mean of worse - better."""
    better, worse = torch.tensor(pairs, dtype=torch.float64).T.clone()
    better.requires_grad_()
    (own,) = torch.autograd.grad(ranking_loss(better, worse, margin), better)
    (furl,) = torch.autograd.grad((((worse - better + margin) > 0) * (worse - better)).mean(), better)
    torch.testing.assert_close(own, furl)


@pytest.mark.parametrize(
    ("success", "threshold", "count"),
    [
        ([0, 0, 0], 0, 0),
        ([0, 0, 1, 1], 0, 4),  # a goal that is reached
        ([0, 1, 0, 1], 0, 2),  # up to where the success is lost
        ([1, 1, 1, 1], 1, 4),  # a pole that stands all along
        ([1, 1, 0, 1], 1, 0),
        ([0, 0, 1, 1], 0.5, 4),
        ([0, 0, 0, 1], 0.5, 0),
        ([math.nan, math.nan], 0, 0),
    ],
)
def test_the_steps_of_a_success(success, threshold, count):
    assert count_success_steps(np.array(success, dtype=np.float64), threshold) == count


def test_a_head_learns_to_rank_what_its_cosine_does_not_see(rng):
    """Progress is along one axis, and the text along another. Later states are further; failures are behind."""
    head = TunedHead(16, hidden_size=32)
    head.text[0] = 1

    def states(progress):
        rows = 0.3 * rng.normal(size=(len(progress), 1, 16))
        rows[:, 0, 1] += progress
        return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)

    def accuracy():
        low, high = (head.cosine(torch.from_numpy(states(np.full(500, at)))) for at in (0.0, 2.0))
        return float((high > low).float().mean())

    ahead = rng.uniform(1, 2, 300)
    successes = np.stack([states(ahead), states(ahead - 1)], axis=1)
    before = accuracy()
    loss = fit(head, successes, states(np.full(300, -0.5)), 250, TuningOptions(learning_rate=2e-3), rng)
    assert 0.3 < before < 0.7
    assert accuracy() > 0.97
    assert 0 < loss < 0.3
    assert not any(one.requires_grad for one in head.parameters())


def played(steps=60, **options):
    """Cart-poles after random actions, in episodes of 15 steps: some stand all along, and some fall."""
    envs = gym.make_vec(
        CART_POLE, 2, episode_length=15, reward=vlmrm_gym.TunedCLIP(prompt=TASK_PROMPT, hidden_size=16), **options
    )
    envs.reset(seed=0)
    envs.action_space.seed(0)
    for _ in range(steps):
        envs.step(envs.action_space.sample())
    return envs


@pytest.fixture(scope="module")
def envs():
    made = played()
    yield made
    made.close()


def is_success(episode):
    """The pole stood all along."""
    return bool((episode.success == 1).all())


def test_pairs_are_of_successful_episodes_and_failures_of_the_others():
    """Features say which state was drawn: each is one of the log."""
    envs = played()
    tuner, gap = HeadTuner(envs, options=TuningOptions(gap=4), seed=1), 4
    scalars = tuner.tune(5, draws=12)
    episodes = envs.episode_log.episodes
    assert scalars["successes"] == sum(map(is_success, episodes)) > 0
    assert scalars["episodes"] == len(episodes) > scalars["successes"]
    of = [(is_success(one), envs.scorer.features(one.states)) for one in episodes]

    def find(row, success):
        found = [k for ok, rows in of if ok == success for k in np.flatnonzero(abs(rows - row).max((1, 2)) < 1e-5)]
        assert found
        return found

    assert tuner.successes.shape == (12, 2, 1, 128)
    for later, earlier in tuner.successes:
        assert {k - gap for k in find(later, True)} & set(find(earlier, True))
    for row in tuner.failures:
        find(row, False)
    assert len(tuner.failures) == 12
    assert envs.head.version == 2
    assert scalars["success_cosine"] == pytest.approx(
        float(tuner.head.cosine(torch.from_numpy(tuner.successes[:, 0])).mean())
    )
    envs.close()


def test_what_is_drawn_is_kept_up_to_the_capacity(envs):
    tuner = HeadTuner(envs, options=TuningOptions(gap=4, capacity=7))
    tuner.tune(1, draws=5)
    first = tuner.successes
    tuner.tune(1, draws=5)
    assert (len(tuner.successes), len(tuner.failures)) == (7, 7)
    np.testing.assert_array_equal(tuner.successes[:2], first[3:])


def test_the_gap_between_both_grows_on_the_states_of_a_log():
    envs = played()
    tuner = HeadTuner(envs, options=TuningOptions(gap=4))
    gaps = []
    for _ in range(2):
        scalars = tuner.tune(100, draws=40)
        gaps.append(scalars["success_cosine"] - scalars["failure_cosine"])
    assert gaps[1] > gaps[0] > 0
    envs.close()


def test_without_a_success_nothing_changes(envs):
    tuner = HeadTuner(envs, options=TuningOptions(gap=15))  # no success is as long
    before = envs.head.version, envs.head.head
    scalars = tuner.tune(5)
    assert scalars["successes"] > 0
    assert (envs.head.version, envs.head.head) == before


def test_a_tuner_that_is_loaded_continues_to_the_bit(tmp_path):
    first, second = played(), played(steps=0)
    options = {"options": TuningOptions(gap=4), "seed": 3}
    tuner, other = HeadTuner(first, **options), HeadTuner(second, **options)
    tuner.tune(5, draws=10)
    tuner.save(tmp_path / "tuner.zip")
    other.load(tmp_path / "tuner.zip")
    assert second.head.version == 2
    assert tuner.tune(5, draws=10) == other.tune(5, draws=10)
    assert tuner.head.to_bytes() == other.head.to_bytes()
    (tmp_path / "damaged").write_bytes((tmp_path / "tuner.zip").read_bytes()[:-300])
    with pytest.raises(ValueError, match=r"must be what HeadTuner\.save wrote here"):
        other.load(tmp_path / "damaged")
    damaged = bytearray((tmp_path / "tuner.zip").read_bytes())
    entry = damaged.rindex(b"PK\x01\x02")
    for place in (6, 8, 10):  # the version of zip, whether it is encrypted, and how it is compressed
        (tmp_path / "damaged").write_bytes(damaged[: entry + place] + b"\xff" + damaged[entry + place + 1 :])
        with pytest.raises(ValueError, match=r"must be what HeadTuner\.save wrote here"):
            other.load(tmp_path / "damaged")
    with pytest.raises(FileNotFoundError):
        other.load(tmp_path / "nowhere")
    third = gym.make_vec(CART_POLE, 1, reward=vlmrm_gym.TunedCLIP(prompt=CAR_PROMPT, hidden_size=16))
    with pytest.raises(ValueError, match=r"its prompt is 'pole vertically upright.*', and here it is 'a car"):
        HeadTuner(third).load(tmp_path / "tuner.zip")
    assert third.head.version == 1
    for each in (first, second, third):
        each.close()


def test_environments_that_say_nothing_of_success_are_refused():
    envs = vlmrm_gym.VLMRewardVectorEnv(
        [lambda: gym.make("CartPole-v1", render_mode="rgb_array", max_episode_steps=3)],
        reward=vlmrm_gym.TunedCLIP(prompt=TASK_PROMPT),
    )
    envs.reset(seed=0)
    for _ in range(4):
        envs.step(np.array([0]))
    with pytest.raises(ValueError, match='`envs` must report success, by info\\["success"\\]'):
        HeadTuner(envs).tune(1)
    envs.close()


@pytest.mark.parametrize("reward", [vlmrm_gym.CLIP(prompt="up"), vlmrm_gym.Preference(prompt="up")])
def test_environments_with_another_reward_are_refused(reward):
    envs = gym.make_vec(CART_POLE, 1, reward=reward, return_features=True)
    with pytest.raises(ValueError, match=r"pass reward=vlmrm_gym.TunedCLIP\(prompt=...\) where they are made"):
        HeadTuner(envs)
    envs.close()


def test_bad_settings_are_refused(envs):
    for name in ("gap", "batch_size", "capacity"):
        with pytest.raises(ValueError, match=f"`{name}` must be an integer of at least 1. Received 0"):
            TuningOptions(**{name: 0})
    for name in ("margin", "learning_rate"):
        with pytest.raises(ValueError, match=f"`{name}` must be a finite number above 0. Received -1"):
            TuningOptions(**{name: -1})
    with pytest.raises(ValueError, match=r"`success_threshold` must be None or from 0 to 1. Received 1.5"):
        HeadTuner(envs, success_threshold=1.5)
    with pytest.raises(ValueError, match="`gradient_steps` must be an integer of at least 1"):
        HeadTuner(envs).tune(0)
