"""Every registered ID behaves as Gymnasium's users expect."""

import subprocess
import sys
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

from vlmrm_gym import CLIPReward
from vlmrm_gym.tasks import TASKS

IDS = [task.id for task in TASKS]
pytestmark = pytest.mark.parametrize("env_id", IDS)


def roll(env, seed=0, steps=5):
    env.reset(seed=seed)
    env.action_space.seed(seed)
    return [env.step(env.action_space.sample()) for _ in range(steps)]


def test_check_env_passes(env_id):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*observation space m[a-z]+ value is -?infinity.*")
        warnings.filterwarnings("ignore", message=".*is different from the unwrapped version.*")
        check_env(gym.make(env_id, episode_length=10))


def test_reward_scores_the_state_that_the_action_led_to_terminal_frame_included(env_id):
    """Contract 1."""
    task = next(task for task in TASKS if task.id == env_id)
    env = gym.make(env_id, episode_length=3)
    score = CLIPReward(prompt=task.prompt)
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(3):
        _, reward, _, truncated, _ = env.step(env.action_space.sample())
        assert reward == pytest.approx(score(env.render()[None])[0], abs=1e-5)
    assert truncated


def test_time_limit_truncates_and_does_not_terminate(env_id):
    """Contract 5."""
    steps = roll(gym.make(env_id, episode_length=4), steps=4)
    assert [step[2] for step in steps] == [False] * 4
    assert [step[3] for step in steps] == [False, False, False, True]


def test_info_reports_task_reward_and_success(env_id):
    """Contract 7."""
    for step in roll(gym.make(env_id)):
        assert isinstance(step[4]["task_reward"], float)
        assert isinstance(step[4]["success"], bool)
        assert isinstance(step[1], float)


def test_same_seed_same_rewards(env_id):
    first, second = (roll(gym.make(env_id), seed=7) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        assert one[1] == other[1]


def test_spec_survives_pprint_json_and_make(env_id):
    env = gym.make(
        env_id, prompt=["an upright pole", "a balanced pole"], baseline="pole and cart", alpha=0.5, episode_length=7
    )
    assert f"id={env_id}" in env.spec.pprint(disable_print=True)
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.spec == env.spec
    for one, other in zip(roll(env, steps=7), roll(again, steps=7), strict=True):
        assert one[1] == other[1]
        assert one[3] == other[3]


def test_a_spec_can_be_made_again_with_other_parameters(env_id):
    spec = gym.make(env_id, episode_length=3).spec
    env = gym.make(spec, episode_length=6, prompt="an upright pole")
    assert [step[3] for step in roll(env, steps=6)] == [False] * 5 + [True]
    assert env.spec.kwargs["prompt"] == "an upright pole"


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_in_processes_of_their_own(env_id, context):
    """Forked after torch has started its threads, encoding would hang."""
    gym.make(env_id)
    envs = gym.make_vec(
        env_id, num_envs=2, vectorization_mode="async", episode_length=3, vector_kwargs={"context": context}
    )
    envs.reset(seed=0)
    envs.step_async(envs.action_space.sample())
    _, rewards, *_ = envs.step_wait(timeout=120)
    assert np.isfinite(rewards).all()
    envs.close(timeout=5)


def test_make_imports_the_package_itself(env_id):
    use = "env.reset(); env.step(env.action_space.sample())"
    code = f"import gymnasium as gym; env = gym.make('vlmrm_gym:{env_id}'); {use}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_sub_environments_of_a_vector(env_id):
    envs = gym.make_vec(env_id, num_envs=2, vectorization_mode="sync", episode_length=3)
    envs.reset(seed=0)
    for _ in range(5):
        _, rewards, *_ = envs.step(envs.action_space.sample())
        assert np.isfinite(rewards).all()
    envs.close()


def test_render_list_through_gymnasium(env_id):
    env = gym.make(env_id, render_mode="rgb_array_list")
    roll(env, steps=3)
    assert len(env.render()) == 4


@pytest.mark.parametrize("episode_length", [0, -1, 2.5, True, None])
def test_bad_episode_length(env_id, episode_length):
    with pytest.raises(ValueError, match=r"`episode_length` must be an integer of at least 1\. Received"):
        gym.make(env_id, episode_length=episode_length)


def test_unknown_keyword(env_id):
    with pytest.raises(TypeError, match="promt"):
        gym.make(env_id, promt="typo")
