"""How far a program agrees with success, where it is known."""

from dataclasses import dataclass


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
        successes = f"{self.true_positives:,} of {self.true_positives + self.false_negatives:,} successes"
        failures = f"{self.true_negatives:,} of {self.true_negatives + self.false_positives:,} failures"
        return f"{self.accuracy:.1%} of the {self.unit} are right: {successes}, {failures}.{ranked}"
