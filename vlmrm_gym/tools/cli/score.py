"""The command `vlmrm-gym score`: rewards for every frame of a video or of a folder of pictures."""

import csv
import math
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from numpy.typing import NDArray
from tqdm import tqdm

from vlmrm_gym._util.errors import InputError, as_input_error, say
from vlmrm_gym._util.files import atomic_write, check_folder, output_folder
from vlmrm_gym._util.validation import short_repr
from vlmrm_gym.data.frames import Pictures, Video, batch, open_frames
from vlmrm_gym.data.videos import draw_rewards, plot_rewards, write_video
from vlmrm_gym.scoring.several import SeveralRewards
from vlmrm_gym.states.drawing import FrameStore
from vlmrm_gym.states.states import States
from vlmrm_gym.tools.cli.settings import RewardFlags, load_rewards, parse

FILES = ("rewards.csv", "rewards.png", "rewards.mp4")
"""What the command writes: a table, a plot and a video."""
PICTURES_FPS = 10
"""Frames per second of the drawn video, where the input says nothing."""


@dataclass(frozen=True)
class Score(RewardFlags):
    """Score every frame of a video, or of a folder of pictures, by one or several rewards.

    Before training, it shows whether a reward rises where it should, and which wording does best:

        vlmrm-gym score walk.mp4 --prompt "a humanoid robot kneeling" --prompt "a kneeling robot"
        vlmrm-gym score walk.mp4 --prompt "a humanoid robot kneeling" --baseline "a humanoid robot" --alpha 0 0.5 1
        vlmrm-gym score pictures/ --prompt "a cat on a sofa" --model ViT-B-32/laion2b_s34b_b79k --fps 5
        vlmrm-gym score walk.mp4 --reward my_package.rewards:upright --reward-kwargs '{threshold: 0.5}'

    Each frame is encoded once, whatever the number of prompts. The folder walk_scores gets rewards.csv (a
    row for each frame, a column for each reward), rewards.png (a line for each) and rewards.mp4 (the frames above the
    curves). After Ctrl-C the table and the video have the frames scored so far. The plot below the frames of this
    package's own videos is not scored.
    """

    path: Annotated[Path, tyro.conf.Positional]
    """a video; a folder of pictures, in the order of their names (frame_2 before frame_10); or one picture"""
    fps: float | None = None
    """frames per second of pictures; without it, their rewards have no times, and the video shows 10 per second"""
    video: bool = True
    """write rewards.mp4"""


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    _score(parse(Score, "score", arguments))


def score(path: str | Path, **settings: Any) -> Path:
    """Score every frame of a video, or of a folder of pictures: `vlmrm-gym score` as a function.

    The settings are the flags, see `Score`: `score("walk.mp4", prompt=["a kneeling robot", "a robot"], alpha=0.5)`. A
    `reward` may also be a specification or a callable.

    Returns:
        The folder with `FILES`.
    """
    return _score(Score(Path(path), **settings))


def _score(command: Score) -> Path:
    if command.fps is not None and not (math.isfinite(command.fps) and command.fps > 0):
        raise InputError(f"`fps` must be a finite number above 0. Received {short_repr(command.fps)}.")
    specs = command.specifications()
    if not specs:
        raise InputError('`prompt` must be given: what should be seen. Pass --prompt "a text", once or several times.')
    source = open_frames(command.path, command.fps)
    path = command.path.resolve()
    default = path.with_name(f"{path.name if path.is_dir() else path.stem}_scores")
    out = default if command.out is None else command.out.resolve()
    if out in (path, path.parent):
        raise InputError(f"`out` must be a folder of its own, as the input is in {out}. Choose another.")
    check_folder(out, overwrite=command.overwrite)
    if source.note is not None:
        say(source.note, error=True)
    labels = list(specs)
    with (
        output_folder(out, overwrite=command.overwrite),
        closing(load_rewards(specs.values(), command.device)) as scorer,
    ):
        table, plot, video = (out / name for name in FILES)
        for file in (table, plot, video):
            file.unlink(missing_ok=True)
        with as_input_error():
            scorer.open(lambda render_size: FrameStore())
        rewards = _score_frames(source, scorer, labels, table, video if command.video else None)
        times = [time for time, _ in rewards if time is not None]
        values, seconds = np.stack([row for _, row in rewards]), times if len(times) == len(rewards) else None
        atomic_write(plot, lambda path: plot_rewards(path, labels, values, seconds))
    for name, column in zip(labels, values.T, strict=True):
        ends = []
        for word, i in (("min", column.argmin()), ("max", column.argmax())):
            when = "" if seconds is None else f", {seconds[i]:.2f} s"
            ends.append(f"{word} {column[i]:.3f} (frame {i}{when})")
        say(f'"{name}": {", ".join(ends)}, mean {column.mean():.3f}')
    say(f"Written: {', '.join(str(path) for path in (table, plot, video) if path.exists())}")
    return out


def _score_frames(
    source: Video | Pictures, scorer: SeveralRewards, labels: Sequence[str], table: Path, video: Path | None
) -> list[tuple[float | None, NDArray[np.float32]]]:
    """Score frames and write the table and the video as they come. The times of the frames, and their rewards (P,)."""
    names = [as_cell(path.name) for path in source.paths] if isinstance(source, Pictures) else []
    rewards: list[tuple[float | None, NDArray[np.float32]]] = []

    def score_and_write() -> Iterator[tuple[NDArray[np.uint8], NDArray[np.float32]]]:
        writer = csv.writer(file)
        writer.writerow(["frame", "seconds", *(["file"] if names else []), *map(as_cell, labels)])
        for frames in batch(decoded, scorer.microbatch_size):
            scored = scorer(States(np.stack([one.frame for one in frames])))
            for one, row in zip(frames, scored, strict=True):
                number, seconds = len(rewards), "" if one.seconds is None else round(one.seconds, 6)
                writer.writerow([number, seconds, *names[number : number + 1], *map(str, row)])
                rewards.append((one.seconds, row))
            file.flush()  # what was scored outlives an interruption
            yield from zip((one.frame for one in frames), scored, strict=True)
            progress.update(len(frames))

    try:
        with (
            closing(source.frames()) as decoded,
            table.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
            tqdm(total=source.count, unit=" frames", file=sys.stderr) as progress,
        ):
            scored = score_and_write()
            if video is None:
                deque(scored, maxlen=0)
            else:
                write_video(video, source.fps or PICTURES_FPS, draw_rewards(scored, labels, source.count))
    except (KeyboardInterrupt, InputError, OSError):
        say(f"The rewards of the first {len(rewards):,} frames are in {table}.", error=True)
        raise
    return rewards


def as_cell(text: str) -> str:
    """A text as a cell of a table, with an apostrophe before it where a spreadsheet would take it for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
