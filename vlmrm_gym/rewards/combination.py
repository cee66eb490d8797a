"""Rewards that are made of other rewards, as values: their base class, and `Sum`. Imports no torch."""

import importlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from types import FunctionType
from typing import TYPE_CHECKING, Any, Self

from vlmrm_gym._util.validation import is_number, short_repr
from vlmrm_gym.rewards.heads import TERM
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


class Combination(RewardSpec):
    """Base class of rewards that are made of other rewards, `parts`; each is a frozen dataclass.

    `advance` makes a score of each state, float32 (T,), of the scores of the parts. States are drawn once for all
    rewards that see them at one size, and encoded once for all that share an encoder (`RewardModel.encoder_key`).
    """

    looks_back: bool = False
    """Whether a score depends on the states before: then states come in order, with a carry."""
    sees_first: bool = False
    """Whether the score of the state before the first action counts."""

    @property
    @abstractmethod
    def parts(self) -> tuple[RewardSpec, ...]:
        """The rewards that it is made of."""

    @abstractmethod
    def with_parts(self, parts: Sequence[RewardSpec]) -> Self:
        """Return this with other rewards in the places of its own."""

    def begin(self, scores: PartScored) -> NodeScored:
        """Begin an episode in a state with these scores, float32 (1,) each. Returns its score, and the carry."""
        return self.advance(scores, None, {})

    @abstractmethod
    def advance(self, scores: PartScored, carry: Any, reports: Reported) -> NodeScored:
        """Score the next T states; what is to be reported of them is put into `reports`, see `Reports`.

        The carry is what the call before, or `begin`, returned; None where the episode begins. It is not changed later.
        """

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
        own = spec.reward
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


@dataclass(frozen=True, kw_only=True)
class TaskReward(RewardSpec):
    """The environment's own reward, as a term of a sum: `task_reward_weight` is short for it.

    >>> import vlmrm_gym
    >>> reward = vlmrm_gym.TaskReward() + 0.5 * vlmrm_gym.CLIP(prompt="a car at the flag")
    >>> reward.task_reward_weight
    1.0
    """

    kind: str = field(default="task_reward", init=False)
    task_reward_weight = 1.0

    def build(self, device: str = "auto") -> RewardModel:
        """Raise a ValueError: nothing is to be seen."""
        raise ValueError(
            "`reward` must see states, and TaskReward() does not. Add a reward that does, or use the environment as "
            "it is."
        )


@dataclass(frozen=True, kw_only=True)
class Sum(Combination):
    """A weighted sum of rewards: R(s) = sum_i w_i R_i(s) + constant.

    It is written with `+`, `-` and `*`. Infos have the score of each term, without its weight, by its name:
    `info["vlm_terms"]`.

    >>> import vlmrm_gym
    >>> 0.3 * vlmrm_gym.CLIP(prompt="a pole") + 2 * vlmrm_gym.CLIP(prompt="an upright pole") - 0.1
    0.3 * CLIP(prompt='a pole') + 2.0 * CLIP(prompt='an upright pole') - 0.1

    Raises:
        TypeError: A term is no reward.
        ValueError: A weight is not a finite number, or nothing is summed.
    """

    terms: Sequence[tuple[float, RewardSpec]]
    """Weights and rewards. Sums among them are taken apart."""
    constant: float = 0.0
    """Added to each reward."""
    kind: str = field(default="sum", init=False)

    def __post_init__(self) -> None:
        if isinstance(self.terms, str | Mapping) or not isinstance(self.terms, Sequence):
            raise TypeError(f"`terms` must be a list of weights and rewards. Received {short_repr(self.terms)}.")
        terms, constant = [], _number("constant", self.constant)
        for number, term in enumerate(self.terms):
            if not isinstance(term, tuple | list) or len(term) != 2:
                raise TypeError(f"`terms[{number}]` must be (weight, reward). Received {short_repr(term)}.")
            name = f"terms[{number}]"
            weight, reward = _number(f"{name}: weight", term[0]), term[1]
            inner = reward if isinstance(reward, Sum) else None
            constant = _number("constant", constant + weight * (0.0 if inner is None else inner.constant))
            for factor, one in [(1.0, reward)] if inner is None else inner.terms:
                part = one if isinstance(one, TaskReward) else as_part(name, one)
                terms.append((_number(f"{name}: weight", weight * factor), part))
        if not terms:
            raise ValueError("`terms` must have at least one reward. Received none.")
        object.__setattr__(self, "terms", terms)
        object.__setattr__(self, "constant", constant)

    @property
    def task_reward_weight(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `RewardSpec`."""
        return sum(weight for weight, reward in self.terms if isinstance(reward, TaskReward))

    @property
    def parts(self) -> tuple[RewardSpec, ...]:
        """See `Combination`: those that see states."""
        return tuple(reward for _, reward in self.terms if not isinstance(reward, TaskReward))

    def with_parts(self, parts: Sequence[RewardSpec]) -> Self:
        """See `Combination`."""
        rest = iter(parts)
        terms = [(weight, one if isinstance(one, TaskReward) else next(rest)) for weight, one in self.terms]
        return type(self)(terms=terms, constant=self.constant)

    @cached_property
    def _names(self) -> list[str]:
        """The names of the parts, by which their scores are reported."""
        return unique_names([name_of(part) for part in self.parts])

    def advance(self, scores: PartScored, carry: Any, reports: Reported) -> NodeScored:
        """See `Combination`. The terms that are reported are those of the outermost sum."""
        for name in [name for name in reports if name.startswith(TERM)]:  # of sums inside of this one
            del reports[name]
        reports |= {TERM + name: score for name, score in zip(self._names, scores, strict=True)}
        weights = [weight for weight, reward in self.terms if not isinstance(reward, TaskReward)]
        total = scores[0] * weights[0] + self.constant
        for weight, score in zip(weights[1:], scores[1:], strict=True):
            total = total + weight * score
        return total, None

    def build(self, device: str = "auto") -> RewardModel:
        """See `Combination`."""
        return super().build(device) if self.parts else TaskReward().build(device)

    def __repr__(self) -> str:
        text = " + ".join(f"{weight} * {short_reward(reward)}" for weight, reward in self.terms)
        return f"{text} {'-' if self.constant < 0 else '+'} {abs(self.constant)}" if self.constant else text


def short_reward(reward: RewardSpec) -> str:
    """A reward as Python writes it, without what is as by default."""
    if isinstance(reward, Combination) or not is_dataclass(reward):
        return repr(reward)
    given = ((one.name, getattr(reward, one.name), one.default) for one in fields(reward))
    values = ", ".join(f"{name}={value!r}" for name, value, default in given if name != "kind" and value != default)
    return f"{type(reward).__name__}({values})"


def _number(name: str, value: Any) -> float:
    if not is_number(value) or not abs(value) <= 1e30:
        raise ValueError(f"`{name}` must be a finite number, of at most 1e30. Received {short_repr(value)}.")
    return float(value)
