"""A conversation with a model behind a server, within a budget; replies are kept, and nothing is asked twice."""

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vlmrm_gym.endpoint.messages import Message
from vlmrm_gym.endpoint.scores import ScoresFile
from vlmrm_gym.endpoint.session import Asked, Session
from vlmrm_gym.endpoint.settings import EndpointSettings
from vlmrm_gym.errors import InputError, as_input_error
from vlmrm_gym.files import atomic_write_text


class Conversation:
    """Questions and replies, one after the other. Close it.

    Args:
        settings: Whom to ask, and how much may be asked.
        replies: The file of replies.

    Raises:
        DependencyNotInstalled, FileNotFoundError, OSError, ValueError: As `Session` and `ScoresFile`.
    """

    def __init__(self, settings: EndpointSettings, replies: Path) -> None:
        self._settings = settings
        self._identity = settings.identity
        self._session = Session(settings, logprobs=False)
        self._replies = ScoresFile(replies)
        self._messages = list[Message]()

    def ask(self, question: Sequence[Message]) -> tuple[str | None, bool]:
        """The reply to a question, which knows of all before it; and whether it was cut off.

        Raises:
            InputError: The budget is used up, or the server cannot be reached or answers with an error.
        """
        self._messages += question
        key = hashlib.sha256((self._identity + json.dumps(self._messages)).encode()).hexdigest()
        if (reply := self._replies.find_details(key)) is None:
            reply = self._send()
            self._replies.write(key, self._identity, None, reply)
        self._messages.append({"role": "assistant", "content": reply["text"] or ""})
        return reply["text"], reply["truncated"]

    @property
    def spending(self) -> str:
        """What was spent on this conversation."""
        return f"{self._session.budget.calls:,} requests and {self._session.budget.tokens:,} tokens"

    def write(self, folder: Path) -> Path:
        """Write what was said as conversation.md, and its images, into a folder."""
        pictures, lines = folder / "pictures", list[str]()
        pictures.mkdir(exist_ok=True)
        for message in self._messages:
            lines.append(f"## {message['role']}\n")
            content = message["content"]
            parts: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content
            for part in parts:
                if part["type"] == "text":
                    lines.append(f"{part['text']}\n")
                    continue
                image = base64.b64decode(part["image_url"]["url"].partition(",")[2])
                name = f"{hashlib.sha256(image).hexdigest()[:16]}.png"
                (pictures / name).write_bytes(image)
                lines.append(f"![](pictures/{name})\n")
        atomic_write_text(path := folder / "conversation.md", "\n".join(lines))
        return path

    def close(self) -> None:
        """End the connection."""
        self._session.close()
        self._replies.close()

    def _send(self) -> dict[str, Any]:
        def prepare(messages: Sequence[Message]) -> Callable[[Asked], dict[str, Any]]:
            def ask(asked: Asked) -> dict[str, Any]:
                reply = self._session.send(messages, asked)
                return {**asked.details, "text": reply.text, "truncated": reply.truncated}

            return ask

        with as_input_error(ConnectionError, RuntimeError):
            for _, reply in self._session.answer([self._messages], lambda: 1, prepare):
                return reply
        raise InputError(
            f"{self._settings.used_up} after {self.spending}. What was answered is kept: pass a higher one, and "
            "--overwrite, to go on."
        )
