"""Reports of checks, and of verified programs: each is one HTML file that needs no network and no JavaScript."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from vlmrm_gym._util.errors import printable
from vlmrm_gym._util.validation import truncate
from vlmrm_gym.tools.check.results import Landscape, Report


def write_report(report: Report, path: Path) -> None:
    """Write a report as one HTML file. An existing file is replaced."""
    path.write_text(render(report), encoding="utf-8", errors="backslashreplace")


def render(report: Report) -> str:
    """Render the report of a check as HTML."""
    return load_template("check.html.j2").render(report=report, exploits=report.exploits)


def load_template(name: str) -> Any:
    """Load a template of reports; its method `render` takes what it shows as keyword arguments."""
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
    return environment.get_template(name)


def embed(frame: NDArray[np.uint8], side: int, alt: str) -> Markup:
    """Embed a frame, RGB, uint8 (H, W, 3), as an element of HTML: a JPEG of at most `side` pixels a side."""
    from PIL import Image

    picture = Image.fromarray(frame)
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=85, optimize=True)
    return _make_element("jpeg", file.getvalue(), *picture.size, alt)


def draw_landscape(landscape: Landscape) -> Markup:
    """Plot rewards over positions, a line for each curve; the states that succeed are shaded."""
    from matplotlib.figure import Figure
    from matplotlib.patches import StepPatch

    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.add_subplot(xmargin=0)
    for label, rewards in landscape.curves.items():
        axes.plot(landscape.positions, rewards, label=printable(truncate(label, 40)))
    if landscape.goal is not None:  # from halfway between a state that fails and one that succeeds
        x = landscape.positions
        edges = np.concatenate([x[:1], (x[1:] + x[:-1]) / 2, x[-1:]])
        over = axes.get_xaxis_transform()
        axes.add_patch(StepPatch(1.0 * landscape.goal, edges, transform=over, color="green", alpha=0.2, linewidth=0))
    axes.set_ylabel("reward")
    for text in axes.legend(fontsize="small").get_texts():
        text.set_parse_math(False)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=160)
    ends = (f"{label} from {rewards[0]:.3g} to {rewards[-1]:.3g}" for label, rewards in landscape.curves.items())
    alt = f"{landscape.title}: the reward over {landscape.axis}; {', '.join(ends)}"
    return _make_element("png", file.getvalue(), 500, 350, alt)


def _make_element(kind: str, content: bytes, width: int, height: int, alt: str) -> Markup:
    uri = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    return Markup('<img src="{}" width="{}" height="{}" alt="{}">').format(uri, width, height, alt)
