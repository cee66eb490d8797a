"""What a message says of a received value is short, whatever the value is, at every door and for every parameter."""

import inspect
from dataclasses import fields

import gymnasium as gym
import numpy as np
import pytest

import vlmrm_gym
from vlmrm_gym._util.validation import short_repr
from vlmrm_gym.envs.make import make_vector_env

PICTURE = np.random.default_rng(0).integers(0, 256, (240, 320, 3), dtype=np.uint8)
HUGE = {"pictures": [PICTURE] * 3, "a text": "a" * 100_000, "a mapping": {str(i): PICTURE for i in range(100)}}


def wrap(**arguments):
    env = gym.make("Humanoid-v5", render_mode="rgb_array")
    return vlmrm_gym.VLMReward(env, **arguments)


def vector(**arguments):
    return make_vector_env("VLMRM/Humanoid-stand-v0", 1, **arguments)


def names(door):
    return {name for name, one in inspect.signature(door).parameters.items() if one.kind is one.KEYWORD_ONLY}


CLIP_NAMES = {one.name for one in fields(vlmrm_gym.CLIP) if one.init}
DOORS = [
    (vector, {*names(vlmrm_gym.VLMRewardVectorEnv), *CLIP_NAMES}),
    (wrap, names(vlmrm_gym.VLMReward) - names(vlmrm_gym.VLMRewardVectorEnv)),
    (vlmrm_gym.CLIP, CLIP_NAMES),
    (vlmrm_gym.Preference, names(vlmrm_gym.Preference)),
    (vlmrm_gym.VLMReward, {"env"}),
    (vlmrm_gym.VLMRewardVectorEnv, {"env"}),
]


@pytest.mark.filterwarnings("ignore:The bundled model does not know")
@pytest.mark.parametrize("value", HUGE.values(), ids=list(HUGE))
def test_messages_are_short(value):
    """A list with one picture was 120 lines."""
    for door, name in [(door, name) for door, names in DOORS for name in sorted(names)]:
        given = {} if name in ("prompt", "reward") else {"prompt": "a robot"}
        try:
            made = door(**given, **{name: value})
        except (TypeError, ValueError, FileNotFoundError, RuntimeError) as error:
            message = str(error)
            assert len(message) < 1_000, name
            assert message.count("\n") < 3, name
        else:  # a long text is a name, a note, a file that is read later
            fits = ("reward_kwargs", "ray_options", "goal_images", "baseline_images")
            assert isinstance(value, str) or name in fits, name
            getattr(made, "close", lambda: None)()


def test_arrays_are_described_and_what_is_short_is_written_out():
    assert short_repr(PICTURE) == "uint8 of shape (240, 320, 3)"
    assert short_repr([np.zeros((4, 3), dtype=np.float32)]) == "[float32 of shape (4, 3)]"
    assert short_repr(np.array([1, 2])) == "array([1, 2])"
    assert short_repr({"prompt": "a pole"}) == "{'prompt': 'a pole'}"
