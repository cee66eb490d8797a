"""The folder of a dataset: finished episodes survive an interruption, and the data appears when all are there.

settings.json          the command's settings, with defaults filled in
episodes/<episode>/    finished episodes, until the dataset is complete
data/                  the complete Minari dataset
scenes/episode_*.npz   scene changes, of episodes in which the environment changed its scene
videos/episode_*.mp4   a video of each episode, on request
labels.csv             success of every step, for a person to fill in or to correct
"""

import csv
import json
import os
import pickle
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import gymnasium as gym
import numpy as np
from filelock import FileLock, Timeout
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from vlmrm_gym.errors import InputError
from vlmrm_gym.files import atomic_write, atomic_write_text, check_space, sync
from vlmrm_gym.folders import check_folder, make_folder
from vlmrm_gym.rendering.scene_changes import SceneChange, save_changes
from vlmrm_gym.rollouts.play import Rollout
from vlmrm_gym.untrusted import read_json
from vlmrm_gym.validation import short_repr

if TYPE_CHECKING:
    from minari.data_collector import EpisodeBuffer

FORMAT = "vlmrm_gym dataset 1"
"""What settings.json says about the folder's layout."""
LABELS = ("episode", "step", "success")
"""Columns of labels.csv."""
_OWN = ("data", "data.partial", "episodes", "scenes", "videos", "labels.csv", "settings.json")
"""What the command writes; settings.json is removed last."""
_MARGIN = 2**19
"""Room that must be left beside the data, for what HDF5 adds, in bytes."""


class _Settings(BaseModel):
    """The settings that readers use, of those that the command writes."""

    model_config = ConfigDict(strict=True)
    id: str | None
    env: str | None
    policy: str
    seed: int = Field(ge=0, lt=2**31)
    steps: int = Field(ge=1, lt=2**31)
    prompt: list[str]
    rewards: list[dict[str, Any]]
    columns: list[str]
    camera: Any
    combine_views: str | None
    frames: bool

    @model_validator(mode="after")
    def _names_one_environment(self) -> Self:
        if bool(self.id) == bool(self.env) or len(self.columns) != len(self.rewards):
            raise ValueError("there must be either an `id` or an `env`, and a column for each reward")
        return self


class DatasetFolder:
    """The folder of a dataset.

    Args:
        path: The folder.

    Attributes:
        data: The folder of the Minari dataset. It exists if the dataset is complete.
        labels: The table of labels.
        videos: The folder of the videos.
        dataset_id: The folder's name, if Minari can load the dataset by it; else None.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.data, self.labels, self.videos = path, path / "data", path / "labels.csv", path / "videos"
        self.dataset_id = path.name if re.fullmatch(r"[-_a-zA-Z0-9]+-v\d+", path.name) else None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and keep other processes from writing to it.

        Raises:
            InputError: It cannot be written to, or another process writes to it.
        """
        make_folder(self.path)
        lock = FileLock(self.path / ".lock", blocking=False)
        try:
            lock.acquire()
        except Timeout:
            raise InputError(f"Another process writes to {self.path}. Wait for its end.") from None
        try:
            yield
        finally:
            lock.release()

    def settings(self) -> dict[str, Any] | None:
        """The settings of the dataset; None if the folder has none.

        Raises:
            InputError: They have a value of another type, or out of its range.
        """
        path = self.path / "settings.json"
        if not os.path.lexists(path):
            return None
        settings = read_json(path)
        if not isinstance(settings, dict) or settings.get("format") != FORMAT:
            return None
        try:
            _Settings.model_validate(settings)
        except ValidationError as error:
            wrong = error.errors()[0]
            name = ".".join(map(str, wrong["loc"])) or "id"
            raise InputError(f"{path}: `{name}`: {wrong['msg']}. Received {short_repr(wrong['input'])}.") from None
        return settings

    def check(self, settings: Mapping[str, Any], *, overwrite: bool) -> None:
        """See whether a dataset can be written here; changes nothing.

        Args:
            settings: Of the dataset: values that JSON can express.
            overwrite: Whether a dataset with other settings may be replaced.

        Raises:
            InputError: It is not a folder, has other contents, or has a dataset with other settings.
        """
        check_folder(self.path)
        if not self.path.exists():
            return
        before, now = self.settings(), _as_json(settings)
        if before is None and {path.name for path in self.path.iterdir()} - {".lock", "settings.partial.json"}:
            raise InputError(f"The folder {self.path} has other contents. Choose another --out.")
        if before is None or overwrite:
            return
        for name in now:
            if before.get(name) != now[name]:
                raise InputError(
                    f"The folder {self.path} has a dataset with another `{name}`: {short_repr(before.get(name))}. "
                    f"Received {short_repr(now[name])}. Choose another --out, or pass --overwrite to replace it, its "
                    "labels included."
                )

    def begin(self, settings: Mapping[str, Any], *, overwrite: bool) -> None:
        """Write the settings of a new dataset, or clean up after an interruption; see `check`.

        An incomplete dataset with the same settings is kept, whatever `overwrite` is.
        """
        self.check(settings, overwrite=overwrite)
        is_same = self.settings() == _as_json(settings)
        if not is_same or (overwrite and self.data.exists()):
            for name in _OWN:
                _remove(self.path / name)
            text = json.dumps(_as_json(settings), indent=2)
            atomic_write_text(self.path / "settings.json", text)
        _remove(self.path / "data.partial")
        for name in ("episodes", "videos", "scenes"):
            for unfinished in self.path.glob(f"{name}/*.partial*"):
                _remove(unfinished)
        if self.data.exists():
            shutil.rmtree(self.path / "episodes", ignore_errors=True)

    def missing(self, episodes: int) -> list[int]:
        """The episodes that are not finished."""
        return [] if self.data.exists() else [i for i in range(episodes) if not self._episode(i).exists()]

    def scene_changes(self, episode: int) -> Path:
        """The file of an episode's scene changes, of `save_changes`. It exists if the environment changed its scene."""
        return self.path / "scenes" / f"episode_{episode:04d}.npz"

    def write_scene_changes(self, episode: int, changes: Sequence[SceneChange | None]) -> None:
        """Write the scene changes of an episode's states, the initial one first."""
        self.scene_changes(episode).parent.mkdir(exist_ok=True)
        atomic_write(self.scene_changes(episode), lambda path: save_changes(path, changes))

    def write_video(self, episode: int, write: Callable[[Path], object]) -> None:
        """Write the video of an episode atomically."""
        self.videos.mkdir(exist_ok=True)
        atomic_write(self.videos / f"episode_{episode:04d}.mp4", write)

    def add(self, episode: int, buffer: "EpisodeBuffer", env: gym.Env[Any, Any]) -> None:
        """Keep a finished episode."""
        from minari.dataset.minari_storage import MinariStorage

        folder = self._episode(episode)
        unfinished = folder.with_suffix(".partial")
        unfinished.mkdir(parents=True)
        check_space(unfinished, _MARGIN + len(pickle.dumps(buffer)))
        storage = MinariStorage.new(unfinished, env.observation_space, env.action_space, jpeg_encoding=False)
        storage.update_episodes([buffer])
        _publish(unfinished, folder)

    def finish(self, env: gym.Env[Any, Any], spec: EnvSpec | None, metadata: Mapping[str, Any], seed: int) -> None:
        """Make the Minari dataset and the table of labels of all episodes.

        Args:
            env: The environment, for its spaces.
            spec: What Minari recovers an environment from; None if there is none.
            metadata: Of the dataset.
            seed: Of the first episode.
        """
        from minari import __version__
        from minari.data_collector import EpisodeBuffer
        from minari.dataset.minari_storage import MinariStorage

        if self.data.exists():
            return
        unfinished = self.data.with_suffix(".partial")
        unfinished.mkdir()
        check_space(unfinished, _MARGIN + sum(path.stat().st_size for path in self.path.glob("episodes/*/*")))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "env_spec is not serializable")
            storage = MinariStorage.new(unfinished, env.observation_space, env.action_space, spec, jpeg_encoding=False)
        storage.update_metadata({"minari_version": __version__, **metadata})
        success: list[list[object]] = []
        for folder in sorted(self.path.glob("episodes/*")):
            (episode,) = MinariStorage.read(folder).get_episodes([0])
            values: dict[str, Any] = {**episode, "id": int(folder.name), "seed": seed + int(folder.name)}
            storage.update_episodes([EpisodeBuffer(**values)])
            known = episode["infos"].get("success")
            success.append([""] * len(episode["rewards"]) if known is None else known[1:].tolist())
        atomic_write(self.labels, lambda path: _write_labels(path, success))
        _publish(unfinished, self.data)
        shutil.rmtree(self.path / "episodes")

    def _episode(self, episode: int) -> Path:
        return self.path / "episodes" / f"{episode:08d}"


def to_buffer(rollout: Rollout, seed: int, prompt_rewards: NDArray[np.float32] | None) -> "EpisodeBuffer":
    """An episode in Minari's format. Its infos have a row for each state, the initial one first.

    - `state`: the captured state.
    - `task_reward`: float64, the environment's own reward; NaN for the initial state.
    - `success`: int8, 0 or 1, if the environment says it; -1 for the initial state.
    - `prompt_rewards`: float32 (P,), the rewards by each prompt or other reward, if there are any.

    Args:
        rollout: The episode, of T steps.
        seed: Its seed.
        prompt_rewards: float32 (T + 1, P), the initial state first. `rewards` are those by the first, or without
            any the environment's own.
    """
    from minari.data_collector import EpisodeBuffer

    infos: dict[str, Any] = {
        "state": np.concatenate([rollout.initial.rows, rollout.states.rows]),
        "task_reward": np.concatenate([[np.nan], rollout.task_rewards]),
    }
    if rollout.success is not None:
        infos["success"] = np.concatenate([[-1], rollout.success]).astype(np.int8)
    rewards = rollout.task_rewards
    if prompt_rewards is not None:
        infos["prompt_rewards"], rewards = prompt_rewards, prompt_rewards[1:, 0].astype(np.float64)
    return EpisodeBuffer(
        seed=seed,
        observations=rollout.observations,
        actions=rollout.actions,
        rewards=rewards,  # pyright: ignore[reportArgumentType]  (its collector passes lists)
        terminations=rollout.terminated,  # pyright: ignore[reportArgumentType]
        truncations=rollout.truncated,  # pyright: ignore[reportArgumentType]
        infos=infos,
    )


def check_spaces(env: gym.Env[Any, Any]) -> None:
    """Raise an InputError unless Minari is installed and can store an environment's observations and actions."""
    try:
        from minari.serialization import serialize_space
    except ImportError as error:
        raise InputError(f'Datasets need Minari: pip install "vlmrm-gym[train]" ({error}).') from error

    for name, space in (("observations", env.observation_space), ("actions", env.action_space)):
        try:
            serialize_space(space)
        except NotImplementedError as error:
            raise InputError(
                f"Minari cannot store the {name} of this environment: {space}. It stores Box, Discrete, MultiDiscrete, "
                "MultiBinary, Text, and Dict and Tuple of such. Wrap the environment."
            ) from error


def _remove(path: Path) -> None:
    """Remove a file or folder, if there is one."""
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps({"format": FORMAT, **settings}))


def _publish(unfinished: Path, folder: Path) -> None:
    """Rename a folder after its files are on the disk."""
    for path in (*unfinished.iterdir(), unfinished):
        sync(path)
    unfinished.replace(folder)
    sync(folder.parent)


def _write_labels(path: Path, success: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(LABELS)
        writer.writerows((i, step, label) for i, labels in enumerate(success) for step, label in enumerate(labels))
