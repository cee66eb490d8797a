"""Every registered ID behaves as Gymnasium's users expect."""

import subprocess
import sys
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from conftest import TASK_PROMPT
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

from vlmrm_gym import CLIPReward
from vlmrm_gym.envs.make import make_env, make_vector_env
from vlmrm_gym.states import make_renderer
from vlmrm_gym.tasks import TASKS


def test_a_prompt_beside_a_reward_is_refused_also_if_it_is_another_tasks():
    reward = lambda frames: frames.mean((1, 2, 3))  # noqa: E731
    for make in (gym.make, partial(gym.make_vec, num_envs=1)):
        with pytest.raises(TypeError, match="`reward` and `prompt` cannot both be passed"):
            make("VLMRM/Humanoid-kneel-v0", reward=reward, prompt="a humanoid robot standing up")


@pytest.mark.filterwarnings("ignore:.*latest version")
def test_an_id_without_a_version_is_scored_once():
    env = make_env("VLMRM/CartPole", prompt=TASK_PROMPT)
    env.reset(seed=0)
    assert env.step(0)[4]["task_reward"] == 1.0
    env.close()


HUMANOID = "VLMRM/Humanoid-stand-v0"
every_env = pytest.mark.parametrize("env_id", {task.env: task.id for task in reversed(TASKS) if task.prompt}.values())


def roll(env, seed=0, steps=5):
    env.reset(seed=seed)
    env.action_space.seed(seed)
    return [env.step(env.action_space.sample()) for _ in range(steps)]


@every_env
@pytest.mark.filterwarnings("ignore:.*observation space m[a-z]+ value is -?infinity")
@pytest.mark.filterwarnings("ignore:.*is different from the unwrapped version")
def test_rewards_are_of_the_states_that_actions_led_to_and_time_limits_truncate(env_id):
    """Contracts 1 (the terminal frame included), 5 and 7; and Gymnasium's own checks pass."""
    check_env(gym.make(env_id, episode_length=10))
    env = gym.make(env_id, episode_length=3)
    score = CLIPReward("tiny", prompt=env.spec.kwargs["prompt"])
    env.reset(seed=0)
    renderer = make_renderer(env.unwrapped, camera=env.spec.kwargs.get("camera")).at_size(score.render_size)
    env.action_space.seed(0)
    for step in range(3):
        _, reward, terminated, truncated, info = env.step(env.action_space.sample())
        assert isinstance(reward, float)
        assert reward == pytest.approx(score(renderer.render(renderer.capture(env)[None]))[0], abs=1e-5)
        # What `render` shows is larger, and so not the same to the pixel.
        assert reward == pytest.approx(score(env.render()[None])[0], abs=0.06)
        assert (terminated, truncated) == (False, step == 2)
        assert (type(info["task_reward"]), type(info["success"])) == (float, bool)
    renderer.close()
    env.close()


def test_a_spec_survives_pprint_json_and_make_and_takes_other_parameters():
    prompts = ["an upright pole", "a balanced pole"]
    env = gym.make(HUMANOID, prompt=prompts, baseline="pole and cart", alpha=0.5, episode_length=3)
    assert f"id={HUMANOID}" in env.spec.pprint(disable_print=True)
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.spec == env.spec
    for one, other in zip(roll(env, steps=3), roll(again, steps=3), strict=True):
        assert (one[1], one[3]) == (other[1], other[3])
    longer = gym.make(env.spec, episode_length=6, prompt="an upright pole")
    assert [step[3] for step in roll(longer, steps=6)] == [False] * 5 + [True]
    assert longer.spec.kwargs["prompt"] == "an upright pole"


IN_PROCESSES = """
import gymnasium as gym, numpy as np, vlmrm_gym
if __name__ == "__main__":
    env = gym.make("{env_id}")
    {before}
    options = dict(vectorization_mode="async", episode_length=3, vector_kwargs={{"context": "{context}"}})
    envs = gym.make_vec("{env_id}", num_envs=2, **options)
    envs.reset(seed=0)
    envs.step_async(envs.action_space.sample())
    _, rewards, *_ = envs.step_wait(timeout=120)
    assert np.isfinite(rewards).all()
    envs.close(timeout=5)
"""


def run_in_processes(tmp_path, env_id, context, before="pass"):
    script = tmp_path / "script.py"
    script.write_text(IN_PROCESSES.format(env_id=env_id, context=context, before=before))
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "context"), [("VLMRM/CartPole-v1", "fork"), ("VLMRM/CartPole-v1", "spawn"), (HUMANOID, "fork")]
)
def test_async_vectorization(env_id, context, tmp_path):
    """Forked after torch has started its threads, encoding would hang."""
    done = run_in_processes(tmp_path, env_id, context)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_forking_after_opengl_rendering_is_refused(tmp_path):
    """It would hang: OpenGL's threads do not survive a fork."""
    done = run_in_processes(tmp_path, HUMANOID, "fork", before="env.reset(); env.render()")
    assert 'Start processes with "spawn" instead' in done.stderr


def test_gymnasiums_own_ways_to_make_it():
    """Sub-environments of a `SyncVectorEnv`, a list of frames, and a mistyped keyword."""
    envs = gym.make_vec("VLMRM/CartPole-v1", num_envs=2, vectorization_mode="sync", episode_length=3)
    envs.reset(seed=0)
    for _ in range(5):
        _, rewards, *_ = envs.step(envs.action_space.sample())
        assert np.isfinite(rewards).all()
    envs.close()
    env = gym.make("VLMRM/CartPole-v1", render_mode="rgb_array_list")
    roll(env, steps=3)
    assert len(env.render()) == 4
    with pytest.raises(TypeError, match="promt"):
        gym.make("VLMRM/CartPole-v1", promt="typo")


def test_lengths_that_no_episode_has_are_refused():
    """`max_episode_steps` would put a second time limit around the reward."""
    for episode_length in (0, 2.5, True, None):
        with pytest.raises(ValueError, match=r"`episode_length` must be an integer of at least 1\. Received"):
            gym.make("VLMRM/CartPole-v1", episode_length=episode_length)
    with pytest.raises(ValueError, match=r"`max_episode_steps` cannot be passed.*Received 3. Pass episode_length=3"):
        gym.make("VLMRM/CartPole-v1", max_episode_steps=3)


def test_env_kwargs_that_are_set_elsewhere_are_named():
    """Gymnasium would get two values for one keyword."""
    for name in ("id", "render_mode", "max_episode_steps"):
        for door in (make_env, partial(make_vector_env, num_envs=2)):
            with pytest.raises(ValueError, match=rf"`env_kwargs` cannot have '{name}'. Received {{'{name}': 7}}\."):
                door("Pendulum-v1", prompt=TASK_PROMPT, env_kwargs={name: 7})


def test_an_id_of_gymnasium_with_this_namespace_says_to_wrap_it():
    """And hides no version of a task: Gymnasium calls an environment outdated if its name has a newer one."""
    remedy = r'Wrap Ant-v5, .*vlmrm_gym.VLMReward\(gym.make\("Ant-v5", render_mode="rgb_array"\), prompt="..."\)'
    for make in (gym.make, partial(gym.make_vec, num_envs=2), partial(gym.make, prompt=TASK_PROMPT)):
        with pytest.raises(gym.error.NameNotFound, match=remedy):
            make("VLMRM/Ant-v5")
    names = [spec.name for spec in gym.registry.values() if spec.namespace == "VLMRM"]
    assert len(set(names)) == len(names)
