"""The command `vlmrm-gym labels`: what labelers answered, how far they agree, and pictures of disputed pairs."""

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated

import tyro
from rich.table import Table
from rich.text import Text

from vlmrm_gym.cli.settings import parse
from vlmrm_gym.cli.tasks import console
from vlmrm_gym.errors import InputError, as_input_error
from vlmrm_gym.folders import make_folder
from vlmrm_gym.preferences import AnswersFile, Record, compare_labelers
from vlmrm_gym.preferences.labelers import LABELERS
from vlmrm_gym.terminal import printable, say
from vlmrm_gym.validation import truncate


@dataclass
class Labels:
    """Show a file of answers: counts, agreement between labelers, and with --pictures the pairs that they dispute.

    For example:

        vlmrm-gym labels runs/poles/answers.db --pictures disputed
    """

    file: Annotated[Path, tyro.conf.Positional]
    """the file of answers"""
    pictures: Path | None = None
    """a folder, for a picture of each pair of which labelers prefer different sides"""


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    show_labels(parse(Labels, "labels", arguments))


def show_labels(command: Labels) -> None:
    """Print the tables, and draw the pictures.

    Raises:
        InputError: As `open_answers`.
    """
    with open_answers(command.file) as file:
        _show(file, command)


@contextmanager
def open_answers(path: Path) -> Iterator[AnswersFile]:
    """Open a file of answers that exists.

    Raises:
        InputError: There is no such file, or it has no answers in it that can be read.
    """
    if not path.is_file():
        raise InputError(f"There is no file {path}. Pass a file of answers.")
    with as_input_error(OSError), AnswersFile(path) as file:
        yield file


def _show(file: AnswersFile, command: Labels) -> None:
    records = file.records()
    labelers = list(dict.fromkeys(record.labeler for record in records))
    counts = Table(
        "labeler", "answers", "first", "second", "equal", "skipped", "dropped", "calls", "tokens", "last answer"
    )
    for labeler in labelers:
        answers = [record.answer for record in records if record.labeler == labeler]
        chosen = [answer.preference for answer in answers if answer.preference is not None]
        dropped = sum("dropped" in answer.details for answer in answers)
        numbers = [
            len(answers),
            sum(preference < 0.5 for preference in chosen),
            sum(preference > 0.5 for preference in chosen),
            chosen.count(0.5),
            len(answers) - len(chosen) - dropped,
            dropped,
            *(sum(answer.details.get(name, 0) for answer in answers) for name in ("calls", "tokens")),
        ]
        date = max(record.date for record in records if record.labeler == labeler)
        counts.add_row(Text(name_labeler(labeler)), *(f"{number:,}" for number in numbers), date[:19].replace("T", " "))
    compared = compare_labelers(records)
    agreements = Table("labeler", "other", "pairs", "decided by both", "agree")
    for one in compared:
        agree = "" if one.fraction is None else f"{one.fraction:.1%}"
        agreements.add_row(
            *(Text(name_labeler(labeler)) for labeler in one.labelers), str(one.pairs), str(one.decided), agree
        )
    say(f"prompt: {file.prompt}")
    console().print(counts)
    if compared:
        console().print(agreements)
    disputed = list(dict.fromkeys(pair for one in compared for pair in one.disputed))
    if command.pictures is None:
        return
    make_folder(command.pictures, name="pictures")
    for pair in disputed:
        said = [record for record in records if record.pair == pair]
        _draw(file, pair, said, command.pictures / f"{pair}.png")
    say(f"{len(disputed)} disputed pairs are in {command.pictures}.")


def name_labeler(labeler: str) -> str:
    """An identity, shortened: the kind, and the settings that are not the kind's defaults, without quotation marks."""
    try:
        settings = json.loads(labeler)
        kind = settings.pop("kind")
        own = fields(resolve_name(LABELERS[kind])) if kind in LABELERS else ()
        defaults = {one.name: one.default_factory() if callable(one.default_factory) else one.default for one in own}
        given = (f"{name}={value}" for name, value in settings.items() if value != defaults.get(name))
        shown = f"{kind} {', '.join(given)}"
    except (ValueError, AttributeError, KeyError):
        shown = labeler
    return printable(truncate(shown.strip(), 80))


def _draw(file: AnswersFile, pair: str, records: Sequence[Record], path: Path) -> None:
    """Both sides, and below what each labeler prefers."""
    from PIL import Image, ImageDraw

    pictures = [Image.open(io.BytesIO(data)) for data in file.pictures(pair) or ()]
    lines = [f"{name_labeler(record.labeler)}: {_choice(record.answer.preference)}" for record in records]
    width = sum(picture.width for picture in pictures) + 8
    height = max((picture.height for picture in pictures), default=0)
    drawn = Image.new("RGB", (max(width, 480), height + 16 * len(lines) + 8), "white")
    left = 0
    for picture in pictures:
        drawn.paste(picture, (left, 0))
        left += picture.width + 8
    for number, line in enumerate(lines):
        ImageDraw.Draw(drawn).text((4, height + 4 + 16 * number), line, fill="black")
    drawn.save(path)


def _choice(preference: float | None) -> str:
    if preference is None:
        return "skipped"
    return "equal" if preference == 0.5 else f"{'first' if preference < 0.5 else 'second'} ({preference:.2f})"
