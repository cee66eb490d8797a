"""`Verification`, the result: which episodes complete a program, and which break the rules."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.files import atomic_write_text
from vlmrm_gym._util.validation import check_finite, check_fraction
from vlmrm_gym.rewards.program.spec import Program


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Shares of the episodes that complete a program."""

    random: float = 0.1
    """Of random behaviour, and of constant behaviour, at most."""
    experts: float = 1.0
    """Of experts, at least; also with frames that are moved by a pixel."""
    negatives: float = 0.0
    """Of frozen, reversed, shuffled and black episodes, at most."""
    threshold: float = 1.0
    """What a function returns at least for a frame that is a success. True is 1."""

    def __post_init__(self) -> None:
        for name in ("random", "experts", "negatives"):
            check_fraction(name, getattr(self, name))
        check_finite("threshold", self.threshold)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the table: how often episodes of one kind complete the program."""

    behaviour: str
    """What they are: the behaviour, or what was made of the experts' episodes."""
    episodes: int
    """How many count."""
    completed: float | None
    """The share of them that completed the program; None: none counts."""
    subtasks: tuple[float, ...]
    """The same for each sub-task. Of a function: the share of frames that get the threshold."""
    rule: str
    """The limit as a phrase; empty if there is none."""
    kept: bool
    """Whether the limit is kept."""
    note: str = ""
    """Why some or all do not count."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Failure:
    """An episode in which a program breaks a rule."""

    rule: str
    """The rule, a sentence."""
    behaviour: str
    """What the episode is, as in `Row`."""
    episode: int
    """Its number among all episodes, from 0; of a made episode that of the expert's."""
    steps: NDArray[np.int64]
    """int64 (K,): the steps that decide, from 0."""
    frames: NDArray[np.uint8]
    """uint8 (K, H, W, 3): their frames, as the program saw them."""
    values: NDArray[np.float64]
    """float64 (K,): what the program returned there; NaN where it failed."""


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
        """Write all numbers as a sentence."""
        ranked = "" if self.auc is None else f" AUC of the frames: {self.auc:.3f}."
        successes = f"{self.true_positives:,} of {self.true_positives + self.false_negatives:,} successes"
        failures = f"{self.true_negatives:,} of {self.true_negatives + self.false_positives:,} failures"
        return f"{self.accuracy:.1%} of the {self.unit} are right: {successes}, {failures}.{ranked}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Verification:
    """The results of a verification."""

    program: Program
    environment: str
    """The ID, or the path of the function that makes it; empty if it is not known."""
    limits: Limits
    subtasks: tuple[str, ...]
    """Names of the sub-tasks; none for a function."""
    rows: Sequence[Row]
    failures: Sequence[Failure]
    accuracy: Accuracy | None
    """Against success, where it is known; None if it is not, or always the same."""
    verified: bool
    """Whether there were experts. Without them nothing is verified."""

    @property
    def accepted(self) -> bool:
        """Whether it was verified, and no rule is broken."""
        return self.verified and not self.failures

    @property
    def verdict(self) -> str:
        """The verdict as a sentence."""
        if not self.verified:
            return "Nothing was verified: there were no episodes of experts."
        return "The program is accepted." if self.accepted else "The program is not accepted."

    def table(self) -> list[list[str]]:
        """Make the heads of the table of rows, and its lines."""
        table = [["Episodes", "count", "completed", "limit", *(self.subtasks or ("frames",)), ""]]
        for row in self.rows:
            shares = row.subtasks or (None,) * max(1, len(self.subtasks))
            completed, *cells = ("" if share is None else f"{share:.0%}" for share in (row.completed, *shares))
            limit = row.rule if row.kept else f"{row.rule}, broken"
            table.append([row.behaviour, str(row.episodes), completed, limit, *cells, row.note])
        return table

    def write(self, folder: Path) -> None:
        """Write report.html, with the frames that decide, and verification.json, the numbers."""
        from vlmrm_gym.tools.check.report import load_template

        folder.mkdir(parents=True, exist_ok=True)
        atomic_write_text(folder / "report.html", load_template("program.html.j2").render(verification=self))
        failures = []
        for one in self.failures:
            values = [None if np.isnan(value) else value for value in one.values.tolist()]
            place = {"rule": one.rule, "behaviour": one.behaviour, "episode": one.episode}
            failures.append({**place, "steps": one.steps.tolist(), "values": values})
        numbers = {
            "program": self.program.name,
            "sha256": self.program.sha256,
            **{name: getattr(self, name) for name in ("environment", "accepted", "verified", "subtasks")},
            "limits": asdict(self.limits),
            "rows": [asdict(row) for row in self.rows],
            "accuracy": self.accuracy and {**asdict(self.accuracy), "accuracy": self.accuracy.accuracy},
            "failures": failures,
        }
        atomic_write_text(folder / "verification.json", json.dumps(numbers, indent=2))
