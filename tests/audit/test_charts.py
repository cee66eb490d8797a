"""Charts and pictures of a check's report."""

import dataclasses
import re
from base64 import b64decode
from io import BytesIO

import numpy as np
import pytest
from browsing import luminance
from PIL import Image
from reports import draw_frames, minimal_report

from vlmrm_gym.audit.measures.agreement import measure_agreement
from vlmrm_gym.audit.report import charts, pictures, render
from vlmrm_gym.audit.report.svg import curve_style
from vlmrm_gym.audit.results import AdversarialSearch, Landscape, SignalCurves


def test_embedded_pictures_keep_their_looks_and_their_limits():
    frame = draw_frames(1, 480, np.random.default_rng(0))[0]
    element = pictures.embed(frame[:, :240], 320, 'a "frame"')
    uri, rest = re.fullmatch('<img src="data:image/jpeg;base64,([^"]*)" (.*)>', element).groups()
    assert rest == 'width="160" height="320" alt="a &#34;frame&#34;"'
    decoded = Image.open(BytesIO(b64decode(uri)))
    expected = Image.fromarray(frame[:, :240]).resize((160, 320))
    assert np.abs(np.asarray(decoded, dtype=int) - np.asarray(expected, dtype=int)).mean() < 3


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


def shapes(svg: str, style: str) -> list[np.ndarray]:
    """The corners of the paths whose style has a text, (N, 2) each, in units of the chart; down is positive."""
    paths = re.findall(r'<path d="([^"]*)"[^>]*style="([^"]*)"', svg)
    numbers = [re.findall(r"-?[\d.]+", path) for path, css in paths if style in css]
    return [np.array(own, dtype=float).reshape(-1, 2) for own in numbers]


def test_histograms_show_fractions_of_each_class():
    """Four successes fill one bin; of two failures each fills another, half as high."""
    agreement = measure_agreement([1.0, 1, 1, 1, 0, 0.5], [True, True, True, True, False, False], bins=4, resamples=5)
    svg = charts.draw_histograms("rollouts", agreement).svg
    above, below = (
        [np.ptp(bar[:, 1]) for bar in shapes(svg, f"fill: var(--{name})")] for name in ("success", "failure")
    )
    assert len(above) == 1
    np.testing.assert_allclose(below, [above[0] / 2] * 2, atol=0.2)


def ticks(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*text-anchor: end[^>]*>([^<]*)", svg)


def test_every_curve_has_a_style_of_its_own():
    assert len({curve_style(number) for number in range(36)}) == 36
    positions = np.arange(3.0)
    curves = {str(number): positions + number for number in range(10)}
    chart = charts.draw_landscape(Landscape(title="x", axis="x", positions=positions, curves=curves, goal=None))
    drawn = re.findall(r'style="(fill: none;[^"]*stroke-width: 2[^"]*)"', chart.svg)
    assert len(set(drawn)) == 10
    assert len({style.css for style, _ in chart.legend}) == 10


def test_charts_have_no_colours_but_the_style_sheets():
    svg = charts.draw_histograms("x", measure_agreement([0.0, 1, 2], [False, True, True], resamples=5)).svg
    assert re.findall("#[0-9a-fA-F]{3,6}", svg) == []
    assert set(re.findall(r"var\(--([\w-]+)\)", svg)) == {"success", "failure", "text", "muted", "rule"}


def test_every_behaviour_has_a_chart_over_the_same_range():
    rewards = np.array([[0.0, 1.0], [0.0, 0.5], [0.2, 0.4]])
    drawn = charts.draw_signal(SignalCurves(rewards=rewards, behaviours=["a", "b", "b"], signal=None))
    assert [chart.title for chart in drawn] == ["a", "b"]
    assert [len(shapes(chart.svg, "opacity: 0.65")) for chart in drawn] == [1, 2]
    assert ticks(drawn[0].svg) == ticks(drawn[1].svg)


@pytest.mark.parametrize("value", [0.5, -3.0, 1e6, 0.0])
def test_rewards_that_are_all_alike_are_drawn(value):
    curves = SignalCurves(rewards=np.full((2, 5), value), behaviours=["random"] * 2, signal=None)
    landscape = Landscape(title="x", axis="x", positions=np.zeros(1), curves={"a": np.full(1, value)}, goal=None)
    found = AdversarialSearch(knows_success=True, true_rewards=np.full(4, value), scored=1)
    agreement = measure_agreement([value] * 4, [True, False] * 2)
    report = dataclasses.replace(
        minimal_report(), signal=curves, landscapes=[landscape], exploits=found, agreements={"x": agreement}
    )
    assert not re.search(r'"[^"]*\b(nan|inf)\b', render(report))
