"""Sends HTTP requests to one server: a deadline for each whole reply, at most 8 MB of it, and no redirects."""

import random
import threading
import time
import urllib.request
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from gymnasium.error import DependencyNotInstalled

from vlmrm_gym.rewards.endpoint.reply import RequestFailed, Response

try:
    import httpcore2
except ImportError as error:
    raise DependencyNotInstalled(
        'A server is asked by the package httpcore2: pip install "vlmrm-gym[endpoint]".'
    ) from error

if TYPE_CHECKING:
    import ssl

Answer = TypeVar("Answer")
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0
"""Seconds before a request is repeated; each further pause is twice as long."""
MAX_BYTES = 8_000_000
"""Limit of a reply: 20 alternatives to each of 4,000 tokens take 6 MB."""
_PART = 16_384
"""Bytes that are sent at a time, so that a server that reads slowly does not outlast the deadline."""
_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": "vlmrm-gym",  # some gateways refuse requests without one
}


class Connection:
    """Keeps connections to a server for the next request. Threads may share them.

    A request may take `timeout` seconds, from looking up the host's name to the last byte of the reply. `close` ends
    the connections, requests in progress, and pauses before others.
    """

    def __init__(self, url: str, timeout: float) -> None:
        self._url, self._timeout = url, timeout
        self._pool = httpcore2.ConnectionPool(
            proxy=_find_proxy(url), max_connections=None, keepalive_expiry=5, network_backend=_Backend()
        )
        self._closed = threading.Event()
        self.close = weakref.finalize(self, _close, self._pool, self._closed)

    def ask(
        self,
        headers: dict[str, str],
        body: bytes,
        read: Callable[[Response], Answer],
        may_repeat: Callable[[int], bool],
    ) -> Answer:
        """Post a request, and read its response; repeat it, after `Retry-After` or longer and longer pauses.

        `may_repeat` is called with the number of failures. The last one is raised: a `RequestFailed`, also of `read`.
        """
        failures = 0
        while True:
            try:
                return read(self._post(headers, body))
            except RequestFailed as failure:
                failures += 1
                failure.attempts = failures
                if not failure.again or not may_repeat(failures):
                    raise
                pause = failure.pause
                if pause is None:
                    pause = min(FIRST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE) * random.uniform(0.75, 1)
                if self._closed.wait(pause):
                    raise

    def _post(self, headers: dict[str, str], body: bytes) -> Response:
        """Post a request. Raises a `RequestFailed` if the reply is late, too large or damaged."""
        deadlines = dict.fromkeys(("connect", "read", "write"), time.monotonic() + self._timeout)
        sent, more = list({**_HEADERS, **headers}.items()), {"timeout": deadlines}  # as `_Backend` takes timeouts
        try:
            with self._pool.stream("POST", self._url, headers=sent, content=body, extensions=more) as response:
                received = {name.decode("latin-1").lower(): text.decode("latin-1") for name, text in response.headers}
                encoding = received.get("content-encoding", "").lower()
                if encoding not in ("", "identity"):
                    raise RequestFailed(f"answered {response.status}, compressed as {encoding}", response.status)
                content = bytearray()
                for part in response.iter_stream():
                    content += part
                    if len(content) > MAX_BYTES:
                        raise RequestFailed(f"answered more than {MAX_BYTES / 1e6:.0f} MB", response.status)
                return Response(response.status, received, bytes(content))
        except httpcore2.TimeoutException as error:
            raise RequestFailed(f"no whole reply within {self._timeout:g} s", again=True) from error
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.ProxyError, OSError) as error:
            raise RequestFailed(str(error) or type(error).__name__, again=True) from error


def _close(pool: httpcore2.ConnectionPool, closed: threading.Event) -> None:
    closed.set()
    pool.close()


def _left(deadline: float | None) -> float:
    """Seconds to a deadline; raises `httpcore2.ReadTimeout` after it."""
    if (left := (deadline or 0.0) - time.monotonic()) <= 0:
        raise httpcore2.ReadTimeout
    return left


class _Backend(httpcore2.SyncBackend):
    """Makes connections whose timeouts are deadlines, by `time.monotonic`, and so those of whole requests."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        return _Stream(super().connect_tcp(host, port, _left(timeout), local_address, socket_options))


class _Stream(httpcore2.NetworkStream):
    def __init__(self, stream: httpcore2.NetworkStream) -> None:
        self._stream = stream
        self.close, self.get_extra_info = stream.close, stream.get_extra_info

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for begin in range(0, len(buffer), _PART):
            self._stream.write(buffer[begin : begin + _PART], _left(timeout))

    def start_tls(
        self, ssl_context: "ssl.SSLContext", server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, _left(timeout)))


def _find_proxy(url: str) -> httpcore2.Proxy | None:
    """Find the proxy that the environment names, as `HTTPS_PROXY` does; None if there is none."""
    address, proxies = urlsplit(url), urllib.request.getproxies()
    proxy_url = proxies.get(address.scheme) or proxies.get("all")
    if not proxy_url or urllib.request.proxy_bypass(address.netloc):
        return None
    proxy = urlsplit(proxy_url if "://" in proxy_url else f"http://{proxy_url}")
    auth = (unquote(proxy.username), unquote(proxy.password or "")) if proxy.username else None
    return httpcore2.Proxy(f"{proxy.scheme}://{proxy.netloc.rpartition('@')[2]}", auth=auth)
