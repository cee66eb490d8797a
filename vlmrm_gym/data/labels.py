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
from vlmrm_gym._util.untrusted import check_hdf5, parse_json, read_json, read_text, reading
from vlmrm_gym._util.validation import short_repr
from vlmrm_gym.data.dataset_folder import LABELS, DatasetFolder
from vlmrm_gym.data.trajectory import Trajectory
from vlmrm_gym.states.scene_changes import check_read, load_changes
from vlmrm_gym.states.states import States

_MAX_LABELS = 2**28
"""Bytes of a table."""
_DTYPE = re.compile(r"bool|u?int\d+|float\d+", re.ASCII)
"""Of the numbers of a space."""
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
    from minari.dataset.minari_storage import MinariStorage

    dataset, settings = DatasetFolder(folder), read_settings(folder)
    with reading(f"The dataset {folder}", LookupError, TypeError, AttributeError, AssertionError, RuntimeError):
        number = check_data(dataset.data)  # before Minari opens anything
        episodes = MinariStorage.read(dataset.data).get_episodes(range(number))
        rollouts = [_to_rollout(one, settings["policy"], dataset.scene_changes(one["id"])) for one in episodes]
        if len(shapes := {rollout.states.rows.shape[1:] for rollout in rollouts}) > 1:
            raise ValueError(f"states of all episodes must have the same shape. Received {short_repr(shapes)}")
    return rollouts


def check_data(data: Path) -> int:
    """See that Minari reads arrays of one file, and makes nothing else; returns the number of episodes."""
    known = read_json(data / "metadata.json")
    number = known["total_episodes"]
    if known["data_format"] != "hdf5":
        raise ValueError("it must have the format hdf5")
    if type(number) is not int or number < 1:
        raise ValueError(f"it must have at least one episode. Received {short_repr(number)}")
    # Without spaces, Minari would make the environment that the metadata describe: code that a stranger's file names.
    waiting = [parse_json(known[name]) for name in ("observation_space", "action_space")]
    has_pictures = False
    while waiting:
        space = waiting.pop()
        inner = space.get("subspaces", ())
        waiting += inner.values() if isinstance(inner, dict) else inner
        if not _DTYPE.fullmatch(space.get("dtype", "int64")):
            raise ValueError(f"a space must be of numbers. Received {short_repr(space['dtype'])}")
        has_pictures |= space.get("dtype") == "uint8" and len(space.get("shape", ())) > 1
    is_jpeg = known.get("jpeg_encoding", True) is not False and has_pictures
    check_hdf5(data / "main_data.hdf5", pictures=("observations", "actions") if is_jpeg else ())
    return number


def _to_rollout(episode: dict[str, Any], policy: str, scene_changes: Path) -> Trajectory:
    infos, steps = episode["infos"], len(episode["rewards"])

    def column(name: str, values: Any, extra: int, kinds: str) -> NDArray[Any]:
        array = np.asarray(values)
        if (
            array.shape[:1] != (steps + extra,)
            or array.dtype.kind not in kinds
            or (array.ndim > 1) != (name == "state")
        ):
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
    labels = {(i, step): "" for i, rollout in enumerate(rollouts) for step in range(len(rollout))}
    lines: dict[tuple[int, int], int] = {}
    with reading(path, csv.Error):
        table = open_table(path, LABELS)
        for row in table:
            words = [(row[name] or "").strip().lower() for name in LABELS]
            episode, step = (int(word) if _NUMBER.fullmatch(word) else -1 for word in words[:2])
            place, line = (episode, step), table.line_num
            if place not in labels or words[2] not in _VALUES or lines.setdefault(place, line) != line:
                raise InputError(
                    f"{path}, line {line}: `episode` and `step` must be a step of the dataset, each in one line, and "
                    f"`success` 0, 1, true or false. Received {short_repr([row[name] for name in LABELS])}."
                )
            labels[place] = words[2]
    if lacking := [place for place, word in labels.items() if not word]:
        first = ", ".join(f"step {step} of episode {episode}" for episode, step in lacking[:3])
        more = f" and {len(lacking) - 3:,} more" if len(lacking) > 3 else ""
        raise InputError(
            f"{path} must have a label for every step. {len(lacking):,} of {len(labels):,} lack one: {first}{more}. "
            "Write 0 or 1 in the column `success`."
        )
    return [np.array([_VALUES[labels[i, step]] for step in range(len(rollout))]) for i, rollout in enumerate(rollouts)]
