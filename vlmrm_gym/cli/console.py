"""The console on which commands print tables."""

import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from vlmrm_gym._util.terminal import printable


class PlainConsole(Console):
    """Prints strings as they are: no markup, no control characters, nothing that the terminal cannot show.

    It is as wide as the terminal, or wide enough where there is none.
    """

    def __init__(self) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, width=None if sys.stdout.isatty() else 10_000)

    def render_str(self, text: str, **options: Any) -> Text:
        """Render the text as `printable` makes it."""
        return super().render_str(printable(text, self.encoding), **options)
