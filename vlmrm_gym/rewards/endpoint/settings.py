"""`EndpointSettings` names a server: the fields that rewards, labelers and `program write` share."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from vlmrm_gym._util.validation import UNAFFECTED, answer_key, check_seconds, short_repr
from vlmrm_gym.rewards.clip import check_count, checked, integer, optional

_REFUSED = ("model", "messages", "logprobs", "top_logprobs", "stream", "n", "extra_headers", "extra_query", "timeout")
"""Fields of requests that this package sets, or that may have a key in them."""
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty")
SAMPLING += ("max_tokens", "max_completion_tokens", "reasoning_effort")
"""Fields of requests that a stranger's file may set: they spend a key on nothing but the answers."""
_LIMIT = UNAFFECTED | {"check": optional(integer(1, 10**15))}


@dataclass(frozen=True, kw_only=True)
class EndpointSettings:
    """A model behind an OpenAI-compatible server.

    The key is read from the environment when the first question is asked, and is kept nowhere. A TypeError or
    ValueError names the field that has a wrong value.
    """

    model: str = field(kw_only=False)
    """The model's name on the server."""
    base_url: str | None = field(default=None, kw_only=False)
    """Address of the server, such as `http://127.0.0.1:8000/v1`; None: the environment's `OPENAI_BASE_URL`, else
    OpenAI's."""
    api_key_env: str | None = field(default="OPENAI_API_KEY", metadata=UNAFFECTED)
    """Environment variable that has the key; None: the server needs none."""
    votes: int = field(default=5, metadata={"check": check_count})
    """Replies to each question, whose mean is taken if the server gives no log probabilities."""
    request: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Other fields of each request, such as {"temperature": 0, "max_completion_tokens": 300}. In files only those of
    `SAMPLING` are free."""
    max_calls: int | None = field(default=None, metadata=_LIMIT)
    """The most requests of all environments with an equal reward in this process, or of one labeler; None: no limit.
    No question is begun that might not be finished."""
    max_total_tokens: int | None = field(default=None, metadata=_LIMIT)
    """The most tokens, in and out, over all requests; a reply's own limit goes into `request`. A question is expected
    to need as many as the largest before it."""
    concurrency: int = field(default=8, metadata=UNAFFECTED | {"check": check_count})
    """The most requests at a time."""
    timeout: float = field(default=60.0, metadata=UNAFFECTED | {"check": check_seconds})
    """Seconds that a request may take, to the last byte of its reply."""
    retries: int = field(default=5, metadata=UNAFFECTED | {"check": integer(0, 1_000)})
    """How often a failed request is repeated, after `Retry-After` (up to two minutes) or longer and longer pauses."""

    @property
    def address(self) -> str:
        """The server's address. Raises a ValueError if the environment's `OPENAI_BASE_URL` is not one."""
        if self.base_url is not None:
            return self.base_url.rstrip("/")
        address = os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
        check_address("OPENAI_BASE_URL", address)
        return address.rstrip("/")

    @property
    def answer_key(self) -> str:
        """The server and the fields that affect answers, as JSON: stored answers are found again by it."""
        return answer_key(self, kind="endpoint", base_url=self.address)

    @property
    def used_up(self) -> str:
        """The beginning of a message that the budget is used up."""
        limits = f"max_calls={self.max_calls}, max_total_tokens={self.max_total_tokens}"
        return f"The budget of {self.model} is used up ({limits})"

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise ValueError(f"`model` must be a name that the server knows. Received {short_repr(self.model)}.")
        if self.base_url is not None:
            check_address("base_url", self.base_url)
        checked(self)
        try:
            names = {*self.request, *self.request.get("extra_body", {}).keys()}
            json.dumps(dict(self.request), allow_nan=False)
        except (AttributeError, TypeError, ValueError, RecursionError):
            raise ValueError(
                "`request` must be fields of a request, as JSON can hold them, and `extra_body` further ones. Received "
                f"{short_repr(self.request)}."
            ) from None
        if refused := names.intersection(_REFUSED):
            raise ValueError(
                f"`request` must not have {min(refused)!r}: it is set for each question, or may have a key, and this "
                "is written to files."
            )


def check_address(name: str, value: Any) -> str:
    """Return an address. Raise a ValueError unless it is that of a server, without a key in it."""
    address = None
    with suppress(ValueError):  # brackets or a port that are none
        address = urlsplit(value if isinstance(value, str) else "")
        address = address if address.scheme in ("http", "https") and address.hostname and address.port != 0 else None
    if address is None:
        raise ValueError(f'`{name}` must be an address such as "http://127.0.0.1:8000/v1". Received {value!r}.')
    if address.username or address.password or address.query:
        raise ValueError(
            f"`{name}` must not have a key, a password or a query in it, as it is written to files. Pass the key by "
            "the environment."
        )
    return value
