"""The command `vlmrm-gym score`: rewards for every frame of a video or of a folder of pictures."""

import csv
import math
import sys
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from numpy.typing import NDArray

from vlmrm_gym.cli.settings import RewardFlags, load_rewards, parse
from vlmrm_gym.errors import InputError, as_input_error
from vlmrm_gym.folders import check_folder, output_folder
from vlmrm_gym.media.frames import Pictures, batch, open_frames
from vlmrm_gym.terminal import say
from vlmrm_gym.validation import short_repr

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

    Each frame is decoded and encoded once, whatever the number of prompts. The folder walk_scores gets rewards.csv (a
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

    Args:
        path: The video, the folder or one picture.
        settings: The flags, see `Score`: `score("walk.mp4", prompt=["a kneeling robot", "a robot"], alpha=0.5)`. A
            `reward` may also be a specification or a callable.

    Returns:
        The folder with `FILES`.

    Raises:
        InputError: The input, a setting or the output folder cannot be used.
    """
    return _score(Score(Path(path), **settings))


def _score(command: Score) -> Path:
    if command.fps is not None and not (math.isfinite(command.fps) and command.fps > 0):
        raise InputError(f"`fps` must be a finite number above 0. Received {short_repr(command.fps)}.")
    specs = command.specifications()
    if not specs:
        raise InputError('`prompt` must be given: what should be seen. Pass --prompt "a text", once or several times.')
    source = open_frames(command.path, command.fps)
    folder = _choose_folder(command)
    if source.note is not None:
        say(source.note, error=True)
    from tqdm import tqdm

    from vlmrm_gym.files import atomic_write
    from vlmrm_gym.media.drawing import plot_rewards
    from vlmrm_gym.media.videos import RewardVideo
    from vlmrm_gym.rendering import States
    from vlmrm_gym.rendering.stored import FrameStore

    labels = list(specs)
    names = [as_cell(path.name) for path in source.paths] if isinstance(source, Pictures) else []
    scorer = load_rewards(specs.values(), command.device)
    batches = batch(source.frames(), scorer.microbatch_size)
    first = next(batches, None)
    if first is None:
        raise InputError(f"{command.path} has no frame that can be decoded.")
    with output_folder(folder, overwrite=command.overwrite):
        table, plot, video = (folder / name for name in FILES)
        for path in (table, plot, video):
            path.unlink(missing_ok=True)
        rewards, times = list[NDArray[np.float32]](), list[float | None]()
        drawing = nullcontext()
        if command.video:
            drawing = closing(RewardVideo(video, labels, source.fps or PICTURES_FPS, source.count))
        progress = tqdm(total=source.count, unit=" frames", file=sys.stderr)
        try:
            with (
                closing(scorer),
                closing(batches),
                table.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
                progress,
                drawing as drawn,
            ):
                with as_input_error():
                    scorer.open(lambda render_size: FrameStore())
                writer = csv.writer(file)
                writer.writerow(["frame", "seconds", *(["file"] if names else []), *map(as_cell, labels)])
                for frames in chain([first], batches):
                    scored = scorer(States(np.stack([one.frame for one in frames])))
                    for number, (one, row) in enumerate(zip(frames, scored, strict=True), len(rewards)):
                        seconds = "" if one.seconds is None else round(one.seconds, 6)
                        writer.writerow([number, seconds, *names[number : number + 1], *map(str, row)])
                        if drawn is not None:
                            drawn.add(one.frame, row)
                    file.flush()  # what was scored outlives an interruption
                    rewards.extend(scored)
                    times.extend(one.seconds for one in frames)
                    progress.update(len(frames))
        except (KeyboardInterrupt, InputError, OSError):
            say(f"The rewards of the first {len(rewards):,} frames are in {table}.", error=True)
            raise
        known = [time for time in times if time is not None]
        seconds = known if len(known) == len(times) else None
        atomic_write(plot, lambda path: plot_rewards(path, labels, np.stack(rewards), seconds))
    _print_summary(labels, np.stack(rewards), seconds)
    say(f"Written: {', '.join(str(path) for path in (table, plot, video) if path.exists())}")
    return folder


def _choose_folder(command: Score) -> Path:
    source = command.path.resolve()
    default = source.with_name(f"{source.name if source.is_dir() else source.stem}_scores")
    folder = default if command.out is None else command.out.resolve()
    if folder in (source, source.parent):
        raise InputError(f"`out` must be a folder of its own, as the input is in {folder}. Choose another.")
    check_folder(folder, overwrite=command.overwrite)
    return folder


def as_cell(text: str) -> str:
    """A text as a cell of a table, with an apostrophe before it where a spreadsheet would take it for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _print_summary(columns: Sequence[str], rewards: NDArray[np.float32], seconds: Sequence[float] | None) -> None:
    """Lowest and highest reward of each column, and when."""
    for name, values in zip(columns, rewards.T, strict=True):
        ends = []
        for i in (values.argmin(), values.argmax()):
            when = "" if seconds is None else f", {seconds[i]:.2f} s"
            ends.append(f"{values[i]:.3f} (frame {i}{when})")
        say(f'"{name}": from {" to ".join(ends)}, mean {values.mean():.3f}')
