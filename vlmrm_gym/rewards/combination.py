"""Rewards that are made of other rewards, as values. Imports no torch."""

import importlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, Self

from vlmrm_gym._util.validation import short_repr
from vlmrm_gym.rewards.model import RewardModel
from vlmrm_gym.rewards.own import ImportedReward, OwnReward
from vlmrm_gym.rewards.spec import RewardSpec

if TYPE_CHECKING:
    import torch


PartScored = Sequence["torch.Tensor"]
"""Scores of each part, float32 (T,)."""
Reported = dict[str, "torch.Tensor"]
NodeScored = tuple["torch.Tensor", Any]
"""The scores of a node, float32 (T,), and its carry."""


class Scores(ABC):
    """How a combination makes a score of each state, float32 (T,), of the scores of its parts."""

    looks_back: bool = False
    """Whether a score depends on the states before: then states come in order, with a carry."""
    sees_first: bool = False
    """Whether the score of the state before the first action counts."""

    def begin(self, scores: PartScored) -> NodeScored:
        """Begin an episode in a state with these scores, float32 (1,) each. Returns its score, and the carry."""
        return self.advance(scores, None, {})

    @abstractmethod
    def advance(self, scores: PartScored, carry: Any, reports: Reported) -> NodeScored:
        """Score the next T states; what is to be reported of them is put into `reports`, see `Reports`.

        The carry is what the call before, or `begin`, returned; None where the episode begins. It is not changed later.
        """


class Combination(RewardSpec):
    """Base class of rewards that are made of other rewards, `parts`; each is a frozen dataclass.

    `combine` says how their scores make one. States are drawn once for all rewards that see them at one size, and
    encoded once for all that share an encoder (`RewardModel.encoder_key`).
    """

    @property
    @abstractmethod
    def parts(self) -> tuple[RewardSpec, ...]:
        """The rewards that it is made of."""

    @abstractmethod
    def with_parts(self, parts: Sequence[RewardSpec]) -> Self:
        """Return this with other rewards in the places of its own."""

    @abstractmethod
    def combine(self, names: Sequence[str]) -> Scores:
        """Say how the scores of the parts, which have these names, make one."""

    def _each(self, change: Callable[[RewardSpec], RewardSpec]) -> Self:
        return self.with_parts([change(part) for part in self.parts])

    @property
    def learns(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `RewardSpec`."""
        return any(part.learns for part in self.parts)

    @property
    def terminates(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `RewardSpec`."""
        return any(part.terminates for part in self.parts)

    @property
    def in_workers(self) -> bool:
        """See `RewardSpec`: all are scored by workers, or none."""
        return all(part.in_workers for part in self.parts)

    @property
    def files(self) -> Mapping[str, str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `RewardSpec`."""
        texts = [item for part in self.parts for item in part.files.items()]
        return {f"{number}_{name}" if number else name: text for number, (name, text) in enumerate(texts)}

    def build(self, device: str = "auto") -> RewardModel:
        """Load the models of all parts. Raises what their `build` raises."""
        model = importlib.import_module("vlmrm_gym.rewards.combined_model")  # by name: it imports this file, and torch
        return model.CombinedModel(self, device)


def as_part(name: str, reward: Any) -> RewardSpec:
    """Return a reward as a part of another. A TypeError for what is none, a ValueError for the environment's own."""
    if isinstance(reward, str):
        return ImportedReward(path=reward)
    part = reward if isinstance(reward, RewardSpec) else OwnReward(reward)
    if part.task_reward_weight:
        raise ValueError(
            f"`{name}` cannot have the environment's own reward in it, which is added to scores. Received "
            f"{short_repr(reward)}. Add TaskReward() to the whole."
        )
    return part


def find_rewards(spec: RewardSpec) -> Iterator[RewardSpec]:
    """Yield the rewards that a reward is made of, which are not combinations; itself, if it is none."""
    if not isinstance(spec, Combination):
        yield spec
    else:
        for part in spec.parts:
            yield from find_rewards(part)


def name_of(spec: RewardSpec) -> str:
    """A short name for reports and messages: its kind, or that of the function or class."""
    if isinstance(spec, OwnReward):
        own = spec.specification
        return own.__name__ if isinstance(own, type | FunctionType) else type(own).__name__
    if isinstance(spec, ImportedReward):
        return spec.path.rpartition(":")[2]
    return type(spec).__name__ if spec.kind == "own" else spec.kind


def unique_names(names: Sequence[str]) -> list[str]:
    """Number the names that are there more than once: "clip_1", "clip_2"."""
    counts, seen, unique = Counter(names), Counter[str](), []
    for name in names:
        seen[name] += 1
        unique.append(f"{name}_{seen[name]}" if counts[name] > 1 else name)
    return unique
