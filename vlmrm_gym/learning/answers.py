"""Asks labelers about pairs, and stores their answers in a file: nothing is asked twice."""

import json
import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vlmrm_gym._util import __version__
from vlmrm_gym._util.database import Database
from vlmrm_gym._util.errors import close_on_error
from vlmrm_gym._util.untrusted import parse_json
from vlmrm_gym._util.validation import check_positive_integer, is_finite, short_repr
from vlmrm_gym.learning.labelers import resolve_labeler
from vlmrm_gym.learning.pairs import Answer, Pair
from vlmrm_gym.rewards.own import find_callable

_APPLICATION_ID = 0x564C4D50
"""Of our files among those of SQLite: "VLMP"."""
_TABLES = """
CREATE TABLE IF NOT EXISTS prompt (text TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS pairs (key TEXT PRIMARY KEY, views TEXT, first TEXT, second TEXT);
CREATE TABLE IF NOT EXISTS answers (
    pair TEXT, labeler TEXT, answered_at TEXT, preference REAL, confidence REAL, details TEXT, version TEXT,
    PRIMARY KEY (pair, labeler));
"""
_ANSWER = (float | None, float, str)
"""Types of `preference`, `confidence` and `details`."""
COUNTS = ("calls", "tokens", "output_tokens", "seconds")
"""Details that are numbers, and are summed."""
Place = tuple[int, int, int, int]
"""Where a segment was cut from: numbers of the environment, the episode and the first step; and its length."""
Schedule = str | Callable[[float], float]
"""A function from the fraction of the rounds that is over, 0 to 1, to a relative number of questions; its
"package.module:name"; or "constant"."""


class Record(NamedTuple):
    """An answer in the file."""

    pair: str
    """Key of the pair."""
    labeler: str
    """The labeler's `answer_key`."""
    answer: Answer


class StoredPair(NamedTuple):
    """A pair in the file: its key, and where its segments were cut from."""

    pair: str
    views: str
    first: Place
    second: Place


class AnswersFile(Database):
    """Stores answers about one prompt in an SQLite file, which processes of one host may share; see `Database`.

    Without a `prompt` it is that of the first pair. Raises a ValueError if the file is of another prompt.

    >>> with AnswersFile() as file:
    ...     file.records()
    []
    """

    def __init__(self, path: str | Path | None = None, *, prompt: str | None = None, exists: bool = False) -> None:
        super().__init__(path, _APPLICATION_ID, _TABLES, "file of answers", exists=exists)
        if prompt is not None:
            with close_on_error([self]), self._transaction():
                self._check_prompt(prompt)

    @property
    def prompt(self) -> str | None:
        """The goal that the answers are about; None before the first."""
        rows = self._read("SELECT text FROM prompt", types=(str,))
        return rows[0][0] if rows else None

    def records(self) -> list[Record]:
        """Return all answers, oldest first."""
        columns = "pair, labeler, preference, confidence, details"
        rows = self._read(f"SELECT {columns} FROM answers ORDER BY answered_at, rowid", types=(str, str, *_ANSWER))
        with self._refusing_damage():
            return [Record(pair, labeler, _unpack(*answer)) for pair, labeler, *answer in rows]

    def answered(self, labeler: str) -> set[str]:
        """Return the keys of the pairs that a labeler has answered or skipped."""
        return {pair for (pair,) in self._read("SELECT pair FROM answers WHERE labeler = ?", labeler, types=(str,))}

    def pairs(self) -> list[StoredPair]:
        """Return all pairs that were answered."""
        rows = self._read("SELECT key, views, first, second FROM pairs ORDER BY rowid", types=(str, str, str, str))
        with self._refusing_damage():
            return [StoredPair(key, views, *map(_unpack_place, sides)) for key, views, *sides in rows]

    def find(self, labeler: str, pairs: Sequence[Pair]) -> dict[str, Answer]:
        """Find a labeler's answers by the keys of pairs. Raises a ValueError if the file is of another prompt."""
        statement = "SELECT preference, confidence, details FROM answers WHERE pair = ? AND labeler = ?"
        answers = dict[str, Answer]()
        with self._transaction():
            for pair in pairs:
                self._check_prompt(pair.prompt)
                for answer in self._read(statement, pair.key, labeler, types=_ANSWER):
                    answers[pair.key] = _unpack(*answer)
        return answers

    def take_back(self, labeler: str, pair: str) -> None:
        """Delete a labeler's answer about the pair with this key."""
        with self._transaction():
            self._connection.execute("DELETE FROM answers WHERE pair = ? AND labeler = ?", (pair, labeler))

    def write(self, labeler: str, pair: Pair, answer: Answer) -> None:
        """Write an answer; it replaces an earlier one of this labeler."""
        date, details = datetime.now(UTC).isoformat(), json.dumps(answer.details)
        places = ((one.env_index, one.episode_index, one.start, len(one)) for one in (pair.first, pair.second))
        first, second = map(json.dumps, places)
        given = (pair.key, labeler, date, answer.preference, answer.confidence, details, __version__)
        with self._transaction():
            sides = (pair.key, pair.views, first, second)
            self._connection.execute("INSERT OR IGNORE INTO pairs VALUES (?, ?, ?, ?)", sides)
            self._connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)", given)

    def _check_prompt(self, prompt: str) -> None:
        known = self._connection.execute("SELECT text FROM prompt").fetchone()
        if known is None:
            self._connection.execute("INSERT INTO prompt VALUES (?)", (prompt,))
        elif known[0] != prompt:
            raise ValueError(
                f"The answers of {self.path} are about the prompt {short_repr(known[0])}. Received {prompt!r}. Pass "
                "another file."
            )


def _unpack(preference: float | None, confidence: float, details: str) -> Answer:
    try:
        known = parse_json(details)
        if not isinstance(known, dict) or not all(
            is_finite(known.get(name, 0)) and known.get(name, 0) >= 0 for name in COUNTS
        ):
            raise ValueError(f"{', '.join(COUNTS)} must be numbers of at least 0. Received {short_repr(known)}")
        return Answer(preference=preference, confidence=confidence, details=known)
    except ValueError as error:
        raise sqlite3.DataError(f"an answer cannot be read: {error}") from error


def _unpack_place(side: str) -> Place:
    try:
        place = parse_json(side)
    except ValueError as error:
        raise sqlite3.DataError(f"a pair cannot be read: {error}") from error
    if not isinstance(place, list) or len(place) != 4 or not all(type(one) is int and one >= 0 for one in place):
        raise sqlite3.DataError(f"a pair is of four numbers of at least 0, not {short_repr(place)}")
    return tuple(place)


def ask(
    labeler: Any,
    pairs: Sequence[Pair],
    file: AnswersFile | None = None,
    *,
    progress: Callable[[str], None] | None = None,
) -> list[Answer | None]:
    """Ask a labeler about the pairs that the file has no answer to.

    Args:
        labeler: As for `resolve_labeler`.
        pairs: The pairs; the same one may be there twice.
        file: Where answers are kept; None: in memory, for this call.
        progress: Called with a line about progress after each answer: calls, tokens, cost and time, where known.

    Returns:
        An answer a pair; None where it was skipped, or the budget is used up.

    Raises:
        ValueError: The file is of another prompt.
        Exception: Whatever the labeler raises. The answers so far are in the file.
    """
    labeler = resolve_labeler(labeler)
    if file is None:
        with AnswersFile() as file:
            return ask(labeler, pairs, file, progress=progress)
    known, answered = file.find(labeler.answer_key, pairs), dict[str, Answer]()
    missing = list({pair.key: pair for pair in pairs if pair.key not in known}.values())
    for number, answer in labeler.answers(missing) if missing else ():
        pair = missing[number]
        if answer is None:
            file.take_back(labeler.answer_key, pair.key)
            answered.pop(pair.key, None)
            continue
        file.write(labeler.answer_key, pair, answer)
        answered[pair.key] = answer
        if progress is not None:
            progress(describe_progress(list(answered.values()), len(missing), getattr(labeler, "price", None)))
    known |= answered
    answers = (known.get(pair.key) for pair in pairs)
    return [None if answer is None or answer.preference is None else answer for answer in answers]


def describe_progress(answers: Sequence[Answer], total: int, price: tuple[float, float] | None = None) -> str:
    """Summarise the answers so far: "12 of 50 pairs, 1 dropped, 48 calls, 33,120 tokens, $0.012, 1.3 s a call"."""
    sums = {name: sum(answer.details.get(name, 0) for answer in answers) for name in COUNTS}
    parts = [f"{len(answers)} of {total} pairs"]
    dropped = sum("dropped" in answer.details for answer in answers)
    skipped = sum(answer.preference is None for answer in answers) - dropped
    parts += [f"{count} {what}" for count, what in ((skipped, "skipped"), (dropped, "dropped")) if count]
    if sums["calls"]:
        parts += [f"{sums['calls']:,} calls", f"{sums['tokens']:,} tokens"]
        if price is not None:
            inputs = sums["tokens"] - sums["output_tokens"]
            parts.append(f"${(inputs * price[0] + sums['output_tokens'] * price[1]) / 1e6:.4f}")
        parts.append(f"{sums['seconds'] / sums['calls']:.1f} s a call")
    return ", ".join(parts)


def plan_rounds(total: int, pairs: int, schedule: Schedule = "constant") -> list[int]:
    """Divide `total` questions over rounds: at least 1 each, `pairs` on average.

    Raises a ValueError if a number is not an integer of at least 1, the schedule is unknown, or returns a number that
    is not finite and positive.
    """
    check_positive_integer("total", total)
    check_positive_integer("pairs", pairs)
    count = -(-total // pairs)
    weights = np.ones(count)
    if schedule != "constant":
        if isinstance(schedule, str) and ":" not in schedule:
            rule = '`schedule` must be "constant", a function, or its "package.module:name".'
            raise ValueError(f"{rule} Received {schedule!r}.")
        rate = find_callable(schedule, "schedule") if isinstance(schedule, str) else schedule
        weights = np.array([rate(t) for t in np.linspace(0, 1, count).tolist()], dtype=np.float64)
    if not np.isfinite(weights).all() or (weights <= 0).any():
        raise ValueError(f"`schedule` must return finite numbers above 0. Received {weights.tolist()}.")
    more = np.rint((total - count) * np.cumsum(weights) / weights.sum()).astype(np.int64)
    return (1 + np.diff(more, prepend=0)).tolist()
