"""Requests to an OpenAI-compatible server. The key is read from the environment, and is in no message of ours."""

import json
import os
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from vlmrm_gym.endpoint.messages import Message
from vlmrm_gym.endpoint.reply import Failure, Reply, read_reply

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0
"""Seconds before a request is repeated; each further pause is twice as long."""


class ServerError(RuntimeError):
    """The server answered with an error."""


class NoLogProbabilities(ServerError):
    """The server refuses requests for log probabilities, or for so many."""


def read_key(key_variable: str | None) -> str:
    """The key of a server; "none" for a server that needs none. A ValueError if the variable has none."""
    key = "none" if key_variable is None else os.environ.get(key_variable, "").strip()
    if not key or not (key.isascii() and key.isprintable()):
        found = "has a character that no key has" if key else "is not set"
        raise ValueError(
            f"`key_variable` must name an environment variable that has the server's key. {key_variable} {found}. "
            "Set it, or pass key_variable=None for a server without keys."
        )
    return key


class Client:
    """Asks a server, of an address such as `http://127.0.0.1:8000/v1`, for at most `timeout` seconds a request.

    Threads may share it. A missing key is a ValueError, a missing package `DependencyNotInstalled`.
    """

    def __init__(self, address: str, key_variable: str | None, timeout: float) -> None:
        from vlmrm_gym.endpoint.connection import Connection

        self._key = read_key(key_variable)
        self._connection = Connection(f"{address}/chat/completions", timeout)
        self.address = f"{urlsplit(address).scheme}://{urlsplit(address).netloc}"
        self.close = self._connection.close

    def create(
        self,
        model: str,
        messages: Sequence[Message],
        options: Mapping[str, Any],
        alternatives: int,
        may_repeat: Callable[[int], bool],
    ) -> Reply:
        """Ask a model. What fails is repeated, after `Retry-After` or longer and longer pauses.

        `options` are other fields of the request; those of `extra_body` are fields of it, too. `alternatives` is how
        many tokens in each place come with log probabilities, 0 for none. `may_repeat` is called with the number of
        failures. No reply is a ConnectionError; an error, or what is no completion, a `ServerError`.
        """
        started, fields = time.monotonic(), {**options, **options.get("extra_body", {})}
        fields.pop("extra_body", None)
        fields |= {"model": model, "messages": messages}
        fields |= {"logprobs": True, "top_logprobs": alternatives} if alternatives else {}
        body, headers = json.dumps(fields).encode(), {"Authorization": f"Bearer {self._key}"}
        failures = 0
        while True:
            try:
                reply = read_reply(self._connection.post(headers, body))
                break
            except Failure as failure:
                failures += 1
                if not failure.again or not may_repeat(failures):
                    raise self._name(failure, failures, time.monotonic() - started, alternatives) from None
                pause = min(FIRST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE) * random.uniform(0.75, 1)
                time.sleep(pause if failure.pause is None else failure.pause)
        text = None if reply.text is None else self._clean(reply.text)
        return replace(reply, text=text, model=self._clean(reply.model), seconds=time.monotonic() - started)

    def _name(self, failure: Failure, calls: int, seconds: float, alternatives: int) -> Exception:
        """The error that a failure is, which names the server and what to do."""
        status, said = failure.status, self._clean(str(failure))
        if status is None:
            return ConnectionError(
                f"The server at {self.address} could not be reached after {seconds:.0f} s and {calls} attempts: {said}."
            )
        if alternatives and status in (400, 403, 404, 405, 422, 500, 501) and "logprob" in failure.words.lower():
            return NoLogProbabilities(failure.words)
        if status == 401:
            said += " Check the key."
        elif status in (400, 404, 415, 422) and re.search(
            r"image|vision|multi-?modal|\bcontent\b", said, re.IGNORECASE
        ):
            said += " If its model takes no images, choose one that does."
        return ServerError(f"The server at {self.address} {said}")

    def _clean(self, text: str) -> str:
        """A text of the server's without the key, which servers may repeat."""
        return text.replace(self._key, "***") if len(self._key) > 4 else text
