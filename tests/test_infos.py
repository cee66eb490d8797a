"""The tables of `vlmrm_gym.infos` list what infos contain."""

import re

import gymnasium as gym
import numpy as np
import pytest
from counting_env import Counting

import vlmrm_gym
from vlmrm_gym import infos as schema
from vlmrm_gym.sb3 import VLMVecEnv

TABLES = re.findall(r"^=+ [= ]+\n.*?\n=+ [= ]+\n(.*?)\n=+ [= ]+$", schema.__doc__, re.DOTALL | re.MULTILINE)
VECTOR, SB3 = ({line[1:].split("`")[0]: line for line in table.splitlines() if line[0] == "`"} for table in TABLES)


class CountingWithSuccess(Counting):
    def step(self, action):
        *results, info = super().step(action)
        return *results, {**info, "success": self.count % 2 == 0}


LATE = {"vlm_rewards", "vlm_reward_start", "vlm_episode_index"}
FEATURES = {"vlm_features", "vlm_task_rewards", "vlm_reward_version"}
"""What there is with `return_features=True` only."""
SPARSE = {"vlm_scored"}
"""What there is where rewards are interpolated only."""
REPORTED = {"vlm_terms", "vlm_success"}
"""What there is of combined rewards only; see tests/rewards/test_algebra.py."""


def make(mode, *, reward="PixelReward", **kwargs):
    functions = [lambda: CountingWithSuccess([3])] * 2
    return vlmrm_gym.VLMRewardVectorEnv(functions, reward=f"reward_models:{reward}", autoreset_mode=mode, **kwargs)


@pytest.mark.parametrize(
    ("mode", "features", "sparse"),
    [("NextStep", set(), set()), ("SameStep", FEATURES, SPARSE), ("Disabled", FEATURES, set())],
)
def test_vector_infos_have_the_listed_keys_and_dtypes(mode, features, sparse):
    envs = make(mode, reward="TwoFeatures", return_features=bool(features), score_every=2 if sparse else 1)
    late = LATE | features | sparse
    listed = {
        key: line for key, line in VECTOR.items() if key not in (FEATURES | SPARSE | REPORTED) - features - sparse
    }
    assert listed.keys() == late | {"vlm_step_index", "task_reward"}
    _, infos = envs.reset(seed=0)
    assert {key for key in infos if key[0] != "_"} == late
    *_, infos = envs.step(np.zeros(2, dtype=int))
    assert {key for key in infos if key[0] != "_"} == {*listed, "success"}
    for key, line in listed.items():
        assert line.split()[1] == infos[key].dtype.name, key
        assert infos[f"_{key}"].dtype == bool
    assert {key for key in envs.flush() if key[0] != "_"} == late
    envs.close()


@pytest.mark.parametrize("features", [False, True])
def test_infos_with_the_reward_of_each_step(features):
    """They have the keys of `scoring="episode"`, and each reward belongs to the step that returned it."""
    keys = {}
    for scoring in ("episode", "step"):
        envs = make("SameStep", reward="TwoFeatures", scoring=scoring, return_features=features)
        calls = [envs.reset(seed=0)[1], *(envs.step(np.zeros(2, dtype=int)) for _ in range(2)), envs.flush()]
        keys[scoring] = [set(call[4] if isinstance(call, tuple) else call) for call in calls]
        if scoring == "step":
            assert envs.flush()["_vlm_rewards"].tolist() == [False, False]
        for step, (_, rewards, _, _, infos) in enumerate(calls[1:3] if scoring == "step" else []):
            late = vlmrm_gym.read_late(infos)
            assert [(one.env, one.start, one.rewards.tolist()) for one in late] == [
                (i, step, [reward]) for i, reward in enumerate(rewards)
            ]
        envs.close()
    assert keys["step"] == keys["episode"]


@pytest.mark.parametrize(("features", "sparse"), [(set(), set()), ({*FEATURES, "vlm_fingerprint"}, SPARSE)])
def test_vec_env_infos_have_the_listed_keys(features, sparse):
    options = {"return_features": bool(features), "score_every": 2 if sparse else 1}
    envs = VLMVecEnv(make("SameStep", reward="TwoFeatures", **options))
    envs.reset()
    seen = set()
    for _ in range(3):
        seen |= {key for info in envs.step(np.zeros(2, dtype=int))[3] for key in info}
    of_stable_baselines3 = {"TimeLimit.truncated", "terminal_observation"}
    assert seen - of_stable_baselines3 == SB3.keys() - REPORTED - ({*FEATURES, "vlm_fingerprint"} - features)
    envs.close()


def test_success_is_read_with_and_without_a_mask():
    """Each environment's own report; that of the episode that ended where it was reset in the same step."""
    some, true = np.array([True, False, True]), np.array([True, True, False])
    final = {"final_info": {"success": true, "_success": some}, "_final_info": some}
    for infos, expected in (
        ({}, [np.nan, np.nan, np.nan]),
        ({"success": true}, [1, 1, 0]),  # without a mask: of all
        ({"success": np.array([np.True_, None, np.False_], dtype=object), "_success": some}, [1, np.nan, 0]),
        ({"success": np.array([1, 0, 0]), "_success": some.astype(np.uint8)}, [1, np.nan, 0]),
        ({"success": True}, [1, 1, 1]),
        ({"final_info": {"success": true}, "_final_info": some}, [1, np.nan, 0]),
        ({"success": np.array([False, False, False]), "_success": ~some, **final}, [1, 0, 0]),
    ):
        np.testing.assert_array_equal(schema.read_success(infos, 3), expected)


def test_success_is_reported_where_an_episode_ends_and_the_step_resets():
    """Same-step autoreset has it in `final_info`."""
    envs = gym.make_vec("VLMRM/CartPole-v1", num_envs=2, episode_length=2, autoreset_mode="SameStep")
    envs.reset(seed=0)
    for _ in range(2):
        *_, infos = envs.step(np.zeros(2, dtype=int))
    np.testing.assert_array_equal(infos["success"], infos["final_info"]["success"])
    assert infos["_success"].all()
    envs.close()
