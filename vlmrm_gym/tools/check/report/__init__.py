"""The report of a check: one HTML file that needs no network and no JavaScript."""

from pathlib import Path

from vlmrm_gym.tools.check.report.pictures import draw_landscape, embed
from vlmrm_gym.tools.check.results import Report


def write_report(report: Report, path: Path) -> None:
    """Write a report as one HTML file. An existing file is replaced."""
    path.write_text(render(report), encoding="utf-8", errors="backslashreplace")


def render(report: Report) -> str:
    """Render the report as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from vlmrm_gym.tools.check import summary as words

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
    return environment.get_template("report.html.j2").render(report=report, exploits=report.exploits)
