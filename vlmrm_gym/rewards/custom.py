"""Reward models that users wrote, as specifications: imported by name, or passed as a callable."""

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import cloudpickle

from vlmrm_gym.rewards.base import CheckedReward, RewardModel


@dataclass(frozen=True, kw_only=True)
class ImportedReward:
    """A reward model imported by name, `"package.module:attribute"`, in the process that scores.

    A function is called with frames, uint8 (B, H, W, 3), and `kwargs`; it returns numbers (B,). A class is instantiated
    with `kwargs`, and with `device` if its constructor has that parameter; the instance is called with frames.

    Raises:
        ValueError: `path` is not of the form "package.module:attribute".
    """

    path: str
    """"package.module:attribute"."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function or of the class."""
    kind: str = field(default="import", init=False)

    def __post_init__(self) -> None:
        check_import_path("reward", self.path)

    def find(self) -> Callable[..., Any]:
        """Import the function or class.

        Raises:
            ValueError: It does not exist (the message names the nearest), or it is not callable.
        """
        return find_callable(self.path, "reward")

    def build(self, device: str = "auto") -> RewardModel:
        """Import the function, or import and instantiate the class.

        Raises:
            ValueError: As `find`; or instances of the class are not callable.
            Exception: Whatever the class raises.
        """
        found, kwargs = self.find(), dict(self.kwargs)
        if not isinstance(found, type):
            return CheckedReward(_bind(found, kwargs), self.path)
        if "device" in inspect.signature(found).parameters:
            kwargs.setdefault("device", device)
        instance = found(**kwargs)
        if not callable(instance):
            raise ValueError(f"`reward` must be a class of callables. Received {self.path!r}, which made {instance!r}.")
        return CheckedReward(instance, self.path)


class CallableReward:
    """A callable as a reward. It is pickled by value, so lambdas and functions of notebooks reach worker processes too.

    Args:
        function: From frames, uint8 (B, H, W, 3), to numbers (B,).
        kwargs: Keyword arguments of each call.
    """

    kind = "callable"

    def __init__(self, function: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
        self._function = _bind(function, kwargs)

    def build(self, device: str = "auto") -> RewardModel:
        """The callable, with its results checked. `device` is ignored: the callable stays where it is."""
        return CheckedReward(self._function)

    def __getstate__(self) -> bytes:
        return pickle_by_value(self._function, "reward", "reward")

    def __setstate__(self, state: bytes) -> None:
        self._function = cloudpickle.loads(state)


def _bind(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
    return partial(function, **kwargs) if kwargs else function


def pickle_by_value(function: Callable[..., Any], parameter: str, noun: str) -> bytes:
    """Pickle a function, also one of a notebook. Raise a ValueError that names the parameter if that fails."""
    try:
        return cloudpickle.dumps(function)
    except Exception as error:
        raise ValueError(
            f"`{parameter}` cannot be sent to a worker: {error}. Pass num_workers=0, or the {noun} as "
            '"package.module:attribute", which every worker imports for itself.'
        ) from error


def check_import_path(parameter: str, path: object) -> None:
    """Raise a ValueError unless a parameter is of the form "package.module:attribute"."""
    module, colon, attribute = path.partition(":") if isinstance(path, str) else ("", "", "")
    if not colon or not all(name.isidentifier() for name in (*module.split("."), *attribute.split("."))):
        raise ValueError(f'`{parameter}` must be "package.module:attribute". Received {path!r}.')


def find_callable(path: str, parameter: str) -> Callable[..., Any]:
    """Import what a parameter names, "package.module:attribute".

    Raises:
        ValueError: It is of another form, does not exist (the message names the nearest), or is not callable.
    """
    check_import_path(parameter, path)
    module, _, attribute = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not module.startswith(error.name or "\0"):
            raise
        raise ValueError(
            f"`{parameter}` must name a module that can be imported here. Received {path!r}: {error}. "
            "Install it, or add its folder to PYTHONPATH."
        ) from error
    for name in attribute.split("."):
        if not hasattr(found, name):
            near = difflib.get_close_matches(name, dir(found), 1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"`{parameter}` must exist. Received {path!r}, but there is no {name!r}.{meant}")
        found = getattr(found, name)
    if not callable(found):
        raise ValueError(f"`{parameter}` must be a callable or a class. Received {path!r}, which is {found!r}.")
    return found
