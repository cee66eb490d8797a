"""The command `vlmrm-gym score`: rewards for every frame of videos or of folders of pictures."""

import csv
import math
import os
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import tyro
from numpy.typing import NDArray
from tqdm import tqdm

from vlmrm_gym._util.errors import InputError, as_input_error, say
from vlmrm_gym._util.files import atomic_write, check_folder, output_folder
from vlmrm_gym._util.validation import short_repr
from vlmrm_gym.data.frames import Pictures, as_cell, batch, open_frames
from vlmrm_gym.data.labels import read_video_labels
from vlmrm_gym.data.metrics import auc
from vlmrm_gym.data.recordings import Source, find_recordings, has_recordings
from vlmrm_gym.data.videos import draw_rewards, plot_rewards, plot_several, write_video
from vlmrm_gym.rewards.spec import RewardSpec
from vlmrm_gym.rewards.specification import to_mapping
from vlmrm_gym.scoring.options import ViewOptions
from vlmrm_gym.scoring.several import SeveralRewards
from vlmrm_gym.states.drawing import FrameStore
from vlmrm_gym.states.states import States
from vlmrm_gym.tools.cli.settings import RewardFlags, load_rewards, parse
from vlmrm_gym.tools.score_dataset import Dataset, StatesOfOurs, open_dataset, score_dataset, write_table

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
        camera, trust_code = command.camera, command.trust_code
        dataset = (
            open_dataset(command.path[0], camera, opened, trust_code=trust_code) if len(command.path) == 1 else None
        )
        return _score_videos(command) if dataset is None else _score_dataset(command, dataset)


def _score_dataset(command: Score, dataset: Dataset) -> Path:
    for name in ("labels", "fps"):
        if getattr(command, name) is not None:
            raise InputError(f"`{name}` is for videos. Received a dataset. See `vlmrm-gym check --rollouts --labels`.")
    specs, out = _check_specs(dataset.specify(command)), _find_out(command)
    if command.path[0].resolve() in out.parents:
        raise InputError(f"`out` must not be in the dataset, {command.path[0]}. Received {out}. Choose another.")
    with as_input_error(TypeError):  # a function of a notebook has no mapping form
        rewards_told = [to_mapping(spec) for spec in specs.values()] if isinstance(dataset, StatesOfOurs) else []
    prompts = list(dict.fromkeys(one["prompt"] for one in rewards_told if one.get("prompt")))
    told = {"rewards": rewards_told, "columns": list(specs), "prompt": prompts, "combine_views": command.combine_views}
    with (
        output_folder(out, overwrite=command.overwrite),
        closing(load_rewards(specs.values(), command.device)) as scorer,
    ):
        table, plot = out / FILES[0], out / FILES[1]
        rewards = score_dataset(dataset, scorer, command.combine_views)
        atomic_write(table, lambda path: write_table(path, list(specs), rewards))
        atomic_write(plot, lambda path: plot_several(path, list(specs), [one[1:] for one in rewards]))
        unfinished, data = out / "data.partial", out / "data"
        shutil.rmtree(unfinished, ignore_errors=True)
        dataset.write(unfinished, told, rewards)
        shutil.rmtree(data, ignore_errors=True)
        unfinished.replace(data)
    episodes = [ScoredVideo(f"episode {i}", [None] * (len(one) - 1), list(one[1:])) for i, one in enumerate(rewards)]
    _say(list(specs), episodes, None, "step")
    say(f"Written: {table}, {plot} and the dataset {data}")
    return out


def _check_specs(specs: dict[str, RewardSpec]) -> dict[str, RewardSpec]:
    if not specs:
        raise InputError('`prompt` must be given: what should be seen. Pass --prompt "a text", once or several times.')
    return specs


def _score_videos(command: Score) -> Path:
    for name in ("camera", "combine_views"):
        if (value := getattr(command, name)) is not None:
            raise InputError(f"`{name}` is for datasets. Received {short_repr(value)} for videos. Leave it out.")
    specs, sources = _check_specs(command.specifications()), _open(command)
    labels = None if command.labels is None else read_video_labels(command.labels, sources)
    out = _find_out(command)
    check_folder(out, overwrite=command.overwrite)
    for note in dict.fromkeys(source.note for source in sources.values()):
        if note is not None:
            say(note, error=True)
    with (
        output_folder(out, overwrite=command.overwrite),
        closing(load_rewards(specs.values(), command.device)) as scorer,
    ):
        files = table, plot, video = [out / name for name in FILES]
        for file in files:
            file.unlink(missing_ok=True)
        with as_input_error():
            scorer.open(lambda render_size: FrameStore())
        drawn = video if command.video and len(sources) == 1 else None
        scored = _score_all(sources, scorer, list(specs), table, drawn)
        atomic_write(plot, lambda path: _plot(path, list(specs), scored))
    _say(list(specs), scored, labels)
    say(f"Written: {', '.join(str(path) for path in files if path.exists())}")
    return out


def _open(command: Score) -> dict[str, Source]:
    """Open all that is to be scored, by the names that the table has."""
    sources: dict[str, Source] = {}
    for path in command.path:
        if has_recordings(path):
            found, skipped = find_recordings(path)
            sources |= {one.name: one.source for one in found}
            if skipped:
                say(f"{path}: skipped, as no videos: {', '.join(skipped)}", error=True)
        else:
            sources[str(path)] = open_frames(path, command.fps)
    return sources


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
        table.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
        tqdm(total=sum(one.count for one in sources.values()), unit=" frames", file=sys.stderr) as progress,
    ):
        writer = csv.writer(file)
        writer.writerow(
            [*["video"] * several, "frame", "seconds", *(["file"] if pictures else []), *map(as_cell, labels)]
        )

        def write(one: ScoredVideo, source: Source, seconds: float | None, row: NDArray[np.float32]) -> None:
            number = len(one.rewards)
            files = [as_cell(source.paths[number].name) if isinstance(source, Pictures) else ""] if pictures else []
            shown = "" if seconds is None else round(seconds, 6)
            writer.writerow([*[as_cell(one.name)] * several, number, shown, *files, *map(str, row)])
            one.times.append(seconds)
            one.rewards.append(row)
            if (number + 1) % scorer.microbatch_size == 0:
                file.flush()  # what was scored outlives an interruption
            progress.update()

        try:
            for name, source in sources.items():
                done.append(ScoredVideo(name, [], []))
                frames = _score_frames(source, scorer, partial(write, done[-1], source))
                if video is None:
                    deque(frames, maxlen=0)
                else:
                    write_video(video, source.fps or PICTURES_FPS, draw_rewards(frames, labels, source.count))
        except (KeyboardInterrupt, InputError, OSError):
            say(f"The rewards of the first {sum(len(one.times) for one in done):,} frames are in {table}.", error=True)
            raise
    return done


def _score_frames(
    source: Source, scorer: SeveralRewards, keep: Callable[[float | None, NDArray[np.float32]], object]
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.float32]]]:
    """Score the frames of a video; yields each with its rewards, float32 (P,), which are kept before."""
    scorer.begin_episode()
    with closing(source.frames()) as decoded:
        for frames in batch(decoded, scorer.microbatch_size):
            scored = scorer(States(np.stack([one.frame for one in frames])))
            for one, row in zip(frames, scored, strict=True):
                keep(one.seconds, row)
            yield from zip((one.frame for one in frames), scored, strict=True)


def _plot(path: Path, labels: Sequence[str], scored: Sequence[ScoredVideo]) -> None:
    if len(scored) > 1:
        plot_several(path, labels, [np.stack(one.rewards) for one in scored])
    else:
        known = [time for time in scored[0].times if time is not None]
        plot_rewards(path, labels, np.stack(scored[0].rewards), known if len(known) == len(scored[0].times) else None)


def _say(
    labels: Sequence[str],
    scored: Sequence[ScoredVideo],
    success: Mapping[str, NDArray[np.float64]] | None,
    unit: str = "frame",
) -> None:
    """Print the extremes and the mean of each reward, and its AUC, the highest first; name the best."""
    every = np.concatenate([one.rewards for one in scored])
    places = [(one, i) for one in scored for i in range(len(one.rewards))]
    lines = []
    for name, column in zip(labels, every.T, strict=True):
        ends = []
        for word, number in (("min", column.argmin()), ("max", column.argmax())):
            one, i = places[int(number)]
            when = "" if one.times[i] is None else f", {one.times[i]:.2f} s"
            where = f"{one.name}, " if len(scored) > 1 else ""
            ends.append(f"{word} {column[number]:.3f} ({where}{unit} {i}{when})")
        ranked = float("nan")
        if success is not None:
            labelled = np.concatenate([success[one.name] for one in scored])
            is_known = ~np.isnan(labelled)
            ranked = auc(column[is_known], labelled[is_known] == 1)
        shown = "" if math.isnan(ranked) else f"AUC {ranked:.3f}, "
        lines.append((-ranked, name, f'"{name}": {shown}{", ".join(ends)}, mean {column.mean():.3f}'))
    if success is not None:
        lines.sort(key=lambda line: line[0])
    for *_, line in lines:
        say(line)
    if success is not None and len(lines) > 1:
        say(f'The best by AUC: "{lines[0][1]}".')
