"""A small GIF of a trained agent's video: `python docs/make_gif.py runs/.../agent.mp4 docs/agent.gif`."""

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


def main(args: Args) -> None:
    frames = [Image.fromarray(frame) for frame in iio.imread(args.video)[:: args.every]]
    height = round(frames[0].height * args.width / frames[0].width)
    small = [frame.resize((args.width, height), Image.Resampling.LANCZOS) for frame in frames]
    palette = Image.fromarray(np.concatenate([np.asarray(frame) for frame in small[:: len(small) // 4 or 1]])).quantize(
        method=Image.Quantize.MAXCOVERAGE
    )
    first, *rest = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in small]
    options: dict[str, Any] = {"duration": 1000 * args.every / args.fps, "loop": 0}
    if (layout := read_layout(args.video)) is not None:
        frame_height = round(layout.frame_size[1] * height / layout.video_size[1])
        options["comment"] = Layout((args.width, height), (args.width, frame_height)).comment
    first.save(args.gif, save_all=True, append_images=rest, **options)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
