"""The labeler that asks a server: over a real socket, answered from the pixels that arrive there."""

import re
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from poles import draw_poles, is_second, make_pair, make_pairs
from vlm_server import KEY, PREAMBLE, VLMServer, body, completion, read, status

from vlmrm_gym.learning.answers import AnswersFile, ask
from vlmrm_gym.learning.endpoint import EndpointLabeler

PAIRS = make_pairs(6)


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr("vlmrm_gym.rewards.endpoint.connection.FIRST_PAUSE", 0.02)


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
def test_a_server_that_sees_is_believed(server, make):
    """In every way of asking, each pair is asked in both orders, and logprobs are tried once where there are none."""
    server.wordings += tuple(PREAMBLE + wording for wording in server.wordings)
    for server.logprobs, settings, calls in [
        (None, {"stages": 2}, 4),
        ("tokens", {"stages": 1}, 2),
        (None, {"stages": 1, "votes": 3}, 6),
        ("refused", {"stages": 1, "votes": 3}, 6),
    ]:
        server.requests, server.bodies = 0, []
        server.asked.clear()
        answers = answers_of(make(**settings))
        assert all(is_right(answers))
        assert server.requests == calls * len(PAIRS) + (server.logprobs == "refused")
        assert sum("logprobs" in one for one in server.bodies) == (
            0 if settings["stages"] == 2 else {None: 1, "refused": 1, "tokens": server.requests}[server.logprobs]
        )
        assert len(server.asked) == 2 * len(PAIRS)
        assert {images[::-1] for images in server.asked} == set(server.asked)
        if server.logprobs == "tokens":  # soft answers, as the server's
            for answer, pair in zip(answers, PAIRS, strict=True):
                first, second = (abs(side.states.rows[0, 1]) for side in (pair.first, pair.second))
                assert answer.preference == pytest.approx(1 / (1 + np.exp((second - first) / 20)), abs=0.03)
                assert answer.confidence > 0.95


def test_orders_that_contradict_each_other_are_no_preference(server, make):
    server.wordings = ["Image 1"]  # whatever it sees
    answers = answers_of(make())
    assert [(answer.preference, answer.confidence) for answer in answers] == [(0.5, 0.0)] * len(PAIRS)
    server.wordings = ["Neither."]
    assert {(answer.preference, answer.confidence) for answer in answers_of(make())} == {(0.5, 1.0)}


def test_what_is_no_answer_drops_its_pair_alone_and_is_counted(server, make):
    server.logprobs = "tokens"
    for stages in (1, 2):
        labeler = make(stages=stages)
        assert all(is_right(answers_of(labeler)))  # it knows now that there are log probabilities
        for content in ({"text": None}, {"text": ""}, {"text": None, "refusal": "I cannot help with that."}):
            fault = body(completion(content.pop("text"), **content))
            server.faults += [fault, fault] if stages == 1 else [fault]  # an answer is asked for twice
            (answer,) = answers_of(labeler, PAIRS[:1])
            assert answer.preference is None
            assert answer.details["dropped"]
        assert all(is_right(answers_of(labeler)))
    server.wordings, lines = ["I'm sorry, but I can't assist with that."], []
    assert ask(make(), PAIRS, progress=lines.append) == [None] * len(PAIRS)
    assert lines[-1].startswith("6 of 6 pairs, 6 dropped, 18 calls")


def test_budgets_hold_over_rounds(server, make, tmp_path, capsys):
    """A pair takes 4 calls and 440 tokens."""
    for budget, pairs in [(3, 0), (4, 1), (11, 2)]:
        server.requests = 0
        answers = answers_of(make(max_calls=budget))
        assert sum(answer is not None for answer in answers) == pairs
        assert server.requests == 4 * pairs
        assert f"{len(PAIRS) - pairs} of 6 pairs were not asked" in capsys.readouterr().out
    server.requests, labeler = 0, make(max_total_tokens=2_000)
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


def test_a_picture_that_cannot_be_drawn_waits_for_what_is_under_way(server, make, tmp_path):
    def fail(states, size=None, views=None):
        raise RuntimeError("no picture")

    server.latency = 0.05
    pairs = [*make_pairs(3), replace(PAIRS[5], draw=fail)]
    with AnswersFile(tmp_path / "answers.db") as file:
        labeler = make(concurrency=4, max_calls=16)
        with pytest.raises(RuntimeError, match="no picture"):
            ask(labeler, pairs, file)
        assert len(file.records()) == 3
        assert None not in ask(labeler, make_pairs(4), file)  # the budget has no call that was not sent


def test_progress_has_calls_tokens_cost_and_latency_and_what_a_server_answers_is_kept(make):
    lines = []
    answer = ask(make(price=(1_000.0, 2_000.0)), PAIRS, progress=lines.append)[0]
    assert len(lines) == len(PAIRS)
    # 24 calls of 100 tokens in and 10 out: 2.4 + 0.48 dollars
    assert re.fullmatch(r"6 of 6 pairs, 24 calls, 2,640 tokens, \$2\.8800, \d\.\d s a call", lines[-1])
    assert answer.details["model"] == "pole-gauge-1"
    assert (answer.details["calls"], answer.details["tokens"], answer.details["output_tokens"]) == (4, 440, 40)
    assert answer.details["orders"] == [is_second(PAIRS[0])] * 2
    assert "leans by" in answer.details["texts"][0]


def test_a_segment_is_shown_by_its_last_state_or_by_several(server, make):
    pair = make_pair([80, 60, 40], [10, 30, 50])
    ((_, answer),) = make().answers([pair])
    assert answer.preference == 0.0
    server.complete = lambda body, number: completion("1")
    list(make(num_frames=2, size=(10, 10)).answers([pair]))
    images, _ = read(server.bodies[-4]["messages"])
    assert [image.shape for image in images] == [(200, 600, 3)] * 2
    drawn = draw_poles(pair.first.states)
    np.testing.assert_array_equal(images[0], np.concatenate([drawn[0, 0], drawn[2, 0]], axis=1))


def test_questions_count_that_failed_or_whose_caller_stopped_reading(server, make):
    def fail(line):
        raise OSError("the disk is full")

    server.latency = 0.02
    labeler = make(max_calls=8, concurrency=3)
    for _ in range(2):  # each time, what is under way is given up, and no longer set aside
        with pytest.raises(OSError, match="full"):
            ask(labeler, PAIRS[:1], progress=fail)
    assert ask(labeler, PAIRS[:1]) == [None]
    server.requests, server.latency, labeler = 0, 0.0, make(max_calls=10, concurrency=1)
    for _ in range(6):  # the description comes, the judgement is refused
        server.faults += [None, status(400)]
        with suppress(RuntimeError):
            ask(labeler, PAIRS[:1])
        server.faults.clear()
    assert server.requests <= 10
