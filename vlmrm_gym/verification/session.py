"""Scores episodes, and what is made of those of experts, and counts which complete the program.

A frozen episode, the first frame again and again, counts unless that frame is known to be a success. A black one
always counts. Reversed and shuffled ones are for sub-tasks: a function gets the same frames as from the expert. They
count only where the order of frames must matter to the program:

- reversed, unless the last frame alone, held, completes it;
- shuffled, where the reversed one completes it, too. Otherwise the program looks for an order, such as left and then
  right, which a shuffle may have by chance.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.programs.errors import ProgramError
from vlmrm_gym.programs.execution import Inputs
from vlmrm_gym.rewards.program import ProgramReward
from vlmrm_gym.verification.behaviour import Episode
from vlmrm_gym.verification.results import Failure, Limits
from vlmrm_gym.verification.tally import MAX_FAILURES, Change, Shown, Tally

BATCH, CHUNK = 64, 7
"""Frames of a call, and of a call when an episode is scored again."""
FRAMES = 50
"""Of an episode that are scored by a function, which is asked about each for itself."""
DETERMINISTIC = (
    "The program must return the same for the same frame in any batch: nothing may depend on the time, on chance or on "
    "the number of calls."
)
MOVED = "experts, frames moved by a pixel"
ALIKE = "The program must not return the same for every frame of every episode."


class Session:
    """Scores episodes one after the other.

    Args:
        reward, other: The program, in two processes.
        inputs: What it sees.
        limits: When it is accepted.
    """

    def __init__(self, reward: ProgramReward, other: ProgramReward, inputs: Inputs, limits: Limits) -> None:
        self._reward, self._other, self._inputs, self.limits = reward, other, inputs, limits
        self.tallies: dict[str, Tally] = {}
        self.shown: list[Shown] = []
        self._failures: list[Failure] = []
        self._range: tuple[float, float] = (np.inf, -np.inf)
        self._example: Failure | None = None
        self._rng = np.random.default_rng(0)

    def all_failures(self) -> list[Failure]:
        """What breaks the rules, at most `MAX_FAILURES` for each."""
        alike = [self._example] if self._example is not None and self._range[0] >= self._range[1] else []
        broken = [one for tally in self.tallies.values() if not tally.kept for one in tally.against]
        return [*self._failures, *alike, *broken]

    def look_at(self, number: int, episode: Episode) -> None:
        """Score an episode, and count it."""
        if not self._reward.ordered:
            episode = episode.thin(FRAMES)
        inputs = episode.frames if self._inputs == "frames" else episode.states.rows
        name = f"expert: {episode.behaviour}" if episode.is_expert else episode.behaviour
        steps = np.arange(len(episode))
        shown = self._show(number, episode, name, inputs, steps)
        if shown is None:
            return
        self._repeat(shown, name, inputs)
        self._range = min(self._range[0], shown.values.min()), max(self._range[1], shown.values.max())
        self.shown.append(shown)
        if episode.is_expert:
            self._tally(name, at_least=self.limits.experts).add(shown)
            self._example = self._example or shown.failure(ALIKE, name)
            self._vary(shown, inputs)
        elif episode.behaviour in ("random", "constant"):
            tally = self._tally(name, at_most=self.limits.random)
            if episode.succeeded:
                tally.leave_out("they succeed")
            else:
                tally.add(shown)
        else:
            self._tally(name).add(shown)

    def _tally(self, name: str, *, at_least: float = 0.0, at_most: float = 1.0) -> Tally:
        return self.tallies.setdefault(name, Tally(name, at_least, at_most))

    def _vary(self, expert: Shown, inputs: NDArray[Any]) -> None:
        """Score what is made of an expert's episode."""
        steps = expert.order
        first, last = np.zeros_like(steps), np.full_like(steps, len(steps) - 1)
        is_success = expert.episode.success is not None and bool(expert.episode.success[0])
        self._count("frozen", expert, inputs, first, why="their first frame is a success" if is_success else "")
        if self._inputs == "frames":
            self._count("black", expert, inputs, steps, np.zeros_like)
            self._count(MOVED, expert, inputs, steps, move, at_least=self.limits.experts)
        why = "a function gets the same frames as from the expert"
        if self._reward.ordered:
            held = self._show(expert.number, expert.episode, "the last frame, held", inputs, last)
            alone = held is None or held.completed
            why = "their last frame alone completes the program" if alone else ""
            why = why if expert.completed else "the expert's episode does not complete the program"
        backwards = self._count("reversed", expert, inputs, steps[::-1], why=why)
        if not why and not (backwards is not None and backwards.completed):
            why = "the program looks for an order, which a shuffle may have by chance"
        self._count("shuffled", expert, inputs, self._rng.permutation(steps), why=why)

    def _count(
        self,
        name: str,
        expert: Shown,
        inputs: NDArray[Any],
        order: NDArray[np.int64],
        change: Change | None = None,
        *,
        why: str = "",
        at_least: float | None = None,
    ) -> Shown | None:
        """Score what is made of an expert's episode, and count it; None if it does not count, because of `why`."""
        limits = {"at_most": self.limits.negatives} if at_least is None else {"at_least": at_least}
        tally = self._tally(name, **limits)
        if why:
            tally.leave_out(why)
            return None
        if shown := self._show(expert.number, expert.episode, name, inputs, order, change):
            tally.add(shown)
        return shown

    def _show(
        self,
        number: int,
        episode: Episode,
        name: str,
        inputs: NDArray[Any],
        order: NDArray[np.int64],
        change: Change | None = None,
    ) -> Shown | None:
        """Score the frames of an episode in an order; None if the program fails, which is noted."""
        parts = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
        values, memory = list[NDArray[np.float64]](), None
        shown = Shown(number, episode, order, np.full(len(order), np.nan), len(self._reward.subtasks), 0.0, change)
        try:
            for part in parts:
                frames = inputs[part] if change is None else change(inputs[part])
                made, memory = self._reward.continue_episode(frames, memory)
                values.append(made.astype(np.float64))
        except ProgramError as error:
            step = np.array([sum(map(len, values)) + (error.frame or 0)])
            self._fail(shown.failure(f"The program must return a value for every frame. {error}", name, step))
            return None
        return replace(shown, values=np.concatenate(values), threshold=self.limits.threshold)

    def _repeat(self, shown: Shown, name: str, inputs: NDArray[Any]) -> None:
        """See whether the program returns the same for an episode again, in small batches.

        Between them it sees frames of the other end, as other episodes. A function gets all frames backwards.
        """
        score, order = self._other.continue_episode, shown.order if self._reward.ordered else shown.order[::-1]
        values, memory = list[NDArray[Any]](), None
        try:
            for start in range(0, len(order), CHUNK):
                made, memory = score(inputs[order[start : start + CHUNK]], memory)
                values.append(made)
                score(inputs[len(inputs) - 1 - start :][:1], None)
        except ProgramError:  # it did not fail on these frames before
            differ = shown.order[:1]
        else:
            again = np.concatenate(values)
            differ = np.flatnonzero((again if self._reward.ordered else again[::-1]) != shown.values)
        if len(differ):
            self._fail(shown.failure(DETERMINISTIC, name, differ))

    def _fail(self, failure: Failure) -> None:
        kind = failure.rule.partition(".")[0].partition(":")[0]
        if sum(one.rule.startswith(kind) for one in self._failures) < MAX_FAILURES:
            self._failures.append(failure)


def move(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Frames whose content is moved to the right by a pixel; the left column is doubled: uint8 (B, H, W, 3)."""
    return np.concatenate([frames[:, :, :1], frames[:, :, :-1]], axis=2)
