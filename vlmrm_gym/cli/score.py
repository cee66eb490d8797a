"""The command `vlmrm-gym score`: rewards of several prompts for every frame of a video or of a folder of pictures."""

import csv
import math
import sys
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TextIO

import numpy as np
import tyro
from numpy.typing import NDArray
from tqdm import tqdm

from vlmrm_gym.audit.prompts import Column, load_prompts, open_queue
from vlmrm_gym.errors import InputError, check_values
from vlmrm_gym.media.drawing import plot_rewards, reward_video
from vlmrm_gym.media.frames import Pictures, Video, batch, open_frames
from vlmrm_gym.rendering import States
from vlmrm_gym.rendering.stored import FrameStore
from vlmrm_gym.rewards.clip_options import CLIPFields
from vlmrm_gym.rewards.specification import CLIP
from vlmrm_gym.terminal import say
from vlmrm_gym.training.files import atomic_write
from vlmrm_gym.training.spec_fields import spec_settings, with_spec_fields

FILES = ("rewards.csv", "rewards.png", "rewards.mp4")
"""What the command writes: a table, a plot and a video."""
PICTURES_FPS = 10
"""Frames per second of the drawn video, where the input says nothing."""


_FIELDS: Any = with_spec_fields(CLIPFields, without=("prompt", "baseline", "alpha"))


@dataclass
class Score(_FIELDS):
    """Score every frame of a video, or of a folder of pictures, by one or several prompts.

    Before training, it shows whether a reward rises where it should, and which wording does best:

        vlmrm-gym score walk.mp4 --prompt "a humanoid robot kneeling" --prompt "a kneeling robot"
        vlmrm-gym score walk.mp4 --prompt "a humanoid robot kneeling" --baseline "a humanoid robot" --alpha 0 0.5 1
        vlmrm-gym score pictures/ --prompt "a cat on a sofa" --model ViT-B-32/laion2b_s34b_b79k --fps 5

    Each frame is decoded and encoded once, whatever the number of prompts. The folder walk_scores gets rewards.csv (a
    row for each frame, a column for each prompt and alpha), rewards.png (a line for each) and rewards.mp4 (the frames
    above the curves). After Ctrl-C the table and the video have the frames scored so far. The plot below the frames of
    this package's own videos is not scored.

    The default model is bundled and knows the scenes of this package only. Name an open_clip model for any other video.
    """

    path: Annotated[Path, tyro.conf.Positional]
    """a video; a folder of pictures, in the order of their names (frame_2 before frame_10); or one picture"""
    prompt: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """what should be seen; repeat --prompt for more of them"""
    baseline: str | None = None
    """the scene without the goal, for all prompts; required for alpha above 0"""
    alpha: tuple[float, ...] = (0.0,)
    """strengths of the goal-baseline regularisation, from 0 to 1: a column for each"""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps"""
    out: Path | None = None
    """the folder to write; None is NAME_scores, next to the input"""
    overwrite: bool = False
    """replace the results in a folder that exists"""
    fps: float | None = None
    """frames per second of pictures; without it, their rewards have no times, and the video shows 10 per second"""
    video: bool = True
    """write rewards.mp4"""


def score(command: Score) -> None:
    """Run the command.

    Raises:
        InputError: The input, a setting or the output folder cannot be used.
        KeyboardInterrupt: Ctrl-C. As after a damaged frame, the rewards so far are in the table.
    """
    if command.fps is not None and not (math.isfinite(command.fps) and command.fps > 0):
        raise InputError(f"`fps` must be a finite number above 0. Received {command.fps!r}.")
    columns = _columns(command)
    source = open_frames(command.path, command.fps)
    folder = _choose_folder(command)
    if source.note is not None:
        say(source.note, error=True)
    encoder, heads = load_prompts(list(columns.values()), command.device)
    batches = batch(source.frames(), encoder.microbatch_size)
    first = next(batches, None)
    if first is None:
        raise InputError(f"{command.path} has no frame that can be decoded.")
    table, plot, video = _prepare(folder)
    rewards: list[NDArray[np.float32]] = []
    drawing = nullcontext()
    if command.video:
        drawing = reward_video(video, list(columns), source.fps or PICTURES_FPS, source.count)
    progress = tqdm(total=source.count, unit=" frames", file=sys.stderr)
    try:
        with (
            closing(open_queue(encoder, lambda render_size: FrameStore())) as queue,
            closing(batches),
            table.open("w", newline="", encoding="utf-8") as file,
            progress,
            drawing as drawn,
        ):
            rows = _TableWriter(file, source, list(columns))
            for frames in chain([first], batches):
                features = queue.features(States(frames))
                scored = np.stack([Column(head)(features) for head in heads], axis=1).astype(np.float32)
                rows.add(scored)
                rewards.extend(scored)
                if drawn is not None:
                    for frame, values in zip(frames, scored, strict=True):
                        drawn.add(frame, values)
                progress.update(len(frames))
    except (KeyboardInterrupt, InputError, OSError):
        say(f"The rewards of the first {len(rewards):,} frames are in {table}.", error=True)
        raise
    atomic_write(plot, lambda path: plot_rewards(path, list(columns), np.stack(rewards), source.fps))
    _print_summary(list(columns), np.stack(rewards), source.fps)
    say(f"Written: {', '.join(str(path) for path in (table, plot, video) if path.exists())}")


def _columns(command: Score) -> dict[str, CLIP]:
    """The reward of each column of the table, by its name."""
    if not command.prompt:
        raise InputError('`prompt` must be given: what should be seen. Pass --prompt "a text", once or several times.')
    for name, values in (("prompt", command.prompt), ("alpha", command.alpha)):
        check_values(name, values)
    try:
        return {
            prompt if len(command.alpha) == 1 else f"{prompt} (alpha {alpha})": CLIP(
                **{**spec_settings(CLIPFields, command), "prompt": prompt, "alpha": alpha}
            )
            for prompt in command.prompt
            for alpha in command.alpha
        }
    except ValueError as error:
        raise InputError(str(error)) from error


def _choose_folder(command: Score) -> Path:
    """The folder to write to."""
    source = command.path.resolve()
    default = source.with_name(f"{source.name if source.is_dir() else source.stem}_scores")
    folder = default if command.out is None else command.out.resolve()
    if folder in (source, source.parent):
        raise InputError(f"`out` must be a folder of its own, as the input is in {folder}. Choose another.")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"`out` must be a folder. {folder} is a file. Choose another.")
    if folder.exists() and not command.overwrite:
        raise InputError(f"The folder {folder} exists. Pass --overwrite to replace its results, or another --out.")
    return folder


def _prepare(folder: Path) -> list[Path]:
    """Make the folder without earlier results, and see that it can be written to: the paths of `FILES`."""
    paths = [folder / name for name in FILES]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            path.unlink(missing_ok=True)
        paths[0].touch()
    except OSError as error:
        raise InputError(
            f"The folder {folder} cannot be written to: {error.strerror}. Choose another --out."
        ) from error
    return paths


def as_cell(text: str) -> str:
    """A text as a cell of a table, with an apostrophe before it where a spreadsheet would take it for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


class _TableWriter:
    """Writes the table, row by row, so that what was scored outlives an interruption."""

    def __init__(self, file: TextIO, source: Video | Pictures, columns: Sequence[str]) -> None:
        self._file, self._fps, self._count = file, source.fps, 0
        self._names = [as_cell(path.name) for path in source.paths] if isinstance(source, Pictures) else None
        self._writer = csv.writer(file)
        self._writer.writerow(["frame", "seconds", *(["file"] if self._names else []), *map(as_cell, columns)])

    def add(self, rewards: NDArray[np.float32]) -> None:
        """Append rows, (B, C)."""
        for row in rewards:
            seconds = "" if self._fps is None else round(self._count / self._fps, 6)
            name = [self._names[self._count]] if self._names else []
            self._writer.writerow([self._count, seconds, *name, *map(str, row)])
            self._count += 1
        self._file.flush()


def _print_summary(columns: Sequence[str], rewards: NDArray[np.float32], fps: float | None) -> None:
    """Lowest and highest reward of each column, and when."""
    for name, values in zip(columns, rewards.T, strict=True):
        ends = []
        for i in (values.argmin(), values.argmax()):
            when = "" if fps is None else f", {i / fps:.2f} s"
            ends.append(f"{values[i]:.3f} (frame {i}{when})")
        say(f'"{name}": from {" to ".join(ends)}, mean {values.mean():.3f}')
