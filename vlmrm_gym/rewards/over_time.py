"""Rewards that look at a score over time: `Progress` and `Success`. Imports no torch before they score."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from vlmrm_gym._util.validation import check_finite, check_flag, check_fraction
from vlmrm_gym.rewards.clip import check_count
from vlmrm_gym.rewards.combination import Combination, NodeScored, PartScored, Reported, as_part
from vlmrm_gym.rewards.spec import RewardSpec


@dataclass(frozen=True, kw_only=True)
class OfOne(Combination):
    """Base class of rewards that look at the scores of one other over time."""

    reward: Any = field(kw_only=False, metadata={"check": as_part})
    """The score that it looks at: a specification, a callable or "package.module:attribute"."""

    @property
    def parts(self) -> tuple[RewardSpec, ...]:
        """See `Combination`."""
        return (self.reward,)

    def with_parts(self, parts: Sequence[RewardSpec]) -> Self:
        """See `Combination`."""
        return replace(self, reward=parts[0])

    def stateless(self) -> RewardSpec:
        """See `RewardSpec`."""
        return self.reward.stateless()


@dataclass(frozen=True, kw_only=True)
class Progress(OfOne):
    """Pays for progress: gamma c(s_{t+1}) - c(s_t), where c is another reward. Hovering near the goal earns nothing.

    The state before the first action is scored, too. Added to the environment's own reward, with the learner's gamma,
    it is potential-based shaping (Ng et al., 1999), which leaves the optimal policies as they are where episodes are
    truncated; a state that terminates keeps its potential here.

    With `best` it pays what exceeds the best score of the episode so far, max(0, c(s_{t+1}) - max(c(s_0), .., c(s_t))):
    what was lost is not taken back, nor paid again.

    >>> import vlmrm_gym
    >>> reward = vlmrm_gym.TaskReward() + vlmrm_gym.Progress(vlmrm_gym.CLIP(prompt="a car at the flag"), gamma=0.99)

    Raises:
        TypeError: `reward` is no reward.
        ValueError: `gamma` is not from 0 to 1, or is below 1 with `best`; or the environment's own reward is in it.
    """

    gamma: float = field(default=1.0, metadata={"check": check_fraction})
    """The discount of the learner, from 0 to 1."""
    best: bool = field(default=False, metadata={"check": check_flag})
    """Whether only what exceeds the best so far is paid."""
    kind: str = field(default="progress", init=False)
    looks_back = sees_first = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.best and self.gamma != 1:
            raise ValueError(f"`gamma` is for best=False. Received {self.gamma!r}. Leave it out.")

    def begin(self, scores: PartScored) -> NodeScored:
        """See `Combination`: nothing is gained yet. The carry is the last score, or the best one."""
        return scores[0] * 0, scores[0]

    def advance(self, scores: PartScored, carry: Any, reports: Reported) -> NodeScored:
        """See `Combination`. Where no first state is known, the first one that is scored stands for it."""
        import torch

        every = torch.cat([scores[0][:1] if carry is None else carry, scores[0]])
        if self.best:
            every = every.cummax(0).values
        return self.gamma * every[1:] - every[:-1], every[-1:].clone()


@dataclass(frozen=True, kw_only=True)
class Success(OfOne):
    """Pays 1 in a step in which a score has been at least `threshold` for `hold` steps in a row, and 0 in any other.

    Infos say it as `info["vlm_success"]`, bool. `vlmrm-gym check --threshold auto` proposes a threshold.

    >>> import vlmrm_gym
    >>> reward = vlmrm_gym.Success(vlmrm_gym.CLIP(prompt="an upright pole"), threshold=0.8, hold=5)

    Raises:
        TypeError: `reward` is no reward.
        ValueError: `threshold` is not a finite number, `hold` not an integer of at least 1; or the environment's own
            reward is in it.
    """

    threshold: float = field(metadata={"check": check_finite})
    """The least score of success."""
    hold: int = field(default=10, metadata={"check": check_count})
    """Steps in a row."""
    terminate: bool = field(default=False, metadata={"check": check_flag})
    """Whether success ends the episode: it is terminated. In vector environments this needs `scoring="step"`."""
    kind: str = field(default="success", init=False)
    looks_back = True

    @property
    def terminates(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `RewardSpec`."""
        return self.terminate or super().terminates

    def begin(self, scores: PartScored) -> NodeScored:
        """See `Combination`: the carry is the number of steps in a row, which are counted from the first action on."""
        return scores[0] * 0, 0

    def advance(self, scores: PartScored, carry: Any, reports: Reported) -> NodeScored:
        """See `Combination`. Of several, all must succeed to be reported as success; one ends the episode."""
        import torch

        step = torch.arange(1, len(scores[0]) + 1)
        # The last step below the threshold; before the first of these, the steps that were held at the beginning count.
        last = torch.where(scores[0] < self.threshold, step, -(carry or 0)).cummax(0).values
        succeeds = step - last >= self.hold
        reports["success"] = reports.get("success", succeeds) & succeeds
        if self.terminate:
            reports["terminate"] = reports.get("terminate", succeeds) | succeeds
        return succeeds.float(), int(step[-1] - last[-1])
