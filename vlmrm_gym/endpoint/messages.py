"""Builds messages of the chat completions API, and strips reasoning from replies."""

import base64
import io
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Message = dict[str, Any]
"""A message of the chat completions API."""


def encode(picture: NDArray[np.uint8], kind: str = "PNG") -> bytes:
    """Encode a picture, uint8 (H, W, 3), as a file's bytes."""
    from PIL import Image

    Image.fromarray(picture).save(stream := io.BytesIO(), kind)
    return stream.getvalue()


def ask_about(introduction: str, images: Sequence[tuple[str, bytes]], request: str) -> list[Message]:
    """Build a message of PNG images, each below its name, and a request; the part that servers can cache is first."""
    content: list[dict[str, Any]] = [{"type": "text", "text": introduction}]
    for name, image in images:
        url = f"data:image/png;base64,{base64.b64encode(image).decode()}"
        content.append({"type": "text", "text": name})
        content.append({"type": "image_url", "image_url": {"url": url}})
    return [{"role": "user", "content": [*content, {"type": "text", "text": request}]}]


def strip_reasoning(text: str) -> str:
    """Strip a reasoning block. Returns an empty text if the block was never closed."""
    text = re.sub(r"(?s)<(think|thinking|reasoning)>.*?(</\1>|\Z)", "", text)
    return re.split(r"</(?:think|thinking|reasoning)>", text)[-1].strip()  # the opening tag may be in the template
