"""What a program returned for an episode, and how many episodes of a kind complete it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.metrics import auc
from vlmrm_gym.verification.accuracy import Accuracy
from vlmrm_gym.verification.behaviour import Episode, is_enough
from vlmrm_gym.verification.results import Failure, Row

MAX_FRAMES = 6
"""Of a failure."""
MAX_FAILURES = 3
"""Episodes that are shown for a rule."""

Change = Callable[[NDArray[Any]], NDArray[Any]]
"""Of frames, uint8 (B, H, W, 3)."""


@dataclass(frozen=True, eq=False)
class Shown:
    """What a program was shown of an episode, and what it returned."""

    number: int
    episode: Episode
    order: NDArray[np.int64]
    """int64 (T,): the steps of the episode, in the order in which they are shown."""
    values: NDArray[np.float64]
    """float64 (T,)."""
    subtasks: int
    threshold: float
    change: Change | None = None

    @property
    def reached(self) -> NDArray[np.bool_]:
        """Which frames get a function's threshold: bool (T,)."""
        return self.values >= np.float32(self.threshold)

    @property
    def levels(self) -> NDArray[np.int64]:
        """How many sub-tasks have been completed: int64 (T,)."""
        return np.floor(self.values * self.subtasks + 1e-6 * self.subtasks).astype(np.int64)

    @property
    def completed(self) -> bool:
        """Whether the episode completes the program."""
        if self.subtasks:
            return bool(self.levels.max() >= self.subtasks)
        return is_enough(self.reached, self.episode.needed)

    @property
    def shares(self) -> list[float]:
        """1 or 0 for each sub-task; of a function the share of frames that get the threshold."""
        if not self.subtasks:
            return [float(self.reached.mean())]
        return [float(self.levels.max() > task) for task in range(self.subtasks)]

    def completions(self) -> NDArray[np.int64]:
        """The step at which each completed sub-task was; of a function the first frame that gets the threshold."""
        reached = self.levels if self.subtasks else self.reached.astype(np.int64)
        return np.array([np.argmax(reached >= level) for level in range(1, reached.max() + 1)], dtype=np.int64)

    def failure(self, rule: str, behaviour: str, steps: NDArray[np.int64] | None = None) -> Failure:
        """The failure, with the frames at `steps`; None: those that decide."""
        if steps is None:
            ends = [0, int(self.values.argmax()), int(self.values.argmin()), len(self.values) - 1]
            steps = np.unique([*self.completions(), *ends])
        steps = steps[np.unique(np.linspace(0, len(steps) - 1, MAX_FRAMES).round().astype(int))]
        frames = self.episode.draw(self.episode.states[self.order[steps]])
        return Failure(
            rule=rule,
            behaviour=behaviour,
            episode=self.number,
            steps=self.episode.first + steps * self.episode.stride,
            frames=frames if self.change is None else self.change(frames),
            values=self.values[steps],
        )


def measure_accuracy(shown: Sequence[Shown]) -> Accuracy | None:
    """Compare a program with the success of episodes; None if no success is known."""
    known = [(one, one.episode.success) for one in shown if one.episode.success is not None]
    if not known:
        return None
    values, success = (np.concatenate(each) for each in zip(*((one.values, own) for one, own in known), strict=True))
    said, true = np.concatenate([one.reached for one, _ in known]), success
    if is_stateful := known[0][0].subtasks > 0:
        said, true = np.array([(one.completed, bool(one.episode.succeeded)) for one, _ in known]).T
    return Accuracy(
        unit="episodes" if is_stateful else "frames",
        true_positives=int((said & true).sum()),
        false_positives=int((said & ~true).sum()),
        false_negatives=int((~said & true).sum()),
        true_negatives=int((~said & ~true).sum()),
        auc=auc(values, success) if success.any() and not success.all() else None,
    )


@dataclass(eq=False)
class Tally:
    """Counts which episodes of one kind complete the program."""

    behaviour: str
    at_least: float = 0.0
    at_most: float = 1.0
    shares: list[list[float]] = field(default_factory=list)
    completed: list[bool] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)
    """Why episodes do not count, and how many."""
    against: list[Failure] = field(default_factory=list)
    """The first episodes that are against the rule, which may allow some."""

    @property
    def rule(self) -> str:
        """The limit as a text; empty if there is none."""
        if self.at_least > 0:
            return f"at least {self.at_least:.0%}"
        return f"at most {self.at_most:.0%}" if self.at_most < 1 else ""

    @property
    def kept(self) -> bool:
        """Whether the limit is kept; true without episodes."""
        share = float(np.mean(self.completed)) if self.completed else self.at_least
        return self.at_least <= share <= self.at_most

    def add(self, shown: Shown) -> None:
        """Count an episode."""
        self.completed.append(shown.completed)
        self.shares.append(shown.shares)
        is_against = bool(self.rule) and shown.completed == (self.at_most < 1)
        if is_against and len(self.against) < MAX_FAILURES:
            sentence = f"The program must be completed by {self.rule} of the episodes: {self.behaviour}."
            self.against.append(shown.failure(sentence, self.behaviour))

    def leave_out(self, why: str) -> None:
        """Note that an episode does not count."""
        self.notes[why] = self.notes.get(why, 0) + 1

    def row(self) -> Row:
        """The line of the table."""
        count = len(self.completed)
        return Row(
            behaviour=self.behaviour,
            episodes=count,
            completed=float(np.mean(self.completed)) if count else None,
            subtasks=tuple(np.mean(self.shares, axis=0).tolist()) if count else (),
            rule=self.rule,
            kept=self.kept,
            note="; ".join(f"{number} left out: {why}" for why, number in self.notes.items()),
        )
