"""Asks an OpenAI-compatible server for completions. The key is read from the environment, and no message shows it."""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from vlmrm_gym.rewards.endpoint.messages import Message
from vlmrm_gym.rewards.endpoint.reply import Reply, RequestFailed, read_reply
from vlmrm_gym.rewards.endpoint.settings import EndpointSettings


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
    """Sends requests to the server of these settings. Threads may share a client.

    A missing key is a ValueError, a missing package `DependencyNotInstalled`.
    """

    def __init__(self, settings: EndpointSettings) -> None:
        from vlmrm_gym.rewards.endpoint.connection import Connection

        address, self._key = settings.address, read_key(settings.api_key_env)
        self._connection = Connection(f"{address}/chat/completions", settings.timeout)
        self._fields = {**settings.request, **settings.request.get("extra_body", {}), "model": settings.model}
        self._fields.pop("extra_body", None)
        self.address = f"{urlsplit(address).scheme}://{urlsplit(address).netloc}"
        self.close = self._connection.close

    def create(self, messages: Sequence[Message], alternatives: int, may_repeat: Callable[[int], bool]) -> Reply:
        """Request a completion; `may_repeat` is asked before a failed request is repeated, see `Connection.ask`.

        `alternatives` is how many tokens in each place come with log probabilities, 0 for none. No reply is a
        ConnectionError; an error, or a reply that is no completion, a `ServerError`.
        """
        started, fields = time.monotonic(), {**self._fields, "messages": messages}
        fields |= {"logprobs": True, "top_logprobs": alternatives} if alternatives else {}
        headers = {"Authorization": f"Bearer {self._key}"}
        try:
            reply = self._connection.ask(headers, json.dumps(fields).encode(), read_reply, may_repeat)
        except RequestFailed as failure:
            raise self._name(failure, time.monotonic() - started, alternatives) from None
        text = None if reply.text is None else self._clean(reply.text)
        return replace(reply, text=text, model=self._clean(reply.model), seconds=time.monotonic() - started)

    def _name(self, failure: RequestFailed, seconds: float, alternatives: int) -> Exception:
        """The error to raise for a failure, which names the server."""
        status, message = failure.status, self._clean(str(failure))
        if status is None:
            attempts = f"after {seconds:.0f} s and {failure.attempts} attempts"
            return ConnectionError(f"The server at {self.address} could not be reached {attempts}: {message}.")
        if alternatives and status in (400, 403, 404, 405, 422, 500, 501) and "logprob" in failure.words.lower():
            return NoLogProbabilities(failure.words)
        return ServerError(f"The server at {self.address} {message}")

    def _clean(self, text: str) -> str:
        """Mask the key in a text of the server's: servers may repeat it."""
        return text.replace(self._key, "***") if len(self._key) > 4 else text
