"""The folder of a dataset, written and read. Finished episodes survive an interruption; the data appear at the end.

settings.json          the command's settings, with defaults filled in
episodes/<episode>/    finished episodes, each a Minari dataset, until the dataset is complete
data/                  the complete Minari dataset
scenes/episode_*.npz   scene changes, of episodes in which the environment changed its scene
videos/episode_*.mp4   a video of each episode, on request
labels.csv             success of every step, for a person to fill in or to correct
"""

import csv
import io
import json
import os
import pickle
import re
import shutil
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from vlmrm_gym._util.errors import InputError
from vlmrm_gym._util.files import atomic_write, atomic_write_text, check_folder, check_space, make_folder
from vlmrm_gym._util.untrusted import read_json, reading
from vlmrm_gym._util.validation import short_repr
from vlmrm_gym.data.minari import DAMAGE, MinariData
from vlmrm_gym.data.trajectory import Trajectory
from vlmrm_gym.states import StateView
from vlmrm_gym.states.scene_changes import check_read, load_changes, save_changes
from vlmrm_gym.states.states import States

if TYPE_CHECKING:
    from minari.data_collector import EpisodeBuffer

FORMAT = "vlmrm_gym dataset 1"
"""What settings.json says about the folder's layout."""
LABELS = ("episode", "step", "success")
"""Columns of labels.csv."""
DEFAULT_FPS = 30
"""Frames per second of the videos, if the environment does not say."""
_CONTENTS = ("data", "data.partial", "episodes", "scenes", "videos", "labels.csv", "settings.json")
"""What the command writes; settings.json is removed last."""
_MARGIN = 2**19
"""Room that must be left beside the data, for what HDF5 adds, in bytes."""


class DatasetFolder:
    """The folder of a dataset."""

    def __init__(self, path: Path) -> None:
        self.path, self.labels, self.videos = path, path / "labels.csv", path / "videos"
        self.data = path / "data"
        """The Minari dataset. It exists if the dataset is complete."""
        self.dataset_id = path.name if re.fullmatch(r"[-_a-zA-Z0-9]+-v\d+", path.name) else None
        """The folder's name, if Minari can load the dataset by it."""

    def settings(self) -> dict[str, Any] | None:
        """The settings of the dataset; None if the folder has none. An InputError if readers cannot use one."""
        path = self.path / "settings.json"
        settings = read_json(path) if os.path.lexists(path) else None
        if not isinstance(settings, dict) or settings.get("format") != FORMAT:
            return None
        settings = {"id": None, "env_kwargs": None, "camera": None, "policy": "", **settings}
        texts = [settings["id"], settings["policy"]]
        if not all(isinstance(one, str) for one in texts):
            raise InputError(f"{path}: `id` and `policy` must be texts. Received {short_repr(texts)}.")
        return settings

    def check(self, settings: Mapping[str, Any], *, overwrite: bool) -> None:
        """See whether a dataset of these settings, values that JSON can express, can be written; changes nothing."""
        check_folder(self.path)
        before, now = self.settings(), _as_json(settings)
        present = {path.name for path in self.path.iterdir()} if self.path.exists() else set()
        if before is None and present - {"settings.partial.json"}:
            raise InputError(f"The folder {self.path} has other contents. Choose another --out.")
        if before is not None and before != now and not overwrite:
            name = next(name for name in (*now, *before) if before.get(name) != now.get(name))
            raise InputError(
                f"The folder {self.path} has a dataset with another `{name}`: {short_repr(before.get(name))}. Received "
                f"{short_repr(now.get(name))}. Choose another --out, or pass --overwrite to replace it and its labels."
            )

    def begin(self, settings: Mapping[str, Any], *, overwrite: bool) -> None:
        """Write the settings of a new dataset, or clean up; an incomplete one of the same settings is always kept."""
        self.check(settings, overwrite=overwrite)
        make_folder(self.path)
        if self.settings() != _as_json(settings) or (overwrite and self.data.exists()):
            for name in _CONTENTS:
                _remove(self.path / name)
            atomic_write_text(self.path / "settings.json", json.dumps(_as_json(settings), indent=2))
        for unfinished in (*self.path.glob("*.partial"), *self.path.glob("*/*.partial*")):
            _remove(unfinished)
        if self.data.exists():
            _remove(self.path / "episodes")

    def missing(self, episodes: int) -> list[int]:
        """The episodes that are not finished."""
        return [] if self.data.exists() else [i for i in range(episodes) if not self._episode(i).exists()]

    def scene_changes(self, episode: int) -> Path:
        """The file of an episode's scene changes, of `save_changes`. It exists if the environment changed its scene."""
        return self.path / "scenes" / f"episode_{episode:04d}.npz"

    def add(
        self,
        episode: int,
        rollout: Trajectory,
        env: gym.Env[Any, Any],
        prompt_rewards: NDArray[np.float32] | None = None,
        video_of: StateView | None = None,
    ) -> None:
        """Keep a finished episode, with `prompt_rewards`, float32 (T + 1, P), of all states by each reward.

        `env` has the spaces. With `video_of`, a video of what it sees is written.
        """
        from minari.dataset.minari_storage import MinariStorage

        changes = rollout.with_initial.changes
        if changes is not None:
            _write(self.scene_changes(episode), lambda path: save_changes(path, changes))
        if video_of is not None:
            from vlmrm_gym.data.videos import save_numbered_video

            fps = env.metadata.get("render_fps") or DEFAULT_FPS
            video = self.videos / f"episode_{episode:04d}.mp4"
            _write(video, partial(save_numbered_video, video_of, rollout.states, episode, fps))
        folder, buffer = self._episode(episode), _to_buffer(rollout, prompt_rewards)
        unfinished = folder.with_suffix(".partial")
        unfinished.mkdir(parents=True)
        check_space(unfinished, _MARGIN + len(pickle.dumps(buffer)))
        storage = MinariStorage.new(unfinished, env.observation_space, env.action_space, jpeg_encoding=False)
        storage.update_episodes([buffer])
        unfinished.replace(folder)

    def finish(self, env: gym.Env[Any, Any], spec: EnvSpec | None, metadata: Mapping[str, Any], seed: int) -> None:
        """Make the Minari dataset, of the spaces of `env`, and the table of labels; `seed` is of the first episode."""
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
        table = io.StringIO(newline="")
        writer = csv.writer(table)
        writer.writerow(LABELS)
        for number, folder in enumerate(sorted(self.path.glob("episodes/*"))):
            (episode,) = MinariStorage.read(folder).get_episodes([0])
            storage.update_episodes([EpisodeBuffer(**{**episode, "id": number, "seed": seed + number})])
            success = episode["infos"].get("success", [""] * (len(episode["rewards"]) + 1))
            writer.writerows((number, step, label) for step, label in enumerate(success[1:]))
        atomic_write(self.labels, lambda path: path.write_bytes(table.getvalue().encode()))
        unfinished.replace(self.data)
        _remove(self.path / "episodes")

    def _episode(self, episode: int) -> Path:
        return self.path / "episodes" / f"{episode:08d}"


def _to_buffer(rollout: Trajectory, prompt_rewards: NDArray[np.float32] | None) -> "EpisodeBuffer":
    """An episode in Minari's format, see docs/guides/datasets.md. Its infos have a row for each state."""
    from minari.data_collector import EpisodeBuffer

    infos: dict[str, Any] = {
        "state": rollout.with_initial.rows,
        "task_reward": np.concatenate([[np.nan], rollout.task_rewards]),
    }
    if rollout.known_success is not None:
        infos["success"] = np.concatenate([[-1], rollout.success]).astype(np.int8)
    rewards = rollout.task_rewards
    if prompt_rewards is not None:
        infos["prompt_rewards"], rewards = prompt_rewards, prompt_rewards[1:, 0].astype(np.float64)
    columns: dict[str, Any] = {
        "observations": rollout.observations,
        "actions": rollout.actions,
        "rewards": rewards,
        "terminations": rollout.terminated,
        "truncations": rollout.truncated,
    }
    return EpisodeBuffer(infos=infos, **columns)


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


def check_spaces(env: gym.Env[Any, Any]) -> None:
    """Raise an InputError unless Minari can store an environment's observations and actions."""
    from minari.serialization import serialize_space

    for name, space in (("observations", env.observation_space), ("actions", env.action_space)):
        try:
            serialize_space(space)
        except NotImplementedError as error:
            raise InputError(f"Minari cannot store the {name} of this environment: {space}. Wrap it.") from error


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps({"format": FORMAT, **settings}))


def _write(path: Path, write: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    atomic_write(path, write)
