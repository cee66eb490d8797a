"""`vlmrm-gym score` of a dataset: rewards of all its transitions, and a copy of it that has them."""

import csv
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from vlmrm_gym._util.errors import InputError
from vlmrm_gym._util.files import atomic_write_text, refuse_links
from vlmrm_gym._util.untrusted import read_json
from vlmrm_gym.data.dataset_folder import DatasetFolder
from vlmrm_gym.data.frames import as_cell
from vlmrm_gym.data.lerobot import LeRobotDataset, is_lerobot
from vlmrm_gym.data.minari import MinariData, find_data, read_task_rewards, write_rewards
from vlmrm_gym.rewards.spec import RewardSpec
from vlmrm_gym.scoring.several import SeveralRewards
from vlmrm_gym.states.states import States
from vlmrm_gym.tools.cli.settings import RewardFlags, specify
from vlmrm_gym.tools.segments import DatasetSegments

Rewards = list[NDArray[np.float32]]
"""Of each episode, float32 (T + 1, P): of all its states, the initial one first."""
_CHUNK = 64
"""Frames that are scored at once."""


@dataclass(frozen=True)
class TransitionDataset:
    """A dataset of transitions, whose rewards can be made anew."""

    count: int
    """Number of episodes."""
    episodes: Iterable[Iterator[States]]
    """The states of each: the first one, and then those that actions led to, some at a time."""
    task_rewards: Iterable[NDArray[np.float64]]
    """The environment's own rewards of each, float64 (T,); NaN where they are not known."""
    write: Callable[[Path, dict[str, Any], Rewards], None]
    """Writes the copy with other rewards into a folder that is not there yet, and what the command says of them."""
    segments: DatasetSegments | None = None
    """Draws the states of a dataset of `vlmrm-gym dataset`; None: the states are frames."""

    def specify(self, flags: RewardFlags) -> dict[str, RewardSpec]:
        """Make the rewards of flags, by their labels."""
        return flags.specifications() if self.segments is None else specify(flags, self.segments)


def open_dataset(path: Path, camera: Any, opened: ExitStack, *, trust_code: bool) -> TransitionDataset | None:
    """Open a folder that is a dataset of transitions; None if it is none. An InputError if it cannot be read."""
    if is_lerobot(path):
        return _of_lerobot(LeRobotDataset(path, camera))
    if path.is_dir() and DatasetFolder(path).settings() is not None:
        refuse_links(path)
        return _of_ours(opened.enter_context(DatasetSegments(path, camera, trust_code=trust_code)))
    data = find_data(path) if path.is_dir() else None
    if data is not None and camera is not None:
        raise InputError(f"`camera` is for datasets with several. Received {camera!r} for {path}. Leave it out.")
    return None if data is None else _of_minari(MinariData(data))


def _of_minari(source: MinariData) -> TransitionDataset:
    def split(number: int) -> Iterator[States]:
        frames = source.frames(number)
        return map(States, np.split(frames, range(1, len(frames), _CHUNK)))

    def write(out: Path, told: dict[str, Any], rewards: Rewards) -> None:
        write_rewards(source.data, out, told["columns"], rewards)

    own = read_task_rewards(source.data, source.count)
    return TransitionDataset(source.count, map(split, range(source.count)), own, write)


def _of_lerobot(source: LeRobotDataset) -> TransitionDataset:
    """A LeRobot dataset. The last frame of an episode is also the one that its last action led to."""

    def split(frames: Iterator[NDArray[np.uint8]]) -> Iterator[States]:
        last = next(frames)
        yield States(last[None])
        while part := list(islice(frames, _CHUNK)):
            last = part[-1]
            yield States(np.stack(part))
        yield States(last[None])

    def write(out: Path, told: dict[str, Any], rewards: Rewards) -> None:
        source.write(out, np.concatenate([one[1:, 0] for one in rewards]))

    lengths, own = source.lengths, source.task_rewards
    own = np.full(sum(lengths), np.nan) if own is None else own
    own = np.split(own, np.cumsum(lengths)[:-1])
    return TransitionDataset(len(lengths), map(split, source.frames()), own, write)


def _of_ours(segments: DatasetSegments) -> TransitionDataset:
    folder, rollouts = segments.folder, segments.rollouts

    def write(out: Path, told: dict[str, Any], rewards: Rewards) -> None:
        """Write the copy, and beside it what makes it a dataset of `vlmrm-gym dataset`."""
        write_rewards(folder / "data", out, told["columns"], rewards)
        for name in ("scenes", "videos"):
            if (folder / name).is_dir():
                shutil.copytree(folder / name, out.parent / name, dirs_exist_ok=True)
        if (folder / "labels.csv").is_file():
            shutil.copyfile(folder / "labels.csv", out.parent / "labels.csv")
        settings = {**read_json(folder / "settings.json"), **told, "camera": segments.camera}
        atomic_write_text(out.parent / "settings.json", json.dumps(settings, indent=2))

    episodes = (iter([one.with_initial[:1], one.states]) for one in rollouts)
    return TransitionDataset(len(rollouts), episodes, (one.task_rewards for one in rollouts), write, segments)


def score_dataset(dataset: TransitionDataset, scorer: SeveralRewards) -> Rewards:
    """Score all episodes."""
    done: Rewards = []
    episodes = zip(dataset.episodes, dataset.task_rewards, strict=True)
    for states, own in tqdm(episodes, total=dataset.count, unit=" episodes", file=sys.stderr):
        if any(scorer.task_weights) and not np.isfinite(own).all():
            raise InputError("The task's own reward is a term, and must be known of all steps. The dataset lacks some.")
        rewards = np.concatenate([scorer.begin(next(states)), *map(scorer, states)])
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
