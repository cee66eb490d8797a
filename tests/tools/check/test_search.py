"""The search for failing states with a high score, on scores whose holes are known."""

import numpy as np
import pytest

from vlmrm_gym.tools.check.exploits import Failures, search

HOLE = np.array([3.0, -2.0, 1.0])
BESIDE = [HOLE + np.array([0.8, -0.7, 0.9])]


def failing(states):
    """Further than 1 from the origin."""
    return np.linalg.norm(states, axis=1) > 1


def honest(states):
    """Highest at the origin, and lower the further away."""
    return np.exp(-np.linalg.norm(states, axis=1))


def with_hole(states):
    """The same, and as high again near HOLE, where a random state rarely lies."""
    return honest(states) + np.exp(-np.linalg.norm(states - HOLE, axis=1) / 0.5)


def perturb(states, offsets):
    return states + 0.3 * offsets


def run(score, starts, evaluations=400, seed=0, is_failure=failing, change=perturb, dimensions=3):
    return search(
        score, is_failure, np.array(starts), change, dimensions=dimensions, evaluations=evaluations, seed=seed
    )


@pytest.fixture
def starts(rng):
    return rng.uniform(-4, 4, (32, 3))


@pytest.mark.parametrize("seed", range(2))
def test_it_finds_a_planted_hole_and_all_it_returns_fails_and_is_sorted(starts, seed):
    found = run(with_hole, starts, 1_700, seed)
    assert found.scores[0] > 0.9  # the score of a success: 1 at the origin, 0.37 at its border
    assert np.linalg.norm(found.states[0] - HOLE) < 0.2
    assert with_hole(starts[failing(starts)]).max() < 0.9  # the starts alone would not have shown it
    assert failing(found.states).all()
    assert (np.diff(found.scores) <= 0).all()
    np.testing.assert_array_equal(found.scores, with_hole(found.states))


def test_a_restart_finds_what_the_best_start_does_not():
    """A lone state on a plateau of 0.5, which begins, has nothing to follow; the second one lies beside the hole."""
    far = np.array([-40.0, 40.0, -40.0])

    def score(states):
        return np.maximum(0.5 * (np.linalg.norm(states - far, axis=1) < 20), with_hole(states))

    starts = [far, *BESIDE]
    assert score(np.array(starts)).argmax() == 0
    assert run(score, starts[:1], 600).scores[0] == 0.5
    assert run(score, starts, 600).scores[0] > 0.9


def test_every_start_and_no_more_states_than_allowed_are_looked_at(starts):
    """A run ends where fewer states are left than it would make."""
    made = []

    def counted(states, offsets):
        made.append(len(states))
        return perturb(states, offsets)

    run(with_hole, starts, 200, change=counted)
    assert 190 < len(starts) + sum(made) <= 200
    made.clear()
    assert len(run(with_hole, starts, 10, change=counted).states) <= 10
    assert made == []


def test_states_that_do_not_fail_are_never_scored():
    """From a success it reaches failures, just outside."""
    scored, asked = [], []

    def score(states):
        scored.append(states.copy())
        return honest(states)

    def is_failure(states):
        asked.append(states.copy())
        return failing(states)

    found = run(score, np.zeros((8, 3)), 600, is_failure=is_failure)
    assert failing(np.concatenate(scored)).all()
    assert 0.05 < (~failing(np.concatenate(asked))).mean() < 0.95  # many of those that it made succeed
    assert 0.3 < found.scores[0] <= np.exp(-1)


def test_offsets_are_perturbed_as_a_task_perturbs_them_and_one_dimension_is_enough():
    """Where a task clips them, the search finds the best of what is left. CMA-ES itself refuses one dimension."""
    clipped = lambda states, offsets: np.clip(states + offsets, 2.0, 2.5)  # noqa: E731
    found = run(with_hole, np.full((1, 3), 2.2), change=clipped)
    assert ((found.states >= 2.0) & (found.states <= 2.5)).all()
    box = np.stack(np.meshgrid(*[np.linspace(2, 2.5, 11)] * 3), axis=-1).reshape(-1, 3)
    assert found.scores[0] == pytest.approx(with_hole(box).max(), rel=0.05)
    found = run(lambda states: -np.abs(states[:, 0] - 3), [[2.0]], dimensions=1)
    assert found.states[0, 0] == pytest.approx(3, abs=0.01)


def test_the_seed_decides():
    state = np.random.get_state()[1].copy()
    first, again, other = (run(with_hole, BESIDE, seed=[seed, *b"search"]) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.states, again.states)
    assert not np.array_equal(first.scores, other.scores)
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # a user's own generator goes on as before


def test_distinct_states_differ_and_a_task_that_nothing_fails_gives_an_empty_result(starts):
    states = np.array([[0.0, 0.0], [0.1, 0.1], [0.0, 3.0], [5.0, 5.0], [5.1, 5.0]])
    found = Failures(states=states, scores=np.arange(5.0)[::-1])
    assert found.distinct(5).states.tolist() == [[0, 0], [5, 5]]
    assert found.distinct(5).scores.tolist() == [4, 1]
    assert found.distinct(1).states.tolist() == [[0, 0]]
    found = run(honest, starts, is_failure=lambda states: np.zeros(len(states), dtype=bool))
    assert found.states.shape == found.distinct(3).states.shape == (0, 3)
    assert found.scores.shape == (0,)
