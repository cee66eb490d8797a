"""The report of a check: one HTML file that needs no network and no JavaScript."""

from pathlib import Path

from vlmrm_gym.audit.report.pictures import draw_landscape, embed
from vlmrm_gym.audit.results import Report


def write_report(report: Report, path: Path) -> None:
    """Write a report as one HTML file. An existing file is replaced.

    Args:
        report: What was found; all numbers finite.
        path: The file, in a folder that exists.

    Raises:
        OSError: The file could not be written.
    """
    path.write_text(render(report), encoding="utf-8", errors="backslashreplace")


def render(report: Report) -> str:
    """The report as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from vlmrm_gym.audit import formatting as words

    environment = Environment(
        loader=PackageLoader(__name__, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["words"] = words
    environment.filters.update(
        number=words.format_number, label=words.label, embed=embed, draw_landscape=draw_landscape
    )
    return environment.get_template("report.html.j2").render(
        report=report, sections=_sections(report), title=report.candidate.title
    )


_SEARCHED = {"exploit": "Exploits", "failure": "Best failures", "state": "States with the highest rewards"}
"""The title of what a search found."""


def _sections(report: Report) -> dict[str, str]:
    """Titles of the sections by their IDs, in order; without those that have nothing to show."""
    sections = {
        "settings": (True, "Settings"),
        "measures": (True, "Key measures"),
        "exploits": (True, _SEARCHED[report.exploits.noun]),
        "agreement": (True, "Agreement with success"),
        "landscape": (report.landscapes, "Landscape"),
        "controls": (report.controls, "Controls"),
        "sheets": (report.sheets, "Contact sheets"),
        "combinations": (report.table, "All combinations"),
        "notes": (report.notes, "Notes"),
        "command": (True, "Command"),
    }
    return {name: title for name, (shown, title) in sections.items() if shown}
