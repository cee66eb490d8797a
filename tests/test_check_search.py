"""The search for failing states with a high score, on scores whose holes are known."""

import numpy as np
import pytest

from vlmrm_gym.check.search import search

HOLE = np.array([3.0, -2.0, 1.0])


def failing(states):
    """Failing: further than 1 from the origin."""
    return np.linalg.norm(states, axis=1) > 1


def honest(states):
    """Highest at the origin, and lower the further away."""
    return np.exp(-np.linalg.norm(states, axis=1))


def with_hole(states):
    """The same, and as high again near HOLE, where a random state rarely lies."""
    return honest(states) + np.exp(-np.linalg.norm(states - HOLE, axis=1) / 0.5)


def mutate(states, rng):
    return states + rng.normal(0, rng.choice([0.05, 0.5], (len(states), 1)), states.shape)


@pytest.fixture
def population(rng):
    return rng.uniform(-4, 4, (32, 3))


def test_it_finds_a_planted_hole(population):
    found = search(with_hole, failing, population, mutate, rounds=20)
    assert found.scores[0] > 0.9  # the score of a success: 1 at the origin, 0.37 at its border
    assert np.linalg.norm(found.states[0] - HOLE) < 0.2
    assert with_hole(population[failing(population)]).max() < 0.9  # the population alone would not have shown it


def test_it_finds_none_where_none_is(population):
    found = search(honest, failing, population, mutate, rounds=20)
    assert found.scores[0] <= np.exp(-1)


def test_all_it_returns_fails_and_is_sorted(population):
    found = search(with_hole, failing, population, mutate, rounds=3)
    assert failing(found.states).all()
    assert (np.diff(found.scores) <= 0).all()
    assert np.array_equal(found.scores, with_hole(found.states))


def test_a_task_that_nothing_fails_gives_an_empty_result(population):
    found = search(honest, lambda states: np.zeros(len(states), dtype=bool), population, mutate, rounds=2)
    assert found.states.shape == (0, 3)
    assert found.scores.shape == (0,)


def test_a_population_of_successes_reaches_failures():
    found = search(honest, failing, np.zeros((8, 3)), mutate, rounds=60)
    assert 0.3 < found.scores[0] <= np.exp(-1)  # just outside the successes


def test_the_seed_decides(population):
    first, again, other = (search(with_hole, failing, population, mutate, rounds=3, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.states, again.states)
    assert not np.array_equal(first.scores, other.scores)


def test_the_population_is_not_written_to(population):
    before = population.copy()
    search(with_hole, failing, population, mutate, rounds=2)
    assert np.array_equal(population, before)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"population": np.zeros((0, 3))}, r"`population` must be finite .* Received shape \(0, 3\)"),
        ({"population": np.full((2, 3), np.nan)}, "`population` must be finite"),
        ({"rounds": 0}, "`rounds` must be an integer of at least 1. Received 0"),
        ({"score": lambda states: np.zeros(1)}, "`score` must return numbers of shape"),
        ({"score": lambda states: np.full(len(states), np.nan)}, "none of them NaN"),
        ({"is_failure": lambda states: np.ones(len(states))}, "`is_failure` must return bool"),
        ({"mutate": lambda states, rng: states[:1]}, "`mutate` must return states of shape"),
    ],
)
def test_bad_input_is_refused(changed, message, population):
    arguments = {"score": honest, "is_failure": failing, "population": population, "mutate": mutate, "rounds": 2}
    with pytest.raises(ValueError, match=message):
        search(**(arguments | changed))
