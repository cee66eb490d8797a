"""Four trained agents side by side, each above its prompt: `python docs/make_strip.py` writes docs/agents.gif."""

import textwrap
from collections.abc import Iterator
from pathlib import Path

from make_gif import save
from PIL import Image, ImageDraw, ImageFont

from vlmrm_gym.tasks import REGISTERED

FOLDER = Path(__file__).parent
FRONT = (0, 0, 210, 210)
"""The view from the front in a humanoid's GIF, which has the side beside it and a plot below."""
AGENTS = {
    "VLMRM/CartPole-v1": ("cartpole.gif", (50, 0, 250, 200)),
    "VLMRM/Humanoid-kneel-v0": ("humanoid_kneel.gif", FRONT),
    "VLMRM/Humanoid-lotus-v0": ("humanoid_lotus.gif", FRONT),
    "VLMRM/Humanoid-hands-on-hips-v0": ("humanoid_hands_on_hips.gif", FRONT),
}
"""By task: a GIF of its agent in this folder, and the square that is taken from it: left, top, right, bottom."""
SIDE, GAP, CAPTION = 210, 6, 40
"""In pixels: of a square in the strip, between two, and below each."""
STEP, LAST = 100, 1500
"""Milliseconds from one frame to the next, and for which the last one stays."""


def read_views(path: Path, box: tuple[int, int, int, int]) -> Iterator[Image.Image]:
    """One square of a GIF, at every `STEP` of its own time."""
    with Image.open(path) as gif:
        frame_time, frames = int(gif.info["duration"]), getattr(gif, "n_frames", 1)
        for time in range(0, frames * frame_time, STEP):
            gif.seek(time // frame_time)
            yield gif.convert("RGB").crop(box).resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def draw_captions() -> Image.Image:
    """The strip without its views."""
    strip = Image.new("RGB", (len(AGENTS) * (SIDE + GAP) - GAP, SIDE + CAPTION), "white")
    draw, font = ImageDraw.Draw(strip), ImageFont.load_default(size=12)
    for index, task in enumerate(AGENTS):
        text = "\n".join(textwrap.wrap(f'"{REGISTERED[task].prompt}"', 36))
        middle = index * (SIDE + GAP) + SIDE / 2
        draw.multiline_text((middle, SIDE + 5), text, fill="black", font=font, anchor="ma", align="center")
    return strip


if __name__ == "__main__":
    captions, frames = draw_captions(), []
    agents = [read_views(FOLDER / name, box) for name, box in AGENTS.values()]
    for views in zip(*agents, strict=False):  # until the first GIF ends
        frame = captions.copy()
        for index, view in enumerate(views):
            frame.paste(view, (index * (SIDE + GAP), 0))
        frames.append(frame)
    save(frames, FOLDER / "agents.gif", duration=[STEP] * (len(frames) - 1) + [LAST])
