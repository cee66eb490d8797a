"""The bundled model warns of frames that are unlike those of its scenes: once, at every door."""

import threading
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import TASK_PROMPT, cartpole_frame
from counting_env import Counting

import vlmrm_gym
from vlmrm_gym import CLIP, CLIPReward
from vlmrm_gym.rewards import models
from vlmrm_gym.rewards.tiny import scenes
from vlmrm_gym.tools.check.rewards import EncodedRewards

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


@pytest.mark.parametrize("name", ["a red pole", "random pixels"])
def test_frames_of_other_scenes_warn_once_whatever_the_prompt(name, rng, recwarn):
    frames = {
        "a red pole": np.stack([reddened(cartpole_frame(angle)) for angle in (0, 30, 90, 180)]),
        "random pixels": rng.integers(0, 256, (4, 240, 320, 3), dtype=np.uint8),
    }[name]
    reward = CLIPReward("tiny", prompt=TASK_PROMPT)
    for _ in range(3):
        reward(frames)
    (message,) = scene_warnings(recwarn)
    assert 'model="ViT-B-32/laion2b_s34b_b79k"' in message


def play(env):
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(3):
        env.step(env.action_space.sample())
    env.close()


def test_an_environment_of_gymnasium_warns_once(recwarn):
    play(vlmrm_gym.VLMReward(gym.make("Ant-v5", render_mode="rgb_array"), prompt=TASK_PROMPT, model="tiny"))
    assert len(scene_warnings(recwarn)) == 1


def test_the_own_scenes_do_not_warn():
    """Warnings are errors in these tests."""
    for id in ("VLMRM/CartPole-v1", "VLMRM/MountainCarContinuous-v0", "VLMRM/Humanoid-kneel-v0"):
        play(gym.make(id))


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


@pytest.mark.slow
def test_a_vector_warns_once_in_the_users_process(recwarn):
    options = {"prompt": TASK_PROMPT, "batch_size": 4, "num_workers": 2, "overlap": True}
    envs = vlmrm_gym.VLMRewardVectorEnv([red_pole] * 4, **options)
    step_until_scored(envs)
    envs.close()
    assert len(scene_warnings(recwarn)) == 1


def warns_at_every_frame(frames):
    """A reward of the user's."""
    warnings.warn("the reward has something to say", stacklevel=1)
    return frames[:, 0, 0].astype(np.int64) @ (1, 256, 65536)


def test_a_warning_that_is_an_error_moves_no_reward(recwarn):
    """Which reaches the user from a worker. The batch that came with it fails; those after it get their own rewards."""
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


def test_the_distance_is_about_the_same_in_other_precisions():
    frames = torch.from_numpy(np.stack([cartpole_frame(angle) for angle in range(-180, 180, 20)]))
    distances = []
    for precision in ("fp32", "bf16"):
        model = models.load("tiny", precision=precision)
        distances.append(scenes.distance(model.network.visual(model.preprocessing()(frames).to(model.dtype))[1]))
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
