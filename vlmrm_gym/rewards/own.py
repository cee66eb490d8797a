"""Reward models that users wrote, as specifications: imported by name, or passed as a callable."""

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

import cloudpickle

from vlmrm_gym._util.validation import short_repr, truncate
from vlmrm_gym.rewards.model import RewardModel, as_model, check_callable
from vlmrm_gym.rewards.spec import RewardSpec


@dataclass(frozen=True, kw_only=True)
class ImportedReward(RewardSpec):
    """A reward model imported by name, `"package.module:attribute"`, in the process that scores.

    A function is called with frames, uint8 (B, H, W, 3), and `kwargs`; it returns numbers (B,). A class is instantiated
    with `kwargs`, and with `device` if its constructor has that parameter; the instance is called with frames. If the
    instance is a specification, what it builds is called with frames.

    Raises:
        ValueError: `path` is not of the form "package.module:attribute".
    """

    path: str
    """"package.module:attribute"."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function or of the class."""
    kind: str = field(default="import", init=False)

    def __post_init__(self) -> None:
        _check_import_path("reward", self.path)

    def find(self) -> Callable[..., Any]:
        """Import the function or class. Raise a ValueError if it does not exist, or is not callable."""
        return find_callable(self.path, "reward")

    def build(self, device: str = "auto") -> RewardModel:
        """Import the function, or import and instantiate the class, whose instances must be callable."""
        return _make_model(self.find(), self.kwargs, device, self.path)


class ByValue:
    """An object that is pickled by value, so lambdas, functions and classes of notebooks reach worker processes too.

    Deep copies, such as Gymnasium makes of constructor arguments, are the same object: a callable may hold locks or a
    large network.
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


class OwnReward(ByValue, RewardSpec):
    """Wraps a callable, a `RewardModel`, a class of either, or a specification of a user's own kind as a reward.

    The keyword arguments are of each call of a function, or of the class.
    """

    kind = "own"

    def __init__(self, specification: Any, kwargs: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.specification, self._kwargs = specification, dict(kwargs)
        if isinstance(specification, RewardSpec):
            return
        if not isinstance(specification, type):
            check_callable(specification)
        if not isinstance(specification, RewardModel):
            check_kwargs(specification, kwargs, specification)
        elif kwargs:
            raise TypeError("`reward_kwargs` is for a callable or a class. Received a RewardModel: set them there.")

    def build(self, device: str = "auto") -> RewardModel:
        """Return the reward model; see `ImportedReward.build`."""
        return _make_model(self.specification, self._kwargs, device, "reward")


def _make_model(own: Any, kwargs: Mapping[str, Any], device: str, name: str) -> RewardModel:
    """Return the reward model of a function, of a class, which is instantiated, or of a specification."""
    made: Any = own
    if isinstance(own, type):
        made, kwargs = own(**_constructor_kwargs(own, kwargs, device)), {}
    if isinstance(made, RewardSpec):
        made = made.build(device)
    return as_model(made, name, kwargs)


def _constructor_kwargs(found: type[Any], kwargs: Mapping[str, Any], device: str) -> dict[str, Any]:
    own = {"device": device} if "device" in inspect.signature(found).parameters else {}
    return {**own, **kwargs}


def check_kwargs(
    found: Callable[..., Any], kwargs: Mapping[str, Any], received: object, parameter: str = "`reward_kwargs`"
) -> None:
    """Raise a TypeError unless a function takes frames and the keyword arguments, or a class the keyword arguments."""
    try:
        signature = inspect.signature(found)
    except (ValueError, TypeError):  # a callable written in C may have none
        return
    try:
        if isinstance(found, type):
            signature.bind(**_constructor_kwargs(found, kwargs, "auto"))
        else:
            signature.bind(None, **kwargs)
    except TypeError as error:
        raise TypeError(f"{parameter} must fit {received!r}, which takes {signature}: {error}.") from None


def _check_import_path(parameter: str, path: object) -> None:
    module, colon, attribute = path.partition(":") if isinstance(path, str) else ("", "", "")
    if not colon or not all(name.isidentifier() for name in (*module.split("."), *attribute.split("."))):
        raise ValueError(f'`{parameter}` must be "package.module:attribute". Received {short_repr(path)}.')


def find_callable(path: str, parameter: str) -> Callable[..., Any]:
    """Import what a parameter names, "package.module:attribute". A ValueError says what is wrong with it."""
    _check_import_path(parameter, path)
    module, _, attribute = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # a module may raise anything
        hint = " Install it, or add its folder to PYTHONPATH." if isinstance(error, ModuleNotFoundError) else ""
        raise ValueError(
            f"`{parameter}` must name a module that can be imported here. Received {short_repr(path)}, which raised "
            f"{truncate(repr(error), 1_000)}.{hint}"
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
