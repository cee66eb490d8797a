"""The canonical form of rewards, and the EPIC distance that it gives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vlmrm_gym.audit.measures.epic import canonical_samples, canonical_table
from vlmrm_gym.metrics import epic_distance, pearson_distance

S, A = 4, 3
GAMMAS = st.sampled_from([0.0, 0.5, 0.9, 1.0])
WEIGHTS = st.tuples(arrays(float, S, elements=st.floats(0.1, 5)), arrays(float, A, elements=st.floats(0.1, 5)))


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def distance(first, second, coverage=None, **options):
    return pearson_distance(canonical_table(first, **options), canonical_table(second, **options), coverage)


def shaped(reward, potential, gamma):
    """The reward plus gamma potential(s') - potential(s)."""
    return reward + gamma * potential - potential[:, None, None]


def test_the_formula_term_by_term():
    """Against plain loops over Gleave et al.'s definition, with weights that are not uniform."""
    reward, of_states, of_actions, gamma = (
        normal(0, S, A, S),
        np.array([1, 2, 3, 4]) / 10,
        np.array([2, 3, 5]) / 10,
        0.8,
    )

    def expected(s):
        return sum(of_actions[a] * of_states[t] * reward[s, a, t] for a in range(A) for t in range(S))

    last = sum(of_states[s] * expected(s) for s in range(S))
    canonical = canonical_table(reward, gamma=gamma, state_weights=10 * of_states, action_weights=of_actions)
    for s, a, t in np.ndindex(S, A, S):
        value = reward[s, a, t] + gamma * expected(t) - expected(s) - gamma * last
        assert canonical[s, a, t] == pytest.approx(value, abs=1e-12)


@given(st.integers(0, 999), GAMMAS, WEIGHTS, st.floats(0.1, 10), st.floats(-5, 5))
def test_distances_ignore_shaping_scale_and_offset(seed, gamma, weights, scale, offset):
    first, second, potential = normal(seed, S, A, S), normal(seed + 1, S, A, S), 3 * normal(seed + 2, S)
    options = {"gamma": gamma, "state_weights": weights[0], "action_weights": weights[1]}
    coverage = np.random.default_rng(seed).random((S, A, S))
    other = scale * shaped(first, potential, gamma) + offset
    assert distance(first, other, coverage, **options) == pytest.approx(0, abs=1e-9)
    assert distance(first, second, coverage, **options) == pytest.approx(
        distance(other, second, coverage, **options), abs=1e-9
    )


@given(st.integers(0, 999), GAMMAS)
def test_distances_form_a_pseudometric(seed, gamma):
    """Symmetric, 0 to itself, 1 to its opposite, at most 1, and no detour is shorter."""
    first, second, third = normal(seed, 3, S, A, S)
    between = distance(first, second, gamma=gamma)
    assert distance(second, first, gamma=gamma) == pytest.approx(between, abs=1e-12)
    assert distance(first, first, gamma=gamma) == 0
    assert distance(first, -first, gamma=gamma) == pytest.approx(1)
    assert between <= distance(first, third, gamma=gamma) + distance(third, second, gamma=gamma) <= 2
    assert distance(first, -second, gamma=gamma) ** 2 == pytest.approx(1 - between**2)


@given(st.integers(0, 999), st.sampled_from([0.3, 0.9, 1.0]), WEIGHTS)
def test_rewards_of_states_alone_have_the_distance_of_the_state_only_form(seed, gamma, weights):
    """Uniform transitions, R(s) and R(s') alike, whatever S and A are drawn from."""
    rewards, success = normal(seed, S), np.arange(S) < 2
    options = {"gamma": gamma, "state_weights": weights[0], "action_weights": weights[1]}
    whole = np.zeros((S, A, S))
    for first, second in [
        (whole + rewards, whole + success),
        (whole + rewards[:, None, None], whole + success[:, None, None]),
    ]:
        assert distance(first, second, **options) == pytest.approx(epic_distance(rewards, success), abs=1e-9)


def test_the_state_only_form_follows_how_often_next_states_are_covered():
    rewards, success, often = normal(0, S), np.arange(S) < 2, np.array([1, 2, 3, 4])
    whole = np.zeros((S, A, S))
    expected = epic_distance(np.repeat(rewards, often), np.repeat(success, often))
    assert distance(whole + rewards, whole + success, whole + often, gamma=0.9) == pytest.approx(expected)


def test_a_reward_of_actions_is_uncorrelated_with_one_of_states():
    of_actions, of_states = np.zeros((S, A, S)) + np.arange(A)[:, None], np.zeros((S, A, S)) + np.arange(S)
    assert distance(of_actions, of_states, gamma=0.9) == pytest.approx(np.sqrt(0.5))


def test_nothing_but_shaping_has_the_form_zero_and_no_distance():
    potential = normal(0, S)
    canonical = canonical_table(shaped(np.zeros((S, A, S)), potential, 0.9), gamma=0.9)
    assert (canonical == 0).all()
    with pytest.raises(ValueError, match="a constant has no correlation"):
        pearson_distance(canonical, canonical_table(normal(1, S, A, S), gamma=0.9))


@given(st.integers(0, 999), GAMMAS)
def test_samples_of_everything_give_the_form_of_the_table(seed, gamma):
    reward = normal(seed, S, A, S)
    states, actions, next_states = map(np.ravel, np.indices(reward.shape))
    mean_actions, mean_states = map(np.ravel, np.indices((A, S)))
    samples = canonical_samples(
        lambda s, a, t: reward[s, a, t],
        states,
        actions,
        next_states,
        gamma=gamma,
        mean_actions=mean_actions,
        mean_states=mean_states,
    )
    assert samples == pytest.approx(canonical_table(reward, gamma=gamma).ravel(), abs=1e-12)


def few_samples(reward, gamma):
    rng = np.random.default_rng(5)
    drawn = rng.normal(size=(20, 2)), rng.normal(size=20), rng.normal(size=(20, 2))
    means = {"mean_actions": rng.normal(size=3), "mean_states": rng.normal(size=(3, 2))}
    return canonical_samples(reward, *drawn, gamma=gamma, **means)


def test_shaping_changes_nothing_for_few_samples_of_continuous_states():
    def reward(s, a, t):
        return np.sin(s[:, 0]) * t[:, 1] - a**2

    def other(s, a, t):
        return 3 * (reward(s, a, t) + 0.9 * np.exp(t[:, 0]) - np.exp(s[:, 0])) + 7

    distance = pearson_distance(few_samples(reward, 0.9), few_samples(other, 0.9))
    assert distance == pytest.approx(0, abs=1e-9)
    assert (few_samples(lambda s, a, t: 0.9 * np.exp(t[:, 0]) - np.exp(s[:, 0]), 0.9) == 0).all()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"reward": np.zeros((2, 1, 3))}, r"shape \(S, A, S\). Received shape \(2, 1, 3\)"),
        ({"reward": np.full((2, 1, 2), np.nan)}, "`reward` must be finite"),
        ({"gamma": 1.5}, "`gamma` must be a number from 0 to 1. Received 1.5"),
        ({"gamma": True}, "`gamma` must be a number"),
        ({"state_weights": [1, 2, 3]}, r"`state_weights` must be finite numbers of shape \(2,\)"),
        ({"state_weights": [1, -1]}, "`state_weights` must be"),
        ({"action_weights": [0]}, "`action_weights` must be"),
    ],
)
def test_bad_tables(options, error):
    with pytest.raises(ValueError, match=error):
        canonical_table(**{"reward": np.zeros((2, 1, 2)), "gamma": 0.9, **options})


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"actions": [0]}, r"must have the same length, at least 1. Received lengths \[2, 1, 2\]"),
        ({"mean_states": []}, r"`mean_actions`, `mean_states` must have the same length.*\[1, 0\]"),
        ({"gamma": -1}, "`gamma` must be"),
        ({"reward": lambda s, a, t: s[:1]}, r"`reward` must return finite numbers of shape \(4,\)"),
        ({"reward": lambda s, a, t: s * np.inf}, "must return finite numbers"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_bad_samples(options, error):
    transitions = {name: [0.0, 1.0] for name in ("states", "actions", "next_states")}
    means = {"mean_actions": [0.0], "mean_states": [0.0]}
    good = {"reward": lambda s, a, t: s, "gamma": 0.9, **transitions, **means}
    with pytest.raises(ValueError, match=error):
        canonical_samples(**{**good, **options})
