"""Trainings that have an outcome, and the weights of the bundled model that each was trained with.

`training_outcomes.csv` has a row for every training whose success `RESULTS.md` reports, in its present or an earlier
version, and for four that were measured by hand. `source` says where the figure stands, and which of its settings are
not stated there. Left out, because no success is reported: Stable-Baselines3's SAC on mountain car with state-dependent
exploration, a first attempt at delayed actor updates, and two settings of DQN that were tried up to 15,000 steps.

With the weights of c2affa6, this code and that of c2affa6, 06dfc5c and c408045 give equal rewards, to the bit, for 40
frames of the three environments, in both looks. With those of cd9fe82, rewards of cart-pole differ by up to 0.014 from
that commit's: it scored frames of 400x600 pixels, which are rendered at the model's size today.
"""

import csv
import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from vlmrm_gym.tasks import TASKS
from vlmrm_gym.validation import check_choice, check_positive_integer

ROOT = Path(__file__).parent.parent
OUTCOMES = Path(__file__).parent / "training_outcomes.csv"
WEIGHTS = ROOT / "build" / "weights"
TINY = "vlmrm_gym/tiny"
FILES = ("open_clip_config.json", "open_clip_model.safetensors")
"""What open_clip loads from a folder. The anchors only serve the warning of the model "tiny" about unknown prompts."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Settings of a training and what it came to.

    Raises:
        ValueError: A value is out of its range; the message names it.
    """

    id: str
    task_id: str
    """The registered ID, such as "VLMRM/CartPole-v1"."""
    prompt: str
    baseline: str
    """The registered baseline prompt. It has no effect at alpha 0."""
    alpha: float
    """From 0 to 1."""
    look: Literal["textured", "plain"] | None
    """None for cart-pole, which has one look."""
    camera: str | Mapping[str, Any] | None
    """A value of `camera=`. None for cart-pole and mountain car, which take no camera."""
    combine_views: Literal["min", "mean"] | None
    """None for a single view."""
    algorithm: str
    """The algorithm and its program, then the settings that differ from the program's."""
    steps: int
    """Environment steps of each training."""
    seeds: int
    """Number of trainings."""
    success: float
    """Mean fraction of successful episodes, from 0 to 1, over the seeds."""
    weights_commit: str
    """A commit that has the weights of the bundled model, 7 hexadecimal digits."""
    source: str
    """Where the success stands, and the commit and seeds of the training."""

    def __post_init__(self) -> None:
        check_choice("task_id", self.task_id, [task.id for task in TASKS])
        check_choice("look", self.look or "", ["textured", "plain", ""])
        check_choice("combine_views", self.combine_views or "", ["min", "mean", ""])
        check_positive_integer("steps", self.steps)
        check_positive_integer("seeds", self.seeds)
        for name in ("alpha", "success"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"`{name}` must be from 0 to 1. Received {getattr(self, name)!r}.")
        for name in ("id", "prompt", "algorithm", "source"):
            if not getattr(self, name):
                raise ValueError(f"`{name}` must not be empty.")
        if not re.fullmatch("[0-9a-f]{7}", self.weights_commit):
            raise ValueError(
                f"`weights_commit` must be 7 lower-case hexadecimal digits. Received {self.weights_commit!r}."
            )


def load_outcomes(path: Path = OUTCOMES) -> list[Outcome]:
    """Read the table of trainings.

    Args:
        path: A CSV file with the fields of `Outcome` as its columns.

    Raises:
        ValueError: Columns are missing or unknown, two rows have the same ID, or a value is wrong; with the line.
    """
    outcomes = []
    with path.open(newline="") as file:
        table = csv.DictReader(file)
        columns = [field.name for field in fields(Outcome)]
        if table.fieldnames != columns:
            raise ValueError(f"{path}: the columns must be {', '.join(columns)}. Received {table.fieldnames}.")
        for row in table:
            try:
                outcomes.append(_parse(row))
            except ValueError as error:
                raise ValueError(f"{path}, line {table.line_num}: {error}") from error
    if repeated := [id for id, count in Counter(outcome.id for outcome in outcomes).items() if count > 1]:
        raise ValueError(f"{path}: IDs must be unique. More than once: {', '.join(repeated)}.")
    return outcomes


def _parse(row: dict[str, Any]) -> Outcome:
    if None in row or None in row.values():
        raise ValueError("the row must have as many values as there are columns.")
    values: dict[str, Any] = {name: value or None if name in OPTIONAL else value for name, value in row.items()}
    for name, (parse, rule) in PARSERS.items():
        try:
            values[name] = parse(row[name])
        except ValueError as error:
            raise ValueError(f"`{name}` must be {rule}. Received {row[name]!r}.") from error
    return Outcome(**values)


def _parse_camera(text: str) -> str | dict[str, Any] | None:
    return json.loads(text) if text.startswith("{") else text or None


OPTIONAL = ("look", "combine_views")
PARSERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "alpha": (float, "a number"),
    "camera": (_parse_camera, "empty, a name, or a JSON object of camera settings"),
    "steps": (int, "an integer"),
    "seeds": (int, "an integer"),
    "success": (float, "a number"),
}
"""Parsers of the columns that are not text, and what their values must be."""


def weights_folder(commit: str) -> Path:
    """The bundled model of a commit, as a folder for `--model local-dir:FOLDER`. Extracted from git once.

    Args:
        commit: A commit, at least 7 hexadecimal digits.

    Raises:
        ValueError: The text is not a commit's hash.
        RuntimeError: Git is missing, or its history here does not have the weights of that commit.
    """
    if not re.fullmatch("[0-9a-f]{7,40}", commit):
        raise ValueError(f"`commit` must be 7 to 40 lower-case hexadecimal digits. Received {commit!r}.")
    folder = WEIGHTS / commit
    if folder.is_dir():
        return folder
    WEIGHTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=WEIGHTS, prefix=f"{commit}.partial.") as unfinished:
        complete = Path(unfinished) / commit
        complete.mkdir()
        for name in FILES:
            (complete / name).write_bytes(_read_from_git(commit, f"{TINY}/{name}"))
        try:
            complete.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process extracted it meanwhile
                raise
    return folder


def _read_from_git(commit: str, path: str) -> bytes:
    try:
        return subprocess.run(["git", "show", f"{commit}:{path}"], cwd=ROOT, capture_output=True, check=True).stdout
    except FileNotFoundError as error:
        raise RuntimeError(f"Reading {path} of commit {commit} needs git, which is not installed.") from error
    except subprocess.CalledProcessError as error:
        raise RuntimeError(
            f"Git has no {path} of commit {commit} here: {error.stderr.decode(errors='replace').strip()} "
            "A shallow clone gets its history by `git fetch --unshallow`."
        ) from error
