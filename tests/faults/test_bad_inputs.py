"""Bad input that is of one door: the error, the parameter in backticks, and what was received.

Keywords that all doors have are in `bad_options`; what a room refuses is tested with the room.
"""

import gymnasium as gym
import pytest
from conftest import TASK_PROMPT

from vlmrm_gym import CLIPReward
from vlmrm_gym.sb3 import make_vec_env

CARTPOLE = "VLMRM/CartPole-v1"


def clip(**arguments):
    return CLIPReward(**{"model": "tiny", "prompt": TASK_PROMPT, **arguments})


def make(**arguments):
    return gym.make(CARTPOLE, **arguments)


def make_vec(**arguments):
    return gym.make_vec(CARTPOLE, num_envs=2, **arguments)


def sb3(**arguments):
    return make_vec_env(CARTPOLE, **arguments)


BAD = [
    # The door, what is passed, the error, the parameter, and the words about it.
    (clip, {"prompt": ""}, ValueError, "prompt", "must not be empty. Received ''"),
    (clip, {"prompt": "a pole " * 100}, ValueError, "prompt", "must have at most 77 tokens for 'tiny'. Received 202"),
    (clip, {"alpha": 0.5}, ValueError, "alpha", "above 0 needs a `baseline`"),
    (clip, {"model": "ViT-B-32/none.pt"}, FileNotFoundError, "model", "'none.pt' does not exist. Received"),
    (make, {"textured": True}, ValueError, "textured", "is not for CartPole"),
    (make_vec, {"scoring": "step", "overlap": True}, ValueError, "overlap", 'needs scoring="episode"'),
    (make_vec, {"devices": ["cuda:7"], "num_workers": 1}, ValueError, "devices[0]", "Received 'cuda:7'"),
    (make_vec, {"devices": ["cpu"], "device": "cpu"}, ValueError, "devices", "cannot both be passed. Received 'cpu'"),
    (make_vec, {"render_mode": "human"}, ValueError, "render_mode", "Received 'human'"),
    (sb3, {"autoreset_mode": "NextStep"}, ValueError, "autoreset_mode", "needs same-step. Received 'NextStep'"),
]


def test_bad_input_is_refused_with_its_name_and_what_was_received():
    for door, passed, error, parameter, words in BAD:
        with pytest.raises(error) as raised:
            door(**passed)
        assert type(raised.value) is error
        assert f"`{parameter}`" in str(raised.value)
        assert words in str(raised.value)
