"""`RewardSpec`, the base class of specifications: rewards as values. Imports no torch."""

import importlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

from vlmrm_gym._util.validation import is_number
from vlmrm_gym.rewards.hub import PREFIX, upload
from vlmrm_gym.rewards.model import RewardModel


def checked(instance: Any) -> None:
    """Replace the fields of a frozen dataclass that have a check by what it returns."""
    for one in fields(instance):
        if "check" in one.metadata:
            object.__setattr__(instance, one.name, one.metadata["check"](one.name, getattr(instance, one.name)))


class RewardSpec:
    """Base class of specifications: a kind of reward with its settings, which `build` loads.

    A subclass is a frozen dataclass, validated when it is made, before anything is loaded. `to_mapping` turns it into
    what JSON can hold; `from_mapping` is the inverse. Environments take it as `reward=`.

    >>> from dataclasses import dataclass
    >>> import vlmrm_gym
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Brightness(vlmrm_gym.RewardSpec):
    ...     scale: float = 1.0
    ...
    ...     def build(self, device="auto"):
    ...         return lambda frames: self.scale * frames.mean(axis=(1, 2, 3)) / 255
    """

    kind: str = "own"
    """The key in `KINDS` of a kind of this package."""
    learns: bool = False
    """Whether the head is yet to be learned: then environments keep features and episodes."""
    terminates: bool = False
    """Whether it may end an episode."""
    task_reward_weight: float = 0.0
    """Weight of the environment's own reward, which is added to it."""
    files: Mapping[str, str] = {}
    """Texts that a run keeps a copy of, by the names of the copies."""

    def __post_init__(self) -> None:
        checked(self)

    @property
    def in_workers(self) -> bool:
        """Whether workers may score; otherwise the process of the environments does."""
        return True

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # a value: Gymnasium copies what constructors get, and a reward may hold locks, or a large network

    def _each(self, change: "Callable[[RewardSpec], RewardSpec]") -> Any:
        """Return this specification with the rewards that it is made of changed."""
        return self

    def with_model(self, model: str) -> Self:
        """Return this specification with a vision-language model, if it is of one and names none."""
        return self._each(lambda part: part.with_model(model))

    def with_goal_images(self, draw: Callable[[], Any]) -> Self:
        """Return this specification with pictures of the task's goal, which `draw` makes, where it asks for them."""
        return self._each(lambda part: part.with_goal_images(draw))

    def stateless(self) -> "RewardSpec":
        """Return the reward of single states: of progress and success the score that they look at."""
        return self._each(lambda part: part.stateless())

    def __add__(self, other: Any) -> Any:
        return _add(self, other, 1.0)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return _add(self, other, -1.0)

    def __rsub__(self, other: Any) -> Any:
        return _add(-self, other, 1.0)

    def __mul__(self, weight: Any) -> Any:
        return _sum()(terms=[(weight, self)]) if is_number(weight) else NotImplemented

    __rmul__ = __mul__

    def __neg__(self) -> Any:
        return self * -1.0

    def save(self, folder: str | Path) -> None:
        """Write it as reward.json, with copies of the pictures and heads that it names beside it.

        The folder may be moved. It is a `reward` wherever one is asked for, and `vlmrm_gym.load_reward` reads it.
        Raises what `to_mapping` does.
        """
        importlib.import_module("vlmrm_gym.rewards.specification").save_reward(self, folder)  # it imports this file

    def push_to_hub(self, repo: str, *, private: bool = False) -> str:
        """Upload it to Hugging Face's hub as "organisation/name"; `vlmrm-gym push` puts figures on its card, too.

        Returns "hf-hub:organisation/name@commit", which is a `reward` wherever one is asked for. Raises an InputError
        if the hub refuses it.
        """
        with tempfile.TemporaryDirectory() as folder:
            self.save(folder)
            return upload(Path(folder), repo, private=private)

    @staticmethod
    def from_hub(name: str) -> "RewardSpec":
        """Load a reward from the hub: "organisation/name", or "organisation/name@commit"."""
        name = name if name.startswith(PREFIX) else f"{PREFIX}{name}"
        return importlib.import_module("vlmrm_gym.rewards.specification").load_reward(name)  # it imports this file

    def build(self, device: str = "auto") -> RewardModel:
        """Load the reward model on a device. A kind of a user's own may return any callable."""
        raise NotImplementedError(f"{type(self).__name__} must define `build`.")


def _add(reward: RewardSpec, other: Any, weight: float) -> Any:
    """Add a number, or what can be a reward; anything else is not added."""
    if is_number(other):
        return _sum()(terms=[(1.0, reward)], constant=weight * other)
    if isinstance(other, RewardSpec | str) or callable(other):
        return _sum()(terms=[(1.0, reward), (weight, other)])
    return NotImplemented


def _sum() -> Any:
    return importlib.import_module("vlmrm_gym.rewards.combination").Sum  # by name: it imports this file
