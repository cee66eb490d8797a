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
from itertools import groupby, islice
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
"""Of all tables of a folder; and those that are in memory at once, with all of their columns."""
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
            (episodes,) = self._columns("data", "episode_index")
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
            own = self._columns("data", name)[0].astype(np.float64) if name in features else np.full(1, np.nan)
        return None if np.isnan(own).all() else own

    def frames(self) -> Generator[Iterator[NDArray[np.uint8]]]:
        """The frames of each episode, uint8 (H, W, 3): decoded as they are taken, each once, all before the next."""
        with closing(self._shown() if self._is_video else self._stored()) as frames:
            for length in self.lengths:
                yield islice(frames, length)

    def write(self, folder: Path, rewards: NDArray[np.float32]) -> None:
        """Write a copy with rewards, float32 (number of frames,), as `REWARD`; its own become `TASK_REWARD`, or NaN."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        own, start = self.task_rewards, 0
        columns = {REWARD: rewards, TASK_REWARD: np.full(len(rewards), np.nan, np.float32)}
        if own is not None:
            columns[TASK_REWARD] = own.astype(np.float32)
        shutil.copytree(self.folder, folder, copy_function=_link, ignore=self._left_out)
        for path in self._paths("data"):
            file = _open(path)
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

    def _paths(self, tables: str) -> list[Path]:
        if paths := sorted((self.folder / tables).glob("chunk-*/file-*.parquet")):
            return paths
        raise InputError(f"The dataset {self.folder} must have files in {tables}. Received none.")

    def _columns(self, tables: str, *names: str) -> list[NDArray[Any]]:
        """Read columns of numbers, each as one array."""
        files = [_open(path) for path in self._paths(tables)]
        if sum(file.metadata.num_rows for file in files) > _MAX_ROWS:
            raise ValueError(f"{tables} must have at most {_MAX_ROWS:,} rows")
        for name in names:
            if wrong := {str(file.schema_arrow.field(name).type) for file in files}.difference(_NUMBERS):
                raise ValueError(f"{name} must be numbers. Received {', '.join(wrong)}")
        return [np.concatenate([file.read([name])[0].to_numpy() for file in files]) for name in names]

    def _stored(self) -> Generator[NDArray[np.uint8]]:
        """Decode the frames that are stored as pictures in the tables."""
        with self._reading():
            for path in self._paths("data"):
                for batch in _open(path).iter_batches(16, columns=[self.camera]):
                    for picture in batch.column(0):
                        with reading(f"A picture of {self.camera}", LookupError, TypeError):
                            yield decode_picture(io.BytesIO(picture.as_py()["bytes"]), self.camera)

    def _shown(self) -> Generator[NDArray[np.uint8]]:
        """Decode the videos, one after the other, and take the frames that the episodes name by their times."""
        names = [f"videos/{self.camera}/{name}" for name in ("from_timestamp", "chunk_index", "file_index")]
        with self._reading():
            numbers, starts, *places = self._columns("meta/episodes", "episode_index", *names)
            if numbers.tolist() != list(range(len(self.lengths))):
                raise ValueError("meta/episodes must have its episodes, in order")
            episodes = np.repeat(np.arange(len(numbers)), self.lengths)
            times = starts[episodes] + self._columns("data", "timestamp")[0]
            videos = [f"chunk-{chunk:03d}/file-{file:03d}.mp4" for chunk, file in zip(*places, strict=True)]
            for name, group in groupby(range(len(videos)), key=videos.__getitem__):
                path = self.folder / "videos" / self.camera / name
                video, rows = Video.open(path), np.flatnonzero(np.isin(episodes, list(group)))
                if not (np.diff(video.times) > 0).all():
                    raise ValueError(f"{path} must have frames at increasing times")
                shown = np.searchsorted(video.times, times[rows] - 0.5 / self._fps).clip(max=video.count - 1)
                is_near = np.abs(video.times[shown] - times[rows]) <= 0.6 / self._fps
                if len(lacking := rows[~is_near | (np.diff(shown, prepend=-1) <= 0)]):
                    row = lacking[0]
                    raise ValueError(f"{path} has no frame of episode {episodes[row]} at {times[row]:.3f} s")
                taken = set(shown.tolist())
                with closing(video.frames()) as decoded:
                    until_last = enumerate(islice(decoded, shown[-1] + 1))
                    yield from (one.frame for number, one in until_last if number in taken)

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
