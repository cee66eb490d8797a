"""`vlmrm-gym score` of a dataset: rewards of all its transitions, and a copy of it that has them."""

import csv
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from vlmrm_gym._util.errors import InputError, as_input_error
from vlmrm_gym._util.files import atomic_write_text, refuse_links
from vlmrm_gym._util.untrusted import read_json
from vlmrm_gym.data.dataset_folder import DatasetFolder
from vlmrm_gym.data.frames import TimedFrame, as_cell, batch
from vlmrm_gym.data.lerobot import LeRobotDataset, is_lerobot
from vlmrm_gym.data.minari import MinariData, find_data, read_task_rewards, write_rewards
from vlmrm_gym.rewards.heads import CombineViews
from vlmrm_gym.rewards.spec import RewardSpec
from vlmrm_gym.scoring.several import SeveralRewards
from vlmrm_gym.states.drawing import FrameStore
from vlmrm_gym.states.states import States
from vlmrm_gym.tools.cli.settings import RewardFlags, specify
from vlmrm_gym.tools.segments import DatasetSegments

Rewards = list[NDArray[np.float32]]
"""Of each episode, float32 (T + 1, P): of all its states, the initial one first."""


class _Frames:
    """A dataset whose frames are stored."""

    num_views = 1

    @staticmethod
    def make_renderer(render_size: object) -> FrameStore:
        return FrameStore()

    def specify(self, flags: RewardFlags) -> dict[str, RewardSpec]:
        return flags.specifications()


class FramesOfMinari(_Frames, MinariData):
    """A Minari dataset of frames."""

    def episodes(self) -> Iterator[tuple[States, Iterator[States]]]:
        """The first state of each episode, and those that actions led to, some at a time."""
        for number in range(self.count):
            frames = self.frames(number)
            yield States(frames[:1]), (States(part) for part in np.array_split(frames[1:], len(frames) // 64 + 1))

    def task_rewards(self) -> Iterator[NDArray[np.float64]]:
        """The environment's own rewards, of each episode float64 (T,)."""
        return read_task_rewards(self.data, self.count)

    def write(self, out: Path, told: dict[str, Any], rewards: Rewards) -> None:
        """Write the copy into a folder that is not there yet. `told` are settings of the command."""
        write_rewards(self.data, out, told["columns"], rewards)


class StatesOfOurs:
    """A dataset of `vlmrm-gym dataset`: its states are drawn again, for the model and from any camera."""

    def __init__(self, folder: Path, segments: DatasetSegments) -> None:
        self.segments, self._folder, self._rollouts = segments, folder, segments.rollouts
        self.count, self.num_views = len(segments.rollouts), segments.view.num_views
        self.make_renderer = segments.view.make_renderer

    def specify(self, flags: RewardFlags) -> dict[str, RewardSpec]:
        """Make the rewards of flags, by their labels; without one, of the task's own prompt."""
        return specify(flags, self.segments.task, self.segments.env, self.segments.camera)

    def episodes(self) -> Iterator[tuple[States, Iterator[States]]]:
        """See `FramesOfMinari.episodes`."""
        for one in self._rollouts:
            yield one.with_initial[:1], iter([one.states])

    def task_rewards(self) -> Iterator[NDArray[np.float64]]:
        """See `FramesOfMinari.task_rewards`."""
        return iter([one.task_rewards for one in self._rollouts])

    def write(self, out: Path, told: dict[str, Any], rewards: Rewards) -> None:
        """See `FramesOfMinari.write`; beside it goes what makes it a dataset of `vlmrm-gym dataset`."""
        write_rewards(self._folder / "data", out, told["columns"], rewards)
        for name in ("scenes", "videos"):
            if (self._folder / name).is_dir():
                shutil.copytree(self._folder / name, out.parent / name, dirs_exist_ok=True)
        if (self._folder / "labels.csv").is_file():
            shutil.copyfile(self._folder / "labels.csv", out.parent / "labels.csv")
        settings = {**read_json(self._folder / "settings.json"), **told, "camera": self.segments.camera}
        atomic_write_text(out.parent / "settings.json", json.dumps(settings, indent=2))


class FramesOfLeRobot(_Frames):
    """A LeRobot dataset. The last frame of an episode is also the one that its last action led to."""

    def __init__(self, folder: Path, camera: Any) -> None:
        self._source = LeRobotDataset(folder, camera)
        self.count = len(self._source.lengths)

    def episodes(self) -> Iterator[tuple[States, Iterator[States]]]:
        """See `FramesOfMinari.episodes`."""
        for frames in self._source.frames():
            first = next(frames)

            def rest(frames: Iterator[NDArray[np.uint8]] = frames, last: NDArray[np.uint8] = first) -> Iterator[States]:
                for part in batch((TimedFrame(one, None) for one in frames), 64):
                    last = part[-1].frame
                    yield States(np.stack([one.frame for one in part]))
                yield States(last[None])

            yield States(first[None]), rest()

    def task_rewards(self) -> Iterator[NDArray[np.float64]]:
        """See `FramesOfMinari.task_rewards`; NaN where the dataset has none."""
        own = self._source.task_rewards
        own = np.full(sum(self._source.lengths), np.nan) if own is None else own
        return iter(np.split(own, np.cumsum(self._source.lengths)[:-1]))

    def write(self, out: Path, told: dict[str, Any], rewards: Rewards) -> None:
        """See `FramesOfMinari.write`; with the rewards of the first specification."""
        self._source.write(out, np.concatenate([one[1:, 0] for one in rewards]))


Dataset = FramesOfMinari | StatesOfOurs | FramesOfLeRobot


def open_dataset(path: Path, camera: Any, opened: ExitStack, *, trust_code: bool) -> Dataset | None:
    """Open a folder that is a dataset of transitions; None if it is none. An InputError if it cannot be read."""
    if is_lerobot(path):
        return FramesOfLeRobot(path, camera)
    if path.is_dir() and DatasetFolder(path).settings() is not None:
        refuse_links(path)
        segments = opened.enter_context(DatasetSegments(path, camera, trust_code=trust_code))
        return StatesOfOurs(path, segments)
    data = find_data(path) if path.is_dir() else None
    if data is not None and camera is not None:
        raise InputError(f"`camera` is for datasets with several. Received {camera!r} for {path}. Leave it out.")
    return None if data is None else FramesOfMinari(data)


def score_dataset(dataset: Dataset, scorer: SeveralRewards, combine_views: Any) -> Rewards:
    """Score all episodes."""
    combine = None if combine_views is None else CombineViews(combine_views, dataset.num_views)
    with as_input_error():
        scorer.open(dataset.make_renderer, dataset.num_views, combine)
    done: Rewards = []
    episodes = zip(dataset.episodes(), dataset.task_rewards(), strict=True)
    for (first, rest), own in tqdm(episodes, total=dataset.count, unit=" episodes", file=sys.stderr):
        if any(scorer.task_weights) and not np.isfinite(own).all():
            raise InputError("The task's own reward is a term, and must be known of all steps. The dataset lacks some.")
        rewards = np.concatenate([scorer.begin(first), *map(scorer, rest)])
        if len(rewards) != len(own) + 1:
            raise InputError(f"Episode {len(done)} has {len(own):,} rewards, and {len(rewards):,} frames.")
        done.append(scorer.add_task_rewards(rewards, own))
    return done


def write_table(path: Path, labels: Sequence[str], rewards: Rewards) -> None:
    """Write a table of the rewards of all transitions. Step 0 is the first action, as in labels.csv."""
    with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        writer = csv.writer(file)
        writer.writerow(["episode", "step", *map(as_cell, labels)])
        for episode, one in enumerate(rewards):
            writer.writerows([episode, step, *map(str, row)] for step, row in enumerate(one[1:]))
