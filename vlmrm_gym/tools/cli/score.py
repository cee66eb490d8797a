"""The command `vlmrm-gym score`: rewards for every frame of videos or of folders of pictures."""

import csv
import math
import os
import shutil
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import tyro
from numpy.typing import NDArray
from tqdm import tqdm

from vlmrm_gym._util.errors import InputError, say
from vlmrm_gym._util.files import atomic_write, check_folder, output_folder
from vlmrm_gym._util.validation import short_repr
from vlmrm_gym.data.frames import Pictures, as_cell, is_picture, open_frames
from vlmrm_gym.data.labels import read_video_labels
from vlmrm_gym.data.metrics import auc
from vlmrm_gym.data.recordings import Recording, Source
from vlmrm_gym.data.videos import draw_rewards, plot_rewards, write_video
from vlmrm_gym.rewards.spec import RewardSpec
from vlmrm_gym.scoring.options import ViewOptions
from vlmrm_gym.scoring.several import SeveralRewards
from vlmrm_gym.tools.cli.settings import RewardFlags, describe_rewards, find_videos, open_rewards, parse, say_notes
from vlmrm_gym.tools.score_dataset import TransitionDataset, open_dataset, score_dataset, write_table
from vlmrm_gym.tools.score_frames import score_frames

FILES = ("rewards.csv", "rewards.png", "rewards.mp4")
"""What the command writes: a table, a plot and a video."""
PICTURES_FPS = 10
"""Frames per second of the drawn video, where the input says nothing."""


@dataclass(frozen=True)
class Score(RewardFlags, ViewOptions):
    """Score every frame of videos, of folders of pictures, or of a dataset, by one or several rewards.

    Before training, it shows whether a reward rises where it should, and which wording does best:

        vlmrm-gym score walk.mp4 --prompt "a humanoid robot kneeling" --prompt "a kneeling robot"
        vlmrm-gym score walk.mp4 --prompt "a humanoid robot kneeling" --baseline "a humanoid robot" --alpha 0 0.5 1
        vlmrm-gym score pictures/ --prompt "a cat on a sofa" --model ViT-B-32/laion2b_s34b_b79k --fps 5
        vlmrm-gym score videos/ --labels labels.csv --prompt "a humanoid robot kneeling" --prompt "a kneeling robot"
        vlmrm-gym score walk.mp4 --reward my_package.rewards:upright --reward-kwargs '{threshold: 0.5}'

    Each frame is encoded once, whatever the number of prompts. The folder walk_scores gets rewards.csv (a
    row for each frame, a column for each reward), rewards.png (a line for each) and rewards.mp4 (the frames above the
    curves; of one video only). After Ctrl-C the table and the video have the frames scored so far. The plot below the
    frames of this package's own videos is not scored. With --labels, rewards are ranked by their AUC: the probability
    that a success gets a higher reward than a failure.

    Of a dataset (of `vlmrm-gym dataset`, of Minari with frames, of LeRobot 3.0) the folder also gets a copy, whose
    rewards are those of the first reward:

        vlmrm-gym score kneeling/ --reward progress.json --out kneeling_scored --camera side
        vlmrm-gym score robot_arm/ --prompt "the cube is in the box" --out scored --camera observation.images.top
    """

    path: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """videos; pictures; folders of pictures, in the order of their names (frame_2 before frame_10); folders of these;
    or one dataset"""
    fps: float | None = None
    """frames per second of pictures; without it, their rewards have no times, and the video shows 10 per second"""
    video: bool = True
    """write rewards.mp4, of one video"""
    labels: Path | None = None
    """a CSV file with the columns video (the name in rewards.csv) and success (0, 1), for all frames of a video; or for
    each frame, with a column frame (from 0)"""


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    _score(parse(Score, "score", arguments))


def score(path: str | Path | Sequence[str | Path], **settings: Any) -> Path:
    """Score every frame of videos, or of folders of pictures: `vlmrm-gym score` as a function.

    The settings are the flags, see `Score`: `score("walk.mp4", prompt=["a kneeling robot", "a robot"], alpha=0.5)`. A
    `reward` may also be a specification or a callable.

    Returns:
        The folder with `FILES`.
    """
    paths = [path] if isinstance(path, str | os.PathLike) else path
    return _score(Score(tuple(map(Path, paths)), **settings))


class ScoredVideo(NamedTuple):
    """The rewards of one video."""

    name: str
    times: list[float | None]
    """When each of its T frames is shown."""
    rewards: list[NDArray[np.float32]]
    """Of each frame, float32 (P,)."""


def _score(command: Score) -> Path:
    if command.fps is not None and not (math.isfinite(command.fps) and command.fps > 0):
        raise InputError(f"`fps` must be a finite number above 0. Received {short_repr(command.fps)}.")
    if not command.path:
        raise InputError("`path` must be a video, or a folder. Received none.")
    with ExitStack() as opened:
        dataset = None
        if len(command.path) == 1:
            dataset = open_dataset(command.path[0], command.camera, opened, trust_code=command.trust_code)
        specs = command.specifications() if dataset is None else dataset.specify(command)
        if not specs:
            rule = "`prompt` must be given: what should be seen"
            raise InputError(f'{rule}. Pass --prompt "a text", once or several times.')
        return _score_videos(command, specs) if dataset is None else _score_dataset(command, specs, dataset)


def _score_dataset(command: Score, specs: Mapping[str, RewardSpec], dataset: TransitionDataset) -> Path:
    for name in ("labels", "fps"):
        if getattr(command, name) is not None:
            raise InputError(f"`{name}` is for videos. Received a dataset. See `vlmrm-gym check --rollouts --labels`.")
    out = _find_out(command)
    if command.path[0].resolve() in out.parents:
        raise InputError(f"`out` must not be in the dataset, {command.path[0]}. Received {out}. Choose another.")
    labels, how = list(specs), command.combine_views
    view = None if dataset.segments is None else dataset.segments.view
    told = {"columns": labels} if view is None else describe_rewards(specs)
    table, plot, unfinished, data = (out / name for name in (*FILES[:2], "data.partial", "data"))
    with (
        output_folder(out, overwrite=command.overwrite),
        closing(open_rewards(specs, command.device, view, how)) as scorer,
    ):
        rewards = score_dataset(dataset, scorer)
        atomic_write(table, lambda path: write_table(path, labels, rewards))
        atomic_write(plot, lambda path: plot_rewards(path, labels, [one[1:] for one in rewards]))
        shutil.rmtree(unfinished, ignore_errors=True)
        dataset.write(unfinished, {**told, "combine_views": how}, rewards)
        shutil.rmtree(data, ignore_errors=True)
        unfinished.replace(data)
    episodes = [ScoredVideo(f"episode {i}", [None] * (len(one) - 1), list(one[1:])) for i, one in enumerate(rewards)]
    _say(labels, episodes, None, "step")
    say(f"Written: {table}, {plot} and the dataset {data}")
    return out


def _score_videos(command: Score, specs: Mapping[str, RewardSpec]) -> Path:
    for name in ("camera", "combine_views"):
        if (value := getattr(command, name)) is not None:
            raise InputError(f"`{name}` is for datasets. Received {short_repr(value)} for videos. Leave it out.")
    out, labels = _find_out(command), list(specs)
    found = [one for path in command.path for one in _find(path, command.fps)]
    sources = {one.name: one.source for one in found if out not in Path(one.name, "frames").resolve().parents}
    success = None if command.labels is None else read_video_labels(command.labels, sources)
    check_folder(out, overwrite=command.overwrite)
    say_notes(sources.values())
    files = table, plot, video = [out / name for name in FILES]
    with (
        output_folder(out, overwrite=command.overwrite),
        closing(open_rewards(specs, command.device)) as scorer,
    ):
        for file in files:
            file.unlink(missing_ok=True)
        scored = _score_all(sources, scorer, labels, table, video if command.video and len(sources) == 1 else None)
        columns = [np.stack(one.rewards) for one in scored]
        atomic_write(plot, lambda path: plot_rewards(path, labels, columns, scored[0].times))
    _say(labels, scored, success)
    say(f"Written: {', '.join(str(path) for path in files if path.exists())}")
    return out


def _find(path: Path, fps: float | None) -> list[Recording]:
    """Find the recordings of a path; a folder of pictures is one, whatever else is in it."""
    if path.is_dir() and any(map(is_picture, path.iterdir())):
        return [Recording(str(path), open_frames(path, fps))]
    return find_videos(path, fps)


def _find_out(command: Score) -> Path:
    first = command.path[0].resolve()
    name = "scores" if len(command.path) > 1 else f"{first.name if first.is_dir() else first.stem}_scores"
    out = first.with_name(name) if command.out is None else command.out.resolve()
    for path in command.path:
        if out in (path.resolve(), path.resolve().parent):
            raise InputError(f"`out` must be a folder of its own, as the input is in {out}. Choose another.")
    return out


def _score_all(
    sources: Mapping[str, Source], scorer: SeveralRewards, labels: Sequence[str], table: Path, video: Path | None
) -> list[ScoredVideo]:
    """Score videos, and write the table as they are scored; and the drawn video of a single one."""
    several, pictures = len(sources) > 1, any(isinstance(source, Pictures) for source in sources.values())
    done: list[ScoredVideo] = []
    with (
        # Line by line: what was scored outlives an interruption.
        table.open("w", buffering=1, newline="", encoding="utf-8", errors="backslashreplace") as file,
        tqdm(total=sum(one.count for one in sources.values()), unit=" frames", file=sys.stderr) as progress,
    ):
        writer = csv.writer(file)
        writer.writerow([*["video"] * several, "frame", "seconds", *["file"] * pictures, *map(as_cell, labels)])

        def score_one(name: str, source: Source) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.float32]]]:
            """Yield the frames of a video with their rewards, which are in the table before."""
            done.append(one := ScoredVideo(name, [], []))
            for number, ((frame, seconds), row) in enumerate(score_frames(source, scorer)):
                file_name = as_cell(source.paths[number].name) if isinstance(source, Pictures) else ""
                shown = "" if seconds is None else round(seconds, 6)
                writer.writerow([*[as_cell(name)] * several, number, shown, *[file_name] * pictures, *map(str, row)])
                one.times.append(seconds)
                one.rewards.append(row)
                progress.update()
                yield frame, row

        try:
            for name, source in sources.items():
                scored = score_one(name, source)
                if video is None:
                    deque(scored, maxlen=0)
                else:
                    write_video(video, source.fps or PICTURES_FPS, draw_rewards(scored, labels, source.count))
        except (KeyboardInterrupt, InputError, OSError):
            say(f"The rewards of the first {sum(len(one.times) for one in done):,} frames are in {table}.", error=True)
            raise
    return done


def _say(
    labels: Sequence[str],
    scored: Sequence[ScoredVideo],
    success: Mapping[str, NDArray[np.float64]] | None,
    unit: str = "frame",
) -> None:
    """Print the extremes and the mean of each reward, and its AUC, the highest first; name the best."""
    columns = np.concatenate([one.rewards for one in scored]).T
    places = [(one, i) for one in scored for i in range(len(one.rewards))]

    def describe(word: str, reward: float, number: int) -> str:
        one, i = places[number]
        video = f"{one.name}, " if len(scored) > 1 else ""
        when = "" if one.times[i] is None else f", {one.times[i]:.2f} s"
        return f"{word} {reward:.3f} ({video}{unit} {i}{when})"

    lines = [
        f"{describe('min', one.min(), one.argmin())}, {describe('max', one.max(), one.argmax())}, mean {one.mean():.3f}"
        for one in columns
    ]
    if success is None:
        for label, line in zip(labels, lines, strict=True):
            say(f'"{label}": {line}')
        return
    labelled = np.concatenate([success[one.name] for one in scored])
    known = ~np.isnan(labelled)
    aucs = [auc(one[known], labelled[known] == 1) for one in columns]
    ranked = sorted(zip(aucs, labels, lines, strict=True), key=lambda one: -one[0])
    for rank, label, line in ranked:
        say(f'"{label}": AUC {rank:.3f}, {line}')
    if len(ranked) > 1:
        say(f'The best by AUC: "{ranked[0][1]}".')
