"""Reads the replies of a chat completions server: exactly, or not at all."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import Any, NamedTuple

from vlmrm_gym._util.errors import printable
from vlmrm_gym._util.validation import is_finite, truncate

MAX_TOKENS = 10**8
"""Limit of a reply's token counts: no model has a longer context."""
_MAX_PAUSE = 120.0
"""The longest `Retry-After` that is waited for, in seconds."""
_TOLERANCE = 1e-3
"""How far the logarithm of a probability may be above 0, as half precision rounds."""
_CUT_OFF = ("length", "max_tokens", "model_length")
_BROKEN = ("error", "abort")
"""Reasons for the end of a text that a server gives for its own failure."""


@dataclass(eq=False)
class RequestFailed(Exception):
    """A request got no reply, or something else in its place."""

    message: str
    """The end of a sentence about the server."""
    status: int | None = None
    """Of HTTP; None without a reply in time."""
    again: bool = False
    """Whether the next request may succeed."""
    pause: float | None = None
    """Seconds to wait before, which the server names."""
    words: str = ""
    """The text that it sent."""
    attempts: int = 1
    """Requests that have failed, this one included."""

    def __str__(self) -> str:
        return self.message


class Response(NamedTuple):
    """The response of a server, with headers by their names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Token(NamedTuple):
    """A token of an answer, in plain text, its probability, and the most probable tokens in its place with theirs."""

    text: str
    probability: float
    alternatives: Sequence[tuple[str, float]]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The reply of a model."""

    text: str | None
    """None: the model refused, or sent no text."""
    tokens: Sequence[Token] | None
    """The text's tokens; None without log probabilities."""
    truncated: bool
    model: str
    """The server's name of the model."""
    input_tokens: int | None
    """None: the server gives no count, or one that cannot be true."""
    output_tokens: int | None
    seconds: float = 0.0


def read_reply(response: Response) -> Reply:
    """Read a completion. Raises a `RequestFailed` if the response is an error, no completion, or a broken one."""
    try:
        content = json.loads(response.body)
    except (ValueError, RecursionError):
        content = None
    error = content.get("error") if isinstance(content, dict) else None
    status = response.status
    if status == 200 and error:  # as gateways answer, when the server behind them fails
        code = str(error.get("code")) if isinstance(error, dict) else ""
        status = int(code) if re.fullmatch(r"[45]\d\d", code) else 502
    if status != 200:
        raise read_error(status, response)
    if not isinstance(content, dict) or not isinstance(content.get("choices"), list):
        torn = content is None and response.body.lstrip()[:1] in (b"", b"{")
        raise RequestFailed(f"answered 200 with what is no chat completion: {begin(response.body)}", 200, again=torn)
    try:
        return _read_completion(content)
    except (AttributeError, LookupError, TypeError, ValueError):
        raise RequestFailed(f"answered 200 with a broken completion: {begin(response.body)}", 200, again=True) from None


def words_of(body: bytes) -> str:
    """Turn a response's body into one line of text; JSON is written in plain characters."""
    try:
        text = json.dumps(json.loads(body), ensure_ascii=False)
    except (ValueError, RecursionError):
        text = body.decode("utf-8", "replace")
    return " ".join(printable(text).split())


def begin(body: bytes) -> str:
    """The beginning of a response's body, for a message."""
    return truncate(words_of(body), 500) or "nothing"


def read_error(status: int, response: Response) -> RequestFailed:
    """Read a response that is an error, of this status."""
    seconds = response.headers.get("retry-after", "")
    pause = float(seconds) if re.fullmatch(r"\d{1,9}(\.\d*)?", seconds) else None
    again = status in (408, 409, 425, 429) or (status >= 500 and status != 501)
    message = f"answered {status}: "
    if 300 <= status < 400:
        message += printable(f"a redirect to {response.headers.get('location')}, which is not followed. ")
    return RequestFailed(
        message + begin(response.body),
        status,
        again=again and (pause or 0) <= _MAX_PAUSE,
        pause=pause,
        words=words_of(response.body[:10_000]),
    )


def _read_completion(content: dict[str, Any]) -> Reply:
    """Read a completion. A broken one raises an AttributeError, LookupError, TypeError or ValueError."""
    choice = content["choices"][0]
    message, reason = choice["message"], choice.get("finish_reason")
    if not isinstance(reason, str | None) or reason in _BROKEN or choice.get("error"):
        raise ValueError(reason)
    text = _read_text(message.get("content"))
    usage = content.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    counts = [usage.get(name) or 0 for name in ("prompt_tokens", "completion_tokens")]
    known = any(counts) and all(type(count) is int and 0 <= count <= MAX_TOKENS for count in counts)
    return Reply(
        text=None if message.get("refusal") or reason == "content_filter" else text,
        tokens=_read_tokens(choice.get("logprobs")),
        truncated=str(reason).lower() in _CUT_OFF,
        model=truncate(str(content.get("model") or "")),
        input_tokens=counts[0] if known else None,
        output_tokens=counts[1] if known else None,
    )


def _read_text(content: Any) -> str | None:
    """Read a message's text, which may be in parts, beside others such as reasoning."""
    if isinstance(content, list):
        texts = [part["text"] for part in content if part["type"] in ("text", "output_text")]
        content = "".join(texts) if texts else None
    if not isinstance(content, str | None):
        raise TypeError(content)
    return content


def _read_tokens(logprobs: Any) -> list[Token] | None:
    """Read the tokens; None if there are none, no alternatives, or a number that is no probability."""
    try:
        tokens = [
            Token(*_read_token(one), [_read_token(other) for other in one.get("top_logprobs") or ()])
            for one in logprobs["content"]
        ]
    except (AttributeError, LookupError, TypeError, ValueError):
        return None
    return tokens if any(token.alternatives for token in tokens) else None


def _read_token(one: Any) -> tuple[str, float]:
    logprob = one["logprob"]
    if logprob != float("-inf") and not (is_finite(logprob) and logprob <= _TOLERANCE):
        raise ValueError(logprob)
    return spell(one["token"], one.get("bytes")), min(1.0, exp(logprob))


def spell(token: str, encoded: Any = None) -> str:
    r"""Spell a token in plain text: by its bytes where there are any, else with spaces for the marks of vocabularies.

    Byte-level BPE has marks from \u0100 to \u0143 for spaces, control characters and parts of others; none is for a
    letter or digit of an answer.

    >>> spell("ĠYes"), spell("▁Yes"), spell("<0x31>"), spell("token_id:9642", [89, 101, 115])
    (' Yes', ' Yes', '1', 'Yes')
    """
    if isinstance(encoded, list) and encoded and all(type(byte) is int and 0 <= byte < 256 for byte in encoded):
        token = bytes(encoded).decode("utf-8", "replace")
    if byte := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", token):
        return bytes.fromhex(byte[1]).decode("utf-8", "replace")
    return re.sub("[Ā-Ń▁]", " ", token)
