"""HumanLabeler shows pairs to people on a page in the browser."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from gymnasium.error import DependencyNotInstalled

from vlmrm_gym._util.errors import say
from vlmrm_gym._util.validation import UNAFFECTED, check_integer, check_size, is_number
from vlmrm_gym.learning.labelers import LabelerSpec
from vlmrm_gym.learning.pairs import Answer, Pair
from vlmrm_gym.learning.pictures import encode_clip


@dataclass(frozen=True, kw_only=True)
class HumanLabeler(LabelerSpec):
    """Shows pairs to people: two short clips side by side, on a page of this computer that only its address opens.

    The address is printed when there is something to answer. Several tabs may be open: each has pairs of its own. Undo
    brings the tab's last pair back, as long as the round has others that wait.
    """

    port: int = field(default=0, metadata=UNAFFECTED)
    """The page's port; 0: a free one."""
    name: str = ""
    """The annotator's name: answers of different people are kept apart."""
    fps: float = field(default=15.0, metadata=UNAFFECTED)
    """States a second in clips."""
    size: tuple[int, int] | None = field(default=None, metadata=UNAFFECTED)
    """Height and width at which states are drawn, in pixels; None: as the pair's frames."""
    kind: ClassVar[str] = "human"

    def __post_init__(self) -> None:
        check_integer("port", self.port, minimum=0)
        if self.port > 65_535:
            raise ValueError(f"`port` must be at most 65535. Received {self.port}.")
        if not is_number(self.fps) or not 0 < self.fps <= 100:
            raise ValueError(f"`fps` must be above 0 and at most 100. Received {self.fps!r}.")
        object.__setattr__(self, "size", check_size(self.size))

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
