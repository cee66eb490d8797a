"""What a message says of a received value is short, whatever the value is, at every door and for every parameter."""

import inspect
from dataclasses import fields

import gymnasium as gym
import numpy as np
import pytest

import vlmrm_gym
from vlmrm_gym.registration import make_vector_env
from vlmrm_gym.validation import short_repr

PICTURE = np.random.default_rng(0).integers(0, 256, (240, 320, 3), dtype=np.uint8)
HUGE = {
    "a picture": PICTURE,
    "pictures": [PICTURE] * 3,
    "a text": "a" * 100_000,
    "a mapping": {str(i): PICTURE for i in range(100)},
}


def wrap(**arguments):
    env = gym.make("Humanoid-v5", render_mode="rgb_array")
    return vlmrm_gym.VLMReward(env, **{**({} if "reward" in arguments else {"prompt": "a robot"}), **arguments})


def vector(**arguments):
    given = {**({} if "reward" in arguments else {"prompt": "a robot"}), **arguments}
    return make_vector_env("VLMRM/Humanoid-stand-v0", 1, **given)


def names(door):
    return [name for name, one in inspect.signature(door).parameters.items() if one.kind is one.KEYWORD_ONLY]


CLIP_NAMES = [one.name for one in fields(vlmrm_gym.CLIP) if one.init]
DOORS = [
    *((wrap, name) for name in sorted({*names(vlmrm_gym.VLMReward), *CLIP_NAMES})),
    *((vector, name) for name in sorted({*names(vlmrm_gym.VLMRewardVectorEnv), *CLIP_NAMES})),
    *((vlmrm_gym.CLIP, name) for name in CLIP_NAMES),
    *((vlmrm_gym.Preference, name) for name in names(vlmrm_gym.Preference)),
    *((vlmrm_gym.VLMReward, name) for name in ("env",)),
    *((vlmrm_gym.VLMRewardVectorEnv, name) for name in ("env",)),
]


@pytest.mark.parametrize("value", HUGE.values(), ids=list(HUGE))
@pytest.mark.parametrize(("door", "name"), DOORS, ids=lambda value: getattr(value, "__name__", value))
def test_messages_are_short(door, name, value):
    """A list with one picture was 120 lines."""
    given = {} if name in ("prompt", "reward") or door in (wrap, vector) else {"prompt": "a robot"}
    try:
        made = door(**given, **{name: value})
    except (TypeError, ValueError, FileNotFoundError, RuntimeError) as error:
        message = str(error)
        assert len(message) < 1_000
        assert message.count("\n") < 3
    else:  # a long text is a name, a note, a file that is read later
        assert isinstance(value, str) or name in ("reward_kwargs", "ray_options")
        getattr(made, "close", lambda: None)()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.zeros((240, 320, 3), dtype=np.uint8), "uint8 of shape (240, 320, 3)"),
        ([np.zeros((4, 3), dtype=np.float32)], "[float32 of shape (4, 3)]"),
        (np.array([1, 2]), "array([1, 2])"),
        ({"prompt": "a pole"}, "{'prompt': 'a pole'}"),
        ("a pole", "'a pole'"),
    ],
    ids=str,
)
def test_arrays_are_described_and_what_is_short_is_written_out(value, text):
    assert short_repr(value) == text
