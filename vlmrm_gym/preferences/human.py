"""Answers by a person, on a page in the browser."""

import asyncio
import json
import secrets
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Any, ClassVar

from gymnasium.error import DependencyNotInstalled

from vlmrm_gym.identity import undecisive
from vlmrm_gym.preferences.human_desk import Desk, Drawing
from vlmrm_gym.preferences.labelers import LabelerSpec
from vlmrm_gym.preferences.pairs import Answer, Pair, Side
from vlmrm_gym.preferences.pictures import encode_clip
from vlmrm_gym.terminal import say
from vlmrm_gym.validation import check_flag, check_integer, check_size, is_number


@dataclass(frozen=True, kw_only=True)
class HumanLabeler(LabelerSpec):
    """Shows pairs to people: two short clips side by side, on a page of this computer that only its address opens.

    The address is printed when there is something to answer. Several tabs may be open: each has pairs of its own. Undo
    brings the tab's last pair back, as long as the session has others that wait.

    Raises:
        ValueError: A value is out of its range; the message names the field.
    """

    port: int = undecisive(0)
    """The page's port; 0: a free one."""
    wait: bool = undecisive(True)
    """Whether `ask` waits for the answers, or goes on, and has those that came meanwhile when it is called again."""
    name: str = ""
    """Who answers: answers of different people are kept apart."""
    fps: float = undecisive(15.0)
    """States a second in clips."""
    size: tuple[int, int] | None = undecisive(None)
    """Height and width at which states are drawn, in pixels; None: as the pair's frames."""
    kind: ClassVar[str] = "human"

    def __post_init__(self) -> None:
        check_integer("port", self.port, minimum=0)
        if self.port > 65_535:
            raise ValueError(f"`port` must be at most 65535. Received {self.port}.")
        check_flag("wait", self.wait)
        if not is_number(self.fps) or not 0 < self.fps <= 100:
            raise ValueError(f"`fps` must be above 0 and at most 100. Received {self.fps!r}.")
        object.__setattr__(self, "size", check_size(self.size))

    @property
    def address(self) -> str:
        """The page's address, with its token. It is opened if it is not yet.

        Raises:
            DependencyNotInstalled: Starlette or uvicorn are missing.
            OSError: The port is in use.
        """
        return self._page.address

    def answers(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, Answer | None]]:
        """Show all pairs, and wait until they are answered. None takes the pair's answer back.

        Raises:
            DependencyNotInstalled, OSError: As `address`.
        """
        desk, missing = self._page.desk, set(range(len(pairs)))
        session = desk.add(pairs)
        say(f"{len(pairs)} pairs wait for your answers: {self.address}")
        try:
            while missing:
                event = session.events.get()
                if isinstance(event, Drawing):
                    event.serve(self._clip)  # here: renderers are for one thread
                    continue
                number, answer = event
                (missing.add if answer is None else missing.discard)(number)
                yield number, answer
        finally:
            desk.remove(session)

    def _clip(self, side: Side) -> bytes:
        return encode_clip(side.draw(side.states, size=self.size), self.fps)

    def close(self) -> None:
        """Close the page."""
        if (page := vars(self).pop("_page", None)) is not None:
            page.close()

    @cached_property
    def _page(self) -> "_Page":
        return _Page(self.port)


class _Page:
    """The server of the page, in a thread. It listens on the loopback only, and answers nothing without its token."""

    def __init__(self, port: int) -> None:
        try:
            import uvicorn
        except ImportError as error:
            raise DependencyNotInstalled('A HumanLabeler needs a web server: pip install "vlmrm-gym[page]".') from error
        self.desk, token = Desk(), secrets.token_urlsafe(16)
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
        except OSError as error:
            listening.close()
            raise OSError(f"`port` must be free. Received {port}: {error.strerror}. Pass another, or 0.") from error
        listening.listen()
        self.address = f"http://127.0.0.1:{listening.getsockname()[1]}/{token}/"
        config = uvicorn.Config(_make_app(self.desk, token), log_level="critical", access_log=False, lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listening],), name="page", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(5)


def _make_app(desk: Desk, token: str) -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Mount, Route

    page = resources.files("vlmrm_gym.preferences").joinpath("page.html").read_text(encoding="utf-8")

    async def show(request: Request) -> Response:
        return HTMLResponse(page, headers={"Cache-Control": "no-store"})

    async def clip(request: Request) -> Response:
        drawing = desk.draw(request.path_params["pair"], request.path_params["side"])
        if drawing is None:
            return Response(status_code=404)
        picture = await asyncio.wrap_future(drawing.picture)
        kind = "image/webp" if picture.startswith(b"RIFF") else "image/png"
        return Response(picture, media_type=kind, headers={"Cache-Control": "no-store"})

    async def act(request: Request) -> Response:
        try:
            said = json.loads(await request.body())
            tab, action = said["tab"], request.path_params["action"]
            if action == "answer":
                desk.answer(tab, said["pair"], said["choice"])
            elif action == "undo":
                desk.undo(tab)
            elif action == "leave":
                desk.leave(tab)
                return Response(status_code=204)
            return JSONResponse(desk.next(tab))
        except (KeyError, TypeError, ValueError):
            return Response(status_code=400)

    routes = [
        Route("/", show),
        Route("/clips/{pair}/{side}", clip),
        Route("/{action}", act, methods=["POST"]),
    ]
    return Starlette(routes=[Mount(f"/{token}", routes=routes)])
