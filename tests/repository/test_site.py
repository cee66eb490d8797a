"""The site builds strictly, documents all that is public, and works in a browser, without anything from elsewhere."""

import functools
import http.server
import os
import re
import runpy
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
from browsing import look_at

import vlmrm_gym
import vlmrm_gym.sb3

ROOT = Path(__file__).parents[2]
WIDTHS = {"wide": 1280, "phone": 390}
WORDS = {"guides": 15_600, "reference": 10_500}
"""The most words of a part of the site, code included; the first page counts as a guide."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The folder of the built site; built in a process of its own, as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, str(ROOT / "docs" / "build.py"), "--output", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    built = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def address(site) -> Iterator[str]:
    """Where the site is served."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format, *args):
            pass

    handler = functools.partial(Handler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def find_broken_links(address: str, found: dict[str, dict], folder: Path) -> list[str]:
    """Links within the site whose page, file or heading does not exist."""
    broken = []
    for page, seen in found.items():
        for link in seen["links"]:
            target, fragment = urldefrag(link)
            if not target.startswith(address):
                if urlsplit(link).scheme not in ("https", "mailto"):
                    broken.append(f"{page}: {link}")
                continue
            path = unquote(urlsplit(target).path).lstrip("/") or "index.html"
            if not (folder / path).is_file() or (
                fragment and path in found and unquote(fragment) not in found[path]["ids"]
            ):
                broken.append(f"{page}: {link}")
    return broken


def pages_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.html"))


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_every_page_works_in_a_browser(site, address, browser, width):
    pages = pages_of(site)
    assert len(pages) > 15
    problems, found = look_at(browser, address, pages, width)
    assert problems + find_broken_links(address, found, site) == []


@pytest.mark.parametrize(
    ("words", "title"),
    [
        ("goal image", "Goal images"),
        ("own environment", "An environment of your own"),
        ("save", "Save and share a reward"),
        ("torchrl", "Your RL library > TorchRL"),
    ],
)
def test_the_search_finds_the_guide_first(address, browser, words, title):
    tab = browser.new_page()
    tab.goto(f"{address}search.html?q={words.replace(' ', '+')}")
    assert tab.wait_for_selector("ul.search li > a").inner_text() == title
    tab.close()


def test_the_site_can_be_read_in_an_evening(site):
    guides = ["index.html", *(page for page in pages_of(site) if page.startswith("guides/"))]
    assert len(guides) <= 20
    for part, most in WORDS.items():
        pages = guides if part == "guides" else [page for page in pages_of(site) if page.startswith(f"{part}/")]
        words = 0
        for page in pages:
            article = re.sub(
                r"<(script|style).*?</\1>",
                "",
                re.findall(r"<article.*</article>", (site / page).read_text(), re.S)[0],
                flags=re.S,
            )
            words += len(re.findall(r"\S*\w\S*", re.sub(r"<[^>]+>", " ", article)))
        assert 1_000 < words <= most, part


BAD_PAGE = """<!doctype html><title>x</title><div style="width: 2000px">x</div><img src="none.png">
<a href="none.html">x</a><a href="#none">x</a><a href="page.html">x</a><link rel="stylesheet" href="http://127.0.0.2:9/x.css">
<script>console.error("bad"); undefinedName()</script>"""


def test_a_bad_page_is_found(tmp_path_factory, browser, site, address):
    """The test above can fail."""
    bad = site / "bad.html"
    bad.write_text(BAD_PAGE)
    try:
        problems, found = look_at(browser, address, ["bad.html"], 390)
    finally:
        bad.unlink()
    text = "\n".join(problems + find_broken_links(address, {"bad.html": found["bad.html"]}, site))
    signs = ("console: bad", "undefinedName", "missing picture", "without a description", "elsewhere")
    assert all(sign in text for sign in (*signs, "none.html", "#none", "wider")), text


def test_everything_public_is_in_the_reference_and_the_guides_are_in_the_search_index(site):
    from sphinx.util.inventory import InventoryFile

    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    documented = {name for kind in inventory.data if kind.startswith("py:") for name in inventory.data[kind]}
    public = {f"vlmrm_gym.sb3.{name}" for name in vlmrm_gym.sb3.__all__}
    public |= {"vlmrm_gym.data.replay.Batch"}
    assert public - documented == set()
    offered = {name for name in vlmrm_gym.__all__ if not name.startswith("_")}
    assert offered - {name.rpartition(".")[2] for name in documented} == set()  # here, or in their room
    assert re.search(r"guides/deferred_scoring", (site / "searchindex.js").read_text())


def test_building_without_the_extra_says_what_to_install(monkeypatch):
    script = runpy.run_path(str(ROOT / "docs" / "build.py"))
    monkeypatch.setitem(script["NEEDED"], "no_such_theme", "furo")
    with pytest.raises(SystemExit, match=r'needs furo\. Install the extra "docs": pip install -e "\.\[docs\]"'):
        script["check_installed"]()


def test_a_warning_fails_the_build(tmp_path):
    docs = tmp_path / "docs"
    shutil.copytree(
        ROOT / "docs", docs, ignore=shutil.ignore_patterns("*.gif", "*.png", "*.jpg", "project", "reference")
    )
    (docs / "index.md").write_text("# Page\n\n[nothing](nothing.md)\n")
    command = [sys.executable, str(docs / "build.py"), "--output", str(tmp_path / "built")]
    built = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert built.returncode != 0
    assert "nothing" in built.stderr
