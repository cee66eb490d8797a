"""Who is shown which pair: hands out pairs to the tabs of a page, so that no two label the same one."""

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from vlmrm_gym.preferences.pairs import Answer, Pair, Side

_LEASE = 60.0
"""Seconds after which a tab that has nothing else may show the pair of another. The first answer counts."""


@dataclass(eq=False)
class Drawing:
    """A clip that the page needs."""

    side: Side
    picture: Future[bytes] = field(default_factory=Future)

    def serve(self, draw: Callable[[Side], bytes]) -> None:
        """Draw it. Raises what drawing raises; the page then has none."""
        try:
            self.picture.set_result(draw(self.side))
        except BaseException as error:
            self.picture.set_exception(error)
            raise


@dataclass(eq=False)
class Session:
    """Pairs that were added together."""

    events: "SimpleQueue[Drawing | tuple[int, Answer | None]]" = field(default_factory=SimpleQueue)
    """Clips to draw, and answers: (number of the pair, answer, or None if the last was undone)."""
    open: int = 0
    """Number of pairs without an answer."""


@dataclass(eq=False)
class _Card:
    """A pair on the desk."""

    pair: Pair
    number: int
    session: Session
    tab: str | None = None
    """The tab that shows it."""
    answered_by: str | None = None
    since: float = 0.0
    """When it was shown or answered."""


class Desk:
    """All pairs of sessions that are not complete. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cards: dict[str, _Card] = {}
        """By an ID of their own, in the order in which they are shown."""
        self._total = self._answered = 0
        self._prompt = ""

    def add(self, pairs: Sequence[Pair]) -> Session:
        """Add pairs, as a session."""
        session = Session(open=len(pairs))
        with self._lock:
            for number, pair in enumerate(pairs):
                self._cards[secrets.token_hex(8)] = _Card(pair, number, session)
                self._prompt = pair.prompt
            self._total += len(pairs)
        return session

    def remove(self, session: Session) -> None:
        """Remove what is left of a session."""
        with self._lock:
            self._cards = {id: card for id, card in self._cards.items() if card.session is not session}
            self._total -= session.open
            session.open = 0
            while not session.events.empty():  # nobody draws any more: the page need not wait
                if isinstance(event := session.events.get(), Drawing):
                    event.picture.cancel()

    def draw(self, id: str, side: str) -> Drawing | None:
        """Have a clip drawn by the thread of the session; None if there is none."""
        with self._lock:
            card = self._cards.get(id)
            if card is None or side not in ("left", "right"):
                return None
            drawing = Drawing(card.pair.first if side == "left" else card.pair.second)
            card.session.events.put(drawing)
            return drawing

    def next(self, tab: str) -> dict[str, Any]:
        """What a tab shows now."""
        with self._lock:
            waiting = [(id, card) for id, card in self._cards.items() if card.answered_by is None]
            # Its own, else the first that no tab shows, else one that another has shown for long.
            waiting.sort(key=lambda one: (one[1].tab != tab, one[1].tab is not None, one[1].since))
            shown = None
            if waiting:
                id, card = waiting[0]
                if card.tab in (None, tab) or time.monotonic() - card.since > _LEASE:
                    shown, card.tab, card.since = id, tab, time.monotonic()
            return {"pair": shown, "prompt": self._prompt, "total": self._total, "answered": self._answered}

    def answer(self, tab: str, id: str, choice: float | None) -> None:
        """Take a tab's answer: 0 the left, 1 the right, 0.5 equal, None skip. Only the first answer of a pair counts.

        Raises:
            ValueError: The choice is none of these.
        """
        if choice not in (0, 1, 0.5, None):
            raise ValueError(f"`choice` must be 0, 1, 0.5 or None. Received {choice!r}.")
        with self._lock:
            card = self._cards.get(id)
            if card is None or card.answered_by is not None:
                return
            now = time.monotonic()
            seconds, card.answered_by, card.tab, card.since = round(now - card.since, 3), tab, None, now
            card.session.open -= 1
            card.session.events.put((card.number, Answer(preference=choice, details={"seconds": seconds})))
            self._answered += 1

    def undo(self, tab: str) -> None:
        """Bring back the tab's last pair, unless its session is complete."""
        with self._lock:
            mine = [card for card in self._cards.values() if card.answered_by == tab and card.session.open]
            if mine:
                self._leave(tab)
                card = max(mine, key=lambda one: one.since)
                card.answered_by, card.tab, card.since = None, tab, time.monotonic()
                card.session.open += 1
                card.session.events.put((card.number, None))
                self._answered -= 1

    def leave(self, tab: str) -> None:
        """The tab was closed or loaded anew: others may show what it showed."""
        with self._lock:
            self._leave(tab)

    def _leave(self, tab: str) -> None:
        for card in self._cards.values():
            if card.tab == tab:
                card.tab, card.since = None, 0.0
