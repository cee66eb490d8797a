"""Requests to an OpenAI-compatible server. The key is read from the environment, and is in no message of ours."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gymnasium.error import DependencyNotInstalled

from vlmrm_gym.endpoint.messages import Message, Token
from vlmrm_gym.validation import truncate

NUM_ALTERNATIVES = 20
"""Tokens whose probabilities are asked for: the most that servers give."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a server answered."""

    text: str | None
    """None: it refused, or what it sent was no answer."""
    tokens: Sequence[Token] | None
    """The text's tokens; None without log probabilities."""
    truncated: bool
    model: str
    """As the server names it."""
    calls: int
    """Requests that were sent, those that failed included."""
    input_tokens: int
    output_tokens: int
    seconds: float


class ServerError(RuntimeError):
    """The server answered with an error, after so many requests."""

    def __init__(self, message: str, calls: int) -> None:
        super().__init__(message)
        self.calls = calls


class NoLogProbabilities(ServerError):
    """The server refuses requests for log probabilities."""


def read_key(key_variable: str | None) -> str:
    """The key of a server; "none" for a server that needs none.

    Raises:
        ValueError: The environment variable is not set, or has something else.
    """
    key = "none" if key_variable is None else os.environ.get(key_variable, "").strip()
    if not key or not key.isascii():
        found = "has a character that no key has" if key else "is not set"
        raise ValueError(
            f"`key_variable` must name an environment variable that has the server's key. {key_variable} {found}. "
            "Set it, or pass key_variable=None for a server without keys."
        )
    return key


class Client:
    """A connection to a server. Threads may share it.

    Args:
        base_url: The server; None: `OPENAI_BASE_URL` of the environment, else OpenAI's.
        key_variable: The environment variable that has the key; None: the server needs none.
        timeout: Seconds for which a request may take.

    Raises:
        DependencyNotInstalled: The package `openai` is missing.
        ValueError: The environment variable is not set.
    """

    def __init__(self, base_url: str | None, key_variable: str | None, timeout: float) -> None:
        try:
            import openai
        except ImportError as error:
            raise DependencyNotInstalled(
                'A server is asked by the package openai: pip install "vlmrm-gym[endpoint]".'
            ) from error
        self._openai, self._key = openai, read_key(key_variable)
        self._client = openai.OpenAI(api_key=self._key, base_url=base_url, timeout=timeout)
        self.address = f"{self._client.base_url.scheme}://{self._client.base_url.netloc.decode().rpartition('@')[2]}"

    def close(self) -> None:
        """End the connection, and requests in progress."""
        self._client.close()

    def create(
        self, model: str, messages: Sequence[Message], options: Mapping[str, Any], *, retries: int, logprobs: bool
    ) -> Reply:
        """Ask a model. The package `openai` repeats what fails, after `Retry-After` or longer and longer pauses.

        Raises:
            NoLogProbabilities: The server refuses `logprobs`.
            ConnectionError: It cannot be reached, or does not answer in time.
            ServerError: It answers with an error.
        """
        started = time.monotonic()
        asked = {"logprobs": True, "top_logprobs": NUM_ALTERNATIVES} if logprobs else {}
        completions = self._client.with_options(max_retries=retries).chat.completions.with_raw_response
        try:
            raw = completions.create(model=model, messages=messages, **asked, **options)  # pyright: ignore
        except self._openai.APIStatusError as error:
            said = self._clean(error.message)
            calls = 1 + int(error.request.headers.get("x-stainless-retry-count", retries))
            if logprobs and error.status_code in (400, 404, 422, 501) and "logprob" in said:
                raise NoLogProbabilities(said, calls) from None
            raise ServerError(
                f"The server at {self.address} answered {error.status_code}: {truncate(said, 500)} If its model takes "
                "no images, choose one that does.",
                calls,
            ) from None  # the error of the package holds the request, with its images and its key
        except self._openai.APIConnectionError as error:
            reason = self._clean(str(error.__cause__ or error)) or type(error.__cause__).__name__
            raise ConnectionError(
                f"The server at {self.address} could not be reached after {time.monotonic() - started:.0f} s and "
                f"{retries + 1} attempts: {truncate(reason)}."
            ) from None
        return self._read(raw, time.monotonic() - started)

    def _read(self, raw: Any, seconds: float) -> Reply:
        """What a response says. Servers that are only nearly compatible, and broken JSON, say nothing."""
        try:
            completion = raw.parse()
            choice = completion.choices[0]
            text = choice.message.content if not getattr(choice.message, "refusal", None) else None
            text = text if isinstance(text, str) else None
            listed = None if choice.logprobs is None else choice.logprobs.content
            tokens = listed and [
                Token(one.token, [(other.token, other.logprob) for other in one.top_logprobs]) for one in listed
            ]
            truncated, model, usage = choice.finish_reason == "length", str(completion.model), completion.usage
        except (AttributeError, IndexError, TypeError, ValueError, self._openai.OpenAIError):
            text = tokens = usage = None
            truncated, model = False, ""
        return Reply(
            text=None if text is None else self._clean(text),
            tokens=tokens or None,
            truncated=truncated,
            model=self._clean(model),
            calls=1 + raw.retries_taken,
            input_tokens=getattr(usage, "prompt_tokens", None) or 0,
            output_tokens=getattr(usage, "completion_tokens", None) or 0,
            seconds=seconds,
        )

    def _clean(self, text: str) -> str:
        """A text of the server's without the key, which servers may repeat."""
        return text.replace(self._key, "***") if len(self._key) > 4 else text
