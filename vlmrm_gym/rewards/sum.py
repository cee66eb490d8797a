"""Sum: several rewards, and the environment's own, with weights. Imports no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Self

from vlmrm_gym._util.validation import is_number, short_repr
from vlmrm_gym.rewards.combination import Combination, NodeScored, PartScored, Reported, Scores, as_part
from vlmrm_gym.rewards.heads import TERM
from vlmrm_gym.rewards.model import RewardModel
from vlmrm_gym.rewards.spec import RewardSpec


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
        _check_number("constant", self.constant)
        if isinstance(self.terms, str | Mapping) or not isinstance(self.terms, Sequence):
            raise TypeError(f"`terms` must be a list of weights and rewards. Received {short_repr(self.terms)}.")
        terms, constant = [], float(self.constant)
        for number, term in enumerate(self.terms):
            if not isinstance(term, tuple | list) or len(term) != 2:
                raise TypeError(f"`terms[{number}]` must be (weight, reward). Received {short_repr(term)}.")
            weight, reward = term
            _check_number(f"terms[{number}]: weight", weight)
            if isinstance(reward, Sum):
                terms += [(float(weight * inner), one) for inner, one in reward.terms]
                constant += weight * reward.constant
            elif isinstance(reward, TaskReward):
                terms.append((float(weight), reward))
            else:
                terms.append((float(weight), as_part(f"terms[{number}]", reward)))
        if not terms:
            raise ValueError("`terms` must have at least one reward. Received none.")
        for number, (weight, _) in enumerate(terms):
            _check_number(f"terms[{number}]: weight", weight)
        _check_number("constant", constant)
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

    def combine(self, names: Sequence[str]) -> Scores:
        """See `Combination`."""
        weights = [weight for weight, reward in self.terms if not isinstance(reward, TaskReward)]
        return SumScores(weights, names, self.constant)

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


def _check_number(name: str, value: Any) -> None:
    if not is_number(value) or not abs(value) <= 1e30:
        raise ValueError(f"`{name}` must be a finite number, of at most 1e30. Received {short_repr(value)}.")


@dataclass(frozen=True)
class SumScores(Scores):
    """The scores of a `Sum`."""

    weights: Sequence[float]
    names: Sequence[str]
    constant: float

    def advance(self, scores: PartScored, carry: Any, reports: Reported) -> NodeScored:
        """See `Scores`. The terms that are reported are those of the outermost sum."""
        for name in [name for name in reports if name.startswith(TERM)]:  # of sums inside of this one
            del reports[name]
        reports |= {TERM + name: score for name, score in zip(self.names, scores, strict=True)}
        total = scores[0] * self.weights[0] + self.constant
        for weight, score in zip(self.weights[1:], scores[1:], strict=True):
            total = total + weight * score
        return total, None
