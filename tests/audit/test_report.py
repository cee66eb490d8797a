"""The report of a check: one file that shows all that was found, also in a browser."""

import dataclasses
import re
import tomllib
from html import escape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from browsing import look_at
from reports import draw_frames, full_report, minimal_report

from vlmrm_gym.audit.formatting import MEASURES, MINUS
from vlmrm_gym.audit.measures import Interval, measure_agreement
from vlmrm_gym.audit.report import render, write_report
from vlmrm_gym.audit.results import AdversarialSearch, Exploit, Landscape, Measures, Row
from vlmrm_gym.rewards.custom import ImportedReward

ROOT = Path(__file__).parents[2]
HOSTILE = '<script>alert("x")</script> & \'"><img src=x> {{ 7 * 7 }} [red]$x$'


class Page(HTMLParser):
    """Elements, attributes and text of a page; the section that each text is in."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self._section, self._skipped = "", False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "section":
            self._section = dict(attrs)["id"] or ""
        self._skipped = tag == "style"

    def handle_data(self, data):
        if not self._skipped:
            self.texts[self._section] = " ".join(f"{self.texts.get(self._section, '')} {data}".split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def full() -> str:
    return render(full_report())


@pytest.fixture(scope="module")
def page(full) -> Page:
    return Page(full)


NAMES = ("full", "minimal", "hostile", "long")


@pytest.fixture(scope="module")
def folder(full, tmp_path_factory) -> Path:
    """A folder with reports of the names above."""
    folder = tmp_path_factory.mktemp("reports")
    (folder / "full.html").write_text(full)
    write_report(minimal_report(), folder / "minimal.html")
    write_report(full_report(HOSTILE), folder / "hostile.html")
    write_report(full_report("unbroken" * 40), folder / "long.html")
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_the_file_is_self_contained_and_without_code(folder, name):
    html = (folder / f"{name}.html").read_text()
    page = Page(html)
    assert "://" not in re.sub(r"base64,[^\"]*", "", html)
    for _, attributes in page.elements:
        for name in ("src", "href", "xlink:href", "srcset", "data", "action"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))
        assert not any(name.startswith("on") for name in attributes)
    assert not {"script", "iframe", "object"} & {tag for tag, _ in page.elements}
    assert not re.search(r"@import|url\(", html)
    assert not re.search(r"\b(nan|inf)\b", " ".join(page.texts.values()), re.IGNORECASE)


def test_sections_are_in_order(page):
    assert [section["id"] for section in page.all("section")] == [
        "settings",
        "measures",
        "exploits",
        "agreement",
        "landscape",
        "controls",
        "sheets",
        "combinations",
        "notes",
        "command",
    ]


def test_links_lead_to_headings_of_the_page(page):
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    assert {link["href"] for link in page.all("a")} <= {f"#{name}" for name in ids}
    assert len(ids) == len([attributes for _, attributes in page.elements if "id" in attributes])


@pytest.mark.parametrize(
    ("section", "texts"),
    [
        (
            "settings",
            ["VLMRM/Humanoid-v0", "ViT-bigG-14", "Textured yes", "front-side", "min", "one of 12 combinations"],
        ),
        (
            "measures",
            [
                "AUC on the rollouts 0.950 0.930 to 0.970",
                "EPIC distance on the rollouts 0.200",
                "0.610",
                "0.300",
            ],
        ),
        ("exploits", ["12,800", "0.740", "Exploit 5", "torso upright 6.310"]),
        ("agreement", ["rollouts 429 1,571 0.9", "All 429 states are successes"]),
        ("landscape", ["Leaning to a side", "succeed is unknown"]),
        ("controls", ["another prompt 0.610 The", "robot 0.530 (chance)", "The background would decide."]),
        ("sheets", ["Rollouts of a run", "success", "failure"]),
        ("combinations", ["0.545 to 0.585 does not rank", f"{MINUS}0.800"]),
        ("notes", ["seed 3 was left out"]),
        ("command", ["--alpha 0 0.5 1", "Time 149 s"]),
    ],
)
def test_sections_show_what_was_found(page, section, texts):
    for text in texts:
        assert text in page.texts[section]


def test_a_reward_that_does_not_rank_is_called_so_beside_its_auc(page):
    """The interval of the AUC lies around that of the best control, 0.61."""
    measures = Measures(auc=Interval(0.62, 0.6, 0.64), control_auc=0.61)
    other = Page(render(dataclasses.replace(full_report(), measures=measures)))
    assert "0.620 0.600 to 0.640 does not rank" in other.texts["measures"]
    assert "does not rank How" not in page.texts["measures"]


def test_what_was_left_out_is_explained():
    page = Page(render(minimal_report()))
    shown = [section["id"] for section in page.all("section")]
    assert shown == ["settings", "measures", "exploits", "agreement", "command"]
    assert "The states cannot be set" in page.texts["exploits"]
    assert page.texts["measures"].count("not measured") == len(MEASURES) + 1  # and why


def test_hostile_text_is_shown_as_it_is():
    report = full_report(HOSTILE)
    report = dataclasses.replace(
        report,
        subject=HOSTILE,
        landscapes=[
            Landscape(title=HOSTILE, axis=HOSTILE, positions=np.arange(3.0), curves={HOSTILE: np.ones(3)}, goal=None)
        ],
        agreements={HOSTILE: measure_agreement([0.0, 1.0], [False, True], resamples=5)},
        notes=[HOSTILE],
        command=HOSTILE,
    )
    page = Page(render(report))
    assert "script" not in {tag for tag, _ in page.elements}
    assert all((image["src"] or "").startswith("data:image/") for image in page.all("img"))
    for section in ("settings", "agreement", "landscape", "combinations", "notes", "command"):
        assert HOSTILE in page.texts[section]


def test_a_prompt_that_is_not_unicode_can_be_written(tmp_path):
    """A command line's bytes that are not UTF-8 are surrogates in Python."""
    write_report(full_report("kneeling \udcff"), tmp_path / "report.html")
    assert "kneeling \\udcff" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_file_stays_small_with_pictures_that_compress_badly(tmp_path):
    """5 exploits of 2 views and 2 contact sheets of 24 frames, all noise."""
    write_report(full_report(side=480, noise=1.0), tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 3_000_000


def test_without_known_success_the_exploits_are_the_states_with_the_highest_rewards():
    exploit = Exploit(state=np.zeros(2), reward=0.9, frames=draw_frames(1, 32, np.random.default_rng(0)), failed={})
    page = Page(render(dataclasses.replace(minimal_report(), exploits=AdversarialSearch(exploits=[exploit], scored=1))))
    assert "States with the highest rewards" in page.texts["exploits"]
    assert "State 1" in page.texts["exploits"]
    assert "fail" not in page.texts["exploits"]
    assert len(page.all("img")) == 1


def test_a_search_without_exploits_says_so():
    found = AdversarialSearch(knows_success=True, true_rewards=np.array([0.5, 0.7]), scored=10)
    page = Page(render(dataclasses.replace(minimal_report(), exploits=found)))
    assert "The search found no exploit." in page.texts["exploits"]


def test_pictures_say_what_they_are(page):
    descriptions = [image["alt"] or "" for image in page.all("img")]
    assert len(descriptions) == 6 * 2 + 2 + 2 * 24  # two of them landscapes
    assert "Exploit 2, with a reward of 0.800, view 1 of 2" in descriptions
    assert "Frame 24 of 24, failure" in descriptions
    assert len(set(descriptions)) > 50


def test_tables_can_be_read_aloud(page):
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(heading["scope"] in ("row", "col") for heading in page.all("th"))


def test_headings_skip_no_level(page):
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_the_wheel_has_the_templates():
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    package = ROOT / "vlmrm_gym"
    included = {path for pattern in setup["package-data"]["vlmrm_gym"] for path in package.glob(pattern)}
    templates = set((package / "audit" / "report" / "templates").iterdir())
    assert len(templates) == 2
    assert templates <= included


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_the_report_works_in_a_browser(folder, browser, width):
    names = [f"{name}.html" for name in NAMES]
    problems, found = look_at(browser, f"{folder.as_uri()}/", names, width)
    assert problems == []
    assert set(found) == set(names)


@pytest.mark.parametrize(
    ("rewards", "title", "name"), [([0.9, 0.1], "Exploits", "Exploit 1"), ([0.5, 0.1], "Best failures", "Failure 1")]
)
def test_failures_that_get_less_than_the_median_success_are_not_called_exploits(rewards, title, name):
    """The median success gets 0.7."""
    own = full_report().exploits.exploits[0]
    found = AdversarialSearch(
        knows_success=True,
        exploits=[dataclasses.replace(own, reward=reward) for reward in rewards],
        true_rewards=np.array([0.6, 0.7, 0.8]),
    )
    page = render(dataclasses.replace(minimal_report(), exploits=found))
    assert f"<h2>{title}</h2>" in page
    assert f"<h3>{name}</h3>" in page


def test_rewards_of_different_kinds_stand_in_one_table(tmp_path):
    """They have different settings."""
    report = minimal_report()
    own = dataclasses.replace(
        report.candidate, name="my:red", reward=ImportedReward(path="my:red", kwargs={"scale": 3})
    )
    table = [Row(candidate=candidate, measures=report.measures) for candidate in (report.candidate, own)]
    page = Page(render(dataclasses.replace(report, table=table)))
    for text in ("Reward Alpha Model", "my:red", "{'scale': 3}"):
        assert text in page.texts["combinations"]


def test_states_that_all_succeed_are_named_as_why_there_is_no_auc():
    agreement = measure_agreement([0.1, 0.2], [True, True])
    page = Page(render(dataclasses.replace(minimal_report(), agreements={"rollouts": agreement})))
    assert "success is unknown, or the same for all states. All 2 states are successes" in page.texts["measures"]


def test_the_report_says_where_its_numbers_are_from():
    page = render(minimal_report())
    for label, value in minimal_report().provenance.items():
        assert f"<dt>{label}</dt><dd>{escape(value)}</dd>" in page
