"""Minari datasets of others and of `vlmrm-gym dataset`: their frames, and copies with other rewards."""

import io
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
from vlmrm_gym._util.untrusted import check_file, parse_json, read_json, reading
from vlmrm_gym._util.validation import short_repr

DAMAGE = (LookupError, TypeError, AttributeError, AssertionError, RuntimeError)
"""What Minari raises for a dataset that is damaged."""
_DTYPE = re.compile(r"bool|u?int\d+|float\d+", re.ASCII)
"""Of the numbers of a space."""
_MAX_EPISODE_PIXELS = 2**31
"""Of the pictures of an episode, which Minari decodes at once: some 6 GB."""


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


def check_hdf5(path: str | Path, *, pictures: Sequence[str] = ()) -> None:
    """Check that an HDF5 file is a tree of arrays and texts, all of them in it: no links, filters or objects.

    Arrays of bytes in groups of the names `pictures` must be JPEGs, which take little memory when all are decoded.
    """
    import h5py
    from h5py import h5o  # pyright: ignore[reportAttributeAccessIssue]
    from PIL import Image

    size = check_file(path)
    with reading(path, RuntimeError, KeyError, Image.DecompressionBombError), h5py.File(path, "r") as file:
        waiting: list[Any] = [file]
        while waiting:
            group = waiting.pop()
            for name in group:
                link = group.get(name, getlink=True)
                if not isinstance(link, h5py.HardLink) or h5o.get_info(one := group[name].id).rc != 1:
                    raise ValueError(f"it must have no links. Received {short_repr(name)}.")
                if isinstance(one, h5py.h5g.GroupID):
                    waiting.append(group[name])
                else:
                    is_picture = not set(group[name].name.split("/")).isdisjoint(pictures)
                    size -= _stored_size(group[name], is_picture=is_picture)
                if size < 0:
                    raise ValueError(f"its data must be in it. Received more in {short_repr(name)} than the file has.")


def _check_pictures(dataset: Any) -> int:
    """Check that all rows are the bytes of JPEGs, which take little memory when decoded; returns their bytes."""
    from PIL import Image

    size = pixels = 0
    for row in range(len(dataset)):
        content = dataset[row].tobytes()
        if not content.startswith(b"\xff\xd8"):
            raise ValueError(f"pictures must be JPEGs. Received others in {short_repr(dataset.name)}.")
        with Image.open(io.BytesIO(content), formats=["JPEG"]) as picture:
            size, pixels = size + len(content), pixels + picture.width * picture.height
        if pixels > _MAX_EPISODE_PIXELS:
            raise ValueError(f"pictures of an episode must have at most {_MAX_EPISODE_PIXELS:,} pixels together")
    return size


def _stored_size(dataset: Any, *, is_picture: bool) -> int:
    """Bytes of an HDF5 dataset, if it is stored in its file as it is. Raises a ValueError otherwise."""
    import h5py

    creation, text = dataset.id.get_create_plist(), h5py.check_string_dtype(dataset.dtype)
    if creation.get_external_count() or dataset.is_virtual or creation.get_nfilters():
        raise ValueError(f"its data must be in it, without filters. Received {short_repr(dataset.name)}.")
    rows_of = {1: h5py.check_vlen_dtype(dataset.dtype), 2: dataset.dtype}
    if is_picture and rows_of.get(dataset.ndim) == np.uint8:
        return _check_pictures(dataset)
    if not dataset.dtype.hasobject:
        return dataset.nbytes
    if text is None or dataset.ndim != 1:
        raise ValueError(f"it must have numbers and texts. Received {dataset.dtype} for {short_repr(dataset.name)}.")
    return sum(16 + len(dataset[row]) for row in range(len(dataset)))  # texts may share their bytes


def _replace(group: Any, name: str, values: NDArray[Any]) -> None:
    if name in group:
        del group[name]
    group.create_dataset(name, data=values, maxshape=(None, *values.shape[1:]), chunks=True)
