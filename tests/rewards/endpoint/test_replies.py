"""What a server sends is read exactly or refused: over a real socket, by each of those who ask."""

import json
import math
import sqlite3
from collections import deque

import numpy as np
import pytest
from poles import make_pairs
from vlm_server import VLMServer, body, chat, send

from vlmrm_gym import Endpoint, load_reward
from vlmrm_gym._util.errors import InputError
from vlmrm_gym.learning import AnswersFile, EndpointLabeler, ask
from vlmrm_gym.rewards.endpoint.settings import EndpointSettings
from vlmrm_gym.rewards.saved import names_server
from vlmrm_gym.tools.cli.score import score as score_file
from vlmrm_gym.tools.program.writing import Conversation

FRAMES = np.arange(12, dtype=np.uint8).reshape(4, 1, 1, 1, 3)
"""Four states, of a pixel each."""
PAIRS = make_pairs(3)
YES_OR_NO = [("Yes", 0.7), ("No", 0.3)]


@pytest.fixture
def server(server):
    server.complete = lambda body, number: chat("Yes", [("Yes", 0.7, YES_OR_NO)])
    return server


@pytest.fixture
def make(server):
    settings = {"prompt": "The pole is upright.", "model": "m", "base_url": server.url, "retries": 2, "timeout": 5.0}
    return lambda **more: Endpoint(**{**settings, **more})


def score(reward, number=1):
    return reward.build()(FRAMES[:number]).tolist()


def label(server, pairs=PAIRS[:1], file=None, **settings):
    labeler = EndpointLabeler(model="m", base_url=server.url, **{"retries": 2, "timeout": 5.0, **settings})
    try:
        return ask(labeler, pairs, file)
    finally:
        labeler.close()


def converse(server, path, **settings):
    conversation = Conversation(EndpointSettings("m", server.url, **{"retries": 2, "timeout": 5.0, **settings}), path)
    try:
        return conversation.ask([{"role": "user", "content": "hello"}])
    finally:
        conversation.close()


def test_a_reply_without_probabilities_among_others_is_voted_on_within_the_budget(server, make):
    """The later states have none: they take as many votes as the budget has."""
    replies = [chat("Yes", [("Yes", 0.7, YES_OR_NO)]), *map(chat, ["No", "Yes", "Yes", "No", "Yes"])]
    server.complete = lambda body, number: replies[number - 1]
    model = make(concurrency=1, votes=3, max_calls=6).build()
    assert model(FRAMES[:1]).tolist() == [pytest.approx(0.7)]
    with pytest.warns(UserWarning, match="gives no log probabilities"):
        assert model(FRAMES[1:3]).tolist() == [pytest.approx(2 / 3), 0.5]
    with pytest.raises(InputError, match="is used up"):
        model(FRAMES[3:])
    assert server.requests == 6


PARTS = [{"type": "thinking", "thinking": []}, {"type": "text", "text": "Ye"}, {"type": "text", "text": "s"}]


def test_texts_are_read_in_parts_and_what_was_cut_off_is_said_to_be(server, make, tmp_path):
    server.complete = lambda body, number: chat(PARTS, [("Yes", 0.7, YES_OR_NO)])
    assert score(make()) == [pytest.approx(0.7)]
    assert converse(server, tmp_path / "answers.db") == ("Yes", False)
    server.complete = lambda body, number: chat([{"type": "text", "text": "2"}])
    assert label(server, stages=2)[0].details["texts"] == ["2"] * 4
    for reason in ("length", "MAX_TOKENS"):
        server.complete = lambda body, number, reason=reason: chat("def reward", finish_reason=reason)
        assert converse(server, tmp_path / f"{reason}.db") == ("def reward", True)
    server.complete = lambda body, number: chat("Yes", finish_reason="content_filter")  # withheld: no answer
    with pytest.raises(InputError, match=r"must answer with one of no, yes\. Received ''"):
        score(make(prompt="another"))


PAGE = body(b"<html>Welcome</html>", **{"Content-Type": "text/html"})
NO_COMPLETION = {
    "a page": (PAGE, "<html>Welcome"),
    "a list": (body(b"[1, 2]"), r"\[1, 2\]"),
    "events": (body(b'data: {"choices": []}'), "data:"),
    "an error of the user's": (body({"error": {"code": 404, "message": "no such model"}}), "404.*no such model"),
    "compressed": (body(b"\x0b\x02", **{"Content-Encoding": "br"}), "compressed as br"),
    "escapes": (body(b"\x1b[31mred"), r"\\x1b\[31mred"),
}


def test_what_is_no_completion_is_an_error_at_once_that_has_its_beginning(server, make, tmp_path):
    """It names the server, is not asked for again, and nothing is kept."""
    scores = tmp_path / "scores.db"
    for number, (fault, said) in enumerate(NO_COMPLETION.values(), 1):
        server.faults += [fault]
        with pytest.raises(InputError, match=rf"(?s)The server at http://127\.0\.0\.1:\d+ answered .*{said}"):
            score(make(cache=str(scores)))
        assert server.requests == number
    assert kept(scores) == 0


def kept(path):
    with sqlite3.connect(path) as file:
        return file.execute("SELECT count(*) FROM scores").fetchone()[0]


BROKEN = {
    "an error of a gateway": body({"error": {"code": 502, "message": "bad gateway"}}),
    "an error beside choices": body({**chat("Yes"), "error": {"message": "x"}}),
    "no choice": body({"choices": []}),
    "an error as the end": body(chat("No", finish_reason="error")),
    "an error in a choice": body(chat("No", error={"code": 502})),
    "a number as a text": body(chat(1)),
    "nothing": body(b""),
    "nesting": body(b'{"choices": ' + b"[" * 100_000),
    "parts that are none": body(chat(["Yes"])),
}


def test_a_broken_reply_is_asked_for_again_or_an_error_and_is_never_kept(server, make, tmp_path):
    for number, (name, fault) in enumerate(BROKEN.items()):
        reward = make(prompt=name, cache=str(tmp_path / "scores.db"))
        server.requests, server.faults = 0, deque([fault] * 2)
        assert score(reward) == [pytest.approx(0.7)]
        assert server.requests == 3
        server.faults += [fault] * 3
        with pytest.raises(InputError, match=r"answered (200|502)"):
            score(reward, 2)
        assert server.requests == 6
        assert kept(tmp_path / "scores.db") == 2 * number + 1
        assert score(reward, 2) == [pytest.approx(0.7)] * 2


def test_a_broken_reply_drops_no_pair(server, tmp_path):
    server.complete = lambda body, number: chat("Image 2")
    with AnswersFile(tmp_path / "answers.db") as file:
        server.faults += [BROKEN["no choice"], None, BROKEN["an error as the end"]]
        assert label(server, file=file)[0].preference == 0.5  # it says so in both orders
        server.faults += [BROKEN["no choice"]] * 3
        with pytest.raises(RuntimeError, match="a broken completion"):
            label(server, PAIRS, file)
        assert len(file.records()) == 1
        assert None not in [answer.preference for answer in label(server, PAIRS, file)]


USAGES = [
    None,
    {},
    "many",
    {"prompt_tokens": -100, "completion_tokens": 10},
    {"prompt_tokens": math.inf, "completion_tokens": 1},
    {"prompt_tokens": 0, "completion_tokens": 0},
]


def test_a_budget_of_tokens_needs_numbers_that_can_be_true(server, make):
    """Without a budget they are not needed."""
    for number, usage in enumerate(USAGES, 1):
        server.complete = lambda body, number, usage=usage: chat("Yes", [("Yes", 0.7, YES_OR_NO)]) | {"usage": usage}
        assert score(make(prompt=str(usage))) == [pytest.approx(0.7)]
        with pytest.raises(InputError, match="`max_total_tokens` needs a server that counts tokens"):
            score(make(prompt=str(usage), max_total_tokens=1000), 4)
        assert server.requests == 2 * number


def test_two_servers_of_one_model_name_have_their_own_answers(server, make, tmp_path, monkeypatch):
    """In one file, and by the environment's address as well."""
    path = str(tmp_path / "scores.db")
    with VLMServer() as other:
        other.complete = lambda body, number: chat("No", [("No", 0.9, [("Yes", 0.1), ("No", 0.9)])])
        for _ in range(2):
            assert score(make(cache=path)) == [pytest.approx(0.7)]
            assert score(make(cache=path, base_url=other.url)) == [pytest.approx(0.1)]
        monkeypatch.setenv("OPENAI_BASE_URL", f"{other.url}/")
        assert score(make(cache=path, base_url=None)) == [pytest.approx(0.1)]
        assert (server.requests, other.requests) == (1, 1)
        identities = [EndpointLabeler("m", url).answer_key for url in (server.url, other.url, None)]
        assert identities[0] != identities[1] == identities[2]


def test_fields_of_a_request_are_sent_as_they_are_or_refused(server, make):
    """Those of `extra_body`, too, as in the package openai."""
    request = {"temperature": 0, "guided_choice": ["Yes", "No"], "extra_body": {"chat_template_kwargs": {"a": False}}}
    score(make(request=request))
    (sent,) = server.bodies
    assert sent.items() >= {"temperature": 0, "guided_choice": ["Yes", "No"], "model": "m"}.items()
    assert sent["chat_template_kwargs"] == {"a": False}
    assert "extra_body" not in sent
    for fields, message in [
        ({"extra_body": {"model": "dear"}}, "not have 'model'"),
        ({"extra_body": 3}, "Received {'extra_body': 3}"),
        ({"stop": object()}, "as JSON can hold them"),
        ({"temperature": float("nan")}, "as JSON can hold them"),
    ]:
        with pytest.raises(ValueError, match=f"`request` must.*{message}"):
            make(request=fields)


def test_no_error_has_the_key_or_a_password(server, make, monkeypatch):
    """Not where a server repeats it as JSON may spell it, nor if no header can have it, nor that of an address."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-a/b-0123456789")
    repeated = b'{"error": "sk-a\\/b-0123456789 is \\u0073k-a/b-0123456789"}'
    server.faults += [lambda handler: send(handler, 400, repeated)]
    with pytest.raises(InputError, match=r'answered 400: {"error": "\*\*\* is \*\*\*"}'):
        score(make())
    monkeypatch.setenv("OPENAI_API_KEY", "sk-a\x07b")
    with pytest.raises(ValueError, match="has a character that no key has"):
        make().build()
    monkeypatch.setenv("OPENAI_BASE_URL", "http://me:secret@host/v1")
    with pytest.raises(ValueError, match="`OPENAI_BASE_URL` must not have a key") as caught:
        make(base_url=None).build()
    assert "secret" not in str(caught.value)


def test_an_address_in_a_file_that_is_none_is_named(tmp_path):
    (file := tmp_path / "reward.json").write_text(
        json.dumps({"kind": "endpoint", "prompt": "a", "model": "m", "base_url": "http://[x"})
    )
    with pytest.raises(ValueError, match="`base_url` must be an address such as"):
        load_reward(file)


def test_files_may_ask_for_samples_and_nothing_else(tmp_path):
    assert not names_server("endpoint", {"request": {"temperature": 0, "max_completion_tokens": 9, "seed": 1}})
    for request in ({"bogus": 1}, {"extra_body": {"model": "dear"}}):
        assert names_server("endpoint", {"request": request})
        (file := tmp_path / "reward.json").write_text(
            json.dumps({"kind": "endpoint", "prompt": "a", "model": "m", "request": request})
        )
        with pytest.raises(InputError, match=r"a `request` of more than temperature.* pass --trust-code"):
            score_file(tmp_path / "none.mp4", reward=str(file))
