"""How far labelers agree about the pairs that several of them answered."""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from vlmrm_gym.preferences.answers_file import Record


class Agreement(NamedTuple):
    """Two labelers, compared by the pairs of which both prefer a side."""

    labelers: tuple[str, str]
    """Their identities."""
    pairs: int
    """Number of pairs that both answered, skips left out."""
    decided: int
    """Number of those in which both prefer a side."""
    disputed: Sequence[str]
    """Keys of the pairs in which they prefer different sides."""

    @property
    def fraction(self) -> float | None:
        """Of the decided pairs, those in which they agree, from 0 to 1; None if there are none."""
        return 1 - len(self.disputed) / self.decided if self.decided else None


def compare_labelers(records: Sequence[Record]) -> list[Agreement]:
    """Compare every two labelers."""
    answers: dict[str, dict[str, float]] = {}
    for record in records:
        own = answers.setdefault(record.labeler, {})
        if record.answer.preference is not None:
            own[record.pair] = record.answer.preference
    compared = []
    for first, second in combinations(answers, 2):
        both = [pair for pair in answers[first] if pair in answers[second]]
        sides = {pair: (answers[first][pair] - 0.5) * (answers[second][pair] - 0.5) for pair in both}
        disputed = [pair for pair in both if sides[pair] < 0]
        compared.append(Agreement((first, second), len(both), sum(side != 0 for side in sides.values()), disputed))
    return compared
