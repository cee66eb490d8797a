"""CMA-ES from the states that a search has found, on scores whose holes are known."""

import numpy as np
import pytest

from vlmrm_gym.check.refine import refine

HOLE = np.array([3.0, -2.0, 1.0])


def failing(states):
    """Failing: further than 1 from the origin."""
    return np.linalg.norm(states, axis=1) > 1


def honest(states):
    """Highest at the origin, and lower the further away."""
    return np.exp(-np.linalg.norm(states, axis=1))


def with_hole(states):
    """The same, and as high again at HOLE."""
    return honest(states) + np.exp(-np.linalg.norm(states - HOLE, axis=1) / 0.5)


def perturb(states, offsets):
    return states + offsets


def run(score, starts, evaluations=400, seed=0, **options):
    options = {"dimensions": 3, "evaluations": evaluations, "seed": seed} | options
    return refine(score, failing, np.array(starts), perturb, **options)


BESIDE = [HOLE + np.array([0.8, -0.7, 0.9])]


def test_it_climbs_into_a_planted_hole():
    assert with_hole(np.array(BESIDE))[0] < 0.15
    found = run(with_hole, BESIDE)
    assert found.scores[0] > 0.9  # 1.02 in the hole; 1 for the best success
    assert np.linalg.norm(found.states[0] - HOLE) < 0.1


def test_the_second_start_finds_what_the_first_does_not():
    far = [[-4.0, 4.0, -4.0]]
    assert run(with_hole, far, evaluations=100).scores[0] < 0.5
    assert run(with_hole, [*far, *BESIDE]).scores[0] > 0.9


def test_it_finds_none_where_none_is():
    found = run(honest, [[1.5, 0.0, 0.0], [0.0, -2.0, 0.0]])
    assert 0.3 < found.scores[0] <= np.exp(-1)  # just outside the successes, as near to them as failures are


def test_all_it_returns_fails_and_is_sorted():
    found = run(with_hole, BESIDE)
    assert failing(found.states).all()
    assert (np.diff(found.scores) <= 0).all()
    np.testing.assert_array_equal(found.scores, with_hole(found.states))


def test_states_that_do_not_fail_are_never_scored():
    scored, asked = [], []

    def score(states):
        scored.append(states.copy())
        return honest(states)

    def is_failure(states):
        asked.append(states.copy())
        return failing(states)

    refine(score, is_failure, np.array([[1.1, 0.0, 0.0]]), perturb, dimensions=3, evaluations=200)
    assert failing(np.concatenate(scored)).all()
    assert 0.05 < (~failing(np.concatenate(asked))).mean() < 0.95  # many of those that it made succeed


def test_no_more_states_than_allowed_are_made():
    made = []

    def counted(states, offsets):
        made.append(len(states))
        return perturb(states, offsets)

    starts = np.array([*BESIDE, HOLE, HOLE + 1])
    refine(with_hole, failing, starts, counted, dimensions=3, evaluations=100)
    assert 80 < sum(made) <= 100


@pytest.mark.parametrize("evaluations", [100, 400])
def test_the_seed_decides(evaluations):
    state = np.random.get_state()[1].copy()
    first, again, other = (run(with_hole, BESIDE, evaluations, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.states, again.states)
    assert not np.array_equal(first.scores, other.scores)
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # a user's own generator goes on as before


def test_the_starts_are_not_written_to():
    starts = np.array(BESIDE)
    run(with_hole, starts)
    np.testing.assert_array_equal(starts, BESIDE)


def test_without_a_failure_the_result_is_empty():
    nothing = lambda states: np.zeros(len(states), dtype=bool)  # noqa: E731
    found = refine(honest, nothing, np.zeros((1, 3)), perturb, dimensions=3, evaluations=200)
    assert found.states.shape == (0, 3)
    assert found.scores.shape == (0,)
    assert run(honest, np.empty((0, 3))).states.shape == (0, 3)


def test_a_reward_that_is_the_same_everywhere_is_no_error():
    found = run(lambda states: np.full(len(states), 0.25), BESIDE)
    assert set(found.scores) == {0.25}


def test_offsets_are_perturbed_as_a_task_perturbs_them():
    """Where a task clips them, CMA-ES finds the best of what is left."""
    clipped = lambda states, offsets: np.clip(states + offsets, 2.0, 2.5)  # noqa: E731
    found = refine(with_hole, failing, np.full((1, 3), 2.2), clipped, dimensions=3, evaluations=300)
    assert ((found.states >= 2.0) & (found.states <= 2.5)).all()
    box = np.stack(np.meshgrid(*[np.linspace(2, 2.5, 11)] * 3), axis=-1).reshape(-1, 3)
    assert found.scores[0] == pytest.approx(with_hole(box).max(), rel=0.05)
