"""Verifies a program: experts complete it, random behaviour hardly ever, and frames that show nothing never.

The rule is that of VLM-CaR (arXiv 2402.04764). A program of sub-tasks is completed by an episode in which all of them
are; a function, by one in which as many frames get `Limits.threshold` as must succeed for the episode to be a success.

Of what is made of an expert's episode, a frozen one, the first frame again and again, counts unless that frame is known
to be a success. A black one always counts. Reversed and shuffled ones are for sub-tasks: a function gets the same
frames as from the expert. They count only where the order of frames must matter to the program:

- reversed, unless the last frame alone, held, completes it;
- shuffled, where the reversed one completes it, too. Otherwise the program looks for an order, such as left and then
  right, which a shuffle may have by chance.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.errors import InputError
from vlmrm_gym.data.metrics import auc
from vlmrm_gym.data.trajectory import Trajectory
from vlmrm_gym.rewards.program.execution import ProgramReward
from vlmrm_gym.rewards.program.spec import Program, ProgramError
from vlmrm_gym.tools.program.episodes import UNTRAINED, Examples, is_enough
from vlmrm_gym.tools.program.results import Accuracy, Failure, Limits, Row, Verification

BATCH, CHUNK = 64, 7
"""Frames of a call, and of a call when an episode is scored again."""
FRAMES = 50
"""Frames of an episode that a function scores."""
MAX_SHOWN, MAX_FAILURES = 6, 3
"""Frames of a failure, and failures of a rule, that are shown."""
Change = Callable[[NDArray[Any]], NDArray[Any]]
"""Of frames, uint8 (B, H, W, 3)."""
ANSWERS = "The program must return a value for every frame."
DETERMINISTIC = (
    "The program must return the same for the same frame in any batch: nothing may depend on the time, on chance or on "
    "the number of calls."
)
ALIKE = "The program must not return the same for every frame of every episode."


def verify(
    program: Program, examples: Examples, limits: Limits | None = None, progress: Callable[[], object] = lambda: None
) -> Verification:
    """Verify a program on the episodes that `gather` made; `progress` is called after each.

    Each is scored twice, in two processes and in other batches, and must get the same answers. Experts are scored again
    with frames that are moved by a pixel, and frozen, reversed, shuffled and black. If the program cannot be executed
    at all, that is a ProgramError; if it sees other frames than these, or states that are not there, an InputError.
    """
    if program.inputs == "states" and any(one.states.rows.ndim != 2 for one in examples.episodes):
        rule = "`inputs` must be 'frames' for an environment whose frames are stored. Received 'states'."
        raise InputError(f"{rule} Write the program for frames.")
    if program.inputs == "frames" and program.size != examples.size:
        raise InputError(f"`size` must be that of the episodes, {examples.size}. Received a program of {program.size}.")
    with closing(ProgramReward(program)) as reward, closing(ProgramReward(program)) as other:
        verifier = _Verifier(reward, other, examples, limits or Limits())
        for number in range(len(examples)):
            verifier.look_at(number)
            progress()
        return Verification(
            program=program,
            environment=examples.environment,
            limits=verifier.limits,
            subtasks=reward.subtasks,
            rows=[tally.row() for tally in verifier.tallies.values()],
            failures=verifier.all_failures(),
            accuracy=_measure_accuracy(verifier.shown),
            verified=any(examples.experts),
        )


@dataclass(frozen=True, eq=False)
class ScoredEpisode:
    """An episode, or what was made of one, with the values that a program returned."""

    name: str
    number: int
    steps: NDArray[np.int64]
    """int64 (T,): the steps of the episode that are looked at."""
    order: NDArray[np.int64]
    """int64 (T,): the order in which they are shown."""
    values: NDArray[np.float64]
    """float64 (T,); NaN: none yet."""
    examples: Examples
    subtasks: int
    threshold: float
    change: Change = np.asarray

    @property
    def episode(self) -> Trajectory:
        """The whole episode."""
        return self.examples.episodes[self.number]

    @property
    def levels(self) -> NDArray[np.int64]:
        """How many sub-tasks have been completed: int64 (T,). Of a function: 1 for its threshold, else 0."""
        if not self.subtasks:
            return (self.values >= np.float32(self.threshold)).astype(np.int64)
        return np.floor(self.values * self.subtasks + 1e-6 * self.subtasks).astype(np.int64)

    @property
    def completed(self) -> bool:
        """Whether the episode completes the program."""
        if self.subtasks:
            return bool(self.levels.max() >= self.subtasks)
        return is_enough(self.levels > 0, self.examples.needed)

    @property
    def shares(self) -> list[float]:
        """1 or 0 for each sub-task; of a function the share of frames that get the threshold."""
        if not self.subtasks:
            return [float(self.levels.mean())]
        return [float(self.levels.max() > task) for task in range(self.subtasks)]

    def failure(self, rule: str, steps: NDArray[np.int64] | None = None) -> Failure:
        """Make the failure, with the frames at `steps`; None: those that decide."""
        if steps is None:
            levels, ends = self.levels, [0, self.values.argmax(), self.values.argmin(), len(self.values) - 1]
            completions = [np.argmax(levels >= level) for level in range(1, levels.max() + 1)]
            steps = np.unique(np.array([*completions, *ends], dtype=np.int64))
        steps = steps[np.unique(np.linspace(0, len(steps) - 1, MAX_SHOWN).round().astype(int))]
        states = self.episode.states[self.steps[self.order[steps]]]
        return Failure(
            rule=rule,
            behaviour=self.name,
            episode=self.number,
            steps=self.steps[steps],
            frames=self.change(self.examples.draw(states)),
            values=self.values[steps],
        )


@dataclass(eq=False)
class Tally:
    """Counts which episodes of one kind complete the program."""

    name: str
    at_least: float = 0.0
    at_most: float = 1.0
    shown: list[ScoredEpisode] = field(default_factory=list)
    """The episodes that count."""
    notes: Counter[str] = field(default_factory=Counter)
    """Why others do not, and how many."""

    def row(self) -> Row:
        """Make the line of the table. A limit is kept without episodes."""
        share = float(np.mean([one.completed for one in self.shown])) if self.shown else None
        rule = f"at most {self.at_most:.0%}" if self.at_most < 1 else ""
        return Row(
            behaviour=self.name,
            episodes=len(self.shown),
            completed=share,
            subtasks=tuple(np.mean([one.shares for one in self.shown], axis=0).tolist()) if self.shown else (),
            rule=f"at least {self.at_least:.0%}" if self.at_least > 0 else rule,
            kept=share is None or self.at_least <= share <= self.at_most,
            note="; ".join(f"{number} left out: {why}" for why, number in self.notes.items()),
        )

    def failures(self) -> list[Failure]:
        """Show the first episodes that are against the limit, if it is not kept."""
        if (row := self.row()).kept:
            return []
        sentence = f"The program must be completed by {row.rule} of the episodes: {self.name}."
        against = [one for one in self.shown if one.completed == (self.at_most < 1)]
        return [one.failure(sentence) for one in against[:MAX_FAILURES]]


class _Verifier:
    """Scores episodes one after the other, by a program that is executed in two processes."""

    def __init__(self, reward: ProgramReward, other: ProgramReward, examples: Examples, limits: Limits) -> None:
        self._reward, self._other, self._examples, self.limits = reward, other, examples, limits
        self.tallies: dict[str, Tally] = {}
        self.shown: list[ScoredEpisode] = []
        self._failures: list[Failure] = []
        self._rng = np.random.default_rng(0)

    def all_failures(self) -> list[Failure]:
        experts = [one for one in self.shown if self._examples.experts[one.number]]
        is_alike = bool(experts) and np.ptp(np.concatenate([one.values for one in self.shown])) == 0
        alike = [experts[0].failure(ALIKE)] if is_alike else []
        return [*self._failures, *alike, *(one for tally in self.tallies.values() for one in tally.failures())]

    def look_at(self, number: int) -> None:
        examples, is_expert = self._examples, self._examples.experts[number]
        episode = examples.episodes[number]
        steps = np.arange(len(episode)) if self._reward.ordered else examples.thin(number, FRAMES)
        states = episode.states[steps]
        inputs = examples.draw(states) if self._reward.encodes == "view" else states.rows
        name = f"expert: {episode.source}" if is_expert else episode.source
        order, values = np.arange(len(steps)), np.full(len(steps), np.nan)
        subtasks, threshold = len(self._reward.subtasks), self.limits.threshold
        shown = ScoredEpisode(name, number, steps, order, values, examples, subtasks, threshold)
        if (scored := self._score(shown, inputs)) is None:
            return
        self._repeat(scored, inputs)
        self.shown.append(scored)
        is_untrained = not is_expert and episode.source in UNTRAINED
        least, most = self.limits.experts if is_expert else 0.0, self.limits.random if is_untrained else 1.0
        tally = self.tallies.setdefault(name, Tally(name, least, most))
        if is_untrained and examples.succeeded(number):
            tally.notes["they succeed"] += 1
        else:
            tally.shown.append(scored)
        if is_expert:
            self._vary(shown, scored.completed, inputs)

    def _vary(self, expert: ScoredEpisode, completed: bool, inputs: NDArray[Any]) -> None:
        steps, success = expert.order, expert.episode.known_success

        def count(
            name: str, order: NDArray[np.int64], change: Change = np.asarray, why: str = ""
        ) -> ScoredEpisode | None:
            """Score what is made of it, and count it; None if it does not count, because of `why`."""
            limits = (self.limits.experts, 1.0) if change is move else (0.0, self.limits.negatives)
            tally = self.tallies.setdefault(name, Tally(name, *limits))
            if why:
                tally.notes[why] += 1
            elif scored := self._score(replace(expert, name=name, order=order, change=change), inputs):
                tally.shown.append(scored)
                return scored
            return None

        is_success = success is not None and bool(success[expert.steps[0]])
        count("frozen", np.zeros_like(steps), why="their first frame is a success" if is_success else "")
        if self._reward.encodes == "view":
            count("black", steps, np.zeros_like)
            count("experts, frames moved by a pixel", steps, move)
        why = "a function gets the same frames as from the expert"
        if self._reward.ordered:
            last = replace(expert, name="the last frame, held", order=np.full_like(steps, len(steps) - 1))
            held = self._score(last, inputs)
            why = "their last frame alone completes the program" if held is None or held.completed else ""
            why = why if completed else "the expert's episode does not complete the program"
        backwards = count("reversed", steps[::-1], why=why)
        if not why and not (backwards is not None and backwards.completed):
            why = "the program looks for an order, which a shuffle may have by chance"
        count("shuffled", self._rng.permutation(steps), why=why)

    def _score(self, shown: ScoredEpisode, inputs: NDArray[Any]) -> ScoredEpisode | None:
        """Score the frames of an episode in their order; None if the program fails, which is noted."""
        values, memory = list[NDArray[np.float64]](), None
        try:
            for start in range(0, len(shown.order), BATCH):
                frames = shown.change(inputs[shown.order[start : start + BATCH]])
                made, memory = self._reward.continue_episode(frames, memory)
                values.append(made[:, 0].astype(np.float64))
        except ProgramError as error:
            step = np.array([sum(map(len, values)) + (error.frame or 0)])
            self._fail(ANSWERS, shown, step, f" {error}")
            return None
        return replace(shown, values=np.concatenate(values))

    def _repeat(self, shown: ScoredEpisode, inputs: NDArray[Any]) -> None:
        """See whether the program returns the same for an episode again, in small batches.

        Between them it sees frames of the other end, as other episodes. A function gets all frames backwards.
        """
        score, direction = self._other.continue_episode, slice(None, None, 1 if self._reward.ordered else -1)
        order, values, memory = shown.order[direction], list[NDArray[Any]](), None
        try:
            for start in range(0, len(order), CHUNK):
                made, memory = score(inputs[order[start : start + CHUNK]], memory)
                values.append(made[:, 0])
                score(inputs[len(inputs) - 1 - start :][:1], None)
        except ProgramError:  # it did not fail on these frames before
            differ = shown.order[:1]
        else:
            differ = np.flatnonzero(np.concatenate(values)[direction] != shown.values)
        if len(differ):
            self._fail(DETERMINISTIC, shown, differ)

    def _fail(self, rule: str, shown: ScoredEpisode, steps: NDArray[np.int64], message: str = "") -> None:
        if sum(one.rule.startswith(rule) for one in self._failures) < MAX_FAILURES:
            self._failures.append(shown.failure(rule + message, steps))


def move(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Move the content of frames to the right by a pixel; the left column is doubled: uint8 (B, H, W, 3)."""
    return np.concatenate([frames[:, :, :1], frames[:, :, :-1]], axis=2)


def _measure_accuracy(shown: Sequence[ScoredEpisode]) -> Accuracy | None:
    known = [(one, own[one.steps]) for one in shown if (own := one.episode.known_success) is not None]
    if not known:
        return None
    values, success = (np.concatenate(each) for each in zip(*((one.values, own) for one, own in known), strict=True))
    predicted, true = np.concatenate([one.levels > 0 for one, _ in known]), success
    if is_stateful := known[0][0].subtasks > 0:
        predicted, true = np.array([(one.completed, bool(one.examples.succeeded(one.number))) for one, _ in known]).T
    return Accuracy(
        unit="episodes" if is_stateful else "frames",
        true_positives=int((predicted & true).sum()),
        false_positives=int((predicted & ~true).sum()),
        false_negatives=int((~predicted & true).sum()),
        true_negatives=int((~predicted & ~true).sum()),
        auc=auc(values, success) if success.any() and not success.all() else None,
    )
