"""How far a program agrees with success, where it is known."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.metrics import auc


@dataclass(frozen=True, kw_only=True)
class Judged:
    """An episode of T steps whose success is known."""

    values: NDArray[np.float64]
    """float64 (T,): what the program returned."""
    success: NDArray[np.bool_]
    """bool (T,)."""
    reached: NDArray[np.bool_]
    """bool (T,): which frames get a function's threshold."""
    completed: bool
    succeeded: bool


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Confusion numbers of a program that says success or failure, and the AUC of its values."""

    unit: str
    """"frames" of a function, "episodes" of sub-tasks."""
    true_positives: int
    false_positives: int
    false_negatives: int
    true_negatives: int
    auc: float | None
    """How often a frame of success has a higher value than one of failure: see `metrics.auc`. None without both."""

    @property
    def accuracy(self) -> float:
        """The share that is right, from 0 to 1."""
        right = self.true_positives + self.true_negatives
        return right / (right + self.false_positives + self.false_negatives)

    def describe(self) -> str:
        """A sentence with all numbers."""
        ranked = "" if self.auc is None else f" AUC of the frames: {self.auc:.3f}."
        successes, failures = (
            f"{right:,} of {right + wrong:,}"
            for right, wrong in (
                (self.true_positives, self.false_negatives),
                (self.true_negatives, self.false_positives),
            )
        )
        return f"{self.accuracy:.1%} of the {self.unit} are right: {successes} successes, {failures} failures.{ranked}"


def measure_accuracy(judged: Sequence[Judged], *, is_function: bool) -> Accuracy | None:
    """Compare a program with success; None without episodes."""
    if not judged:
        return None
    values, success = (np.concatenate([getattr(one, name) for one in judged]) for name in ("values", "success"))
    if is_function:
        said, true = np.concatenate([one.reached for one in judged]), success
    else:
        said, true = (np.array([getattr(one, name) for one in judged]) for name in ("completed", "succeeded"))
    return Accuracy(
        unit="frames" if is_function else "episodes",
        true_positives=int((said & true).sum()),
        false_positives=int((said & ~true).sum()),
        false_negatives=int((~said & true).sum()),
        true_negatives=int((~said & ~true).sum()),
        auc=auc(values, success) if success.any() and not success.all() else None,
    )
