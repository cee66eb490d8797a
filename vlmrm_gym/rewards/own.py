"""Rewards that users pass: any callable as a `RewardModel`, and specifications of it, by name or by value."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, Self

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.validation import as_float32, check_that, short_repr, truncate
from vlmrm_gym.rewards.model import RewardModel, as_numbers, check_model
from vlmrm_gym.rewards.spec import RewardSpec

_COMMON = {"head", "close", "weights", "clip", "clip_shape"}
"""Names that a callable of another library may have, too."""
_SETTINGS = [name for name in vars(RewardModel) if not name.startswith("_") and name not in _COMMON]
"""Settings of a `RewardModel` that would be passed over in silence on any other object."""


class CallableModel(RewardModel):
    """Makes a reward model of a function of frames, which messages call by its name."""

    feature_size = 1

    def __init__(self, function: Callable[..., Any], name: str = "reward") -> None:
        self._function, self._name = function, name

    def encode(self, frames: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Score frames, uint8 (B, H, W, 3): float32 (B, 1), all finite."""
        frames = frames.view()
        frames.flags.writeable = False
        rule = f"`{self._name}` must return a number for each frame"
        rewards = as_numbers(self._function(frames), rule)
        if rewards.shape != (len(frames),):
            raise ValueError(f"{rule}, of shape ({len(frames)},). Received shape {rewards.shape}.")
        narrow = as_float32(rewards)
        if not (finite := np.isfinite(narrow)).all():
            bad = int(finite.argmin())
            raise ValueError(f"{rule}, finite in float32. Received {rewards[bad]} for frame {bad} of {len(frames)}.")
        return narrow[:, None]


def as_model(value: Any, name: str = "reward") -> RewardModel:
    """Return a reward model as it is, or make one of a callable, whose name messages have; a TypeError for others."""
    check_callable(value)
    if isinstance(value, RewardModel):
        check_model(value)
        return value
    return CallableModel(value, name)


def check_callable(value: object) -> None:
    """Raise a TypeError unless a value is a `RewardModel`, or a callable without attributes of one."""
    if isinstance(value, RewardModel):
        return
    for base, names in (("RewardModel", _SETTINGS), ("RewardSpec", ["build"])):
        if found := [name for name in names if name in dir(value)]:
            rule = f"`reward` must derive from vlmrm_gym.{base} to have `{found[0]}`"
            raise TypeError(f"{rule}. Received {short_repr(value)}. Write class MyReward(vlmrm_gym.{base}).")
    if not callable(value):
        raise TypeError(
            '`reward` must be a specification such as vlmrm_gym.CLIP(prompt=...), "package.module:attribute", a '
            f"RewardModel or a callable. Received {short_repr(value)}."
        )


@dataclass(frozen=True, kw_only=True)
class ImportedReward(RewardSpec):
    """A reward model imported by name, `"package.module:attribute"`, in the process that scores.

    A function is called with frames, uint8 (B, H, W, 3), and `kwargs`; it returns numbers (B,). A class is instantiated
    with `kwargs`, and with `device` if its constructor has that parameter; the instance is called with frames. If the
    instance is a specification, what it builds is called with frames.
    """

    path: str
    """"package.module:attribute"."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function or of the class."""
    kind: str = field(default="import", init=False)

    def __post_init__(self) -> None:
        _check_import_path("reward", self.path)

    def find(self) -> Callable[..., Any]:
        """Import the function or class. A ValueError if there is none, a TypeError if `kwargs` do not fit it."""
        value = find_callable(self.path, "reward")
        check_kwargs(value, self.kwargs, self.path)
        return value

    def build(self, device: str = "auto") -> RewardModel:
        """Import the function, or import and instantiate the class, whose instances must be callable."""
        return _make_model(self.find(), self.kwargs, device, self.path)


class ByValue:
    """An object that is pickled by value, so lambdas, functions and classes of notebooks reach worker processes too.

    Deep copies are the same object: a callable may hold locks or a large network.
    """

    _parameter, _noun = "reward", "reward"
    """What an error message calls it."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __getstate__(self) -> bytes:
        try:
            return cloudpickle.dumps(vars(self))
        except Exception as error:
            raise ValueError(
                f"`{self._parameter}` cannot be sent to a worker: {error}. Pass num_workers=0, or the {self._noun} as "
                '"package.module:attribute", which every worker imports for itself.'
            ) from error

    def __setstate__(self, state: bytes) -> None:
        vars(self).update(cloudpickle.loads(state))


class Unwritten(ByValue):
    """Holds a specification without a mapping form in the spec of an environment, whose JSON would omit its class."""

    def __init__(self, reward: RewardSpec) -> None:
        self.reward = reward


class OwnReward(ByValue, RewardSpec):
    """Wraps a callable, a `RewardModel`, or a class of either.

    The keyword arguments are of each call of a function, or of the class.
    """

    def __init__(self, reward: Any, kwargs: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.reward, self._kwargs = reward, dict(kwargs)
        if not isinstance(reward, type):
            check_callable(reward)
        check_kwargs(reward, kwargs, reward)

    def __repr__(self) -> str:
        return repr(self.reward)

    def build(self, device: str = "auto") -> RewardModel:
        """Return the reward model; see `ImportedReward.build`."""
        return _make_model(self.reward, self._kwargs, device, "reward")


def _make_model(reward: Any, kwargs: Mapping[str, Any], device: str, name: str) -> RewardModel:
    """Return the reward model of a function, or of a class, which is instantiated."""
    if not isinstance(reward, type):
        check_callable(reward)
        return as_model(partial(reward, **kwargs) if kwargs else reward, name)
    made: Any = reward(**_constructor_kwargs(reward, kwargs, device))
    return as_model(made.build(device) if isinstance(made, RewardSpec) else made, name)


def _constructor_kwargs(function: type[Any], kwargs: Mapping[str, Any], device: str) -> dict[str, Any]:
    device_kwargs = {"device": device} if "device" in inspect.signature(function).parameters else {}
    return {**device_kwargs, **kwargs}


def check_kwargs(function: Callable[..., Any], kwargs: Mapping[str, Any], received: object) -> None:
    """Raise a TypeError unless a function takes frames and the keyword arguments, or a class the keyword arguments."""
    if isinstance(function, RewardModel) and kwargs:
        raise TypeError("`reward_kwargs` is for a callable or a class. Received a RewardModel: set them there.")
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # a callable written in C may have none
        return
    try:
        if isinstance(function, type):
            signature.bind(**_constructor_kwargs(function, kwargs, "auto"))
        else:
            signature.bind(None, **kwargs)
    except TypeError as error:
        raise TypeError(f"`reward_kwargs` must fit {received!r}, which takes {signature}: {error}.") from None


def _check_import_path(parameter: str, path: object) -> None:
    check_that(isinstance(path, str) and ":" in path, parameter, '"package.module:attribute"', path)


def find_callable(path: str, parameter: str) -> Callable[..., Any]:
    """Import what a parameter names, "package.module:attribute". A ValueError says what is wrong with it."""
    _check_import_path(parameter, path)
    try:
        value = resolve_name(path)
    except Exception as error:  # a module may raise anything
        hint = " Install it, or add its folder to PYTHONPATH." if isinstance(error, ModuleNotFoundError) else ""
        raise ValueError(
            f"`{parameter}` must name something that can be imported here. Received {short_repr(path)}, which raised "
            f"{truncate(repr(error), 1_000)}.{hint}"
        ) from error
    if not callable(value):
        raise ValueError(f"`{parameter}` must be a callable or a class. Received {path!r}, which is {value!r}.")
    return value
