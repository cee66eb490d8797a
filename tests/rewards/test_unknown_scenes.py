"""The bundled model warns of frames that are unlike those of its scenes: once, at every door."""

import threading
import warnings

import gymnasium as gym
import imageio.v3 as iio
import numpy as np
import pytest
import torch
from conftest import TASK_PROMPT, cartpole_frame
from counting_env import Counting

import vlmrm_gym
from vlmrm_gym import CLIP, CLIPReward
from vlmrm_gym.audit.rewards import EncodedRewards
from vlmrm_gym.cli import main
from vlmrm_gym.tasks import TASKS
from vlmrm_gym.tiny import scenes

WORDS = "does not know this scene"
POLE = (202, 152, 101)
"""The pole's colour in Gymnasium's cart-pole."""


def reddened(frame):
    """A frame of cart-pole whose pole is red."""
    changed = frame.copy()
    changed[(np.abs(frame.astype(int) - POLE) < 12).all(-1)] = (220, 20, 20)
    return changed


class RedPole(gym.Wrapper):
    """Somebody's cart-pole."""

    def render(self):
        return reddened(self.env.render())


def red_pole():
    return RedPole(gym.make("CartPole-v1", render_mode="rgb_array"))


def scene_warnings(recorded):
    return [str(one.message) for one in recorded if WORDS in str(one.message)]


def sweep():
    """Cart-poles from upright to hanging."""
    return np.stack([cartpole_frame(angle) for angle in (0, 30, 90, 180)])


OTHER_SCENES = {
    "a red pole": lambda rng: np.stack([reddened(frame) for frame in sweep()]),
    "random pixels": lambda rng: rng.integers(0, 256, (4, 240, 320, 3), dtype=np.uint8),
    "black": lambda rng: np.zeros((2, 240, 320, 3), dtype=np.uint8),
}


@pytest.mark.parametrize("name", OTHER_SCENES)
def test_frames_of_other_scenes_warn_whatever_the_prompt(name, rng):
    reward = CLIPReward("tiny", prompt=TASK_PROMPT)
    with pytest.warns(UserWarning, match=f'{WORDS}.*model="ViT-B-32/laion2b_s34b_b79k"'):
        reward(OTHER_SCENES[name](rng))


@pytest.mark.parametrize("id", ["Ant-v5", "Pendulum-v1"])
def test_environments_of_gymnasium_warn_once(id, recwarn):
    with gym.make(id, render_mode="rgb_array") as env:
        env = vlmrm_gym.VLMReward(env, prompt=TASK_PROMPT, model="tiny")
        env.reset(seed=0)
        env.action_space.seed(0)
        for _ in range(8):
            env.step(env.action_space.sample())
    assert len(scene_warnings(recwarn)) == 1


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_the_own_scenes_do_not_warn(task):
    """Warnings are errors in these tests."""
    env = gym.make(task.id, prompt=task.prompt or "a humanoid robot standing up")
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(8):
        env.step(env.action_space.sample())
    env.close()


def test_a_reward_warns_once(recwarn):
    reward = CLIPReward("tiny", prompt=TASK_PROMPT)
    for _ in range(3):
        reward(np.zeros((2, 240, 320, 3), dtype=np.uint8))
    assert len(scene_warnings(recwarn)) == 1


def test_a_few_odd_frames_among_many_do_not_warn():
    """They are below a quarter of what a reward has scored so far."""
    reward, black = CLIPReward("tiny", prompt=TASK_PROMPT), np.zeros_like(cartpole_frame(0))
    reward(np.stack([cartpole_frame(0)] * 4))
    reward(black[None])
    with pytest.warns(UserWarning, match=WORDS):
        reward(black[None])


def test_another_model_does_not_warn(recwarn):
    folder = scenes.FILE.parent
    CLIPReward(f"local-dir:{folder}", prompt=TASK_PROMPT)(np.zeros((2, 96, 96, 3), dtype=np.uint8))
    assert scene_warnings(recwarn) == []


def test_several_prompts_warn_once(recwarn):
    specs = [CLIP(prompt=prompt, model="tiny") for prompt in (TASK_PROMPT, "a pole that has fallen over")]
    rewards = EncodedRewards(specs, "cpu")
    features = rewards.encoder.encode(np.zeros((2, 240, 320, 3), dtype=np.uint8)).numpy()[:, None]
    assert [rewards.view(spec, None, 1)(features).shape for spec in specs] == [(2,), (2,)]
    assert len(scene_warnings(recwarn)) == 1


def step_until_scored(envs, num_steps=6):
    envs.reset(seed=0)
    for _ in range(num_steps):
        envs.step(np.zeros(envs.num_envs, dtype=int))
    envs.flush()


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "overlap": True}], ids=str)
def test_a_vector_warns_once_in_the_users_process(options, recwarn):
    envs = vlmrm_gym.VLMRewardVectorEnv([red_pole] * 4, prompt=TASK_PROMPT, batch_size=4, **options)
    step_until_scored(envs)
    envs.close()
    assert len(scene_warnings(recwarn)) == 1


def warns_at_every_frame(frames):
    """A reward of the user's."""
    warnings.warn("the reward has something to say", stacklevel=1)
    return frames[:, 0, 0].astype(np.int64) @ (1, 256, 65536)


def test_what_a_reward_warns_of_in_a_worker_reaches_the_user(recwarn):
    envs = vlmrm_gym.VLMRewardVectorEnv([lambda: Counting([6])] * 2, reward=warns_at_every_frame, num_workers=1)
    step_until_scored(envs)
    envs.close()
    assert [str(one.message) for one in recwarn].count("the reward has something to say") == 1


def test_a_warning_that_is_an_error_moves_no_reward(recwarn):
    """The batch that came with the warning fails; those after it get their own rewards."""
    base = Counting([3], first=100)
    envs = vlmrm_gym.VLMRewardVectorEnv(
        [lambda: base], reward=warns_at_every_frame, num_workers=1, autoreset_mode="SameStep"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with pytest.raises(UserWarning, match="something to say"):
            step_until_scored(envs, 3)
    received = []
    for _ in range(6):
        infos = envs.step(np.zeros(1, dtype=int))[4]
        received += [reward for rewards in infos["vlm_rewards"] if rewards is not None for reward in rewards]
    envs.close()
    assert received == base.expected_rewards[-len(received) :]
    assert len(received) >= 3


def test_score_warns_of_pictures(tmp_path):
    iio.imwrite(tmp_path / "red.png", reddened(cartpole_frame(40)))
    with pytest.warns(UserWarning, match=WORDS):
        main(
            [
                "score",
                str(tmp_path / "red.png"),
                "--prompt",
                TASK_PROMPT,
                "--model",
                "tiny",
                "--out",
                str(tmp_path / "out"),
            ]
        )


def test_the_distance_is_about_the_same_in_other_precisions():
    frames = torch.from_numpy(np.stack([cartpole_frame(angle) for angle in range(-180, 180, 20)]))
    distances = []
    for precision in ("fp32", "bf16"):
        CLIPReward("tiny", prompt=TASK_PROMPT, precision=precision).encode(frames)
        distances.append(scenes.distance(scenes.newest_activations()))
    assert (distances[0] - distances[1]).abs().max() < 0.2  # of a limit of 1


def test_rewards_on_several_threads_look_at_their_own_frames():
    """One network serves all rewards of a process."""
    own, other = CLIPReward("tiny", prompt=TASK_PROMPT), CLIPReward("tiny", prompt=TASK_PROMPT)
    known, found = np.stack([cartpole_frame(0)] * 8), []

    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        thread = threading.Thread(target=lambda: found.extend(own(known) for _ in range(10)))
        thread.start()
        for _ in range(10):
            other(np.zeros_like(known))
        thread.join()
    assert len(found) == 10
    assert len(scene_warnings(recorded)) == 1
