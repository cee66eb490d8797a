"""LeRobot datasets, version 3.0: their frames, and copies with other rewards. Nothing is read outside their folder.

meta/info.json                        features, frames per second, version
meta/episodes/chunk-000/*.parquet     a row for each episode: its length, and where it is in the videos
meta/stats.json                       the least, the largest and the mean value of features
data/chunk-000/file-000.parquet       a row for each frame, without those of videos
videos/<feature>/chunk-000/*.mp4      frames of many episodes, one after the other
"""

import io
import json
import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.errors import InputError
from vlmrm_gym._util.files import atomic_write_text, refuse_links
from vlmrm_gym._util.untrusted import check_file, read_json, reading
from vlmrm_gym._util.validation import short_repr
from vlmrm_gym.data.frames import Video, decode_picture

REWARD = "next.reward"
"""The column of rewards, as LeRobot names it: of the action of a row."""
TASK_REWARD = "next.task_reward"
"""The column that keeps the dataset's own rewards."""
VERSION = "v3.0"
_QUANTILES = (1, 10, 50, 90, 99)
_MAX_ROWS, _BATCH = 2**24, 64
"""Of all tables together; and those that are in memory at once, with all of their columns."""
_NUMBERS = ("int32", "int64", "float", "double", "bool")


class LeRobotDataset:
    """A dataset in the layout of LeRobot 3.0; an InputError if the folder has another, or `camera` is none of it."""

    def __init__(self, folder: Path, camera: Any = None) -> None:
        self.folder = folder
        refuse_links(folder)
        self._info = read_json(folder / "meta" / "info.json")
        with reading(f"The dataset {folder}", LookupError, TypeError, AttributeError):
            version, features = self._info["codebase_version"], self._info["features"]
            cameras = [name for name, one in features.items() if one["dtype"] in ("video", "image")]
            self._fps = float(self._info["fps"])
            if not self._fps > 0:
                raise ValueError(f"`fps` must be above 0. Received {self._fps}")
        if version != VERSION:
            hint = "python -m lerobot.scripts.convert_dataset_v21_to_v30 converts datasets of version 2.1."
            raise InputError(
                f"The dataset {folder} must have the version {VERSION}. Received {short_repr(version)}. {hint}"
            )
        if not cameras:
            raise InputError(f"The dataset {folder} must have frames: a feature of dtype video or image.")
        if camera is None and len(cameras) == 1:
            (camera,) = cameras
        if camera not in cameras:
            raise InputError(f"`camera` must be one of {', '.join(cameras)}. Received {short_repr(camera)}.")
        self.camera = str(camera)
        if Path(self.camera).name != self.camera:
            raise InputError(f"The dataset {folder} must name its cameras without a path. Received {camera!r}.")
        self._is_video = features[camera]["dtype"] == "video"

    @cached_property
    def lengths(self) -> list[int]:
        """The frames of each episode."""
        with self._reading():
            episodes = self._column("episode_index")
            ends = np.append(np.flatnonzero(np.diff(episodes)), len(episodes) - 1)
            if episodes[ends].tolist() != list(range(len(ends))):
                raise ValueError("its episodes must be numbered from 0, one after the other")
        return np.diff(ends, prepend=-1).tolist()

    @property
    def task_rewards(self) -> NDArray[np.float64] | None:
        """The dataset's own rewards, float64 (number of frames,), if it has some; of a copy those of the original."""
        features = self._info["features"]
        name = TASK_REWARD if TASK_REWARD in features else REWARD
        with self._reading():
            own = self._column(name).astype(np.float64) if name in features else np.full(1, np.nan)
        return None if np.isnan(own).all() else own

    def frames(self) -> Generator[Generator[NDArray[np.uint8]]]:
        """The frames of each episode, uint8 (H, W, 3): decoded as they are taken, each once, all before the next."""
        with closing(self._shown() if self._is_video else self._stored()) as frames:
            for number, length in enumerate(self.lengths):
                yield self._take(frames, number, length)
            with self._reading():
                if next(frames, None) is not None:
                    raise ValueError("it has more frames than rows")

    def write(self, folder: Path, rewards: NDArray[np.float32]) -> None:
        """Write a copy with rewards, float32 (number of frames,), as `REWARD`; its own become `TASK_REWARD`, or NaN."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        own, start = self.task_rewards, 0
        columns = {REWARD: rewards, TASK_REWARD: np.full(len(rewards), np.nan, np.float32)}
        if own is not None:
            columns[TASK_REWARD] = own.astype(np.float32)
        shutil.copytree(self.folder, folder, copy_function=_link, ignore=self._left_out)
        for file, path in zip(self._data(), self._paths("data"), strict=True):
            copy = folder / path.relative_to(self.folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            old = file.schema_arrow
            kept = [name for name in old.names if name not in columns]
            schema = pa.schema([old.field(name) for name in kept], _add_features(old.metadata, columns))
            for name in columns:
                schema = schema.append(pa.field(name, pa.float32()))
            with pq.ParquetWriter(copy, schema) as writer:
                for rows in file.iter_batches(_BATCH, columns=kept):
                    new = [pa.array(column[start : start + len(rows)]) for column in columns.values()]
                    writer.write_batch(pa.RecordBatch.from_arrays([*rows.columns, *new], schema=schema))
                    start += len(rows)
        self._write_meta(folder / "meta", columns)

    def _write_meta(self, meta: Path, columns: dict[str, NDArray[np.float32]]) -> None:
        feature = {"dtype": "float32", "shape": [1], "names": None}
        info = {**self._info, "features": {**self._info["features"], **dict.fromkeys(columns, feature)}}
        atomic_write_text(meta / "info.json", json.dumps(info, indent=4))
        stats = read_json(meta / "stats.json") if (meta / "stats.json").exists() else {}
        for name, column in columns.items():
            if np.isnan(column).any():
                continue
            figures: dict[str, Any] = {"min": column.min(), "max": column.max(), "mean": column.mean()}
            figures |= {f"q{one:02}": np.percentile(column, one) for one in _QUANTILES} | {"std": column.std()}
            stats[name] = {key: [float(value)] for key, value in figures.items()} | {"count": [len(column)]}
        atomic_write_text(meta / "stats.json", json.dumps(stats, indent=4))

    def _left_out(self, folder: str, names: list[str]) -> list[str]:
        return ["data"] if Path(folder) == self.folder else []

    def _paths(self, *parts: str) -> list[Path]:
        if paths := sorted(self.folder.joinpath(*parts).glob("chunk-*/file-*.parquet")):
            return paths
        raise InputError(f"The dataset {self.folder} must have files in {'/'.join(parts)}. Received none.")

    def _data(self) -> Iterator[Any]:
        return map(_open, self._paths("data"))

    def _column(self, name: str) -> NDArray[Any]:
        files = list(self._data())
        if sum(file.metadata.num_rows for file in files) > _MAX_ROWS:
            raise ValueError(f"it must have at most {_MAX_ROWS:,} frames")
        for file in files:
            kind = file.schema_arrow.field(name).type
            if str(kind) not in _NUMBERS:
                raise ValueError(f"{name} must be numbers. Received {kind}")
        return np.concatenate([file.read([name])[0].to_numpy() for file in files])

    def _stored(self) -> Generator[NDArray[np.uint8]]:
        """Decode the frames that are stored as pictures in the tables."""
        for file in self._data():
            for batch in file.iter_batches(16, columns=[self.camera]):
                for picture in batch.column(0):
                    with reading(f"A picture of {self.camera}", LookupError, TypeError):
                        yield decode_picture(io.BytesIO(picture.as_py()["bytes"]), self.camera)

    def _shown(self) -> Generator[NDArray[np.uint8]]:
        """Decode the videos, one after the other, and take the frames that the episodes name by their times."""
        key = f"videos/{self.camera}"
        columns = ["episode_index", *(f"{key}/{name}" for name in ("chunk_index", "file_index", "from_timestamp"))]
        places = [row for path in self._paths("meta", "episodes") for row in _rows(_open(path), columns)]
        times = iter(self._column("timestamp").tolist())
        if [row[0] for row in places] != list(range(len(self.lengths))):
            raise ValueError("meta/episodes must have its episodes, in order")
        for (chunk, number), rows in groupby(places, key=lambda row: (int(row[1]), int(row[2]))):
            path = self.folder / "videos" / self.camera / f"chunk-{chunk:03d}" / f"file-{number:03d}.mp4"
            video = Video.open(path)
            shown = np.array([np.nan if one is None else one for one in video.times])
            if not (np.diff(shown) > 0).all():
                raise ValueError(f"{path} must have frames at increasing times")
            with closing(video.frames()) as decoded:
                frame, at = np.empty(0, np.uint8), -1
                for episode, _, _, start in rows:
                    for _ in range(self.lengths[episode]):
                        wanted = start + next(times)
                        index = min(int(np.searchsorted(shown, wanted - 0.5 / self._fps)), len(shown) - 1)
                        if index <= at or abs(shown[index] - wanted) > 0.6 / self._fps:
                            raise ValueError(f"{path} has no frame of episode {episode} at {wanted:.3f} s")
                        while at < index:
                            frame, at = next(decoded).frame, at + 1
                        yield frame

    def _take(self, frames: Generator[NDArray[np.uint8]], episode: int, length: int) -> Generator[NDArray[np.uint8]]:
        for taken in range(length):
            with self._reading():
                if (frame := next(frames, None)) is None:
                    raise ValueError(f"episode {episode} has {length} rows, and {taken} frames")
            yield frame

    @contextmanager
    def _reading(self) -> Iterator[None]:
        from pyarrow import ArrowException

        with reading(f"The dataset {self.folder}", ArrowException, LookupError, TypeError, RuntimeError, OverflowError):
            yield


def is_lerobot(folder: Path) -> bool:
    """Tell whether a path is the folder of a LeRobot dataset, of any version."""
    return (folder / "meta" / "info.json").is_file()


def _open(path: Path) -> Any:
    from pyarrow.parquet import ParquetFile

    check_file(path)
    return ParquetFile(path)


def _rows(file: Any, columns: list[str]) -> list[tuple[Any, ...]]:
    kinds = {name: str(file.schema_arrow.field(name).type) for name in columns}
    if file.metadata.num_rows > _MAX_ROWS or not set(kinds.values()) <= set(_NUMBERS):
        raise ValueError(f"meta/episodes must have numbers in at most {_MAX_ROWS:,} rows. Received {kinds}")
    read = file.read(columns)
    return list(zip(*(read.column(name).to_pylist() for name in columns), strict=True))


def _add_features(metadata: Any, names: Any) -> Any:
    """Add columns to the metadata that the library `datasets` keeps in a table; None if there are none."""
    try:
        said = json.loads(metadata[b"huggingface"])
        said["info"]["features"] |= {name: {"dtype": "float32", "_type": "Value"} for name in names}
    except (TypeError, LookupError, ValueError, AttributeError):
        return None
    return {b"huggingface": json.dumps(said).encode()}


def _link(source: str, target: str) -> None:
    if source.endswith(".mp4"):
        with suppress(OSError):
            return os.link(source, target)
    shutil.copyfile(source, target)
