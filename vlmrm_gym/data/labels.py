"""Reads datasets that `vlmrm-gym dataset` made, and labels of their states that a person gave."""

import csv
import io
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.errors import InputError
from vlmrm_gym._util.untrusted import read_text, reading
from vlmrm_gym._util.validation import short_repr
from vlmrm_gym.data.dataset_folder import LABELS, DatasetFolder
from vlmrm_gym.data.minari import DAMAGE, MinariData
from vlmrm_gym.data.trajectory import Trajectory
from vlmrm_gym.states.scene_changes import check_read, load_changes
from vlmrm_gym.states.states import States

_MAX_LABELS = 2**28
"""Bytes of a table."""
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_VALUES = {"": None, "0": False, "false": False, "1": True, "true": True}


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings of a complete dataset of `vlmrm-gym dataset`; an InputError if the folder is none.

    Among them `id`, `env_kwargs`, `policy`, `seed`, `columns` (the labels of the rewards) and `camera`.
    """
    dataset = DatasetFolder(folder)
    if (settings := dataset.settings()) is None:
        raise InputError(f"{folder} is not a folder that `vlmrm-gym dataset` made: its settings.json is missing.")
    if not dataset.data.is_dir():
        raise InputError(f"The dataset {folder} is not complete. Run the command that began it again.")
    return settings


def check_environment(folder: Path, id: str, env_kwargs: Mapping[str, Any] | None = None) -> None:
    """Raise an InputError unless a dataset is of an environment: of an ID, or of "package.module:function"."""
    settings = read_settings(folder)
    both = ((settings["id"], settings["env_kwargs"]), (id, env_kwargs))
    theirs, ours = (f"{id.removeprefix('vlmrm_gym:')} {kwargs or ''}".strip() for id, kwargs in both)
    if theirs != ours:
        raise InputError(f"The dataset {folder} must be of {ours}. Received one of {theirs}. Pass another dataset.")


def read_dataset(folder: Path) -> list[Trajectory]:
    """Read all episodes of a complete dataset of `vlmrm-gym dataset`; an InputError if it is none, or is damaged."""
    dataset, settings = DatasetFolder(folder), read_settings(folder)
    data = MinariData(dataset.data)
    with reading(f"The dataset {folder}", *DAMAGE):
        episodes = data.read(range(data.count))
        rollouts = [_to_rollout(one, settings["policy"], dataset.scene_changes(one["id"])) for one in episodes]
        if len(shapes := {rollout.states.rows.shape[1:] for rollout in rollouts}) > 1:
            raise ValueError(f"states of all episodes must have the same shape. Received {short_repr(shapes)}")
    return rollouts


def _to_rollout(episode: dict[str, Any], policy: str, scene_changes: Path) -> Trajectory:
    infos, steps = episode["infos"], len(episode["rewards"])

    def column(name: str, values: Any, extra: int, kinds: str) -> NDArray[Any]:
        array = np.asarray(values)
        has_rows = array.shape[:1] == (steps + extra,) and (array.ndim > 1) == (name == "state")
        if not has_rows or array.dtype.kind not in kinds:
            raise ValueError(f"`{name}` of episode {episode['id']} is {array.dtype} {array.shape} for {steps} steps")
        return array

    rows = column("state", infos["state"], 1, "uif")
    if not steps or (rows.ndim == 2 and not np.isfinite(rows).all()):
        raise ValueError(f"`state` of episode {episode['id']} must have finite rows. Received {rows.shape}")
    changes = load_changes(scene_changes) if os.path.lexists(scene_changes) else None
    if changes is not None:
        check_read(changes)
        if len(changes) != len(rows):
            raise ValueError(f"{scene_changes} has {len(changes)} scenes of {len(rows)} states")
    states, known = States(rows, changes), {}
    if "success" in infos:
        success = column("success", infos["success"], 1, "i")[1:]
        known["success"] = np.where(success < 0, np.nan, success == 1)
    return Trajectory(
        source=policy,
        episode_index=episode["id"],
        states=states[1:],
        initial=states[:1],
        observations=episode["observations"],
        actions=episode["actions"],
        task_rewards=column("task_reward", infos["task_reward"], 1, "f")[1:],
        terminated=column("terminations", episode["terminations"], 0, "b"),
        truncated=column("truncations", episode["truncations"], 0, "b"),
        **known,
    )


def open_table(path: Path, columns: Sequence[str]) -> "csv.DictReader[str]":
    """Open a CSV file. An InputError if it lacks one of these columns."""
    table = csv.DictReader(io.StringIO(read_text(path, _MAX_LABELS), newline=""))
    if not set(columns) <= (names := set(table.fieldnames or ())):
        raise InputError(f"{path} must have the columns {', '.join(columns)}. Received {short_repr(sorted(names))}.")
    return table


def read_video_labels(path: Path, sources: Mapping[str, Any]) -> dict[str, NDArray[np.float64]]:
    """Read which frames of videos are successes: for each video float64 (T,), 1, 0, or NaN where there is no label.

    A CSV file has the columns `video`, a name in `sources` or its last part, with or without its suffix; `success`, 0,
    1, true or false; and `frame`, from 0: without one a line is for all frames. `sources` are videos by their names,
    each with a `count` of frames. An InputError if the file cannot be read, a line is of no video or frame, or there
    are not both successes and failures.
    """
    labels = {name: np.full(one.count, np.nan) for name, one in sources.items()}
    meant = {alias: name for name in labels for alias in (Path(name).stem, Path(name).name, name)}
    with reading(path, csv.Error):
        table = open_table(path, ("video", "success"))
        for row in table:
            video, frame, success = ((row.get(name) or "").strip() for name in ("video", "frame", "success"))
            own = labels.get(meant.get(video, ""), np.empty(0))
            is_frame = not frame or (_NUMBER.fullmatch(frame) and int(frame) < len(own))
            if not len(own) or not is_frame or _VALUES.get(success.lower()) is None:
                raise InputError(
                    f"{path}, line {table.line_num}: `video` must be one of the videos, `frame` empty or one of its "
                    f"frames, and `success` 0, 1, true or false. Received {short_repr([video, frame, success])}."
                )
            own[slice(None) if not frame else int(frame)] = _VALUES[success.lower()]
    found = np.concatenate(list(labels.values()))
    if not {0.0, 1.0} <= set(found.tolist()):
        received = f"labels of {int((found >= 0).sum()):,} frames, all alike"
        raise InputError(f"{path} must have successes and failures. Received {received}.")
    return labels


def read_labels(path: Path, rollouts: Sequence[Trajectory]) -> list[NDArray[np.bool_]]:
    """Read whether each state of a dataset's rollouts, in order, is a success: bool (T,) for each rollout.

    A CSV file has the columns `episode`, `step` and `success` (0, 1, true or false), in any order, and a line for every
    step of every episode. Step 0 is the state after the first action. Other columns are ignored. An InputError if the
    file cannot be read, lacks a column or the label of a step, or has a line for a step that does not exist, two for
    the same step, or an unreadable value.
    """
    places = [(i, step) for i, rollout in enumerate(rollouts) for step in range(len(rollout))]
    labels, unread = dict[tuple[int, int], bool | None](), set(places)
    with reading(path, csv.Error):
        table = open_table(path, LABELS)
        for row in table:
            words = [(row[name] or "").strip().lower() for name in LABELS]
            episode, step = (int(word) if _NUMBER.fullmatch(word) else -1 for word in words[:2])
            if (episode, step) not in unread or words[2] not in _VALUES:
                raise InputError(
                    f"{path}, line {table.line_num}: `episode` and `step` must be a step of the dataset, each in one "
                    f"line, and `success` 0, 1, true or false. Received {short_repr([row[name] for name in LABELS])}."
                )
            unread.remove((episode, step))
            labels[episode, step] = _VALUES[words[2]]
    if lacking := [place for place in places if labels.get(place) is None]:
        first = ", ".join(f"step {step} of episode {episode}" for episode, step in lacking[:3])
        more = f" and {len(lacking) - 3:,} more" if len(lacking) > 3 else ""
        raise InputError(
            f"{path} must have a label for every step. {len(lacking):,} of {len(places):,} lack one: {first}{more}. "
            "Write 0 or 1 in the column `success`."
        )
    ends = np.cumsum([len(rollout) for rollout in rollouts])
    return np.split(np.array([labels[place] for place in places], dtype=np.bool_), ends[:-1])
