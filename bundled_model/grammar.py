"""Grammars of captions: slots, each with the choices that may fill it. The words are text files in `grammars/`.

    # A comment.
    [posture]
    3x standing
    {very}upright
    sitting on the {floor}
    [very]
    "almost "
    ""

A slot's name stands in brackets, with its choices below it, one a line. `3x` before a choice makes it three times as
likely. A slot in braces is filled in its turn. Quotes keep the spaces at a choice's ends, or make an empty choice.
"""

import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

Grammar = Mapping[str, Sequence[str]]
"""Choices by slot. A choice that is repeated is more likely."""

GRAMMARS = Path(__file__).parent / "grammars"
_SLOT = re.compile(r"\{(\w+)\}")
_HEADING = re.compile(r"\[(\w+)\]")
_CHOICE = re.compile(r'(?:(?P<weight>\d+)x )?(?P<quote>"?)(?P<text>.*)(?P=quote)')


def read_grammar(name: str, folder: Path = GRAMMARS) -> dict[str, list[str]]:
    """The grammar in the file `name`.txt of a folder; or, if `name` is a folder there, that of all files in it.

    Raises:
        ValueError: If a line is neither a slot's name in brackets nor a choice below one.
    """
    files = sorted((folder / name).glob("*.txt")) or [folder / f"{name}.txt"]
    grammar: dict[str, list[str]] = {}
    for file in files:
        choices: list[str] | None = None
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            if heading := _HEADING.fullmatch(line):
                choices = grammar.setdefault(heading[1], [])
            elif choices is None or line.startswith("["):
                raise ValueError(
                    f"{file}, line {number} must be a slot's name in brackets, like [very], or a choice below one. "
                    f"Received {line!r}"
                )
            elif choice := _CHOICE.fullmatch(line):
                choices += [choice["text"]] * int(choice["weight"] or 1)
    return grammar


def merge_grammars(common: Grammar, own: Grammar) -> dict[str, Sequence[str]]:
    """One grammar of two; the choices of slots that both have are concatenated."""
    return {slot: (*common.get(slot, ()), *own.get(slot, ())) for slot in {**common, **own}}


def expand(pattern: str, grammar: Grammar, rng: random.Random, **fixed: str) -> str:
    """Replace every {slot} of a pattern, depth first: by `fixed[slot]`, or by a random choice of `grammar[slot]`."""

    def fill(match: re.Match[str]) -> str:
        slot = match.group(1)
        return fixed.get(slot) or _SLOT.sub(fill, rng.choice(grammar[slot]))

    return _SLOT.sub(fill, pattern)
