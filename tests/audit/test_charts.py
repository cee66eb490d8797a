"""Pictures of a check's report."""

import re
from base64 import b64decode
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from reports import draw_frames

from vlmrm_gym.audit.report import pictures
from vlmrm_gym.audit.results import Landscape


def decode(element):
    """The picture of an element, and what follows it."""
    kind, uri, rest = re.fullmatch('<img src="data:image/(.*);base64,([^"]*)" (.*)>', element).groups()
    return kind, Image.open(BytesIO(b64decode(uri))), rest


def test_embedded_pictures_keep_their_looks_and_their_limits():
    frame = draw_frames(1, 480, np.random.default_rng(0))[0]
    kind, decoded, rest = decode(pictures.embed(frame[:, :240], 320, 'a "frame"'))
    assert (kind, rest) == ("jpeg", 'width="160" height="320" alt="a &#34;frame&#34;"')
    expected = Image.fromarray(frame[:, :240]).resize((160, 320))
    assert np.abs(np.asarray(decoded, dtype=int) - np.asarray(expected, dtype=int)).mean() < 3


def test_goal_regions_end_halfway_between_states():
    positions = np.array([0.0, 1, 2, 3, 4])
    assert pictures.goal_spans(positions, np.array([True, False, True, True, False])) == [(0.0, 0.5), (1.5, 3.5)]
    assert pictures.goal_spans(positions, np.zeros(5, dtype=bool)) == []
    assert pictures.goal_spans(positions, np.ones(5, dtype=bool)) == [(0.0, 4.0)]


def draw(goal, *rewards):
    """The pixels of a landscape over five positions, RGB."""
    curves = {f"alpha {number}": np.array(own) for number, own in enumerate(rewards)}
    landscape = Landscape(title="Lean", axis="angle", positions=np.arange(5.0), curves=curves, goal=goal)
    kind, picture, rest = decode(pictures.draw_landscape(landscape))
    assert kind == "png"
    return np.asarray(picture.convert("RGB")).astype(int), rest


def test_a_landscape_shades_the_states_that_succeed_and_draws_a_line_for_each_curve():
    rising, falling = [0.0, 1, 2, 3, 4], [4.0, 3, 2, 1, 0]
    plain, alt = draw(None, rising)
    assert alt.endswith('alt="Lean: the reward over angle; alpha 0 from 0 to 4"')
    two, _ = draw(None, rising, falling)
    orange = np.abs(two - [255, 127, 14]).sum(-1) < 30
    assert orange.any()
    assert not (np.abs(plain - [255, 127, 14]).sum(-1) < 30).any()
    shaded, _ = draw(np.array([False, False, False, True, True]), rising)
    columns = np.flatnonzero((np.abs(shaded - [204, 230, 204]).sum(-1) < 20).any(0))
    drawn = np.flatnonzero((np.abs(plain - [31, 119, 180]).sum(-1) < 30).any(0))
    share = (columns.min() - drawn.min()) / np.ptp(drawn)
    assert share == pytest.approx(2.5 / 4, abs=0.02)


@pytest.mark.parametrize("value", [0.5, -3.0, 1e6, 0.0])
def test_rewards_that_are_all_alike_are_drawn(value):
    drawn, _ = draw(np.zeros(5, dtype=bool), [value] * 5)
    assert (np.abs(drawn - [31, 119, 180]).sum(-1) < 30).any()
