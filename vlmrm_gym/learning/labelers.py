"""Labelers say which of two segments is closer to the goal. Imports no torch."""

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property, partial
from pkgutil import resolve_name
from typing import Any, Protocol, runtime_checkable

import numpy as np
from gymnasium.error import DependencyNotInstalled

from vlmrm_gym._util.errors import say
from vlmrm_gym._util.validation import (
    UNAFFECTED,
    answer_key,
    check_fraction,
    check_integer,
    check_not_negative,
    check_size,
    is_number,
)
from vlmrm_gym.learning.pairs import Answer, Pair
from vlmrm_gym.learning.pictures import encode_clip
from vlmrm_gym.rewards.clip import checked, integer
from vlmrm_gym.rewards.own import find_callable
from vlmrm_gym.rewards.specification import check_names

LABELERS: Mapping[str, str] = {
    "ground_truth": "vlmrm_gym.learning.labelers:GroundTruthLabeler",
    "endpoint": "vlmrm_gym.learning.endpoint:EndpointLabeler",
    "human": "vlmrm_gym.learning.labelers:HumanLabeler",
}
"""The labelers of this package, "package.module:Class" by `kind`. A new one is registered here."""


@runtime_checkable
class Labeler(Protocol):
    """Answers pairs. A user's labeler that files can name is a frozen dataclass; see `LabelerSpec`."""

    @property
    def answer_key(self) -> str:
        """A string of everything that affects the answers: stored answers are found again by it."""
        ...

    def answers(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, Answer | None]]:
        """Answer pairs; yields (number of the pair, answer) in any order.

        A pair may come again, with an answer that replaces the former, or None, which takes it back. Pairs that never
        come stay unanswered.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class LabelerSpec:
    """Base class of labelers that files can hold: frozen dataclasses. What they open is neither copied nor pickled."""

    def __post_init__(self) -> None:
        checked(self)

    @property
    def answer_key(self) -> str:
        """`kind` and the fields that affect answers, as JSON."""
        path = f"{type(self).__module__}:{type(self).__qualname__}"
        kind = next((kind for kind, known in LABELERS.items() if known == path), path)
        return answer_key(self, kind=kind)

    def __getstate__(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(frozen=True, kw_only=True)
class GroundTruthLabeler(LabelerSpec):
    """Prefers the segment with the higher sum of the task's grade, or of the environment's own rewards if it has none.

    A pair with a sum that is NaN is skipped: nothing can be said of it.

    Label noise is that of B-Pref's teachers (mistake, skip, equal, stochastic, myopic: Lee et al., 2021, arXiv
    2111.03026). It depends on `seed` and the pair alone, not on the order in which pairs are asked.

    >>> GroundTruthLabeler(mistake_rate=0.1, seed=7).mistake_rate
    0.1
    """

    mistake_rate: float = field(default=0.0, metadata={"check": check_fraction})
    """Fraction of the answers that are flipped; those that are equal stay."""
    skip_rate: float = field(default=0.0, metadata={"check": check_fraction})
    """Fraction of the pairs that are skipped, drawn at random. (B-Pref's teacher skips pairs whose returns are both low
    for the policy of the moment: its answers depend on when it is asked.)"""
    equal: float = field(default=0.0, metadata={"check": check_not_negative})
    """Sums that differ by no more are equal: the preference is 0.5."""
    temperature: float = field(default=0.0, metadata={"check": check_not_negative})
    """0: the higher sum is always preferred. Above: the second is preferred with the probability
    sigmoid((second - first) / temperature), B-Pref's stochastic teacher with beta = 1 / temperature."""
    gamma: float = field(default=1.0, metadata={"check": check_fraction})
    """Discount of a myopic teacher, above 0: each state of a segment weighs `gamma` times the next; 1: all weigh
    the same."""
    seed: int = field(default=0, metadata={"check": partial(check_integer, minimum=0)})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma == 0:
            raise ValueError("`gamma` must be above 0; 1 weighs all states the same. Received 0.")

    def answers(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, Answer]]:
        """Answer all pairs. No frame is drawn."""
        for number, pair in enumerate(pairs):
            yield number, self._answer(pair)

    def _answer(self, pair: Pair) -> Answer:
        values = pair.grades or (pair.first.task_rewards, pair.second.task_rewards)
        first, second = (float(one @ self.gamma ** np.arange(len(one))[::-1]) for one in values)
        difference = second - first
        skip, choice, mistake = np.random.default_rng([self.seed, int(pair.key, 16)]).random(3)
        if skip < self.skip_rate or np.isnan(difference):
            return Answer(preference=None)
        if abs(difference) <= self.equal:
            return Answer(preference=0.5)
        prefers_second = difference > 0
        if self.temperature:
            prefers_second = choice < 0.5 * (1 + np.tanh(0.5 * difference / self.temperature))  # the sigmoid
        return Answer(preference=float(prefers_second != (mistake < self.mistake_rate)))


@dataclass(frozen=True, kw_only=True)
class HumanLabeler(LabelerSpec):
    """Shows pairs to people: two short clips side by side, on a page of this computer that only its address opens.

    The address is printed when there is something to answer. Several tabs may be open: each has pairs of its own. Undo
    brings the tab's last pair back, as long as the round has others that wait.
    """

    port: int = field(default=0, metadata=UNAFFECTED | {"check": integer(0, 65_535)})
    """The page's port; 0: a free one."""
    name: str = ""
    """The annotator's name: answers of different people are kept apart."""
    fps: float = field(default=15.0, metadata=UNAFFECTED)
    """States a second in clips."""
    size: tuple[int, int] | None = field(default=None, metadata=UNAFFECTED | {"check": check_size})
    """Height and width at which states are drawn, in pixels; None: as the pair's frames."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_number(self.fps) or not 0 < self.fps <= 100:
            raise ValueError(f"`fps` must be above 0 and at most 100. Received {self.fps!r}.")

    @property
    def address(self) -> str:
        """The page's address, with its token. It is opened if it is not yet: an OSError says that it cannot be."""
        return self._page.address

    def answers(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, Answer | None]]:
        """Show pairs until all are answered; None takes a pair's answer back. Raises as `address` and `Page.ask`."""
        say(f"{len(pairs)} pairs wait for your answers: {self.address}")
        yield from self._page.ask(
            pairs, lambda pair, side: encode_clip(pair.draw(side.states, size=self.size), self.fps)
        )

    def close(self) -> None:
        """Close the page."""
        if (page := vars(self).pop("_page", None)) is not None:
            page.close()

    @cached_property
    def _page(self) -> Any:
        try:
            from vlmrm_gym.learning.server import Page
        except ImportError as error:
            raise DependencyNotInstalled('A HumanLabeler needs a web server: pip install "vlmrm-gym[page]".') from error
        return Page(self.port)


class CallableLabeler:
    """Wraps a function from pairs to an iterable of as many answers as a labeler.

    Answers are numbers from 0 (the first is closer to the goal) to 1 (the second is), None for a pair that it skips, or
    each an `Answer`. If it raises, those before are kept.
    """

    def __init__(self, function: Callable[[Sequence[Pair]], Any]) -> None:
        self.function = function

    @property
    def answer_key(self) -> str:
        """The function's name, "package.module:function": answers of an earlier version of it are found, too.

        Of an object, that of its class; of a `functools.partial`, also its arguments.
        """
        named, arguments = self.function, ""
        if isinstance(named, partial):
            named, arguments = named.func, f" {named.args} {named.keywords}"
        named = named if hasattr(named, "__qualname__") else type(named)
        return f"{named.__module__}:{named.__qualname__}{arguments}"  # pyright: ignore[reportAttributeAccessIssue]

    def answers(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, Answer]]:
        """Yield the function's answers; a ValueError if they are more or fewer than pairs, or not from 0 to 1."""
        number = -1
        for number, given in enumerate(self.function(pairs)):
            if number < len(pairs):
                yield number, given if isinstance(given, Answer) else Answer(preference=given)
        if number + 1 != len(pairs):
            raise ValueError(
                f"`labeler` must return an answer for each of {len(pairs)} pairs. Received {number + 1} answers from "
                f"{self.answer_key}."
            )


def resolve_labeler(labeler: Any) -> Labeler:
    """Make the labeler that a value describes.

    That is a labeler, such as `GroundTruthLabeler()`; its mapping form; a name of `LABELERS`;
    "package.module:attribute"; or a callable, see `CallableLabeler`. A TypeError or ValueError says what is wrong.
    """
    settings: dict[str, Any] = {}
    if isinstance(labeler, str | Mapping):
        settings = {"kind": labeler} if isinstance(labeler, str) else dict(labeler)
        kind = settings.pop("kind", None) or settings.pop("name", None)
        labeler = _find_kind(kind)
        if settings and not isinstance(labeler, type):
            raise TypeError(f"`labeler`: {kind!r} is a function, and takes no settings. Received {settings!r}.")
        if is_dataclass(labeler):
            check_names(f"a field of the labeler {kind!r}", settings, [one.name for one in fields(labeler)])
    if isinstance(labeler, type):
        labeler = labeler(**settings)
    if isinstance(labeler, Labeler):
        return labeler
    if callable(labeler):
        return CallableLabeler(labeler)
    raise TypeError(
        "`labeler` must be a labeler, such as GroundTruthLabeler(), its mapping form, a name, "
        f'"package.module:attribute", or a callable. Received {labeler!r}.'
    )


def _find_kind(kind: object) -> Any:
    if isinstance(kind, str) and kind in LABELERS:
        return resolve_name(LABELERS[kind])
    if isinstance(kind, str) and ":" in kind:
        return find_callable(kind, "labeler")
    kinds = ", ".join(map(repr, LABELERS))
    meant = "".join(f" Did you mean {near!r}?" for near in difflib.get_close_matches(str(kind), LABELERS, 1))
    raise ValueError(f'`labeler` must be one of {kinds}, or "package.module:attribute". Received {kind!r}.{meant}')
