"""Writes datasets as LeRobot 3.0 lays them out: of a camera, whose frames have one grey each."""

import io
import json

import imageio.v3 as iio
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

CAMERA = "observation.images.top"
FPS = 10


def frame(grey):
    return np.full((32, 48, 3), grey, dtype=np.uint8)


def write_lerobot(folder, episodes, *, is_video=True, version="v3.0", rewards=None, cameras=(CAMERA,)):
    """Write episodes, lists of greys; two files of videos and of rows, where there are more than two."""
    dtype = "video" if is_video else "image"
    features = {name: {"dtype": dtype, "shape": [32, 48, 3]} for name in cameras}
    info = {"codebase_version": version, "fps": FPS, "features": features, "total_episodes": len(episodes)}
    _write_json(folder / "meta" / "info.json", info)
    if rewards is not None:
        features["next.reward"] = {"dtype": "float32", "shape": [1], "names": None}
        _write_json(folder / "meta" / "info.json", info)
    places, index = [], 0
    for number, several in enumerate([episodes[:2], episodes[2:]]):
        if not several:
            continue
        rows = {name: [] for name in ("episode_index", "frame_index", "timestamp", "index")}
        shown = []
        for episode in several:
            places.append({"episode_index": len(places), "length": len(episode)})
            for name in cameras:
                at = {"chunk_index": 0, "file_index": number, "from_timestamp": len(shown) / FPS}
                places[-1] |= {f"videos/{name}/{key}": value for key, value in at.items()}
            for i in range(len(episode)):
                row = {"episode_index": len(places) - 1, "frame_index": i, "timestamp": i / FPS, "index": index}
                for name, value in row.items():
                    rows[name].append(value)
                index += 1
            shown += episode
        columns = {**rows, "timestamp": np.array(rows["timestamp"], dtype=np.float32)}
        if rewards is not None:
            columns["next.reward"] = np.array(rewards[index - len(shown) : index], dtype=np.float32)
        if not is_video:
            columns |= {name: [{"bytes": _png(grey), "path": None} for grey in shown] for name in cameras}
        _write_table(folder / "data" / "chunk-000" / f"file-{number:03}.parquet", columns)
        for name in cameras if is_video else ():
            path = folder / "videos" / name / "chunk-000" / f"file-{number:03}.mp4"
            path.parent.mkdir(parents=True, exist_ok=True)
            iio.imwrite(path, np.stack([frame(grey) for grey in shown]), fps=FPS, macro_block_size=1)
    table = {name: [place[name] for place in places] for name in places[0]}
    _write_table(folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet", table)
    return folder


def _png(grey):
    file = io.BytesIO()
    Image.fromarray(frame(grey)).save(file, "PNG")
    return file.getvalue()


def _write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def _write_table(path, columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
