"""Kinds of rewards of one's own: a dataclass with a `build(device)`, at every door and as JSON."""

import dataclasses
import json
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import pytest
from counting_env import Counting
from gymnasium.envs.registration import EnvSpec

import vlmrm_gym
from vlmrm_gym import CLIP
from vlmrm_gym.rewards.specification import from_mapping, to_mapping


@dataclass(frozen=True, kw_only=True)
class Level(vlmrm_gym.RewardSpec):
    """How bright the first pixel is, times a scale: a kind as anyone would write it."""

    scale: float = 1.0

    def __post_init__(self):
        if self.scale <= 0:
            raise ValueError(f"`scale` must be above 0. Received {self.scale!r}.")

    def build(self, device):
        """A plain function: it has none of the attributes of a reward model."""
        return lambda frames: self.scale * frames[:, 0, 0, 0]


@dataclass(frozen=True, kw_only=True)
class Constant(vlmrm_gym.RewardSpec):
    """A kind without fields."""

    def build(self, device="auto"):
        return lambda frames: np.zeros(len(frames))


NAME = f"{__name__}:Level"


def make_counting():
    return Counting([3])


def test_every_form_of_a_kind_of_ones_own_scores():
    kwargs = {"scale": 2.0}
    for arguments in (
        {"reward": Level(scale=2.0)},
        {"reward": Level, "reward_kwargs": kwargs},
        {"reward": NAME, "reward_kwargs": kwargs},
        {"reward": {"kind": NAME, **kwargs}},
        {"reward": {"kind": "import", "path": NAME, "kwargs": kwargs}},
    ):
        env = vlmrm_gym.VLMReward(make_counting(), **arguments)
        env.reset(seed=0)
        assert [env.step(0)[1] for _ in range(3)] == [4, 6, 8]
        env.close()


def test_a_class_that_no_process_can_import_is_sent_to_workers_by_value():
    @dataclass(frozen=True)
    class Local(Level):
        """Of a function, as those of a notebook."""

    for num_workers in (0, 1):
        envs = vlmrm_gym.VLMRewardVectorEnv([make_counting], reward=Local(scale=3.0), num_workers=num_workers)
        envs.reset(seed=0)
        infos = [envs.step(np.zeros(1, dtype=int))[4] for _ in range(3)][-1]
        assert infos["vlm_rewards"][0].tolist() == [6, 9, 12]
        envs.close()


def test_a_mapping_names_the_kind_and_is_read_back():
    for specification in (Level(scale=2.0), Constant(), CLIP(prompt=["a", "b"], alpha=0)):
        mapping = json.loads(json.dumps(to_mapping(specification)))
        known = isinstance(specification, CLIP)
        assert mapping["kind"] == ("clip" if known else f"{__name__}:{type(specification).__name__}")
        assert from_mapping(mapping) == specification


def test_the_spec_of_an_environment_is_json_that_can_be_read():
    """The same environment, made from the JSON of another's spec, has the same reward."""
    cart_pole = gym.make("CartPole-v1", render_mode="rgb_array")
    for env in (
        gym.make("VLMRM/CartPole-v1", reward=Level(scale=0.5)),
        vlmrm_gym.VLMReward(cart_pole, reward=Level(scale=0.5)),
    ):
        for made in (env, gym.make(EnvSpec.from_json(env.spec.to_json()))):
            made.reset(seed=0)
            assert made.step(0)[1] == 127.5
            made.close()
    envs = gym.make_vec("VLMRM/CartPole-v1", 1, reward=Level(scale=0.5))
    assert json.loads(envs.spec.to_json())["kwargs"]["reward"] == {"kind": NAME, "scale": 0.5}
    envs.close()


def test_a_mapping_of_what_cannot_be_imported_is_refused():
    own = dataclasses.make_dataclass("Own", [], bases=(Level,), frozen=True, namespace={"__module__": "__main__"})
    with pytest.raises(ValueError, match="must be of a class that can be imported to be written as a mapping"):
        to_mapping(own())
    with pytest.raises(TypeError, match="must be a dataclass to be written as a mapping"):
        to_mapping(type("NoDataclass", (vlmrm_gym.RewardSpec,), {})())
