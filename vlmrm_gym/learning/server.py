"""Serves the page on which people answer: a server on the loopback hands out pairs to tabs."""

import asyncio
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from vlmrm_gym._util.untrusted import parse_json
from vlmrm_gym.data.trajectory import Trajectory
from vlmrm_gym.learning.pairs import Answer, Pair

LEASE = 60.0
"""Seconds after which a tab without pairs may show the pair of another, and that a clip may take."""
MAX_BODY, MAX_CONNECTIONS, PATIENCE = 65_536, 64, 10.0
"""Bytes of a request, connections at a time, and seconds that each has to send a request."""
ACTIONS = {"next": {"tab"}, "undo": {"tab"}, "leave": {"tab"}, "answer": {"tab", "pair", "choice"}}
"""The fields of a request's JSON."""
NO_STORE = {"Cache-Control": "no-store"}


class _Item:
    def __init__(self, pair: Pair, number: int) -> None:
        self.pair, self.number, self.id = pair, number, secrets.token_hex(8)
        self.tab, self.answered_by, self.since = "", "", 0.0
        """The tab that shows it, the one that answered, and when that was."""


class Page:
    """Runs the server in a thread; requests need its token. An OSError says that the port is in use."""

    def __init__(self, port: int) -> None:
        self._items, self._is_asking, self._prompt, self._events = list[_Item](), False, "", SimpleQueue[Any]()
        """Events: (side, future of its clip), (number of a pair, answer or None: it was undone), or None: the end."""
        try:
            listening = socket.create_server(("127.0.0.1", port), backlog=MAX_CONNECTIONS)
        except OSError as error:
            raise OSError(f"`port` must be free. Received {port}: {error.strerror}. Pass another, or 0.") from error
        port, token = listening.getsockname()[1], secrets.token_urlsafe(16)
        self.address = f"http://127.0.0.1:{port}/{token}/"
        self._hosts = [f"{name}:{port}".removesuffix(":80") for name in ("127.0.0.1", "localhost")]
        page = HTMLResponse(Path(__file__).with_name("page.html").read_text(encoding="utf-8"), headers=NO_STORE)
        routes = [Route(f"/{token}/", page), Route(f"/{token}/clips/{{pair}}/{{side}}", self._clip)]
        routes += [Route(f"/{token}/{action}", self._act, methods=["POST"]) for action in ACTIONS]
        self._inner = Starlette(routes=routes, exception_handlers=dict.fromkeys((TimeoutError, ValueError), _refuse))
        options: dict[str, Any] = {"http": _Connection, "ws": "none", "lifespan": "off", "backlog": MAX_CONNECTIONS}
        options |= {"log_level": "critical", "h11_max_incomplete_event_size": 16_384}
        self._server = uvicorn.Server(uvicorn.Config(self._app, interface="asgi3", **options))
        self._thread = threading.Thread(target=self._server.run, args=([listening],), name="page", daemon=True)
        self._thread.start()

    def ask(
        self, pairs: Sequence[Pair], draw: Callable[[Pair, Trajectory], bytes]
    ) -> Iterator[tuple[int, Answer | None]]:
        """Show pairs until all are answered, and draw their clips in this thread: renderers are for one.

        Yields (number of the pair, answer, or None if that was undone). A RuntimeError says that the page was closed.
        """
        self._events.put(None)
        self._items, self._prompt = [_Item(pair, number) for number, pair in enumerate(pairs)], pairs[0].prompt
        events, missing = SimpleQueue[Any](), set(range(len(pairs)))
        self._events, self._is_asking = events, True
        try:
            while missing:
                if (event := events.get()) is None:
                    raise RuntimeError(f"The page was closed: {len(missing)} of {len(pairs)} pairs have no answer.")
                what, answer = event
                if not isinstance(answer, Future):
                    (missing.add if answer is None else missing.discard)(what)
                    yield what, answer
                elif answer.set_running_or_notify_cancel():  # else nobody waits for the clip any more
                    answer.set_result(draw(*what))
        finally:
            self._is_asking = self._is_asking and self._events is not events
            while not events.empty():  # nobody draws any more: the page need not wait
                if (event := events.get()) and isinstance(event[1], Future):
                    event[1].cancel()

    def close(self) -> None:
        """End the server; `ask` raises a RuntimeError."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(5)
        self._events.put(None)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        """Refuse requests to another name of this computer, or from another site."""
        headers = Request(scope).headers
        host, origins = headers.get("host"), headers.getlist("origin")
        allowed = host in self._hosts and origins in ([], [f"http://{host}"])
        await (self._inner if allowed else Response(status_code=403))(scope, receive, send)

    async def _clip(self, request: Request) -> Response:
        id, side = request.path_params["pair"], request.path_params["side"]
        item = next((item for item in self._items if item.id == id), None)
        if item is None or side not in ("left", "right") or not self._is_asking:
            raise HTTPException(404)
        shown = item.pair.first if side == "left" else item.pair.second
        self._events.put(((item.pair, shown), clip := Future[bytes]()))
        picture = await asyncio.wait_for(asyncio.wrap_future(clip), LEASE)
        return Response(picture, headers=NO_STORE)  # browsers see whether it is WebP or PNG

    async def _act(self, request: Request) -> Response:
        action = request.url.path.rpartition("/")[2]
        message, now = await _read(request, ACTIONS[action]), time.monotonic()
        tab, waiting = message["tab"], self._waiting()
        mine = [item for item in self._items if item.answered_by == tab]
        for item in waiting:
            if item.id == message.get("pair"):  # the first answer counts
                seconds, item.answered_by, item.tab, item.since = round(now - item.since, 3), tab, "", now
                self._events.put((item.number, Answer(preference=message["choice"], details={"seconds": seconds})))
        if action == "undo" and mine and waiting:  # as long as others wait
            self._leave(tab)
            item = max(mine, key=lambda one: one.since)
            item.answered_by, item.tab, item.since = "", tab, now
            self._events.put((item.number, None))
        elif action == "leave":
            self._leave(tab)
            return Response(status_code=204)
        return JSONResponse(self._next(tab, now))

    def _waiting(self) -> list[_Item]:
        return [item for item in self._items if self._is_asking and not item.answered_by]

    def _leave(self, tab: str) -> None:
        for item in self._items:
            if item.tab == tab:  # others may show it
                item.tab, item.since = "", 0.0

    def _next(self, tab: str, now: float) -> dict[str, Any]:
        """Choose a tab's pair: its own, else one that no tab shows, else one that another has shown for long."""
        free = [item for item in self._waiting() if item.tab in ("", tab) or now - item.since > LEASE]
        shown = min(free, key=lambda item: (item.tab != tab, item.tab != "", item.since), default=None)
        if shown is not None:
            shown.tab, shown.since = tab, now
        pair, answered = shown and shown.id, sum(item.answered_by != "" for item in self._items)
        return {"pair": pair, "prompt": self._prompt, "total": len(self._items), "answered": answered}


async def _refuse(request: Request, error: Exception) -> Response:
    return Response(status_code=408 if isinstance(error, TimeoutError) else 400)


async def _read(request: Request, fields: set[str]) -> dict[str, Any]:
    """Read a request's JSON. Raises a TimeoutError, or a ValueError unless it has these fields, of their types."""
    body, types = b"", {"tab": (str,), "pair": (str,), "choice": (int, float, type(None))}
    async with asyncio.timeout(PATIENCE):
        async for part in request.stream():
            if len(body := body + part) > MAX_BODY:
                raise HTTPException(413, headers={"Connection": "close"})
    message = parse_json(body)
    is_valid = isinstance(message, dict) and set(message) == fields
    if not is_valid or any(type(message[name]) not in types[name] for name in fields):
        raise ValueError(f"A request must have the fields {fields}.")
    if not 0 < len(message["tab"]) <= 64 or message.get("choice") not in (0, 0.5, 1, None):
        raise ValueError("`tab` must have 1 to 64 characters, and `choice` must be 0, 0.5, 1 or null.")
    return message


class _Connection(H11Protocol):
    """Closes itself if there are too many, or if no request comes: uvicorn's own limits begin with a complete one."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        self.loop.call_later(PATIENCE, self._close_if_idle, None)

    def _close_if_idle(self, cycle: Any) -> None:
        if self.cycle is cycle and (cycle is None or cycle.response_complete):  # none since, none under way
            self.transport.close()
        elif not self.transport.is_closing():
            self.loop.call_later(PATIENCE, self._close_if_idle, self.cycle)
