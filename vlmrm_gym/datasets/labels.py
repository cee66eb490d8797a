"""Reads datasets that `vlmrm-gym dataset` made, and labels of their states that a person gave."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.datasets.folder import LABELS, DatasetFolder
from vlmrm_gym.errors import InputError
from vlmrm_gym.rendering.scene_changes import load_changes
from vlmrm_gym.rendering.states import States
from vlmrm_gym.rollouts.play import Rollout
from vlmrm_gym.validation import short_repr, truncate

_VALUES = {"0": False, "false": False, "1": True, "true": True}


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedRollout(Rollout):
    """An episode of a dataset, of T steps."""

    episode: int
    """Its number, from 0."""
    seed: int
    """The seed of its reset."""
    rewards: NDArray[np.float64]
    """float64 (T,): rewards by the first reward; the environment's own if there is none."""
    prompt_rewards: NDArray[np.float32] | None
    """float32 (T, P), the rewards by each reward; None if there is none."""


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings of a dataset.

    Returns:
        Among them `id` and `env` (one is None), `policy`, `seed`, `steps`, `prompt` (a list), `rewards` (a list
        of their mapping forms), `columns` (their labels), `camera` and `combine_views`.

    Raises:
        InputError: The folder is not that of a complete dataset of `vlmrm-gym dataset`.
    """
    found = DatasetFolder(folder)
    settings = found.settings()
    if settings is None:
        raise InputError(f"{folder} is not a folder that `vlmrm-gym dataset` made: its settings.json is missing.")
    if not found.data.is_dir():
        raise InputError(f"The dataset {folder} is not complete. Run the command that began it again.")
    return settings


def check_environment(folder: Path, id: str | None, function: str | None) -> None:
    """See that a dataset is of an environment.

    Args:
        folder: The folder of the dataset.
        id: The environment's ID, or None.
        function: What made the environment, "package.module:attribute", or None.

    Raises:
        InputError: It is of another one, or `read_settings` rejects the folder.
    """
    settings = read_settings(folder)
    theirs, ours = (
        (one or "").removeprefix("vlmrm_gym:") for one in (settings["id"] or settings["env"], id or function)
    )
    if theirs != ours:
        raise InputError(f"The dataset {folder} must be of {ours}. Received one of {theirs}. Pass another dataset.")


def read_dataset(folder: Path) -> list[RecordedRollout]:
    """Read all episodes of a dataset.

    Raises:
        InputError: The folder is not that of a complete dataset of `vlmrm-gym dataset`, or is damaged.
    """
    return list(iterate_dataset(folder))


def iterate_dataset(folder: Path) -> Iterator[RecordedRollout]:
    """Read the episodes of a dataset one after the other; see `read_dataset`."""
    from minari.dataset.minari_storage import MinariStorage

    found, settings = DatasetFolder(folder), read_settings(folder)
    try:
        if not {"observation_space", "action_space"} <= MinariStorage.read_raw_metadata(found.data).keys():
            # Minari would make the environment that the metadata describe: code that a stranger's file names.
            raise KeyError("its metadata have no spaces")
        storage = MinariStorage.read(found.data)
        for episode in storage.get_episodes(range(storage.total_episodes)):
            yield _to_rollout(episode, settings, found.scene_changes(episode["id"]))
    except (OSError, KeyError, ValueError, TypeError, AssertionError, BadZipFile) as error:
        raise InputError(f"The dataset {folder} is damaged: {truncate(str(error) or repr(error))}") from error


def _to_rollout(episode: dict[str, Any], settings: dict[str, Any], scene_changes: Path) -> RecordedRollout:
    infos = episode["infos"]
    states = States(infos["state"], load_changes(scene_changes) if scene_changes.exists() else None)
    success, prompt_rewards = infos.get("success"), infos.get("prompt_rewards")
    return RecordedRollout(
        behaviour=settings["policy"],
        states=states[1:],
        initial=states[:1],
        observations=episode["observations"],
        actions=episode["actions"],
        task_rewards=infos["task_reward"][1:],
        terminated=episode["terminations"],
        truncated=episode["truncations"],
        success=None if success is None else success[1:] == 1,
        episode=int(episode["id"]),
        seed=settings["seed"] + int(episode["id"]),
        rewards=episode["rewards"],
        prompt_rewards=None if prompt_rewards is None else prompt_rewards[1:],
    )


def read_labels(path: Path, rollouts: Sequence[Rollout]) -> list[NDArray[np.bool_]]:
    """Read whether each state of a dataset is a success.

    Args:
        path: A CSV file with the columns `episode`, `step` and `success` (0, 1, true or false), in any order, and a
            line for every step of every episode. Step 0 is the state after the first action. Other columns are ignored.
        rollouts: All episodes of the dataset, in order.

    Returns:
        bool (T,) for each rollout.

    Raises:
        InputError: The file cannot be read, lacks a column or the label of a step, or has a line for a step that does
            not exist, two for the same step, or an unreadable value.
    """
    labels = [np.full(len(one), -1, dtype=np.int8) for one in rollouts]  # -1: no label yet
    lines: dict[tuple[int, int], int] = {}
    for line, row in _rows(path):
        where = f"{path}, line {line}"
        episode, step = (_number(row[name], name, where) for name in ("episode", "step"))
        if episode >= len(labels) or step >= len(labels[episode]):
            raise InputError(f"{where}: the dataset has no step {step} of an episode {episode}. Remove the line.")
        if (before := lines.setdefault((episode, step), line)) != line:
            raise InputError(f"{where}: episode {episode}, step {step} is in line {before}, too. Leave one.")
        if text := (row["success"] or "").strip().lower():
            if text not in _VALUES:
                raise InputError(
                    f"{where}: `success` must be 0, 1, true or false. Received {short_repr(row['success'])}."
                )
            labels[episode][step] = _VALUES[text]
    lacking = [(episode, int(step)) for episode, own in enumerate(labels) for step in np.flatnonzero(own < 0)]
    if lacking:
        total = sum(map(len, labels))
        first = ", ".join(f"step {step} of episode {episode}" for episode, step in lacking[:3])
        more = f" and {len(lacking) - 3:,} more" if len(lacking) > 3 else ""
        raise InputError(
            f"{path} must have a label for every step. {len(lacking):,} of {total:,} lack one: {first}{more}. Write 0 "
            "or 1 in the column `success`."
        )
    return [own == 1 for own in labels]


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str | None]]]:
    """Lines of a CSV file by their numbers."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets write a byte-order mark
            reader = csv.DictReader(file)
            names = list(reader.fieldnames or [])
            if not set(LABELS) <= set(names):
                raise InputError(f"{path} must have the columns {', '.join(LABELS)}. Received {short_repr(names)}.")
            yield from ((reader.line_num, row) for row in reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a table (CSV): {error}.") from error


def _number(text: str | None, name: str, where: str) -> int:
    if text is None or not text.strip().isdecimal():
        raise InputError(f"{where}: `{name}` must be an integer of at least 0. Received {short_repr(text)}.")
    return int(text)
