"""Labelers, which say which of two segments is closer to the goal, and their specifications. Imports no torch."""

import difflib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pkgutil import resolve_name
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from vlmrm_gym._util.identity import deciding_fields
from vlmrm_gym._util.validation import check_fraction, check_integer, is_number
from vlmrm_gym.preferences.pairs import Answer, Pair
from vlmrm_gym.rewards.own import find_callable
from vlmrm_gym.rewards.specification import check_names

LABELERS: Mapping[str, str] = {
    "ground_truth": "vlmrm_gym.preferences.labelers:GroundTruthLabeler",
    "endpoint": "vlmrm_gym.preferences.endpoint:EndpointLabeler",
    "human": "vlmrm_gym.preferences.human:HumanLabeler",
}
"""The labelers of this package, "package.module:Class" by `kind`. A new one is registered here."""


@runtime_checkable
class Labeler(Protocol):
    """Answers pairs. One's own may be a frozen dataclass, so that files can name it; see `LabelerSpec`."""

    @property
    def identity(self) -> str:
        """Everything that decides its answers, as a text: answers in a file are found again by it."""
        ...

    def answers(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, Answer | None]]:
        """Answer pairs: (number of the pair, answer), in any order, as they come.

        A pair may come again: with another answer, which replaces the former, or None, which takes it back. Pairs that
        never come stay unanswered.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class LabelerSpec:
    """Base of labelers that are their own specification: frozen dataclasses, which files can hold.

    What such a labeler keeps while it works (a connection, a model) is neither copied nor pickled with it.
    """

    kind: ClassVar[str]

    @property
    def identity(self) -> str:
        """`kind`, and the fields that decide answers, as JSON."""
        own = f"{type(self).__module__}:{type(self).__qualname__}"
        kind = next((kind for kind, path in LABELERS.items() if path == own), own)
        return json.dumps({"kind": kind, **deciding_fields(self)}, sort_keys=True)

    def __getstate__(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(frozen=True, kw_only=True)
class GroundTruthLabeler(LabelerSpec):
    """Prefers the segment with the higher sum of the task's grade, or of the environment's own rewards if it has none.

    A pair with a sum that is NaN is skipped: nothing can be said of it.

    The faults are those of B-Pref's teachers (Lee et al., 2021, arXiv 2111.03026). A fault depends on `seed` and the
    pair alone: not on the order in which pairs are asked.

    >>> GroundTruthLabeler(mistakes=0.1, seed=7).mistakes
    0.1
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
        values = pair.grades or (pair.first.task_rewards, pair.second.task_rewards)
        first, second = (float(one @ self.myopia ** np.arange(len(one))[::-1]) for one in values)
        difference = second - first
        skip, choice, mistake = np.random.default_rng([self.seed, int(pair.key, 16)]).random(3)
        if skip < self.skips or np.isnan(difference):
            return Answer(preference=None)
        if abs(difference) <= self.equal:
            return Answer(preference=0.5)
        prefers_second = difference > 0
        if self.temperature:
            prefers_second = choice < 0.5 * (1 + np.tanh(0.5 * difference / self.temperature))  # the sigmoid
        return Answer(preference=float(prefers_second != (mistake < self.mistakes)))


class CallableLabeler:
    """A function as a labeler.

    Args:
        function: From pairs to an iterable of as many answers: numbers from 0 (the first is closer to the goal) to 1
            (the second is), None for a pair that it skips, or each an `Answer`. If it raises, those before are kept.
    """

    def __init__(self, function: Callable[[Sequence[Pair]], Any]) -> None:
        self.function = function

    @property
    def identity(self) -> str:
        """The function's name, "package.module:function": answers of an earlier version of it are found, too.

        Of an object, that of its class; of a `functools.partial`, also its arguments.
        """
        named, arguments = self.function, ""
        if isinstance(named, partial):
            named, arguments = named.func, f" {named.args} {named.keywords}"
        named = named if hasattr(named, "__qualname__") else type(named)
        return f"{named.__module__}:{named.__qualname__}{arguments}"  # pyright: ignore[reportAttributeAccessIssue]

    def answers(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, Answer]]:
        """The function's answers.

        Raises:
            ValueError: It returns more or fewer answers than pairs, or a number that is not from 0 to 1.
        """
        number = -1
        for number, given in enumerate(self.function(pairs)):
            if number < len(pairs):
                yield number, given if isinstance(given, Answer) else Answer(preference=given)
        if number + 1 != len(pairs):
            raise ValueError(
                f"`labeler` must return an answer for each of {len(pairs)} pairs. Received {number + 1} answers from "
                f"{self.identity}."
            )


def resolve_labeler(labeler: Any) -> Labeler:
    """The labeler that a value describes.

    Args:
        labeler: A labeler, such as `GroundTruthLabeler()`; its mapping form; a name of `LABELERS`;
            "package.module:attribute"; or a callable, see `CallableLabeler`.

    Raises:
        TypeError: It is none of these, or a field is unknown or missing.
        ValueError: Unknown name, a path that leads nowhere, or a value out of its range.
    """
    if isinstance(labeler, str):
        labeler = {"kind": labeler}
    if isinstance(labeler, Mapping):
        return _from_mapping(labeler)
    if isinstance(labeler, type):
        labeler = labeler()
    if isinstance(labeler, Labeler):
        return labeler
    if callable(labeler):
        return CallableLabeler(labeler)
    raise TypeError(
        "`labeler` must be a labeler, such as GroundTruthLabeler(), its mapping form, a name, "
        f'"package.module:attribute", or a callable. Received {labeler!r}.'
    )


def _from_mapping(values: Mapping[str, Any]) -> Labeler:
    """The labeler of this kind, with these fields. `name` is another word for `kind`."""
    settings = dict(values)
    kind = settings.pop("kind", None) or settings.pop("name", None)
    if isinstance(kind, str) and kind in LABELERS:
        found = resolve_name(LABELERS[kind])
    elif isinstance(kind, str) and ":" in kind:
        found = find_callable(kind, "labeler")
    else:
        kinds = ", ".join(map(repr, LABELERS))
        meant = "".join(f" Did you mean {near!r}?" for near in difflib.get_close_matches(str(kind), LABELERS, 1))
        raise ValueError(f'`labeler` must be one of {kinds}, or "package.module:attribute". Received {kind!r}.{meant}')
    if not isinstance(found, type):
        if settings:
            raise TypeError(f"`labeler`: {kind!r} is a function, and takes no settings. Received {settings!r}.")
        return resolve_labeler(found)
    if is_dataclass(found):
        check_names(f"a field of the labeler {kind!r}", settings, [one.name for one in fields(found)])
    return resolve_labeler(found(**settings))
