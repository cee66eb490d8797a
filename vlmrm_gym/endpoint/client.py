"""Requests to an OpenAI-compatible server. The key is read from the environment, and is in no message of ours."""

import json
import os
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from vlmrm_gym.endpoint.messages import Message
from vlmrm_gym.endpoint.reply import Failure, Reply, read_reply

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0
"""Seconds before a request is repeated; each further pause is twice as long."""


class ServerError(RuntimeError):
    """The server answered with an error, after so many requests."""

    def __init__(self, message: str, calls: int) -> None:
        super().__init__(message)
        self.calls = calls


class NoLogProbabilities(ServerError):
    """The server refuses requests for log probabilities, or for so many."""


def read_key(key_variable: str | None) -> str:
    """The key of a server; "none" for a server that needs none.

    Raises:
        ValueError: The environment variable is not set, or has something else.
    """
    key = "none" if key_variable is None else os.environ.get(key_variable, "").strip()
    if not key or not (key.isascii() and key.isprintable()):
        found = "has a character that no key has" if key else "is not set"
        raise ValueError(
            f"`key_variable` must name an environment variable that has the server's key. {key_variable} {found}. "
            "Set it, or pass key_variable=None for a server without keys."
        )
    return key


class Client:
    """Asks a server. Threads may share it.

    Args:
        address: The server, such as `http://127.0.0.1:8000/v1`.
        key_variable: The environment variable that has the key; None: the server needs none.
        timeout: Seconds for which a request may take.

    Raises:
        DependencyNotInstalled: The package `httpcore2` is missing.
        ValueError: The environment variable is not set.
    """

    def __init__(self, address: str, key_variable: str | None, timeout: float) -> None:
        from vlmrm_gym.endpoint.connection import Connection

        self._key = read_key(key_variable)
        self._connection = Connection(f"{address}/chat/completions", timeout)
        self.address = f"{urlsplit(address).scheme}://{urlsplit(address).netloc}"
        self.close = self._connection.close

    def create(
        self, model: str, messages: Sequence[Message], options: Mapping[str, Any], *, retries: int, alternatives: int
    ) -> Reply:
        """Ask a model. What fails is repeated, after `Retry-After` or longer and longer pauses.

        Args:
            model: As the server names it.
            messages: The question.
            options: Other fields of the request; those of `extra_body` are fields of it, too.
            retries: How often the request may be repeated.
            alternatives: Tokens in each place whose log probabilities are asked for; 0: none.

        Raises:
            NoLogProbabilities: The server refuses log probabilities, or so many.
            ConnectionError: It cannot be reached, or does not answer in time.
            ServerError: It answers with an error, or with what is no completion.
        """
        started, fields = time.monotonic(), {**options, **options.get("extra_body", {})}
        fields.pop("extra_body", None)
        fields |= {"model": model, "messages": messages}
        fields |= {"logprobs": True, "top_logprobs": alternatives} if alternatives else {}
        body, headers = json.dumps(fields).encode(), {"Authorization": f"Bearer {self._key}"}
        calls = 0
        while True:
            calls += 1
            try:
                reply = read_reply(self._connection.post(headers, body))
                break
            except Failure as failure:
                if not failure.again or calls > retries:
                    raise self._name(failure, calls, time.monotonic() - started, alternatives) from None
                pause = min(FIRST_PAUSE * 2 ** (calls - 1), LONGEST_PAUSE) * random.uniform(0.75, 1)
                time.sleep(pause if failure.pause is None else failure.pause)
        text = None if reply.text is None else self._clean(reply.text)
        seconds = time.monotonic() - started
        return replace(reply, text=text, model=self._clean(reply.model), calls=calls, seconds=seconds)

    def _name(self, failure: Failure, calls: int, seconds: float, alternatives: int) -> Exception:
        """The error that a failure is, which names the server and what to do."""
        status, said = failure.status, self._clean(str(failure))
        if status is None:
            return ConnectionError(
                f"The server at {self.address} could not be reached after {seconds:.0f} s and {calls} attempts: {said}."
            )
        if alternatives and status in (400, 403, 404, 405, 422, 500, 501) and "logprob" in failure.words.lower():
            return NoLogProbabilities(failure.words, calls)
        if status == 401:
            said += " Check the key."
        elif status in (400, 404, 415, 422) and re.search(
            r"image|vision|multi-?modal|\bcontent\b", said, re.IGNORECASE
        ):
            said += " If its model takes no images, choose one that does."
        return ServerError(f"The server at {self.address} {said}", calls)

    def _clean(self, text: str) -> str:
        """A text of the server's without the key, which servers may repeat."""
        return text.replace(self._key, "***") if len(self._key) > 4 else text
