"""`reward=`: specifications, imported callables and callables, at every door and in every mode."""

import dataclasses
import json
import pickle
import threading

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import TASK_PROMPT
from counting_env import Counting
from own_things import Sized, mean_pixel

import vlmrm_gym
from vlmrm_gym import CLIP
from vlmrm_gym.rewards import RewardModel
from vlmrm_gym.rewards.clip import CLIPKeywords
from vlmrm_gym.rewards.own import CallableModel, ImportedReward
from vlmrm_gym.rewards.specification import from_mapping, resolve_reward, to_mapping


class MeanPixel(RewardModel):
    """A class as anyone would write it."""

    batch_size = 7

    def __init__(self, scale=1.0, device="cpu"):
        self.scale, self.device = scale, device

    def encode(self, frames):
        return torch.from_numpy(frames.copy()).double().mean((1, 2, 3))[:, None] * self.scale


SCALE = {"reward_kwargs": {"scale": 0.5}}
KINDS = {
    "function": {"reward": "own_things:mean_pixel", **SCALE},
    "class": {"reward": "test_reward_door:MeanPixel", **SCALE},
    "callable": {"reward": lambda frames: 0.5 * frames.mean((1, 2, 3))},
    "object": {"reward": MeanPixel(0.5)},
    "class itself": {"reward": MeanPixel, **SCALE},
}


def cartpole(**_):
    return gym.wrappers.TimeLimit(gym.make("CartPole-v1", render_mode="rgb_array").unwrapped, 5)


def test_custom_rewards_score_the_frames():
    """Of the size that the environment shows, since they ask for no other; one environment and vectors alike."""
    for kind, options in KINDS.items():
        env = vlmrm_gym.VLMReward(cartpole(), **options)
        env.reset(seed=0)
        reward = env.step(0)[1]
        assert reward == pytest.approx(0.5 * env.unwrapped.render().mean(), rel=1e-5), kind
        env.close()
        envs = vlmrm_gym.VLMRewardVectorEnv([cartpole], scoring="step", **options)
        envs.reset(seed=0)
        assert envs.step(np.zeros(1, dtype=int))[1] == pytest.approx(reward), kind
        envs.close()


def test_the_prompt_is_short_for_clip():
    options = {"baseline": "a cart", "alpha": 0.4, "resize_mode": "longest"}
    specification, rewards = CLIP(prompt=TASK_PROMPT, **options), []
    for env in (
        vlmrm_gym.VLMReward(cartpole(), TASK_PROMPT, **options),
        vlmrm_gym.VLMReward(cartpole(), reward=specification),
        vlmrm_gym.VLMReward(cartpole(), reward=dataclasses.asdict(specification)),
        vlmrm_gym.VLMReward(cartpole(), TASK_PROMPT),
    ):
        env.reset(seed=0)
        rewards.append(env.step(0)[1])
        env.close()
    assert rewards[0] == rewards[1] == rewards[2] != rewards[3]


def test_clip_options_are_the_fields_of_clip():
    """Type checkers need them written a second time."""
    hints = {field.name: field.type for field in dataclasses.fields(CLIP) if field.init}
    assert {"prompt": hints["prompt"], "model": str | None, **CLIPKeywords.__annotations__} == hints


def test_specifications_survive_json_and_pickle():
    for specification in (
        CLIP(prompt=["a", "b"], baseline="c", alpha=0.3, model="tiny", precision="fp32", resize_mode="longest"),
        CLIP(prompt=("a", "b"), baseline=["c"], alpha=np.float32(0.5), batch_size=np.int64(7)),
        ImportedReward(path="test_reward_door:MeanPixel", kwargs={"scale": 2.0}),
        vlmrm_gym.Endpoint(prompt="a", model="m", request={"temperature": 0}),
    ):
        mapping = json.loads(json.dumps(dataclasses.asdict(specification)))
        assert mapping == to_mapping(specification)
        assert from_mapping(mapping) == specification
        assert resolve_reward(mapping, None, None, {}) == specification
        assert pickle.loads(pickle.dumps(specification)) == specification


class Unpicklable:
    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, frames):
        return np.zeros(len(frames))


def test_a_reward_that_cannot_be_pickled_scores_without_workers():
    """Nor can it be copied, as Gymnasium does with what constructors get."""
    env = gym.make("VLMRM/CartPole-v1", reward=Unpicklable())
    env.reset(seed=0)
    assert env.step(0)[1] == 0
    env.close()
    with pytest.raises(ValueError, match=r"`reward` cannot be sent to a worker: .*Pass num_workers=0, or the reward"):
        vlmrm_gym.VLMRewardVectorEnv([Counting], reward=Unpicklable(), num_workers=1)


def test_a_reward_keeps_its_arguments_in_the_spec():
    cart_pole = gym.make("CartPole-v1", render_mode="rgb_array")
    env = vlmrm_gym.VLMReward(cart_pole, reward=mean_pixel, reward_kwargs={"scale": 0.5})
    rewards = []
    for made in (env, gym.make(env.spec)):
        made.reset(seed=0)
        rewards.append(made.step(0)[1])
        made.close()
    assert rewards[0] == rewards[1] == pytest.approx(0.5 * 252, rel=0.01)


def test_an_environments_own_reward_does_not_spoil_ours():
    """Its weight is 0, but 0 times a NaN is NaN."""
    for own, scoring in [(np.nan, "step"), (np.inf, "episode")]:
        infinite = [lambda own=own: gym.wrappers.TransformReward(cartpole(), lambda _: own)] * 2
        envs = vlmrm_gym.VLMRewardVectorEnv(infinite, reward=mean_pixel, scoring=scoring)
        envs.reset(seed=0)
        for _ in range(5):
            _, rewards, _, _, infos = envs.step(np.ones(2, dtype=int))
        assert np.isfinite(rewards if scoring == "step" else np.concatenate(infos["vlm_rewards"])).all()
        np.testing.assert_array_equal(infos["task_reward"], [own] * 2)
        envs.close()


def test_tensors_of_every_precision_are_rewards():
    """NumPy has no bfloat16, in which many models compute on a GPU."""
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        reward = CallableModel(lambda frames, dtype=dtype: torch.arange(len(frames), dtype=dtype, requires_grad=True))
        rewards = reward(np.zeros((3, 4, 4, 3), dtype=np.uint8))
        assert rewards.dtype == np.float32
        np.testing.assert_array_equal(rewards, [0, 1, 2])


def test_the_render_size_of_a_class_of_a_script_reaches_the_environments_or_is_refused():
    """Neither is importable by its name; a lock cannot leave the worker."""

    class OfScript(Sized):
        pass

    class Locked(Sized):
        def __init__(self, device="cpu"):
            super().__init__((40, 60))
            self.lock = threading.Lock()

    envs = gym.make_vec("VLMRM/CartPole-v1", num_envs=1, reward=OfScript((40, 60)), num_workers=1)
    envs.reset(seed=0)
    envs.step(np.zeros(1, dtype=np.int64))
    assert np.isfinite(envs.flush()["vlm_rewards"][0]).all()
    envs.close()
    with pytest.raises(ValueError, match=r"`reward\.render_size` cannot be sent to the process of the environments"):
        gym.make_vec("VLMRM/CartPole-v1", num_envs=1, reward=Locked, num_workers=1)
