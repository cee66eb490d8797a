"""Sends requests to an OpenAI-compatible server. The key is read from the environment, and no message shows it."""

import json
import os
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from vlmrm_gym.rewards.endpoint.messages import Message
from vlmrm_gym.rewards.endpoint.reply import Reply, RequestFailed, read_reply

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0
"""Seconds before a request is repeated; each further pause is twice as long."""


class ServerError(RuntimeError):
    """The server answered with an error."""


class NoLogProbabilities(ServerError):
    """The server refuses requests for log probabilities, or for so many."""


def read_key(api_key_env: str | None) -> str:
    """Read the key of a server; "none" for a server that needs none. Raises a ValueError if the variable has no key."""
    key = "none" if api_key_env is None else os.environ.get(api_key_env, "").strip()
    if not key or not (key.isascii() and key.isprintable()):
        problem = "has a character that no key has" if key else "is not set"
        raise ValueError(
            f"`api_key_env` must name an environment variable that has the server's key. {api_key_env} {problem}. "
            "Set it, or pass api_key_env=None for a server without keys."
        )
    return key


class Client:
    """Sends requests to a server, such as `http://127.0.0.1:8000/v1`; each may take `timeout` seconds.

    Threads may share a client. A missing key is a ValueError, a missing package `DependencyNotInstalled`.
    """

    def __init__(self, address: str, api_key_env: str | None, timeout: float) -> None:
        from vlmrm_gym.rewards.endpoint.connection import Connection

        self._key = read_key(api_key_env)
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
        """Request a completion; failed requests are repeated, after `Retry-After` or longer and longer pauses.

        `options` are other fields of the request; those of `extra_body` are fields of it, too. `alternatives` is how
        many tokens in each place come with log probabilities, 0 for none. `may_repeat` is called with the number of
        failures. No reply is a ConnectionError; an error, or a reply that is no completion, a `ServerError`.
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
            except RequestFailed as failure:
                failures += 1
                if not failure.again or not may_repeat(failures):
                    raise self._name(failure, failures, time.monotonic() - started, alternatives) from None
                pause = min(FIRST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE) * random.uniform(0.75, 1)
                time.sleep(pause if failure.pause is None else failure.pause)
        text = None if reply.text is None else self._clean(reply.text)
        return replace(reply, text=text, model=self._clean(reply.model), seconds=time.monotonic() - started)

    def _name(self, failure: RequestFailed, calls: int, seconds: float, alternatives: int) -> Exception:
        """The error to raise for a failure: it names the server and says what to do."""
        status, message = failure.status, self._clean(str(failure))
        if status is None:
            return ConnectionError(
                f"The server at {self.address} could not be reached after {seconds:.0f} s and {calls} attempts: "
                f"{message}."
            )
        if alternatives and status in (400, 403, 404, 405, 422, 500, 501) and "logprob" in failure.words.lower():
            return NoLogProbabilities(failure.words)
        if status == 401:
            message += " Check the key."
        elif status in (400, 404, 415, 422) and re.search(
            r"image|vision|multi-?modal|\bcontent\b", message, re.IGNORECASE
        ):
            message += " If its model takes no images, choose one that does."
        return ServerError(f"The server at {self.address} {message}")

    def _clean(self, text: str) -> str:
        """Mask the key in a text of the server's: servers may repeat it."""
        return text.replace(self._key, "***") if len(self._key) > 4 else text
