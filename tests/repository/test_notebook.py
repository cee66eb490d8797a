"""examples/quick_start.ipynb runs from top to bottom, with a short training."""

from pathlib import Path

import pytest
from conftest import LIBRARIES_WARN

NOTEBOOK = Path(__file__).parents[2] / "examples" / "quick_start.ipynb"

pytestmark = [pytest.mark.slow, LIBRARIES_WARN]


def test_the_notebook_runs(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    book = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells), "outputs are made by who runs it"
    (training,) = (cell for cell in book.cells if "steps = 20_000" in cell.source)
    training.source = training.source.replace("steps = 20_000", "steps = 2_400")
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [one.get("data", {}) for cell in book.cells for one in cell.get("outputs", ())]
    assert any('<img src="data:image/png;base64,' in one.get("text/html", "") for one in shown)
    assert sum("image/png" in one for one in shown) >= 2
    assert any("<video" in one.get("text/html", "") for one in shown)
    assert (tmp_path / "agent.mp4").stat().st_size > 1_000
