"""Success: 1 while a score stays high, else 0. Imports no torch before it scores."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vlmrm_gym._util.validation import check_finite, check_flag
from vlmrm_gym.rewards.clip import check_count
from vlmrm_gym.rewards.combination import NodeScored, OfOne, PartScored, Reported, Scores


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

    @property
    def terminates(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `RewardSpec`."""
        return self.terminate or super().terminates

    def combine(self, names: Sequence[str]) -> Scores:
        """See `Combination`."""
        return SuccessScores(self.threshold, self.hold, self.terminate)


@dataclass(frozen=True)
class SuccessScores(Scores):
    """The scores of a `Success`. The carry is the number of steps in a row so far."""

    threshold: float
    hold: int
    terminate: bool
    looks_back = True

    def begin(self, scores: PartScored) -> NodeScored:
        """See `Scores`: steps are counted from the first action on."""
        return scores[0] * 0, 0

    def advance(self, scores: PartScored, carry: Any, reports: Reported) -> NodeScored:
        """See `Scores`. Of several, all must succeed to be reported as success; one ends the episode."""
        import torch

        step = torch.arange(1, len(scores[0]) + 1)
        # The last step below the threshold; before the first of these, the steps that were held at the beginning count.
        last = torch.where(scores[0] < self.threshold, step, -(carry or 0)).cummax(0).values
        succeeds = step - last >= self.hold
        reports["success"] = reports.get("success", succeeds) & succeeds
        if self.terminate:
            reports["terminate"] = reports.get("terminate", succeeds) | succeeds
        return succeeds.float(), int(step[-1] - last[-1])
