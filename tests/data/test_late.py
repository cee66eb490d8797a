"""read_late: one reader for what any call returns."""

import re
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import vlmrm_gym
from vlmrm_gym.data.late import Late, join_late, read_late


def arrived(*rows, start, **columns):
    """Infos of vector environments: rewards of some, None of the others."""
    values = np.full(len(rows), None, dtype=object)
    for i, row in enumerate(rows):
        values[i] = None if row is None else np.array(row, dtype=np.float32)
    mask = np.array([row is not None for row in rows])
    return {"vlm_rewards": values, "_vlm_rewards": mask, "vlm_reward_start": np.array(start), **columns}


def test_each_environment_whose_rewards_have_arrived_has_its_own():
    (late,) = read_late(arrived(None, [0.5, 1.5], start=[4, 7]))
    assert isinstance(late, vlmrm_gym.Late)
    assert (late.env, late.start, late.stop, late.rewards.tolist()) == (1, 7, 9, [0.5, 1.5])
    assert (late.rewards.dtype, late.scored.tolist()) == (np.float32, [True, True])
    assert (late.features, late.task_rewards, late.versions) == (None, None, None)
    assert read_late({}) == read_late([{}, {}]) == []
    with pytest.raises(TypeError, match=r"`infos` must be the infos .* Received tuple. Of what `step` returns"):
        read_late((np.zeros(2), np.zeros(2), {}))


def test_all_columns_are_read_and_joined():
    """Also of Stable-Baselines3's dictionaries, which have what `as_info` returns."""
    rows = np.full(2, None, dtype=object)
    infos = arrived([1, 2, 3], None, start=[5, 0], vlm_reward_version=np.array([4, 4]))
    for key, value in (
        ("vlm_scored", np.array([True, False, True])),
        ("vlm_features", np.arange(6, dtype=np.float32).reshape(3, 1, 2)),
        ("vlm_task_rewards", np.array([0.1, 0.2, 0.3], dtype=np.float32)),
        ("vlm_terms", np.array([4.0, 5.0, 6.0], dtype=np.float32)),
        ("vlm_success", np.array([False, True, False])),
    ):
        infos[key] = rows.copy()
        infos[key][0] = value
    infos["vlm_terms"][0] = {"clip": infos["vlm_terms"][0]}
    (late,) = read_late(infos)
    assert (late.scored.tolist(), late.versions.tolist()) == ([True, False, True], [4, 4, 4])
    *columns, terms, success = late[2:]
    cut = [
        Late._make([0, 5 + k, *(column[rows] for column in columns), {"clip": terms["clip"][rows]}, success[rows]])
        for k in range(3)
        for rows in [slice(k, k + 1)]
    ]
    for again in (join_late(cut), *read_late([late.as_info(), {}])):
        assert again[:2] == late[:2]
        pairs = zip((*again[2:-2], again.terms["clip"], again.success), (*columns, terms["clip"], success), strict=True)
        for column, expected in pairs:
            np.testing.assert_array_equal(column, expected)
            assert column.dtype == expected.dtype


@pytest.mark.filterwarnings("ignore:The bundled model does not know")
def test_the_loop_of_the_guide_is_the_same_in_both_modes():
    """And completes the same transitions, with the same rewards."""
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "deferred_scoring.md").read_text()
    (loop,) = (
        code for code in re.findall(r"^```python\n(.*?)^```", guide, re.M | re.S) if "complete_transitions" in code
    )
    found = []
    for scoring in ("episode", "step"):
        code = loop.replace("episode_length=10)", f"episode_length=10, scoring={scoring!r})")
        code = code.replace("envs.reset(seed=0)", "(envs.action_space.seed(0), envs.reset(seed=0))[1]")
        exec(code, namespace := {"gym": gym, "np": np, "vlmrm_gym": vlmrm_gym})
        found.append(sorted(namespace["complete"], key=lambda row: (*row[0], row[1])))
    for first, second in zip(*found, strict=True):
        for value, other in zip(first, second, strict=True):
            np.testing.assert_allclose(value, other, atol=1e-5)
