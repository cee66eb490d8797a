"""Reads the labels that a person gave: which states of a dataset, or frames of videos, are successes."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.errors import InputError
from vlmrm_gym._util.untrusted import read_text, reading
from vlmrm_gym._util.validation import short_repr
from vlmrm_gym.data.dataset_folder import LABELS
from vlmrm_gym.data.trajectory import Trajectory

_MAX_LABELS = 2**28
"""Bytes of a table."""
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_VALUES = {"": np.nan, "0": 0.0, "false": 0.0, "1": 1.0, "true": 1.0}


def open_table(path: Path, columns: Sequence[str]) -> "csv.DictReader[str]":
    """Open a CSV file. An InputError if it lacks one of these columns."""
    table = csv.DictReader(io.StringIO(read_text(path, _MAX_LABELS), newline=""))
    if not set(columns) <= (names := set(table.fieldnames or ())):
        raise InputError(f"{path} must have the columns {', '.join(columns)}. Received {short_repr(sorted(names))}.")
    return table


def read_video_labels(path: Path, sources: Mapping[str, Any]) -> dict[str, NDArray[np.float64]]:
    """Read which frames of videos are successes: for each video float64 (T,), 1, 0, or NaN where there is no label.

    The columns are `video`, a name in `sources` or its last part, with or without its suffix; `success`; and `frame`,
    which may lack. `sources` are videos by their names, each with a `count` of frames. An InputError as of
    `_read_success`, or if there are not both successes and failures.
    """
    labels = {name: np.full(one.count, np.nan) for name, one in sources.items()}
    meant = {alias: own for name, own in labels.items() for alias in (Path(name).stem, Path(name).name, name)}
    _read_success(path, "video", "frame", meant, ("video", "success"))
    found = np.concatenate(list(labels.values()))
    if not {0.0, 1.0} <= set(found.tolist()):
        received = f"labels of {int((found >= 0).sum()):,} frames, all alike"
        raise InputError(f"{path} must have successes and failures. Received {received}.")
    return labels


def read_labels(path: Path, rollouts: Sequence[Trajectory]) -> list[NDArray[np.bool_]]:
    """Read whether each state of a dataset's rollouts, in order, is a success: bool (T,) for each rollout.

    The columns are `episode`, `step` and `success`. Step 0 is the state after the first action. An InputError as of
    `_read_success`, or if the label of a step is missing.
    """
    labels = [np.full(len(rollout), np.nan) for rollout in rollouts]
    _read_success(path, "episode", "step", {str(i): own for i, own in enumerate(labels)}, LABELS)
    if lacking := [(step, i) for i, own in enumerate(labels) for step in np.flatnonzero(np.isnan(own))]:
        first = ", ".join(f"step {step} of episode {i}" for step, i in lacking[:3])
        more = f" and {len(lacking) - 3:,} more" if len(lacking) > 3 else ""
        raise InputError(
            f"{path} must have a label for every step. {len(lacking):,} of {sum(map(len, labels)):,} lack one: "
            f"{first}{more}. Write 0 or 1 in the column `success`."
        )
    return [own == 1 for own in labels]


def _read_success(
    path: Path, whole: str, part: str, labels: Mapping[str, NDArray[np.float64]], columns: Sequence[str]
) -> None:
    """Read a CSV file into `labels`, float64 (T,) by the name in the column `whole`; what it lacks stays NaN.

    `part` is a number from 0; a line without one is for all T. `success` is 0, 1, true, false or empty. Other columns
    are ignored. An InputError if the file cannot be read, lacks one of `columns`, or has a line of something else, or a
    second label of the same place.
    """
    with reading(path, csv.Error):
        table = open_table(path, columns)
        for row in table:
            name, number, success = words = [(row.get(column) or "").strip() for column in (whole, part, "success")]
            own = labels.get(name, np.empty(0))
            is_part = not number or (_NUMBER.fullmatch(number) and int(number) < len(own))
            places = slice(None) if not number or not is_part else int(number)
            if not len(own) or not is_part or success.lower() not in _VALUES or not np.isnan(own[places]).all():
                raise InputError(
                    f"{path}, line {table.line_num}: `{whole}` must be one of the {whole}s, `{part}` empty or one of "
                    f"its {part}s, each in one line, and `success` 0, 1, true or false. Received {short_repr(words)}."
                )
            own[places] = _VALUES[success.lower()]
