"""A small GIF of a trained agent's video: `python docs/make_gif.py runs/.../agent.mp4 docs/agent.gif`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import imageio.v3 as iio
import numpy as np
import tyro
from PIL import Image

from vlmrm_gym.data.frames import read_layout
from vlmrm_gym.data.videos import Layout


@dataclass
class Args:
    video: Annotated[Path, tyro.conf.Positional]
    """the video"""
    gif: Annotated[Path, tyro.conf.Positional]
    """the GIF"""
    width: int = 300
    """of the GIF, in pixels"""
    every: int = 2
    """which frames are taken; the GIF plays as fast as the video"""
    fps: float = 30
    """of the video, in frames a second"""


def save(frames: Sequence[Image.Image], file: Path, **options: Any) -> None:
    """Write a GIF that plays for ever, whose frames share a palette."""
    sample = np.concatenate([np.asarray(frame) for frame in frames[:: len(frames) // 4 or 1]])
    palette = Image.fromarray(sample).quantize(method=Image.Quantize.MAXCOVERAGE)
    first, *rest = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    first.save(file, save_all=True, append_images=rest, loop=0, **options)


def main(args: Args) -> None:
    frames = [Image.fromarray(frame) for frame in iio.imread(args.video)[:: args.every]]
    height = round(frames[0].height * args.width / frames[0].width)
    small = [frame.resize((args.width, height), Image.Resampling.LANCZOS) for frame in frames]
    options: dict[str, Any] = {"duration": 1000 * args.every / args.fps}
    if (layout := read_layout(args.video)) is not None:
        frame_height = round(layout.frame_size[1] * height / layout.video_size[1])
        options["comment"] = Layout((args.width, height), (args.width, frame_height)).comment
    save(small, args.gif, **options)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
