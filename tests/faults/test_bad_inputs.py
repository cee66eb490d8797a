"""Bad input at every door: the type of the error, the parameter in backticks, and what was received."""

import gymnasium as gym
import numpy as np
import pytest
from conftest import TASK_PROMPT

import vlmrm_gym
from vlmrm_gym import CLIPReward
from vlmrm_gym.data.replay import ReplayBuffer
from vlmrm_gym.sb3 import make_vec_env

CARTPOLE = "VLMRM/CartPole-v1"
BASELINE = "pole and cart"
NAN, INFINITY = float("nan"), float("inf")


def cartpole():
    return gym.make("CartPole-v1", render_mode="rgb_array")


def clip(**arguments):
    return CLIPReward(**{"model": "tiny", "prompt": TASK_PROMPT, **arguments})


def score(frames):
    return clip()(frames)


def make(env_id=CARTPOLE, **arguments):
    return gym.make(env_id, **arguments)


def make_vec(env_id=CARTPOLE, **arguments):
    return gym.make_vec(env_id, **{"num_envs": 2, **arguments})


def wrap(env=None, **arguments):
    return vlmrm_gym.VLMReward(cartpole() if env is None else env, **{"prompt": TASK_PROMPT, **arguments})


def vector(env=(cartpole,), **arguments):
    return vlmrm_gym.VLMRewardVectorEnv(env, **{"prompt": TASK_PROMPT, **arguments})


def humanoid(camera):
    return gym.make("VLMRM/Humanoid-stand-v0", camera=camera)


def replay(envs=None, **arguments):
    return ReplayBuffer(**{"capacity": 10, "envs": vector() if envs is None else envs, **arguments})


def sample(batch_size):
    return replay().sample(batch_size)


def sb3(**arguments):
    return make_vec_env(**{"id": CARTPOLE, **arguments})


def zeros(*shape, dtype=np.uint8):
    return np.zeros(shape, dtype=dtype)


BAD = [
    # The door, what is passed, the error, the parameter, and the words about it.
    (clip, {"prompt": ""}, ValueError, "prompt", "must not be empty. Received ''"),
    (clip, {"prompt": 3}, TypeError, "prompt", "must be a text or a list of texts. Received 3"),
    (clip, {"prompt": "a pole " * 100}, ValueError, "prompt", "must have at most 77 tokens for 'tiny'. Received 202"),
    (clip, {"baseline": TASK_PROMPT}, ValueError, "baseline", "must differ from `prompt`. Received"),
    (clip, {"alpha": NAN, "baseline": BASELINE}, ValueError, "alpha", "a number from 0 to 1. Received nan"),
    (clip, {"alpha": 0.5}, ValueError, "alpha", "above 0 needs a `baseline`"),
    (clip, {"batch_size": 0}, ValueError, "batch_size", "an integer of at least 1. Received 0"),
    (clip, {"resize_mode": "crop"}, ValueError, "resize_mode", "'squash', 'shortest', 'longest'. Received 'crop'"),
    (clip, {"precision": "int8"}, ValueError, "precision", "one of 'auto', 'fp32', 'bf16', 'fp16'. Received 'int8'"),
    (clip, {"device": "cuda:99"}, ValueError, "device", "of this machine (cpu"),
    (clip, {"model": "tinny"}, ValueError, "model", "Received 'tinny'. Nearest architectures: tiny"),
    (clip, {"model": "ViT-B-32/none.pt"}, FileNotFoundError, "model", "'none.pt' does not exist. Received"),
    (score, zeros(2, 8, 8, 3, dtype=np.float32), TypeError, "frames", "Received dtype float32"),
    (score, zeros(8, 8, 3), ValueError, "frames", "Received shape (8, 8, 3). For one frame, pass frame[None]"),
    (score, zeros(2, 3, 8, 8), ValueError, "frames", "Received shape (2, 3, 8, 8). Channels come last"),
    (score, zeros(0, 8, 8, 3), ValueError, "frames", "none of them 0. Received shape (0, 8, 8, 3)"),
    (wrap, {"env": gym.make("CartPole-v1")}, ValueError, "env", "Received render_mode=None"),
    (wrap, {"camera": {"distance": 3}}, ValueError, "camera", "is for MuJoCo environments. Received {'distance': 3}"),
    (make, {"episode_length": 0}, ValueError, "episode_length", "an integer of at least 1. Received 0"),
    (make, {"textured": True}, ValueError, "textured", "is not for CartPole"),
    (make, {"env_id": "VLMRM/Humanoid-v0"}, TypeError, "prompt", "a list of texts. Received None"),
    (humanoid, "overhead", ValueError, "camera", "has no camera 'overhead'"),
    (humanoid, {"distnce": 3}, ValueError, "camera", "has no field 'distnce'"),
    (humanoid, {"lookat": [0, 0]}, ValueError, "camera", "lookat must be three numbers. Received [0, 0]"),
    (make_vec, {"scoring": "step", "overlap": True}, ValueError, "overlap", 'needs scoring="episode"'),
    (make_vec, {"devices": ["cuda:7"], "num_workers": 1}, ValueError, "devices[0]", "Received 'cuda:7'"),
    (make_vec, {"devices": ["cpu"], "device": "cpu"}, ValueError, "devices", "cannot both be passed. Received 'cpu'"),
    (make_vec, {"render_mode": "human"}, ValueError, "render_mode", "Received 'human'"),
    (make_vec, {"max_episode_steps": 3}, ValueError, "max_episode_steps", "Received 3. Pass episode_length=3."),
    (vector, {"env": []}, ValueError, "env", "at least one. Received []"),
    (vector, {"env": [lambda: 3]}, ValueError, "env", "must be a list of functions that make environments"),
    (replay, {"capacity": 0}, ValueError, "capacity", "an integer of at least 1. Received 0"),
    (sample, 0, ValueError, "batch_size", "an integer of at least 1. Received 0"),
    (sb3, {"seed": "a"}, ValueError, "seed", "an integer of at least 0. Received 'a'"),
    (sb3, {"autoreset_mode": "NextStep"}, ValueError, "autoreset_mode", "needs same-step. Received 'NextStep'"),
]


def test_bad_input_is_refused_with_its_name_and_what_was_received():
    for door, passed, error, parameter, words in BAD:
        with pytest.raises(error) as raised:
            door(**passed) if isinstance(passed, dict) and door is not humanoid else door(passed)
        assert type(raised.value) is error
        assert f"`{parameter}`" in str(raised.value)
        assert words in str(raised.value)
