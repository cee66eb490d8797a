"""The report of a check: one file that shows all that was found, also in a browser; and its summary in a terminal."""

import dataclasses
import re
import subprocess
import sys
from base64 import b64decode
from html.parser import HTMLParser
from io import BytesIO, StringIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from browsing import look_at
from PIL import Image
from reports import VERDICTS, draw_frames, full_report, make_choice, minimal_report
from rich.console import Console

from vlmrm_gym.check.agreement import measure_agreement
from vlmrm_gym.check.report import charts, pictures, render, write_report
from vlmrm_gym.check.report.plot import Plot
from vlmrm_gym.check.results import Cheat, CheatSearch, Landscape, Row, SignalCurves, Verdict
from vlmrm_gym.check.summary import print_summary
from vlmrm_gym.check.words import MINUS, MISSING, describe_gap, format_number, format_percent, format_seconds

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


NAMES = ("full", "minimal", "hostile")


@pytest.fixture(scope="module")
def folder(full, tmp_path_factory) -> Path:
    """A folder with reports of the names above."""
    folder = tmp_path_factory.mktemp("reports")
    (folder / "full.html").write_text(full)
    write_report(minimal_report(), folder / "minimal.html")
    write_report(full_report(HOSTILE), folder / "hostile.html")
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
        "verdict",
        "settings",
        "measures",
        "cheats",
        "agreement",
        "landscape",
        "signal",
        "viewpoints",
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
        ("verdict", ["exploitable", "The best cheat has a reward of 0.830", "Add a second view"]),
        ("settings", ["VLMRM/Humanoid-v0", "ViT-bigG-14", "textured", "front-side", "min", "best of 12"]),
        ("measures", ["0.950", "0.200", "0.610", "0.300", "0.520", "0.071"]),
        ("cheats", ["12,800", "0.740", "Cheat 5", "torso upright 6.310", "reward of 0.690"]),
        ("agreement", ["429 successes", "1,571 failures", "AUC 0.9", "All 429 states are successes"]),
        ("landscape", ["Leaning to a side", "alpha 0.5", "angle of the torso (degrees)", "succeed is unknown"]),
        ("signal", ["random", "held", "20 of 30 rollouts", "median of the goal states"]),
        ("viewpoints", [f"azimuth 180°, elevation {MINUS}60°", "0.030 below", "0.120 above"]),
        ("controls", ["another prompt 0.610", "rewards all alike", "The background would decide."]),
        ("sheets", ["Rollouts of a run", "success", "failure"]),
        ("combinations", ["hopeless", f"{MINUS}0.800", "The second view gains"]),
        ("notes", ["seed 3 was left out"]),
        ("command", ["--alpha 0 0.5 1", "1 min 35 s", "2 min 29 s"]),
    ],
)
def test_sections_show_what_was_found(page, section, texts):
    for text in texts:
        assert text in page.texts[section]


def test_what_was_left_out_is_explained():
    page = Page(render(minimal_report()))
    shown = [section["id"] for section in page.all("section")]
    assert shown == ["verdict", "settings", "measures", "cheats", "agreement", "viewpoints", "command"]
    assert "The states cannot be set" in page.texts["cheats"]
    assert "The environment has one view." in page.texts["viewpoints"]
    assert page.texts["measures"].count("not measured") == 6


def test_hostile_text_is_shown_as_it_is():
    report = full_report(HOSTILE)
    report = dataclasses.replace(
        report,
        subject=HOSTILE,
        verdict=Verdict(name="weak", reasons=[HOSTILE], next_steps=[HOSTILE]),
        landscapes=[
            Landscape(title=HOSTILE, axis=HOSTILE, positions=np.arange(3.0), curves={HOSTILE: np.ones(3)}, goal=None)
        ],
        agreements={HOSTILE: measure_agreement([0.0, 1.0], [False, True], resamples=5)},
        notes=[HOSTILE],
        gains=[HOSTILE],
        seconds={HOSTILE: 1.0},
        command=HOSTILE,
    )
    page = Page(render(report))
    assert "script" not in {tag for tag, _ in page.elements}
    assert all((image["src"] or "").startswith("data:image/jpeg;base64,") for image in page.all("img"))
    for section in ("verdict", "settings", "agreement", "landscape", "combinations", "notes", "command"):
        assert HOSTILE in page.texts[section]


def test_a_prompt_that_is_not_unicode_can_be_written(tmp_path):
    """A command line's bytes that are not UTF-8 are surrogates in Python."""
    write_report(full_report("kneeling \udcff"), tmp_path / "report.html")
    assert "kneeling \\udcff" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_file_stays_small_with_pictures_that_compress_badly(tmp_path):
    """5 cheats of 2 views and 2 contact sheets of 24 frames, all noise."""
    write_report(full_report(noise=1.0), tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 3_000_000


def test_without_a_judge_the_cheats_are_what_the_reward_likes():
    cheat = Cheat(reward=0.9, frames=draw_frames(1, 32, np.random.default_rng(0)), failed={})
    page = Page(render(dataclasses.replace(minimal_report(), cheats=CheatSearch(cheats=[cheat], scored=1))))
    assert "What the reward likes most" in page.texts["cheats"]
    assert "State 1" in page.texts["cheats"]
    assert "fails" not in page.texts["cheats"]
    assert len(page.all("img")) == 1


def test_a_search_without_cheats_says_so():
    found = CheatSearch(judged=True, true_rewards=np.array([0.5, 0.7]), scored=10)
    page = Page(render(dataclasses.replace(minimal_report(), cheats=found)))
    assert "The search found no cheat." in page.texts["cheats"]


def test_pictures_say_what_they_are(page):
    descriptions = [image["alt"] or "" for image in page.all("img")]
    assert len(descriptions) == 6 * 2 + 2 + 2 * 24
    assert "Cheat 2, with a reward of 0.800, view 1 of 2" in descriptions
    assert "Frame 24 of 24, failure" in descriptions
    assert len(set(descriptions)) > 50
    assert all(chart["aria-label"] for chart in page.all("svg") if "aria-hidden" not in chart)


def test_tables_can_be_read_aloud(page):
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(heading["scope"] in ("row", "col") for heading in page.all("th"))


def test_headings_skip_no_level(page):
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


@pytest.mark.parametrize("name", VERDICTS)
def test_every_verdict_has_a_colour(name):
    html = render(dataclasses.replace(minimal_report(), verdict=Verdict(name=name, reasons=[], next_steps=[])))
    assert f'class="verdict verdict-{name}"' in html
    assert re.search(rf"\.verdict-{name}[ ,]", html)


def test_embedded_pictures_keep_their_looks_and_their_limits():
    frame = draw_frames(1, 480, np.random.default_rng(0))[0]
    embedded = pictures.embed(frame[:, :240], 320)
    assert (embedded.width, embedded.height) == (160, 320)
    decoded = Image.open(BytesIO(b64decode(embedded.uri.partition(",")[2])))
    expected = Image.fromarray(frame[:, :240]).resize((160, 320))
    assert np.abs(np.asarray(decoded, dtype=int) - np.asarray(expected, dtype=int)).mean() < 3


def luminance(color: str) -> float:
    """Relative luminance by the Web Content Accessibility Guidelines."""
    channels = np.array([int(part) for part in re.findall(r"\d+", color)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("auc", np.linspace(0, 1, 21))
def test_numbers_on_the_heat_map_can_be_read(auc):
    background, text = re.fullmatch(r"background: (.*); color: (.*)", pictures.auc_style(auc)).groups()
    low, high = sorted([luminance(background), 1.0 if text == "#fff" else 0.0])
    assert (high + 0.05) / (low + 0.05) > 4.5


def test_goal_regions_end_halfway_between_states():
    positions = np.array([0.0, 1, 2, 3, 4])
    assert charts.goal_spans(positions, np.array([True, False, True, True, False])) == [(0.0, 0.5), (1.5, 3.5)]
    assert charts.goal_spans(positions, np.zeros(5, dtype=bool)) == []
    assert charts.goal_spans(positions, np.ones(5, dtype=bool)) == [(0.0, 4.0)]


def numbers(svg: str, attribute: str, css: str) -> np.ndarray:
    return np.array([float(n) for n in re.findall(rf'class="{css}"[^>]* {attribute}="([^"]*)"', svg)])


def test_histograms_show_fractions_of_each_class():
    """Four successes fill one bin; of two failures each fills another, half as high."""
    agreement = measure_agreement([1.0, 1, 1, 1, 0, 0.5], [True, True, True, True, False, False], bins=4, resamples=5)
    svg = charts.draw_histograms("rollouts", agreement).svg
    above, below = numbers(svg, "height", "success fill"), numbers(svg, "height", "failure fill")
    assert above.shape == (1,)
    np.testing.assert_allclose(below, [above[0] / 2] * 2, atol=0.2)


def test_lines_span_the_axes():
    plot = Plot((0, 10), (0, 1), height=100, y_ticks=2)
    plot.line([0, 10], [0, 1], "x")
    left, bottom, right, top = (float(n) for n in re.findall(r'points="(.*),(.*) (.*),(.*)"', plot.svg("x"))[0])
    assert 0 < left < right < 400
    assert 0 < top < bottom < 100
    assert re.findall(r'class="y-tick"[^>]*>([^<]*)', plot.svg("x")) == ["0", "0.5", "1"]


def test_every_behaviour_has_a_chart_over_the_same_range():
    rewards = np.array([[0.0, 1.0], [0.0, 0.5], [0.2, 0.4]])
    drawn = charts.draw_signal(SignalCurves(rewards=rewards, behaviours=["a", "b", "b"], signal=None))
    assert [chart.title for chart in drawn] == ["a", "b"]
    assert [str(chart.svg).count("<polyline") for chart in drawn] == [1, 2]
    ticks = [re.findall(r'class="y-tick"[^>]*>([^<]*)', str(chart.svg)) for chart in drawn]
    assert ticks[0] == ticks[1]


@pytest.mark.parametrize("value", [0.5, -3.0, 1e6, 0.0])
def test_rewards_that_are_all_alike_are_drawn(value):
    curves = SignalCurves(rewards=np.full((2, 5), value), behaviours=["random"] * 2, signal=None)
    landscape = Landscape(title="x", axis="x", positions=np.zeros(1), curves={"a": np.full(1, value)}, goal=None)
    found = CheatSearch(judged=True, cheats=full_report().cheats.cheats[:0], true_rewards=np.full(4, value), scored=1)
    agreement = measure_agreement([value] * 4, [True, False] * 2)
    report = dataclasses.replace(
        minimal_report(), signal=curves, landscapes=[landscape], cheats=found, agreements={"x": agreement}
    )
    assert not re.search(r'"[^"]*\b(nan|inf)\b', render(report))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, MISSING),
        (0.0, "0.000"),
        (-5.6e-17, "0.000"),
        (0.12345, "0.123"),
        (-0.5, f"{MINUS}0.500"),
        (0.000123, "0.00012"),
        (123456.0, "1.2e+05"),
    ],
)
def test_numbers_are_short(value, text):
    assert format_number(value) == text


def test_percentages_are_not_rounded_to_all_or_nothing():
    assert [format_percent(x) for x in (0, 0.001, 0.5, 0.999, 1)] == [
        "0 %",
        "less than 1 %",
        "50 %",
        "more than 99 %",
        "100 %",
    ]


def test_durations():
    assert [format_seconds(x) for x in (0.04, 59.94, 59.96, 119.7)] == ["0.0 s", "59.9 s", "1 min 0 s", "2 min 0 s"]


@pytest.mark.parametrize(
    ("gap", "text"), [(1.0, "nothing to climb"), (0.4, "40 %"), (0.0, "has the goal's reward"), (-0.1, "higher")]
)
def test_gaps_in_words(gap, text):
    assert text in describe_gap(gap)


def summary(report, path, width=80) -> str:
    console = Console(width=width, file=StringIO(), highlight=False)
    print_summary(report, console, path)
    return console.file.getvalue()


def test_the_summary_has_verdict_combinations_and_path(tmp_path):
    path = tmp_path / ("long" * 40) / "report.html"
    text = summary(full_report(), path)
    assert "Verdict: exploitable\n" in text
    assert "- Add a second view" in text
    assert text.count("a humanoid robot kneeling,") == 6
    assert f"Report: {path}\n" in text
    lines = text.splitlines()
    assert max(len(line) for line in lines[:-1]) <= 80


def test_the_summary_prints_markup_as_it_is(tmp_path):
    assert "[red]x[/oops]" in summary(full_report("[red]x[/oops]"), tmp_path)


def test_the_summary_lists_the_best_combinations_only(tmp_path):
    report = full_report()
    row = report.table[0]
    table = [Row(choice=make_choice(alpha=n / 10), measures=row.measures, verdict=row.verdict) for n in range(14)]
    text = summary(dataclasses.replace(report, table=table), tmp_path)
    assert "alpha 1.1" in text
    assert "alpha 1.2" not in text
    assert "2 more combinations are in the report." in text


def test_the_summary_of_nothing(tmp_path):
    assert summary(minimal_report(), "x.html") == 'Mine-v0: "x"\nVerdict: unknown\nReport: x.html\n'


def test_importing_the_report_loads_nothing_heavy():
    code = (
        "import sys; import vlmrm_gym.check.report, vlmrm_gym.check.summary;"
        "print([name for name in ('torch', 'jinja2', 'matplotlib', 'PIL') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("color_scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_report_works_in_a_browser(folder, browser, width, color_scheme):
    names = [f"{name}.html" for name in NAMES]
    problems, found = look_at(browser, f"{folder.as_uri()}/", names, width, color_scheme)
    assert problems == []
    assert set(found) == set(names)


LOOK = """() => [
    getComputedStyle(document.body).backgroundColor,
    getComputedStyle(document.querySelector(".plot text")).fill,
    getComputedStyle(document.querySelector("polyline")).stroke,
]"""


@pytest.mark.slow
def test_charts_follow_the_theme_and_print_is_light(folder, browser):
    tab = browser.new_page(color_scheme="light")
    tab.goto((folder / "full.html").as_uri())
    light = tab.evaluate(LOOK)
    tab.emulate_media(color_scheme="dark")
    dark = tab.evaluate(LOOK)
    tab.emulate_media(color_scheme="dark", media="print")
    printed = tab.evaluate(LOOK)
    tab.close()
    assert all(luminance(color) < 0.2 for color in (dark[0], *light[1:]))
    assert all(luminance(color) > 0.3 for color in (light[0], *dark[1:]))
    assert printed == light
