"""Progress: payment for what a score has gained. Imports no torch before it scores."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vlmrm_gym._util.validation import check_flag, check_fraction
from vlmrm_gym.rewards.combination import NodeScored, OfOne, PartScored, Reported, Scores


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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.best and self.gamma != 1:
            raise ValueError(f"`gamma` is for best=False. Received {self.gamma!r}. Leave it out.")

    def combine(self, names: Sequence[str]) -> Scores:
        """See `Combination`."""
        return ProgressScores(self.gamma, self.best)


@dataclass(frozen=True)
class ProgressScores(Scores):
    """The scores of a `Progress`. The carry is the last score of its part, or the best one."""

    gamma: float
    best: bool
    looks_back = sees_first = True

    def begin(self, scores: PartScored) -> NodeScored:
        """See `Scores`: nothing is gained yet."""
        return scores[0] * 0, scores[0]

    def advance(self, scores: PartScored, carry: Any, reports: Reported) -> NodeScored:
        """See `Scores`. Where no first state is known, the first one that is scored stands for it."""
        import torch

        every = torch.cat([scores[0][:1] if carry is None else carry, scores[0]])
        if self.best:
            every = every.cummax(0).values
        return self.gamma * every[1:] - every[:-1], every[-1:].clone()
