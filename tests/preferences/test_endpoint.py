"""The labeler that asks a server: over a real socket, answered from the pixels that arrive there."""

import logging
import re
import threading
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from poles import draw_poles, is_second, make_pairs, make_side
from vlm_server import KEY, PREAMBLE, VLMServer, body, completion, status

from vlmrm_gym.preferences.answers import AnswersFile, ask
from vlmrm_gym.preferences.endpoint import EndpointLabeler
from vlmrm_gym.preferences.pairs import Pair

PAIRS = make_pairs(6)


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr("vlmrm_gym.endpoint.client.FIRST_PAUSE", 0.02)


@pytest.fixture
def server():
    with VLMServer() as server:
        yield server


@pytest.fixture
def make(server):
    """A function that makes labelers of the server, which are closed in the end."""
    made = []

    def make(**settings):
        made.append(EndpointLabeler(model="m", base_url=server.url, **{"retries": 2, "timeout": 5.0, **settings}))
        return made[-1]

    yield make
    for labeler in made:
        labeler.close()


def answers_of(labeler, pairs=PAIRS):
    answers = dict(labeler.answers(pairs))
    return [answers.get(i) for i in range(len(pairs))]


def is_right(answers, pairs=PAIRS):
    return [round(answer.preference) == is_second(pair) for answer, pair in zip(answers, pairs, strict=True)]


@pytest.mark.filterwarnings("ignore:.* gives no log probabilities")
@pytest.mark.parametrize(
    ("logprobs", "settings", "calls"),
    [
        (None, {"stages": 2}, 4),
        ("tokens", {"stages": 1}, 2),
        (None, {"stages": 1, "votes": 3}, 6),
        ("refused", {"stages": 1, "votes": 3}, 6),
    ],
)
def test_a_server_that_sees_is_believed(server, make, logprobs, settings, calls):
    """In every way of asking, each pair is asked in both orders, and logprobs are tried once where there are none."""
    server.logprobs = logprobs
    answers = answers_of(make(**settings))
    assert all(is_right(answers))
    assert server.requests == calls * len(PAIRS) + (logprobs == "refused")
    assert sum("logprobs" in one for one in server.bodies) == (
        0 if settings["stages"] == 2 else {None: 1, "refused": 1, "tokens": server.requests}[logprobs]
    )
    assert len(server.asked) == 2 * len(PAIRS)
    assert {images[::-1] for images in server.asked} == set(server.asked)


def test_log_probabilities_make_soft_answers(server, make):
    server.logprobs = "tokens"
    for answer, pair in zip(answers_of(make(stages=1)), PAIRS, strict=True):
        first, second = (abs(side.states.rows[0, 1]) for side in (pair.first, pair.second))
        assert answer.preference == pytest.approx(1 / (1 + np.exp((second - first) / 20)), abs=0.03)  # as the server's
        assert answer.confidence > 0.95


def test_orders_that_contradict_each_other_are_no_preference(server, make):
    server.wordings = ["Image 1"]  # whatever it sees
    answers = answers_of(make())
    assert [(answer.preference, answer.confidence) for answer in answers] == [(0.5, 0.0)] * len(PAIRS)
    server.wordings = ["Neither."]
    assert {(answer.preference, answer.confidence) for answer in answers_of(make())} == {(0.5, 1.0)}


def test_what_a_server_answers_is_kept(make):
    answer = answers_of(make(), PAIRS[:1])[0]
    assert answer.details["model"] == "pole-gauge-1"
    assert (answer.details["calls"], answer.details["tokens"], answer.details["output_tokens"]) == (4, 440, 40)
    assert answer.details["orders"] == [is_second(PAIRS[0])] * 2
    assert "leans by" in answer.details["texts"][0]


@pytest.mark.parametrize("stages", [1, 2])
def test_what_is_no_answer_drops_its_pair_alone(server, make, stages):
    server.logprobs, labeler = "tokens", make(stages=stages)
    faults = [
        body(completion(None)),
        body(completion("")),
        body(completion(None, refusal="I cannot help with that.")),
        body(completion("<think>Image 1 or image 2? 1, I guess, but")),
    ]
    assert all(is_right(answers_of(labeler)))
    for fault in faults:
        server.faults += [fault]
        (answer,) = answers_of(labeler, PAIRS[:1])
        assert answer.preference is None
        assert answer.details["dropped"]
    assert all(is_right(answers_of(labeler)))


def test_refusals_in_words_are_no_answers_and_are_counted(server, make):
    server.wordings, lines = ["I'm sorry, but I can't assist with that."], []
    assert ask(make(), PAIRS, progress=lines.append) == [None] * len(PAIRS)
    assert lines[-1].startswith("6 of 6 pairs, 6 dropped, 12 calls")


@pytest.mark.parametrize("stages", [1, 2])
def test_a_preamble_of_thinking_is_skipped(server, make, stages):
    server.wordings = [PREAMBLE + wording for wording in server.wordings]
    server.logprobs = "tokens"
    assert all(is_right(answers_of(make(stages=stages))))


@pytest.mark.parametrize(("budget", "pairs"), [(3, 0), (4, 1), (11, 2), (23, 5)])
def test_a_budget_of_calls_holds(server, make, budget, pairs, capsys):
    answers = answers_of(make(call_budget=budget))
    assert sum(answer is not None for answer in answers) == pairs
    assert server.requests == 4 * pairs
    assert f"{len(PAIRS) - pairs} of 6 pairs were not asked" in capsys.readouterr().out


def test_a_budget_holds_when_requests_fail(server, make):
    server.faults += [status(500)] * 3
    answers_of(make(call_budget=14, retries=5))
    assert server.requests <= 14


def test_a_budget_of_tokens_holds_over_sessions(server, make, tmp_path, capsys):
    """A pair takes 440."""
    labeler = make(token_budget=2_000)
    with AnswersFile(tmp_path / "answers.db") as file:
        first = ask(labeler, PAIRS[:3], file)
        again = ask(labeler, PAIRS, file)
    assert sum(answer is not None for answer in first) == 3
    assert sum(answer is not None for answer in again) == 4
    assert server.requests == 4 * 4


def test_an_error_of_the_server_ends_the_session_and_what_was_answered_is_kept(server, make, tmp_path):
    labeler = make(concurrency=1)
    with AnswersFile(tmp_path / "answers.db") as file:
        ask(labeler, PAIRS[:3], file)
        server.faults += [status(400, "this model takes no images")]
        with pytest.raises(RuntimeError, match=r"127\.0\.0\.1:\d+ answered 400.*takes no images"):
            ask(labeler, PAIRS, file)
        assert len(file.records()) == 3
        ask(labeler, PAIRS, file)
        assert len(file.records()) == len(PAIRS)
    assert server.requests == 4 * len(PAIRS) + 1


def test_a_failure_waits_for_what_is_under_way(server, make, tmp_path):
    """Answers that are paid for are kept."""
    server.latency = 0.05
    with AnswersFile(tmp_path / "answers.db") as file:
        threading.Timer(0.3, lambda: server.faults.append(status(401, f"wrong key {KEY}"))).start()
        with pytest.raises(RuntimeError, match="401"):
            ask(make(concurrency=4), make_pairs(40), file)
        assert sum(count for count in server.asked.values()) // 2 - 1 <= len(file.records())


def test_a_picture_that_cannot_be_drawn_waits_for_what_is_under_way(server, make, tmp_path):
    def fail(states, size=None, views=None):
        raise RuntimeError("no picture")

    server.latency = 0.05
    pairs = [*make_pairs(3), replace(PAIRS[5], first=replace(PAIRS[5].first, draw=fail))]
    with AnswersFile(tmp_path / "answers.db") as file:
        labeler = make(concurrency=4, call_budget=16)
        with pytest.raises(RuntimeError, match="no picture"):
            ask(labeler, pairs, file)
        assert len(file.records()) == 3
        assert None not in ask(labeler, make_pairs(4), file)  # the budget has no call that was not sent


def test_without_a_key_nothing_is_asked(server, make, monkeypatch, tmp_path):
    monkeypatch.delenv("OPENAI_API_KEY")
    with AnswersFile(tmp_path / "answers.db") as file, pytest.raises(ValueError, match="OPENAI_API_KEY is not set"):
        ask(make(), PAIRS, file)
    assert all(is_right(answers_of(make(key_variable=None), PAIRS[:1]), PAIRS[:1]))


def test_the_key_is_sent_and_appears_nowhere(server, make, tmp_path, caplog, capfd):
    """Not in the file, in texts of errors that repeat it, in values, logs or the terminal; nor do images."""
    caplog.set_level(logging.DEBUG)
    labeler, lines = make(concurrency=1, price=(1.0, 2.0)), []
    server.wordings = [f"Your key is {KEY}. Image {{n}}."]
    with AnswersFile(tmp_path / "answers.db") as file:
        ask(labeler, PAIRS, file, progress=lines.append)
        server.faults += [status(401, f"Incorrect API key provided: {KEY}")]
        with pytest.raises(RuntimeError) as caught:
            ask(labeler, make_pairs(1, seed=1), file)
    assert server.keys == {f"Bearer {KEY}"}
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    said = "".join([str(caught.value), repr(caught.value), repr(labeler), *capfd.readouterr(), *lines])
    said += "".join(str(value) for value in (caught.value.__cause__, caught.value.args))
    ours = [record for record in caplog.records if not record.name.startswith("httpcore")]
    said += "".join(record.getMessage() for record in ours)
    assert KEY.encode() not in written
    assert b"data:image" not in written
    assert KEY not in said + caplog.text
    assert "data:image" not in said


def test_progress_has_calls_tokens_cost_and_latency(make):
    lines = []
    ask(make(price=(1_000.0, 2_000.0)), PAIRS, progress=lines.append)
    assert len(lines) == len(PAIRS)
    # 24 calls of 100 tokens in and 10 out: 2.4 + 0.48 dollars
    assert re.fullmatch(r"6 of 6 pairs, 24 calls, 2,640 tokens, \$2\.8800, \d\.\d s a call", lines[-1])


def test_a_segment_is_shown_by_its_last_state_or_by_several(server, make):
    sides = [make_side(80, 60, 40), make_side(10, 30, 50)]
    pair = Pair(first=sides[0], second=sides[1], prompt="upright")
    ((_, answer),) = make().answers([pair])
    assert answer.preference == 0.0
    server.complete = lambda body, number: completion("1")
    list(make(num_frames=2, size=(10, 10)).answers([pair]))
    from vlm_server import read

    images, _ = read(server.bodies[-4]["messages"])
    assert [image.shape for image in images] == [(200, 600, 3)] * 2
    assert (images[0][:, 300:] == draw_poles(sides[0].states)[2, 0]).all()
    assert (images[0][:, :300] == draw_poles(sides[0].states)[0, 0]).all()


def test_what_was_asked_counts_if_the_caller_stops_reading(server, make):
    def fail(line):
        raise OSError("the disk is full")

    server.latency = 0.02
    labeler = make(call_budget=8, concurrency=3)
    for _ in range(2):  # each time, what is under way is given up, and no longer set aside
        with pytest.raises(OSError, match="full"):
            ask(labeler, PAIRS[:1], progress=fail)
    assert ask(labeler, PAIRS[:1]) == [None]


def test_what_failed_questions_cost_counts(server, make):
    labeler = make(call_budget=10, concurrency=1)
    for _ in range(6):  # the description comes, the judgement is refused
        server.faults += [None, status(400)]
        with suppress(RuntimeError):
            ask(labeler, PAIRS[:1])
        server.faults.clear()
    assert server.requests <= 10
