"""Videos of episodes whose frames show their step, for a person who labels them."""

from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.capture import StateView
from vlmrm_gym.media.drawing import drawn_size
from vlmrm_gym.media.videos import StripVideo
from vlmrm_gym.rendering.states import States

STRIP = 20
"""Height of the strip below the frames, in pixels."""
_CHUNK = 32
"""Frames that are in memory at once."""


def save_numbered_video(view: StateView, states: States, episode: int, fps: float, path: Path) -> None:
    """Write states as a video: frame `k` is state `k`, above the words "step k". Small frames are enlarged.

    Args:
        view: Draws the states; several views are side by side.
        states: At least one.
        episode: Number of the episode, which each frame shows too.
        fps: Frames per second.
        path: The file, ending in ".mp4".

    Raises:
        OSError: The file could not be written.
    """
    from PIL import Image, ImageOps

    with closing(StripVideo(path, fps, quality=8)) as video:
        for start in range(0, len(states), _CHUNK):
            part = states[start : start + _CHUNK]
            for step, frame in enumerate(view.draw(part.rows, part.changes), start):
                size = drawn_size(*frame.shape[:2])
                picture = np.asarray(ImageOps.pad(Image.fromarray(frame), size))
                video.add(picture, _draw_strip(size[0], f"episode {episode}, step {step}"))


def _draw_strip(width: int, text: str) -> NDArray[np.uint8]:
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (width, STRIP), (24, 26, 32))
    ImageDraw.Draw(image).text((6, 4), text, fill=(236, 236, 236))
    return np.asarray(image)
