"""Nothing that a subclass of a reward model overrides is passed over, at any door; and nothing is found by its name."""

import ast
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import TASK_PROMPT

import vlmrm_gym
from vlmrm_gym import CLIPReward
from vlmrm_gym.rewards.devices import resolve_device
from vlmrm_gym.rewards.specification import resolve_reward

STEPS = 3


class Plain(CLIPReward):
    """CLIP's reward, which is linear in the features."""

    def __init__(self, device="cpu"):
        super().__init__("tiny", prompt=TASK_PROMPT, device=device)


class Encoded(Plain):
    def encode(self, frames):
        return 0.3 * super().encode(frames)


class Headed(Plain):
    def head(self, features):
        return 0.3 * super().head(features)


def of_one(**options):
    env = gym.make("VLMRM/CartPole-v1", episode_length=STEPS, **options)
    env.reset(seed=0)
    rewards = [env.step(0)[1] for _ in range(STEPS)]
    env.close()
    return rewards


def test_a_scaled_clip_reward_is_paid_scaled():
    """In every form, here and in a worker."""
    expected = 0.3 * np.array(of_one(model="tiny", prompt=TASK_PROMPT))
    name = f"{__name__}:{Encoded.__name__}"
    for reward in (Encoded(), Headed(), Encoded, name, {"kind": "import", "path": name}):
        np.testing.assert_allclose(of_one(reward=reward), expected, atol=1e-5)
    envs = gym.make_vec("VLMRM/CartPole-v1", 1, episode_length=STEPS, reward=name, num_workers=1, return_features=True)
    envs.reset(seed=0)
    infos = [envs.step(np.zeros(1, dtype=int))[4] for _ in range(STEPS)][-1]
    envs.close()
    np.testing.assert_allclose(infos["vlm_rewards"][0], expected, atol=1e-5)


class Small(vlmrm_gym.RewardModel):
    def encode(self, frames):
        return frames.mean((1, 2, 3))[:, None]


small = Small()


def test_a_model_that_is_made_takes_no_keyword_arguments():
    named = {"kind": "import", "path": f"{__name__}:small", "kwargs": {"scale": 0.5}}
    for arguments in ((named,), (f"{__name__}:small", {"scale": 0.5}), (small, {"scale": 0.5})):
        with pytest.raises(TypeError, match="Received a RewardModel: set them there"):
            resolve_reward(*arguments)


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu", 0)])
def test_a_device_may_be_called_as_tensors_call_it(device):
    assert resolve_device(device) == torch.device("cpu")


def test_a_subclass_has_its_own_size_and_fingerprint_and_shares_no_encoder():
    class Small(Encoded):
        fingerprint = "scaled"

        def render_size(self, height, width):
            return height // 4, width // 4

    small, plain = Small(), Plain()
    assert (small.fingerprint, small.render_size(400, 600), small.encoder_key) == ("scaled", (100, 150), None)
    assert plain.encoder_key == Headed().encoder_key is not None


PACKAGE = Path(vlmrm_gym.__file__).parent
BY_NAME = {
    "getattr(head, 'fingerprint', '')",  # a head is any callable
    "hasattr(head, 'cpu')",
    "getattr(model, name)",  # values of attributes that the base class declares are checked
    "hasattr(self.tokenizer, 'tokenizer')",  # open_clip's
    "hasattr(os, 'RTLD_DEEPBIND')",
    "hasattr(os, 'register_at_fork')",
    "getattr(value, name, None)",  # modules
    "getattr(importlib.import_module(_LAZY[name]), name)",
    "getattr(specification, one.name)",  # fields of dataclasses
    "getattr(spec, one.name)",
    "getattr(instance, one.name)",
    "getattr(reward, one.name)",
    "getattr(chunk, name)",
    "hasattr(image, 'n_frames')",  # of Pillow
    "getattr(info, name)",
}


def test_nothing_is_found_on_models_or_specifications_by_its_name():
    files = [file for room in ("rewards", "scoring", "envs") for file in (PACKAGE / room).glob("*.py")]
    files += [PACKAGE / "tools" / "check" / name for name in ("rewards.py", "results.py", "pipeline.py")]
    calls = [node for file in files for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    looked_up = {ast.unparse(call) for call in calls if ast.unparse(call.func) in ("getattr", "hasattr")}
    assert {call for call in looked_up if "attr(self, " not in call and "attr(command, " not in call} <= BY_NAME
