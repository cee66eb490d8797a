"""Minari datasets of others and of `vlmrm-gym dataset`: their frames, and copies with other rewards."""

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.errors import InputError
from vlmrm_gym._util.files import atomic_write_text
from vlmrm_gym._util.untrusted import check_hdf5, parse_json, read_json, reading
from vlmrm_gym._util.validation import short_repr

DAMAGE = (LookupError, TypeError, AttributeError, AssertionError, RuntimeError)
"""What Minari raises for a dataset that is damaged."""
_DTYPE = re.compile(r"bool|u?int\d+|float\d+", re.ASCII)
"""Of the numbers of a space."""


def find_data(folder: Path) -> Path | None:
    """The folder with the data of a Minari dataset, if this is one."""
    return next((one for one in (folder, folder / "data") if (one / "main_data.hdf5").is_file()), None)


class MinariData:
    """The data of a Minari dataset, which may be a stranger's; an InputError if it is damaged."""

    def __init__(self, data: Path) -> None:
        self.data = data
        with reading(f"The dataset {data}", *DAMAGE):
            self.count = _check_data(data)

    def read(self, numbers: Iterable[int]) -> Iterable[dict[str, Any]]:
        """Read episodes, as Minari returns them."""
        from minari.dataset.minari_storage import MinariStorage

        return MinariStorage.read(self.data).get_episodes(numbers)

    def frames(self, episode: int) -> NDArray[np.uint8]:
        """Read the frames of an episode, uint8 (T + 1, H, W, 3): its observations, or the one entry that is frames."""
        with reading(f"The dataset {self.data}", *DAMAGE):
            (observed,) = (one["observations"] for one in self.read([episode]))
        entries = observed.values() if isinstance(observed, dict) else [observed]
        frames = [one for one in map(np.asarray, entries) if one.dtype == np.uint8 and one.shape[3:] == (3,)]
        if len(frames) != 1:
            rule = "must have observations that are frames, uint8 (T, H, W, 3), or one such entry"
            shapes = short_repr([np.shape(one) for one in entries])
            raise InputError(f"The dataset {self.data} {rule}. Episode {episode} has {shapes}.")
        return frames[0]


def read_task_rewards(data: Path, count: int) -> Iterator[NDArray[np.float64]]:
    """Read the environment's own rewards of each of `count` episodes, float64 (T,)."""
    import h5py

    with reading(f"The dataset {data}", *DAMAGE), h5py.File(data / "main_data.hdf5", "r") as file:
        for number in range(count):  # not by Minari, which would decode the frames, too
            episode: Any = file[f"episode_{number}"]
            infos: Any = episode.get("infos", {})
            own = np.asarray(infos["task_reward"][1:] if "task_reward" in infos else episode["rewards"])
            if own.shape != episode["rewards"].shape or own.ndim != 1 or own.dtype.kind not in "fiub":
                raise ValueError(f"rewards of episode {number} must be numbers (T,). Received {own.dtype} {own.shape}")
            yield own.astype(np.float64)


def write_rewards(data: Path, out: Path, labels: Sequence[str], rewards: Sequence[NDArray[np.float32]]) -> None:
    """Write a copy of a Minari dataset with P other rewards, which have these labels in the metadata.

    `rewards` are of each episode float32 (T + 1, P): of all its states, the initial one first. Its rewards become those
    of the first column; its infos get all as `prompt_rewards`, and the earlier ones as `task_reward`.
    """
    import h5py

    own = list(read_task_rewards(data, len(rewards)))
    out.mkdir(parents=True)
    shutil.copyfile(data / "main_data.hdf5", out / "main_data.hdf5")
    with h5py.File(out / "main_data.hdf5", "r+") as file:
        for number, (task, scored) in enumerate(zip(own, rewards, strict=True)):
            episode: Any = file[f"episode_{number}"]
            infos = episode.require_group("infos")
            _replace(episode, "rewards", scored[1:, 0].astype(np.float64))
            _replace(infos, "prompt_rewards", scored)
            _replace(infos, "task_reward", np.concatenate([[np.nan], task]))
    metadata = {**read_json(data / "metadata.json"), "rewards": list(labels)}
    atomic_write_text(out / "metadata.json", json.dumps(metadata))


def _check_data(data: Path) -> int:
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


def _replace(group: Any, name: str, values: NDArray[Any]) -> None:
    if name in group:
        del group[name]
    group.create_dataset(name, data=values, maxshape=(None, *values.shape[1:]), chunks=True)
