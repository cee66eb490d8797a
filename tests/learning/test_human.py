"""The page on which people answer."""

import base64
import io
import json
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import pytest
from browsing import look_at
from PIL import Image
from poles import accuracy, fit_to, is_second, make_pair, make_pairs, measure_angle

from vlmrm_gym.learning import AnswersFile, HumanLabeler, ask
from vlmrm_gym.learning.pictures import encode_clip

PAIRS = make_pairs(5)


@contextmanager
def asking(labeler, pairs, path=None):
    """Ask a person in a thread; yields a function that waits for the answers."""
    results = []

    def run():
        with AnswersFile(path) as file:
            try:
                results.append(ask(labeler, pairs, file))
            except RuntimeError as error:
                results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    address = labeler.address  # opens the page
    thread.start()
    wait_for(lambda: post(address, "next", tab="start")["total"] == len(pairs))
    post(address, "leave", tab="start")

    def finish():
        thread.join(20)
        return results[0]

    try:
        yield finish
    finally:
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
    """A segment of several states is a clip."""
    clip = make_pair([50, 40, 30], [5, 10, 15])
    with Image.open(io.BytesIO(encode_clip(clip.frames[0], 20))) as picture:
        assert (picture.format, picture.n_frames, picture.size) == ("WEBP", 3, (300, 200))
        picture.load()
        assert picture.info["duration"] == 50
    labeler = HumanLabeler(fps=20)
    with asking(labeler, [*PAIRS[:4], clip], tmp_path / "answers.db") as finish:
        shown = post(labeler.address, "next", tab="a")
        assert (shown["total"], shown["answered"]) == (5, 0)
        while shown["pair"] is not None:
            shown = answer_rightly(labeler.address, shown, "a")
        assert (shown["total"], shown["answered"]) == (5, 5)
        assert [answer.preference for answer in finish()] == [*(is_second(pair) for pair in PAIRS[:4]), 1.0]


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
        assert post(labeler.address, "undo", tab="a")["answered"] == 4  # the round is complete
        assert [answer and answer.preference for answer in finish()] == [0.5, None, 1.0, 0.0]


@pytest.mark.parametrize("closes", [True, False])
def test_a_clip_that_is_being_drawn_when_it_is_over_does_no_harm(closes, tmp_path):
    """Another clip waits behind it. Who asks gets an error if the page was closed; the answers before are kept."""
    begun, go_on = threading.Event(), threading.Event()

    def draw(states, size=None, views=None):
        begun.set()
        assert go_on.wait(20)
        return np.zeros((len(states), 1, 8, 8, 3), np.uint8)

    slow = make_pair(1, 2, draw=draw)
    pairs, labeler = [*make_pairs(1), slow], HumanLabeler()
    with asking(labeler, pairs, tmp_path / "answers.db") as finish:
        first = post(labeler.address, "next", tab="a")["pair"]
        second = post(labeler.address, "answer", tab="a", pair=first, choice=0)["pair"]
        ended = []

        def look_for(side):
            with suppress(OSError):
                get(f"{labeler.address}clips/{second}/{side}")
            ended.append(side)

        threads = [threading.Thread(target=look_for, args=(side,)) for side in ("left", "right")]
        threads[0].start()
        assert begun.wait(20)
        if not closes:
            post(labeler.address, "answer", tab="b", pair=second, choice=1)
        threads[1].start()
        time.sleep(0.2)  # until it waits behind the first
        if closes:
            labeler.close()
        go_on.set()
        for thread in threads:
            thread.join(5)  # less than `get` waits
        assert sorted(ended) == ["left", "right"]
        if closes:
            assert str(finish()) == "The page was closed: 1 of 2 pairs have no answer."
        else:
            assert [answer.preference for answer in finish()] == [0.0, 1.0]
    with AnswersFile(tmp_path / "answers.db") as file:
        assert [record.pair for record in file.records()] == [pair.key for pair in pairs[: 1 if closes else 2]]


def test_what_is_asked_later_is_shown_instead():
    """Who asked before is told: it does not wait for ever."""
    labeler = HumanLabeler()
    with asking(labeler, PAIRS[:2]) as finish_first, asking(labeler, PAIRS[2:5]) as finish:
        assert "2 of 2 pairs have no answer" in str(finish_first())
        shown = post(labeler.address, "next", tab="a")
        while shown["pair"] is not None:
            shown = answer_rightly(labeler.address, shown, "a")
        assert [answer.preference for answer in finish()] == [is_second(pair) for pair in PAIRS[2:5]]


def test_two_tabs_have_different_pairs_and_the_first_answer_counts(monkeypatch):
    """A reload shows the same pair; a tab that is closed leaves its own to others."""
    labeler = HumanLabeler()
    with asking(labeler, PAIRS[:2]) as finish:
        left = post(labeler.address, "next", tab="closed")["pair"]
        post(labeler.address, "leave", tab="closed")
        a, b = (post(labeler.address, "next", tab=tab)["pair"] for tab in "ab")
        assert left == a != b
        assert post(labeler.address, "next", tab="b")["pair"] == b
        assert post(labeler.address, "next", tab="c")["pair"] is None  # for a while
        monkeypatch.setattr("vlmrm_gym.learning.server.LEASE", 0.0)
        assert post(labeler.address, "next", tab="c")["pair"] == a
        post(labeler.address, "answer", tab="a", pair=a, choice=0)
        late = post(labeler.address, "answer", tab="c", pair=a, choice=1)
        assert (late["answered"], late["pair"]) == (1, b)
        post(labeler.address, "answer", tab="b", pair=b, choice=1)
        assert [answer.preference for answer in finish()] == [0.0, 1.0]


def said(**changes):
    return json.dumps({"tab": "a", "pair": "PAIR", "choice": 1, **changes}).encode()


WRONG = [
    *(b"", b"{", b"[]", b"{}", b"1", b"\xff", b'{"tab": "a", "pair": "PAIR"}', b"[" * 50_000),
    said().replace(b"1", b"[" * 100 + b"]" * 100),
    *(said(choice=choice) for choice in (True, False, 7, -1, "1", [], float("nan"), float("inf"), 10**400)),
    *(said(tab=tab) for tab in (None, "", 1, ["a"], "a" * 65)),
    *(said(pair=pair) for pair in (None, 1, ["PAIR"])),
    said(more=1),
]


def status(address, body=None, headers=None):
    try:
        with urllib.request.urlopen(urllib.request.Request(address, body, headers or {}), timeout=10) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


def test_a_request_that_is_not_right_is_refused_and_answers_nothing():
    labeler = HumanLabeler()
    with asking(labeler, PAIRS[:1]) as finish:
        pair = post(labeler.address, "next", tab="a")["pair"]
        for body in WRONG:
            assert status(labeler.address + "answer", body.replace(b"PAIR", pair.encode())) == 400, body[:40]
            shown = post(labeler.address, "next", tab="a")
            assert (shown["pair"], shown["answered"]) == (pair, 0), body[:40]
        assert status(labeler.address + "close", b'{"tab": "a"}') == 404
        assert post(labeler.address, "answer", tab="a", pair=pair, choice=1)["answered"] == 1
        assert finish()[0].preference == 1


def test_only_the_page_itself_is_answered_and_only_with_its_token():
    """A name that another site has made lead here, or a request of another site, gets nothing."""
    labeler = HumanLabeler()
    root, _, token = labeler.address.rstrip("/").rpartition("/")
    port, other = root.rpartition(":")[2], token.swapcase()
    assert len(token) >= 20
    with asking(labeler, PAIRS[:1]):
        pair = post(labeler.address, "next", tab="a")["pair"]
        wrong = [f"{root}/", f"{root}/{other}/", f"{root}/{token[:-1]}/", f"{root}/{other}/clips/{pair}/left"]
        for address in [*wrong, f"{labeler.address}clips/{pair}/middle", f"{labeler.address}clips/x/left"]:
            assert status(address) == 404
        assert status(f"{root}/{other}/next", b'{"tab": "a"}') == 404
        for host, origin, expected in [
            ("127.0.0.1:PORT", None, 200),
            ("localhost:PORT", "http://localhost:PORT", 200),
            ("evil.example:PORT", None, 403),
            ("127.0.0.1", None, 403),
            ("127.0.0.1.evil.example:PORT", None, 403),
            ("127.0.0.1:PORT", "http://evil.example", 403),
            ("127.0.0.1:PORT", "http://localhost:PORT", 403),
            ("127.0.0.1:PORT", "https://127.0.0.1:PORT", 403),
            ("127.0.0.1:PORT", "http://127.0.0.1:1", 403),
            ("127.0.0.1:PORT", "null", 403),
            ("127.0.0.1:PORT", "", 403),
        ]:
            headers = {"Host": host.replace("PORT", port)}
            if origin is not None:
                headers["Origin"] = origin.replace("PORT", port)
            for path, body in (("", None), (f"clips/{pair}/left", None), ("next", b'{"tab": "a"}')):
                assert status(labeler.address + path, body, headers) == expected, (host, origin)


def connect(labeler, *lines):
    """A connection that has sent a request's beginning."""
    port, path = labeler.address.removeprefix("http://127.0.0.1:").split("/", 1)
    connection = socket.create_connection(("127.0.0.1", int(port)), 20)
    head = [f"POST /{path}next HTTP/1.1", f"Host: 127.0.0.1:{port}", *lines]
    connection.sendall("\r\n".join(head).encode())
    return connection


def test_no_more_of_a_request_is_kept_than_one_may_have():
    """65,536 bytes are read, also where it does not say how many come."""
    labeler, part = HumanLabeler(), b"x" * 2**20
    with asking(labeler, PAIRS[:1]):
        for header, sends in (
            (f"Content-Length: {700 * 2**20}", part),
            ("Transfer-Encoding: chunked", b"100000\r\n" + part + b"\r\n"),
        ):
            sent = 0
            with connect(labeler, header, "\r\n") as connection, suppress(OSError):
                while sent < 700:
                    connection.sendall(sends)
                    sent += 1
            assert sent < 32  # what sockets hold
        body = b'{"tab": "a"}'.ljust(65_536)
        assert status(labeler.address + "next", body) == 200
        assert status(labeler.address + "next", body + b" ") == 413


def test_connections_that_send_no_request_are_few_and_end(monkeypatch):
    """200 that never complete one use up neither the process's descriptors nor the page."""
    monkeypatch.setattr("vlmrm_gym.learning.server.PATIENCE", 1.0)
    labeler = HumanLabeler()
    with asking(labeler, PAIRS[:1]), ExitStack() as connections:
        count, most = lambda: len(os.listdir("/proc/self/fd")) - opened, 0
        opened = len(os.listdir("/proc/self/fd"))
        for number in range(200):
            with suppress(OSError):  # it is closed at once
                lines = [] if number % 2 else ["Content-Length: 9", "\r\n12"]
                connections.enter_context(connect(labeler, *lines))
                opened += 1  # here, too, a connection needs a descriptor
            most = max(most, count())
        assert most <= 2 * 64 + 8  # open ones, and those that are about to be closed
        wait_for(lambda: count() <= 2)
        assert post(labeler.address, "next", tab="a")["pair"] is not None


def is_closed(connection):
    """Whether it is, after one more byte."""
    try:
        connection.sendall(b"P")
        time.sleep(0.05)
        connection.sendall(b"P")
    except OSError:
        return True
    return False


def test_a_connection_that_sends_slowly_is_closed(monkeypatch):
    """Also one that has had an answer, and goes on byte by byte."""
    monkeypatch.setattr("vlmrm_gym.learning.server.PATIENCE", 0.3)
    labeler = HumanLabeler()
    with asking(labeler, PAIRS[:1]):
        with connect(labeler, "Content-Length: 12", "\r\n123") as connection:
            assert connection.recv(1_000).startswith(b"HTTP/1.1 408")
        with connect(labeler, "Content-Length: 12", '\r\n{"tab": "a"}') as connection:
            assert connection.recv(10_000).startswith(b"HTTP/1.1 200")
            wait_for(lambda: is_closed(connection))


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
@pytest.mark.parametrize("width", [320, 390, 1400])
def test_the_page_fits_its_window(browser, width):
    labeler = HumanLabeler()
    with asking(labeler, PAIRS):
        problems, _ = look_at(browser, labeler.address, [""], width)
        assert problems == []
