"""The report of a check: one file that shows all that was found, also in a browser; and its summary in a terminal."""

import re
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO, StringIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from browsing import look_at
from PIL import Image
from reports import draw_frames, full_report, make_candidate, minimal_report

from vlmrm_gym.rewards.own import ImportedReward
from vlmrm_gym.tools.check.measures import Interval, measure_agreement
from vlmrm_gym.tools.check.report import draw_landscape, embed, render, write_report
from vlmrm_gym.tools.check.results import AdversarialSearch, Landscape, MeasuredCandidate, Measures
from vlmrm_gym.tools.check.summary import MINUS, MISSING, format_number, print_summary, shown_measures
from vlmrm_gym.tools.cli.settings import PlainConsole

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


NAMES = ("full", "minimal", "hostile", "long")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with reports of the names above."""
    folder, line = tmp_path_factory.mktemp("reports"), np.arange(3.0)
    hostile = replace(
        full_report(HOSTILE, side=40),
        subject=HOSTILE,
        landscapes=[Landscape(title=HOSTILE, axis=HOSTILE, positions=line, curves={HOSTILE: line}, goal=None)],
        agreements={HOSTILE: measure_agreement([0.0, 1.0], [False, True], resamples=5)},
        notes=[HOSTILE],
        command=HOSTILE,
    )
    reports = (full_report(), minimal_report(), hostile, full_report("unbroken" * 40, side=40))
    for name, report in zip(NAMES, reports, strict=True):
        write_report(report, folder / f"{name}.html")
    return folder


@pytest.fixture(scope="module")
def page(folder) -> Page:
    return Page((folder / "full.html").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_the_file_is_self_contained_and_without_code(folder, name):
    html = (folder / f"{name}.html").read_text()
    page = Page(html)
    assert "://" not in re.sub(r"base64,[^\"]*", "", html)
    for _, attributes in page.elements:
        for key in ("src", "href", "xlink:href", "srcset", "data", "action"):
            assert (attributes.get(key) or "#").startswith(("#", "data:"))
        assert not any(key.startswith("on") for key in attributes)
    assert not {"script", "iframe", "object"} & {tag for tag, _ in page.elements}
    assert not re.search(r"@import|url\(", html)
    assert not re.search(r"\b(nan|inf)\b", " ".join(page.texts.values()), re.IGNORECASE)
    if name == "hostile":  # what it says is shown as it is
        for section in ("settings", "agreement", "landscape", "combinations", "command"):
            assert HOSTILE in page.texts[section]
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))  # headings skip no level
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(heading["scope"] in ("row", "col") for heading in page.all("th"))


SHOWN = {
    "settings": ["ViT-bigG-14", "Textured yes", "front-side", "min", "one of 12 combinations"],
    "measures": ["AUC on the rollouts 0.950 0.930 to 0.970", "EPIC distance on the rollouts 0.200", "0.610", "0.300"],
    "exploits": ["12,800", "Exploit 5: 0.710", "torso upright 6.310", "median success has a reward of 0.70"],
    "agreement": ["rollouts 419 1,581 0.9", "All 419 states are successes"],
    "landscape": ["Leaning to a side", "succeed is unknown"],
    "controls": ["another prompt 0.610 no robot 0.530 (chance)"],
    "sheets": ["Rollouts of a run", "success", "failure"],
    "combinations": ["0.545 to 0.585 does not rank", f"{MINUS}0.800"],
    "command": ["--alpha 0 0.5 1", "Time 149 s", "seed 3 was left out", "Weights tiny, SHA-256 0123456789ab", "Seed 0"],
}


def test_sections_show_what_was_found_in_order(page):
    assert [section["id"] for section in page.all("section")] == list(SHOWN)
    for section, texts in SHOWN.items():
        for text in texts:
            assert text in page.texts[section]
    descriptions = [image["alt"] or "" for image in page.all("img")]
    assert len(descriptions) == 6 * 2 + 2 + 2 * 24  # two of them landscapes
    assert {"Exploit 2, with a reward of 0.800, view 1 of 2", "Frame 24 of 24, failure"} < set(descriptions)


def test_a_reward_that_does_not_rank_is_called_so_beside_its_auc_and_rewards_of_two_kinds_stand_in_one_table(page):
    """The interval of the AUC lies around that of the best control, 0.61. The kinds have different settings."""
    measures = Measures(auc=Interval(0.62, 0.6, 0.64), control_auc=0.61)
    report = replace(minimal_report(), measures=measures)
    own = replace(report.candidate, name="my:red", reward=ImportedReward(path="my:red", kwargs={"scale": 3}))
    table = [MeasuredCandidate(candidate=candidate, measures=measures) for candidate in (report.candidate, own)]
    other = Page(render(replace(report, table=table)))
    assert "0.620 0.600 to 0.640 does not rank" in other.texts["measures"]
    assert "does not rank How" not in page.texts["measures"]
    for text in ("Reward Alpha Model", "my:red", "{'scale': 3}"):
        assert text in other.texts["combinations"]


def test_what_was_left_out_is_explained():
    agreement = measure_agreement([0.1, 0.2], [True, True])
    page = Page(render(replace(minimal_report(), agreements={"rollouts": agreement})))
    assert [section["id"] for section in page.all("section")] == [
        *("settings", "measures", "exploits", "agreement", "command")
    ]
    assert "The states cannot be set" in page.texts["exploits"]
    assert page.texts["measures"].count("not measured") == len(shown_measures([])) + 1  # and why:
    assert "success is unknown, or the same for all states. All 2 states are successes" in page.texts["measures"]


def test_only_what_gets_as_much_as_the_median_success_is_called_an_exploit():
    """The median success gets 0.7."""
    own = replace(full_report(side=40).exploits.exploits[0], failed={})
    for rewards, knows_success, title, name in (
        ([0.9, 0.1], True, "Exploits", "Exploit 1: 0.900"),
        ([0.5, 0.1], True, "Best failures", "Failure 1: 0.500"),
        ([0.5, 0.1], False, "States with the highest rewards", "State 1: 0.500"),
        ([], True, "Exploits", "The search found no exploit."),
    ):
        exploits = [replace(own, reward=reward) for reward in rewards]
        success = 0.7 if knows_success else None
        found = AdversarialSearch(knows_success=knows_success, exploits=exploits, median_success=success)
        shown = Page(render(replace(minimal_report(), exploits=found))).texts["exploits"]
        assert shown.startswith(title)
        assert name in shown
        assert ("fail" in shown) == knows_success


def test_a_prompt_that_is_not_unicode_is_written(tmp_path):
    """Bytes that are not UTF-8 are surrogates."""
    write_report(replace(minimal_report(), subject="kneeling \udcff"), tmp_path / "report.html")
    assert "kneeling \\udcff" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_the_report_works_in_a_browser(folder, browser, width):
    names = [f"{name}.html" for name in NAMES]
    problems, found = look_at(browser, f"{folder.as_uri()}/", names, width)
    assert problems == []
    assert set(found) == set(names)


def decode(element):
    """The picture of an element, RGB, and what follows it."""
    uri, rest = re.fullmatch('<img src="data:image/(?:jpeg|png);base64,([^"]*)" (.*)>', element).groups()
    return np.asarray(Image.open(BytesIO(b64decode(uri))).convert("RGB")).astype(int), rest


def test_embedded_pictures_keep_their_looks_and_their_limits():
    frame = draw_frames(1, 480, np.random.default_rng(0))[0]
    decoded, rest = decode(embed(frame[:, :240], 320, 'a "frame"'))
    assert rest == 'width="160" height="320" alt="a &#34;frame&#34;"'
    expected = Image.fromarray(frame[:, :240]).resize((160, 320))
    assert np.abs(decoded - np.asarray(expected, dtype=int)).mean() < 3


def draw(goal, *rewards):
    """The pixels of a landscape over five positions, RGB."""
    curves = {f"alpha {number}": np.array(own) for number, own in enumerate(rewards)}
    own = Landscape(title="Lean", axis="angle", positions=np.arange(5.0), curves=curves, goal=goal)
    return decode(draw_landscape(own))


def is_like(picture, color):
    return np.abs(picture - color).sum(-1) < 20


BLUE, ORANGE, SHADE = [31, 119, 180], [255, 127, 14], [204, 230, 204]


def test_a_landscape_shades_the_states_that_succeed_and_draws_a_line_for_each_curve():
    """From halfway between a state that fails and one that succeeds. Also rewards that are all alike are drawn."""
    rising, falling = [0.0, 1, 2, 3, 4], [4.0, 3, 2, 1, 0]
    plain, alt = draw(None, rising)
    assert alt.endswith('alt="Lean: the reward over angle; alpha 0 from 0 to 4"')
    assert is_like(draw(None, rising, falling)[0], ORANGE).any()
    assert not is_like(plain, ORANGE).any()
    shaded, _ = draw(np.array([False, False, False, True, True]), rising)
    columns, drawn = (np.flatnonzero(is_like(*one).any(0)) for one in ((shaded, SHADE), (plain, BLUE)))
    assert (columns.min() - drawn.min()) / np.ptp(drawn) == pytest.approx(2.5 / 4, abs=0.02)
    constant, _ = draw(np.zeros(5, dtype=bool), [-3.0] * 5)
    assert is_like(constant, BLUE).any()
    assert not is_like(constant, SHADE).any()


def test_numbers_are_short():
    texts = {None: MISSING, -5.6e-17: "0.000", 0.12345: "0.123", -0.5: f"{MINUS}0.500", 0.000123: "0.00012"}
    for value, text in {**texts, 123456.0: "1.2e+05"}.items():
        assert format_number(value) == text


def summary(report, path, width=80) -> str:
    console = PlainConsole()
    console.width, console.file = width, StringIO()
    print_summary(report, console, path)
    return console.file.getvalue()


def test_the_summary_has_the_measures_with_intervals_and_the_path(tmp_path):
    """Two of the twelve rewards do not rank; of more, the best are listed."""
    report, path = full_report("a \x1b[31mpole", side=40), tmp_path / ("long" * 40) / "\x1b[2J.html"
    text = summary(report, path)
    assert "0.930 to 0.970" in text
    assert text.count("does not rank") == 2
    assert "a \\x1b[31mpole" in text
    assert text.endswith(f"Report: {path.parent}/\\x1b[2J.html\n")
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines()[:-1]) <= 80
    table = [
        MeasuredCandidate(candidate=make_candidate(alpha=n / 20), measures=report.table[0].measures) for n in range(14)
    ]
    text = summary(replace(report, table=table), path, width=120)
    assert "alpha 0.55" in text
    assert "alpha 0.6" not in text
    assert "2 more combinations are in the report." in text


def test_the_summary_of_nothing():
    why = "AUC was not measured: success is unknown, or the same for all states."
    text = summary(minimal_report(), "x.html", width=1_000)
    assert text.startswith(f'Mine-v0: "x"\n{why} To say which states succeed, return info["success"]')
    assert text.endswith("\nReport: x.html\n")


def test_a_check_says_in_words_what_follows():
    low, high = Interval(0.62, 0.6, 0.64), Interval(0.97, 0.9, 0.99)
    for measures, sentence in (
        (Measures(), "look at the states with the highest rewards"),
        (Measures(auc=low, control_auc=0.61, exploit_excess=0.5), "62 of 100 pairs, which controls reach, too: reword"),
        (Measures(auc=high, exploit_excess=0.1), "97 of 100 pairs; the search found failing states that are paid more"),
        (Measures(auc=high, exploit_excess=-0.1), "the search found no failing state"),
        (Measures(auc=high), "in 97 of 100 pairs."),
    ):
        table = [MeasuredCandidate(candidate=minimal_report().candidate, measures=measures)]
        assert sentence in summary(replace(minimal_report(), table=table), "x.html", width=1_000)
