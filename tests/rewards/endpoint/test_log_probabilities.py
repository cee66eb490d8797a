"""Log probabilities are read in every spelling; a server that gives none is asked for votes."""

import math
import warnings

import numpy as np
import pytest
from vlm_server import chat, send

from vlmrm_gym import Endpoint

FRAMES = np.arange(6, dtype=np.uint8).reshape(2, 1, 1, 1, 3)
"""Two states, of a pixel each."""
YES_OR_NO = [("Yes", 0.7), ("No", 0.3)]


@pytest.fixture
def score(server):
    """Scores the first states by the server, which is asked about a prompt."""

    def score(prompt, number=1, **more):
        settings = {"model": "m", "base_url": server.url, "retries": 2, "timeout": 5.0, **more}
        return Endpoint(prompt=prompt, **settings).build()(FRAMES[:number]).tolist()

    return score


def test_tokens_are_read_by_their_marks_and_bytes(server, score):
    """By one request each, without a warning. See test_reply_options.py for the spellings."""
    for number, (yes, no) in enumerate([("ĠYes", "ĠNo"), (("token_id:9642", b"Yes"), ("token_id:2822", b"No"))], 1):
        others = [(yes, 0.7), (no, 0.3)]
        server.complete = lambda body, number, others=others: chat("Yes", [(others[0][0], 0.7, others)])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert score(str(others)) == [pytest.approx(0.7, abs=1e-6)]
        assert server.requests == number


NO_PROBABILITIES = {
    "empty": [("Yes", 0.7, [])],
    "no number": [("Yes", {"logprob": None}, YES_OR_NO)],
    "missing": [("Yes", {}, YES_OR_NO)],
    "NaN": [("Yes", {"logprob": math.nan}, YES_OR_NO)],
    "5000": [("Yes", 0.7, [("Yes", {"logprob": 5000}), ("No", 0.3)])],
    "more than all": [("Yes", 0.7, [("Yes", 1.0), ("No", 1.0)])],
    "no tokens": [],
}
OTHER_FORMS = [None, {}, {"content": None}, {"tokens": ["Yes"], "token_logprobs": [-0.1]}]


def test_what_is_no_probability_means_votes(server, score):
    """Three of five say yes. That votes are used, and what they cost, is said once."""
    replies = {why: {"places": places} for why, places in NO_PROBABILITIES.items()}
    for why, places in {**replies, **{str(form): {"logprobs": form} for form in OTHER_FORMS}}.items():
        texts = iter(["Yes", "No", "Yes", "No", "Yes"] * 2)
        server.requests, server.bodies = 0, []
        server.complete = lambda body, number, places=places, texts=texts: chat(next(texts), **places)
        with pytest.warns(UserWarning, match=r"m at http\S+ gives no log probabilities.* votes=5 replies") as warned:
            assert score(why, 2, concurrency=1) == [pytest.approx(0.6)] * 2
        assert len(warned) == 1
        assert server.requests == 10
        assert sum("logprobs" in one for one in server.bodies) == (10 if why == "more than all" else 1)


FEWER = [
    ((400, {"error": {"message": "top_logprobs must be <= 5."}}), [20, 5]),
    ((400, {"error": {"message": "Expected a value <= 3, but got 20 instead.", "param": "top_logprobs"}}), [20, 3]),
    ((400, {"error": {"message": "logprobs of 20 is greater than max allowed: 4"}}), [20, 4]),
    ((422, {"detail": [{"loc": ["body", "top_logprobs"], "msg": "Input should be less than or equal to 5",
                        "ctx": {"le": 5}, "url": "https://errors.pydantic.dev/2.11/v/x"}]}), [20, 5]),
    ((501, b"top_logprobs: at most 2"), [20, 2]),
]  # fmt: skip


def test_a_server_that_allows_fewer_alternatives_is_asked_for_so_many(server, score):
    for refusal, numbers in FEWER:

        def answer(handler, body, number, refusal=refusal, most=numbers[-1]):
            refused = body.get("top_logprobs", 0) > most
            send(handler, *refusal if refused else (200, chat("Yes", [("Yes", 0.7, YES_OR_NO)])))

        server.answer, server.bodies = answer, []
        assert score(str(refusal), 2, concurrency=1) == [pytest.approx(0.7)] * 2
        assert [one["top_logprobs"] for one in server.bodies] == [*numbers, numbers[-1]]


NONE = [
    ((400, {"error": {"message": "logprobs are not supported by this model"}}), [20]),
    ((500, {"error": {"message": "logprobs is not supported for models created with logits_all=False"}}), [20] * 3),
    ((422, {"detail": [{"loc": ["body", "top_logprobs"], "msg": "Extra inputs, not permitted"}]}), [20]),
    ((400, [{"error": {"message": "Unknown name logprobs"}}]), [20]),
    ((200, {"error": {"code": 400, "message": "logprobs are not supported"}}), [20]),
]


def test_a_server_that_refuses_log_probabilities_is_asked_for_votes(server, score):
    for refusal, numbers in NONE:

        def answer(handler, body, number, refusal=refusal):
            send(handler, *refusal if body.get("logprobs") else (200, chat("Yes")))

        server.answer, server.bodies = answer, []
        with pytest.warns(UserWarning, match=r"gives no log probabilities.* votes=5") as warned:
            assert score(str(refusal), 2, concurrency=1) == [1.0, 1.0]
        assert len(warned) == 1
        assert [one["top_logprobs"] for one in server.bodies if "logprobs" in one] == numbers
        assert len(server.bodies) == len(numbers) + 2 * 5
