"""The page on which people answer."""

import base64
import io
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import numpy as np
import pytest
from browsing import look_at
from PIL import Image
from poles import accuracy, fit_to, is_second, make_pairs, make_side, measure_angle

from vlmrm_gym.preferences.answers import AnswersFile, ask
from vlmrm_gym.preferences.human import HumanLabeler
from vlmrm_gym.preferences.human_desk import Desk
from vlmrm_gym.preferences.pairs import Pair

PAIRS = make_pairs(5)


@contextmanager
def asking(labeler, pairs, path=None):
    """Ask a person in a thread; yields a function that waits for the answers."""
    results = []

    def run():
        with AnswersFile(path) as file:
            results.append(ask(labeler, pairs, file))

    thread = threading.Thread(target=run, daemon=True)
    address = labeler.address  # opens the page
    thread.start()
    wait_for(lambda: post(address, "next", tab="start")["total"] == len(pairs))
    post(address, "leave", tab="start")

    def finish():
        thread.join(20)
        return results[0]

    yield finish
    labeler.close()


def wait_for(true):
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def get(address):
    with urllib.request.urlopen(address, timeout=10) as response:
        return response.read()


def post(address, action, **said):
    with urllib.request.urlopen(address + action, json.dumps(said).encode(), timeout=10) as response:
        data = response.read()
    return json.loads(data) if data else None


def look(address, pair):
    """The angles in the last frames of both clips, as a browser gets them."""
    angles = []
    for side in ("left", "right"):
        picture = Image.open(io.BytesIO(get(f"{address}clips/{pair}/{side}")))
        picture.seek(getattr(picture, "n_frames", 1) - 1)
        angles.append(measure_angle(np.asarray(picture.convert("RGB"))))
    return angles


def answer_rightly(address, shown, tab):
    left, right = look(address, shown["pair"])
    return post(address, "answer", tab=tab, pair=shown["pair"], choice=int(right < left))


def test_answers_are_for_what_was_shown(tmp_path):
    labeler = HumanLabeler()
    with asking(labeler, PAIRS, tmp_path / "answers.db") as finish:
        shown = post(labeler.address, "next", tab="a")
        assert (shown["total"], shown["answered"]) == (5, 0)
        while shown["pair"] is not None:
            shown = answer_rightly(labeler.address, shown, "a")
        assert (shown["total"], shown["answered"]) == (5, 5)
        assert [answer.preference for answer in finish()] == [is_second(pair) for pair in PAIRS]


def test_equal_and_skip_and_undo(tmp_path):
    labeler, path = HumanLabeler(), tmp_path / "answers.db"
    with asking(labeler, PAIRS[:4], path) as finish, AnswersFile(path) as file:
        first = post(labeler.address, "next", tab="a")["pair"]
        second = post(labeler.address, "answer", tab="a", pair=first, choice=0)["pair"]
        wait_for(lambda: len(file.records()) == 1)
        back = post(labeler.address, "undo", tab="a")
        assert (back["pair"], back["answered"]) == (first, 0)
        wait_for(lambda: not file.records())  # if everything ends now, the pair is asked about again
        assert post(labeler.address, "answer", tab="a", pair=first, choice=0.5)["pair"] == second
        third = post(labeler.address, "answer", tab="a", pair=second, choice=None)["pair"]
        fourth = post(labeler.address, "answer", tab="a", pair=third, choice=1)["pair"]
        post(labeler.address, "answer", tab="a", pair=fourth, choice=0)
        assert post(labeler.address, "undo", tab="a")["answered"] == 4  # the session is complete
        assert [answer and answer.preference for answer in finish()] == [0.5, None, 1.0, 0.0]


def test_a_clip_that_is_not_drawn_any_more_does_not_wait():
    desk = Desk()
    session = desk.add(PAIRS[:1])
    drawing = desk.draw(desk.next("a")["pair"], "left")
    desk.remove(session)
    assert drawing.picture.done()


def test_two_tabs_have_different_pairs_and_the_first_answer_counts(monkeypatch):
    labeler = HumanLabeler()
    with asking(labeler, PAIRS[:2]) as finish:
        a, b = (post(labeler.address, "next", tab=tab)["pair"] for tab in "ab")
        assert a != b
        assert post(labeler.address, "next", tab="c")["pair"] is None  # for a while
        monkeypatch.setattr("vlmrm_gym.preferences.human_desk._LEASE", 0.0)
        assert post(labeler.address, "next", tab="c")["pair"] == a
        post(labeler.address, "answer", tab="a", pair=a, choice=0)
        late = post(labeler.address, "answer", tab="c", pair=a, choice=1)
        assert (late["answered"], late["pair"]) == (1, b)
        post(labeler.address, "answer", tab="b", pair=b, choice=1)
        assert [answer.preference for answer in finish()] == [0.0, 1.0]


def test_a_reload_shows_the_same_pair_and_a_closed_tab_leaves_its_own_to_others():
    labeler = HumanLabeler()
    with asking(labeler, PAIRS[:2]):
        first = post(labeler.address, "next", tab="a")["pair"]
        assert post(labeler.address, "next", tab="a")["pair"] == first
        post(labeler.address, "leave", tab="a")
        assert post(labeler.address, "next", tab="b")["pair"] == first


def test_nothing_is_served_without_the_token():
    labeler = HumanLabeler()
    with asking(labeler, PAIRS[:1]):
        root, _, token = labeler.address.rstrip("/").rpartition("/")
        pair = post(labeler.address, "next", tab="a")["pair"]
        other = token.swapcase()
        wrong = [f"{root}/", f"{root}/{other}/", f"{root}/{token[:-1]}/", f"{root}/{other}/clips/{pair}/left"]
        for address in [*wrong, f"{labeler.address}clips/{pair}/middle", f"{labeler.address}clips/x/left"]:
            with pytest.raises(urllib.error.HTTPError, match="404"):
                get(address)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            post(f"{root}/{other}/", "next", tab="a")
        assert len(token) >= 20


@pytest.mark.parametrize("said", [b"{", b"[]", b"{}", b'{"tab": "a", "pair": "x", "choice": 7}'])
def test_what_cannot_be_read_changes_nothing(said):
    labeler = HumanLabeler()
    with asking(labeler, PAIRS[:1]), pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(labeler.address + "answer", said, timeout=10)


def test_the_page_listens_on_the_loopback_alone_and_frees_its_port():
    labeler = HumanLabeler()
    port = int(labeler.address.split(":")[2].split("/")[0])
    assert labeler.address.startswith("http://127.0.0.1:")
    with pytest.raises(OSError, match="`port` must be free"):
        _ = HumanLabeler(port=port).address
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), 1)
    labeler.close()
    again = HumanLabeler(port=port)
    assert again.address != labeler.address
    again.close()
    labeler.close()


def test_training_goes_on_while_a_person_answers(tmp_path):
    labeler = HumanLabeler(wait=False)
    with AnswersFile(tmp_path / "answers.db") as file:
        assert ask(labeler, PAIRS[:1], file) == [None]
        wait_for(lambda: post(labeler.address, "next", tab="a")["pair"] is not None)
        assert ask(labeler, PAIRS[1:2], file) == [None]
        wait_for(lambda: post(labeler.address, "next", tab="a")["total"] == 2)
        answer_rightly(labeler.address, post(labeler.address, "next", tab="a"), "a")
        wait_for(lambda: len(file.records()) == 1)
        assert [answer and answer.preference for answer in ask(labeler, PAIRS[:2], file)] == [is_second(PAIRS[0]), None]
        answer_rightly(labeler.address, post(labeler.address, "next", tab="a"), "a")
        wait_for(lambda: all(asking.done() for asking in file.background))
    labeler.close()


def test_a_segment_is_shown_as_a_clip():
    pair = Pair(first=make_side(50, 40, 30), second=make_side(5, 10, 15), prompt="up")
    labeler = HumanLabeler(fps=20)
    with asking(labeler, [pair]):
        shown = post(labeler.address, "next", tab="a")["pair"]
        with Image.open(io.BytesIO(get(f"{labeler.address}clips/{shown}/left"))) as clip:
            assert (clip.format, clip.n_frames, clip.size) == ("WEBP", 3, (300, 200))
            clip.load()
            assert clip.info["duration"] == 50


def shown_angles(tab):
    """The angles in what the browser displays, from its pixels: uint8 RGB of both pictures."""
    pixels = tab.evaluate(
        """() => [...document.querySelectorAll("#pair img")].map(image => {
            const canvas = document.createElement("canvas");
            [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
            canvas.getContext("2d").drawImage(image, 0, 0);
            return canvas.toDataURL("image/png").split(",")[1];
        })"""
    )
    return [measure_angle(np.asarray(Image.open(io.BytesIO(base64.b64decode(one))).convert("RGB"))) for one in pixels]


def open_tab(context, address, count):
    tab = context.new_page()
    tab.goto(address)
    tab.wait_for_selector("#main:not(.away)")
    assert f"of {count} pairs are answered" in tab.text_content("#status")
    return tab


def press_rightly(tab):
    left, right = shown_angles(tab)
    before = tab.get_attribute("#main", "data-pair")
    tab.keyboard.press("ArrowLeft" if left < right else "ArrowRight")
    tab.wait_for_function(
        "before => document.getElementById('main').className === 'away' ||"
        " document.getElementById('main').dataset.pair !== before",
        arg=before,
    )


@pytest.mark.slow
def test_a_person_with_a_browser_answers_forty_pairs(browser, tmp_path):
    """From what is displayed alone; in two tabs, with a reload, an undo, and the other keys.

    A head that is fitted to these answers orders 0.8 or more of other pairs rightly.
    """
    labeler, pairs = HumanLabeler(), make_pairs(40)
    with asking(labeler, pairs, tmp_path / "answers.db") as finish:
        context = browser.new_context(viewport={"width": 390, "height": 800})
        one, two = (open_tab(context, labeler.address, 40) for _ in range(2))
        assert one.get_attribute("#main", "data-pair") != two.get_attribute("#main", "data-pair")
        for _ in range(10):
            press_rightly(one)
            press_rightly(two)
        one.reload()
        one.wait_for_selector("#main:not(.away)")
        assert "20 of 40" in one.text_content("#status")
        now = one.get_attribute("#main", "data-pair")
        one.keyboard.press("ArrowDown")
        one.wait_for_function("now => document.getElementById('main').dataset.pair !== now", arg=now)
        one.keyboard.press("u")
        one.wait_for_function("now => document.getElementById('main').dataset.pair === now", arg=now)
        two.close()
        one.wait_for_selector("#main:not(.away)")
        while one.get_attribute("#main", "class") != "away":
            press_rightly(one)
        answers = [answer.preference for answer in finish()]
        assert answers == [is_second(pair) for pair in pairs]
        assert accuracy(fit_to(pairs, answers), make_pairs(200, seed=99)) >= 0.8
        context.close()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1400])
def test_the_page_fits_its_window(browser, width, scheme):
    labeler = HumanLabeler()
    with asking(labeler, PAIRS):
        problems, _ = look_at(browser, labeler.address, [""], width, scheme)
        assert problems == []
