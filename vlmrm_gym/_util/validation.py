"""Checks of parameters that several public functions share."""

import json
import math
import reprlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields
from numbers import Integral, Real
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorRewardWrapper, VectorWrapper
from numpy.typing import NDArray

SCORED_KEY = "vlm_scored"
"""In the metadata of environments whose rewards are replaced: the name of the class that replaces them."""


def check_that(holds: bool, parameter: str, rule: str, value: Any) -> Any:
    """Return a value. Raise a ValueError, which says the rule, unless this holds for it."""
    if not holds:
        raise ValueError(f"`{parameter}` must be {rule}. Received {short_repr(value)}.")
    return value


def check_integer(parameter: str, value: Any, *, minimum: int, maximum: int | None = None) -> int:
    """Return an integer. Raise a ValueError unless it is one of at least `minimum`, and of at most `maximum`."""
    is_one = isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= minimum
    check_that(is_one, parameter, f"an integer of at least {minimum}", value)
    if maximum is not None:
        check_that(value <= maximum, parameter, f"an integer of at most {maximum:,}", value)
    return int(value)


def check_positive_integer(parameter: str, value: object) -> None:
    """Raise a ValueError unless a value is an integer of at least 1."""
    check_integer(parameter, value, minimum=1)


def check_choice(parameter: str, value: Any, choices: Collection[str]) -> str:
    """Return a value. Raise a ValueError unless it is one of the choices."""
    is_one = isinstance(value, str) and value in choices
    return check_that(is_one, parameter, f"one of {', '.join(map(repr, choices))}", value)


def check_size(parameter: str, size: Any) -> tuple[int, int] | None:
    """Check a height and width, or None, and return them as a pair. Raises a ValueError unless both are positive."""
    if size is None:
        return None
    pair: Any = tuple(size) if isinstance(size, Sequence) else ()
    is_size = len(pair) == 2 and all(type(side) is int and side > 0 for side in pair)
    check_that(is_size, parameter, "None, or (height, width) in pixels", size)
    return pair


def check_flag(parameter: str, value: Any) -> bool:
    """Return a value. Raise a ValueError unless it is True or False."""
    return check_that(isinstance(value, bool), parameter, "True or False", value)


def check_fraction(parameter: str, value: Any) -> float:
    """Return a number. Raise a ValueError unless it is one from 0 to 1."""
    return float(check_that(is_number(value) and 0 <= value <= 1, parameter, "a number from 0 to 1", value))


def check_not_negative(parameter: str, value: Any) -> float:
    """Return a number. Raise a ValueError unless it is finite, and at least 0."""
    return float(check_that(is_finite(value) and value >= 0, parameter, "a finite number of at least 0", value))


def check_seconds(parameter: str, value: Any) -> float:
    """Return a number. Raise a ValueError unless it is finite, and above 0."""
    return check_that(is_finite(value) and value > 0, parameter, "a positive number of seconds", value)


def check_finite(parameter: str, value: Any) -> float:
    """Return a number. Raise a ValueError unless it is finite."""
    return float(check_that(is_finite(value), parameter, "a finite number", value))


def is_number(value: object) -> bool:
    """Tell whether a value is a real number, Python's or NumPy's; a bool is not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_finite(value: object) -> bool:
    """Tell whether a value is a real number that float64 can hold, and not infinite or a NaN."""
    try:
        return is_number(value) and math.isfinite(value)  # pyright: ignore[reportArgumentType]
    except OverflowError:  # an integer
        return False


def weigh_task_rewards(weight: float, task_rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weigh the environments' own rewards times their weight, float64 (num_envs,); zeros if the weight is 0.

    A ValueError where a product is not finite in float32: NaN stands for a reward that is yet to be scored.
    """
    if not weight:
        return np.zeros(len(task_rewards))  # 0 times a NaN is NaN
    weighed = weight * task_rewards
    finite = np.isfinite(as_float32(weighed))
    if not finite.all():
        bad = int(np.flatnonzero(~finite)[0])
        raise ValueError(
            f"`task_reward_weight` is {weight}, so the environment's own rewards must be finite, times the weight too. "
            f"Received {task_rewards[bad]} from environment {bad}."
        )
    return weighed


def as_task_reward(env: gym.Env[Any, Any], reward: Any) -> float:
    """Convert an environment's own reward to a float. Raise a ValueError unless it is one number."""
    number = np.asarray(reward)
    if number.shape or number.dtype.kind not in "biuf":
        raise ValueError(f"`env` must return one number as its own reward. Received {short_repr(reward)} from {env}.")
    return float(number)


def check_env(env: object) -> None:
    """Raise a TypeError unless a value is a single environment."""
    if isinstance(env, gym.Env):
        return
    remedy = 'Pass one environment: gym.make(..., render_mode="rgb_array").'
    if isinstance(env, VectorEnv):
        remedy = "Use `VLMRewardVectorEnv` for vector environments."
    raise TypeError(f"`env` must be a gymnasium.Env. Received {short_repr(env)}. {remedy}")


def check_no_autoreset(env: gym.Env[Any, Any]) -> None:
    """Raise a ValueError if an environment's wrappers reset it in a step: no action led to the state of that step."""
    if any(isinstance(one, gym.wrappers.Autoreset) for one in layers(env)):
        raise ValueError(
            f"`env` must not reset itself: the step that only resets has no reward. Received {env}. Put Autoreset "
            "around the scored environment: Autoreset(VLMReward(env))."
        )


def find_time_limit(env: gym.Env[Any, Any]) -> int | None:
    """Steps after which an environment truncates an episode, as far as its spec or its `TimeLimit` wrappers say."""
    limits = [None if env.spec is None else env.spec.max_episode_steps]
    limits += [one._max_episode_steps for one in layers(env) if isinstance(one, gym.wrappers.TimeLimit)]
    return min((limit for limit in limits if limit is not None), default=None)


def layers(env: Any) -> Iterator[Any]:
    """Yield an environment or a vector of such, the one that it wraps, and so on."""
    yield env
    while isinstance(env, gym.Wrapper | VectorWrapper):
        env = env.env
        yield env


def find_metadata(env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any], key: str) -> Any:
    """Find an entry of the metadata of an environment or of one that it wraps: wrappers may drop it. None without."""
    return next((value for one in layers(env) if (value := one.metadata.get(key)) is not None), None)


def as_array(values: Any) -> NDArray[Any]:
    """Convert numbers, also a torch tensor of any device, to a NumPy array; bfloat16, which NumPy lacks, to float32."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    return np.asarray(values)


def as_float32(numbers: NDArray[Any]) -> NDArray[np.float32]:
    """Convert numbers to float32, infinite where float32 cannot hold them."""
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)


def check_unscored(env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> None:
    """Raise a ValueError if an environment, or one of a vector's, is scored already: its own reward is unknown.

    Of a vector whose environments are in other processes, the metadata are those of the first.
    """
    if scored_by := find_metadata(env, SCORED_KEY):
        raise ValueError(
            f"`env` must not be scored already. Received {env}, which has a {scored_by} in it. Pass the "
            f"{'vector environment' if isinstance(env, VectorEnv) else 'environment'} that this one was made of; or "
            "make it with another prompt or reward: gym.make(ID, prompt=...)."
        )
    if isinstance(base := env.unwrapped, SyncVectorEnv):
        for single in base.envs:
            check_unscored(single)


REWARD_WRAPPERS = (VectorRewardWrapper, gym.wrappers.vector.NormalizeReward)
"""Wrappers that change rewards."""


def check_reward_wrappers(envs: VectorEnv[Any, Any, Any]) -> None:
    """Raise a ValueError if a wrapper changes rewards of scored environments: it does not change those in the infos."""
    for one in layers(envs):
        if isinstance(one, REWARD_WRAPPERS) and find_metadata(one, SCORED_KEY):
            raise ValueError(
                f"`envs` must have no wrapper that changes rewards: they are read in the infos. Received {one}. Change "
                "them in `reward=`."
            )


def is_array_space(space: gym.Space[Any]) -> bool:
    """Tell whether the elements of a space are arrays or numbers."""
    return isinstance(space, gym.spaces.Box | gym.spaces.Discrete | gym.spaces.MultiDiscrete | gym.spaces.MultiBinary)


def check_observation_space(parameter: str, space: gym.Space[Any]) -> None:
    """Raise a ValueError unless a space is a box or discrete one, or a flat Dict of such spaces."""
    entries = space.values() if isinstance(space, gym.spaces.Dict) else [space]
    if not all(map(is_array_space, entries)):
        raise ValueError(
            f"`{parameter}` must be a box or discrete space, or a Dict of such. Received {space}. "
            "Wrap each environment in gymnasium.wrappers.FlattenObservation."
        )


def check_autoreset_mode(autoreset_mode: AutoresetMode | str, parameter: str = "autoreset_mode") -> AutoresetMode:
    """Return the mode with this name. Raise a ValueError if there is none."""
    try:
        return AutoresetMode(autoreset_mode)
    except ValueError:
        names = ", ".join(repr(mode.value) for mode in AutoresetMode)
        raise ValueError(f"`{parameter}` must be one of {names}. Received {short_repr(autoreset_mode)}.") from None


class _ShortRepr(reprlib.Repr):
    """`repr` of values that may be huge, which stops early."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxlong, self.maxother = 4, 150, 60, 150
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = 10

    def repr_ndarray(self, x: Any, level: int) -> str:
        """Arrays and tensors by dtype and shape: a picture has a hundred lines."""
        return f"{x.dtype} of shape {tuple(x.shape)}" if math.prod(x.shape) > 10 else super().repr_instance(x, level)

    repr_Tensor = repr_ndarray

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to write out integers of thousands of digits.
        return super().repr_int(x, level) if x.bit_length() < 1_000 else f"an integer of {x.bit_length()} bits"


def short_repr(value: object) -> str:
    """Shorten the `repr` of a received value for a message, at most 200 characters."""
    return truncate(_ShortRepr().repr(value))


def truncate(text: str, max_length: int = 200) -> str:
    """Keep the beginning of a text, at most `max_length` characters; a word is cut only if it takes more than half."""
    if len(text) <= max_length:
        return text
    words = text[: max_length - 2].rpartition(" ")[0].rstrip()
    return f"{words if 2 * len(words) >= max_length else text[: max_length - 3]}..."


UNAFFECTED = {"affects_answers": False}
"""Metadata of a dataclass field that changes no answer, such as a port or a budget."""


def answer_key(specification: Any, **more: Any) -> str:
    """JSON of the fields of a dataclass that affect answers, and of `more`."""
    without = fields_without_effect(specification)
    affect = {one.name: getattr(specification, one.name) for one in fields(specification) if one.name not in without}
    return json.dumps({**affect, **more}, sort_keys=True)


def fields_without_effect(kind: Any) -> list[str]:
    """The names of a dataclass's fields that are marked `UNAFFECTED`."""
    return [one.name for one in fields(kind) if not one.metadata.get("affects_answers", True)]
