"""Answers from the task's own grade or reward, with the faults of a scripted teacher."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vlmrm_gym.preferences.labelers import LabelerSpec
from vlmrm_gym.preferences.pairs import Answer, Pair, Side
from vlmrm_gym.validation import check_fraction, check_integer, is_number


@dataclass(frozen=True, kw_only=True)
class GroundTruthLabeler(LabelerSpec):
    """Prefers the segment with the higher sum of the task's grade, or of the environment's own rewards if it has none.

    A pair with a sum that is NaN is skipped: nothing can be said of it.

    The faults are those of B-Pref's teachers (Lee et al., 2021, arXiv 2111.03026). A fault depends on `seed` and the
    pair alone: not on the order in which pairs are asked.

    >>> GroundTruthLabeler(mistakes=0.1, seed=7).mistakes
    0.1

    Raises:
        ValueError: A value is out of its range; the message names the field.
    """

    mistakes: float = 0.0
    """Fraction of the answers that are turned around; those that are equal stay."""
    skips: float = 0.0
    """Fraction of the pairs that are skipped, drawn at random. (B-Pref's teacher skips pairs whose returns are both low
    for the policy of the moment: its answers depend on when it is asked.)"""
    equal: float = 0.0
    """Sums that differ by no more are equal: the preference is 0.5."""
    temperature: float = 0.0
    """0: the higher sum is always preferred. Above: the second is preferred with the probability
    sigmoid((second - first) / temperature), B-Pref's stochastic teacher with beta = 1 / temperature."""
    myopia: float = 1.0
    """Factor by which each earlier state of a segment counts less than the next, above 0; 1: all count the same."""
    seed: int = 0
    kind: ClassVar[str] = "ground_truth"

    def __post_init__(self) -> None:
        for name in ("mistakes", "skips", "myopia"):
            check_fraction(name, getattr(self, name))
        if self.myopia == 0:
            raise ValueError("`myopia` must be above 0: only 1 counts all states the same. Received 0.")
        for name in ("equal", "temperature"):
            value = getattr(self, name)
            if not is_number(value) or not 0 <= value < np.inf:
                raise ValueError(f"`{name}` must be a finite number of at least 0. Received {value!r}.")
        check_integer("seed", self.seed, minimum=0)

    def answers(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, Answer]]:
        """Answer all pairs. No frame is drawn."""
        for number, pair in enumerate(pairs):
            yield number, self._answer(pair)

    def _answer(self, pair: Pair) -> Answer:
        graded = pair.first.grades is not None and pair.second.grades is not None
        difference = self._sum(pair.second, graded) - self._sum(pair.first, graded)
        skip, choice, mistake = np.random.default_rng([self.seed, int(pair.key, 16)]).random(3)
        if skip < self.skips or np.isnan(difference):
            return Answer(preference=None)
        if abs(difference) <= self.equal:
            return Answer(preference=0.5)
        prefers_second = difference > 0
        if self.temperature:
            prefers_second = choice < 0.5 * (1 + np.tanh(0.5 * difference / self.temperature))  # the sigmoid
        return Answer(preference=float(prefers_second != (mistake < self.mistakes)))

    def _sum(self, side: Side, graded: bool) -> float:
        values = side.grades if graded and side.grades is not None else side.task_rewards
        return float(values @ self.myopia ** np.arange(len(values))[::-1])
