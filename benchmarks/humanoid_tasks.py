r"""Train the humanoid tasks, one run for each task, view and seed; go on where a run was cut off.

    python benchmarks/humanoid_tasks.py runs/tasks --tasks kneel stand --cameras front-side
    python benchmarks/humanoid_tasks.py runs/tasks --tasks arms-raised --cameras paper side front-side \
        --combine-views min mean
    python benchmarks/humanoid_tasks.py runs/tasks --tasks splits --label held --options="--exploration-hold 10"

Every run is examples/sac_continuous.py on one thread, in FOLDER/<task>-<camera>-<combination>-<seed>. An unfinished run
is resumed from its last checkpoint. What a finished run came to is written to
benchmarks/humanoid_tasks/<the same name>.json, and a run that has such a record is not repeated; to repeat runs of the
repository, pass --records runs/records. A record has success in 100 episodes, by the simulator's state; how many
of them still succeed in the 50 steps before steps 300 and 1,000 when the agent plays on, while training episodes have
100 steps; and its curve. `python benchmarks/humanoid_report.py` makes a table and a picture of these files.
"""

import csv
import json
import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from tqdm import tqdm

from vlmrm_gym._util.system import read_commit
from vlmrm_gym.states.cameras import VIEW_SETS
from vlmrm_gym.tasks.humanoid_success import SUCCESS_CRITERIA
from vlmrm_gym.tasks.humanoid_vector import HumanoidVectorEnv

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import sac_continuous

RECORDS = Path(__file__).parent / "humanoid_tasks"
LATER = (300, 1_000)
"""Steps after which success is decided again, over the 50 steps before."""
CURVE_STEPS = 3_000
"""Steps of training of which a point of a curve is the mean."""


@dataclass
class Args:
    folder: Annotated[Path, tyro.conf.Positional]
    """where the runs are kept"""
    tasks: tuple[str, ...] = tuple(SUCCESS_CRITERIA)
    """the humanoid tasks"""
    cameras: tuple[str, ...] = ("front-side",)
    """cameras, or named sets of them"""
    combine_views: tuple[str, ...] = ("min",)
    """how the rewards of several cameras are combined"""
    seeds: tuple[int, ...] = (1,)
    """one run for each seed"""
    total_timesteps: int = 120_000
    """steps of a run"""
    options: str = ""
    """more options for the program, such as --options="--exploration-hold 10\""""
    label: str = ""
    """ends the names of runs that have more options"""
    at_once: int = 2
    """number of runs at a time, each on one thread"""
    records: Path = RECORDS
    """folder of the records; runs that have one there are not repeated"""

    def __post_init__(self) -> None:
        if bool(self.options) != bool(self.label):
            raise ValueError("`options` and `label` must be given together: runs are told apart by their names.")


@dataclass(frozen=True)
class Run:
    """What is trained."""

    task: str
    camera: str
    combine_views: str | None
    """None for a single view."""
    seed: int
    label: str = ""
    options: str = ""

    @property
    def name(self) -> str:
        """Names its folder and its record."""
        parts = (self.task, self.camera, self.combine_views, str(self.seed), self.label)
        return "-".join(part for part in parts if part)


def is_set(camera: str) -> bool:
    """Whether a named set has several cameras."""
    return len(VIEW_SETS.get(camera) or ()) > 1


def train(run: Run, args: Args) -> None:
    """Train, or go on with, one run; record what it came to."""
    folder, record = args.folder / run.name, args.records / f"{run.name}.json"
    if record.exists():
        print(f"{run.name} is not trained: {record} exists. Pass --records with another folder to train it again.")
        return
    if not list(folder.glob("*/result.json")):
        unfinished = sorted(folder.glob("*/checkpoint.pt"), key=lambda file: file.stat().st_mtime)
        command = [sys.executable, sac_continuous.__file__]
        if unfinished:
            command += ["--resume", str(unfinished[-1].parent)]
        else:
            command += ["--env-id", f"VLMRM/Humanoid-{run.task}-v0", "--seed", str(run.seed), "--camera", run.camera]
            command += ["--combine-views", run.combine_views] if run.combine_views else []
            command += ["--total-timesteps", str(args.total_timesteps), "--runs-folder", str(folder)]
            command += shlex.split(run.options)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "log.txt").open("a") as log:
            done = subprocess.run(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode:
            print(f"{run.name} failed: see {folder / 'log.txt'}", file=sys.stderr)
            return
    (result,) = folder.glob("*/result.json")
    args.records.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(recorded(run, result.parent)) + "\n")


def recorded(run: Run, folder: Path) -> dict[str, Any]:
    """What a finished run came to."""
    result = json.loads((folder / "result.json").read_text())
    was_resumed = len(list(folder.glob("events.out.tfevents.*"))) > 1
    with (folder / "learning_curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    # Success has a row when an episode ends, its VLM return one when it has been scored.
    values = {name: np.array([float(row[name] or "nan") for row in rows]) for name in rows[0]}
    parts = values["step"] // CURVE_STEPS
    means = [[np.nanmean(column[parts == part]) for column in values.values()] for part in np.unique(parts)[:-1]]
    known = [mean for mean in means if np.isfinite(mean).all()]
    curve = {
        name: [round(float(value), 4) for value in column]
        for name, column in zip(values, zip(*known, strict=True), strict=True)
    }
    return {
        **{name: getattr(run, name) for name in ("task", "camera", "combine_views", "seed", "label", "options")},
        **{name: result[name] for name in ("success", "success_fraction", "vlm_return", "task_return", "timesteps")},
        "later_success": dict(zip(LATER, later_success(run.task, folder), strict=True)),
        "minutes": None if was_resumed else round(result["minutes"], 1),
        "commit": read_commit(),
        "date": time.strftime("%Y-%m-%d"),
        "curve": curve,
    }


def later_success(task: str, folder: Path, episodes: int = 100) -> list[float]:
    """Fraction of episodes that succeed in at least half of the 50 steps before each step of `LATER`."""
    envs = HumanoidVectorEnv(episodes, episode_length=max(LATER), task=task, textured=False)
    agent = sac_continuous.load_agent(folder, envs)
    observations, _ = envs.reset(seed=20_000)
    succeeded = np.zeros((max(LATER), episodes), dtype=bool)
    for step in range(max(LATER)):
        observations, *_, infos = envs.step(agent.act(observations, deterministic=True))
        succeeded[step] = infos["success"]
    envs.close()
    return [float((succeeded[step - 50 : step].mean(0) >= 0.5).mean()) for step in LATER]


def main(args: Args) -> None:
    torch.set_num_threads(1)
    runs = [
        Run(task, camera, combine if is_set(camera) else None, seed, args.label, args.options)
        for seed, task, camera, combine in product(args.seeds, args.tasks, args.cameras, args.combine_views)
        if is_set(camera) or combine == args.combine_views[0]
    ]
    with ThreadPoolExecutor(args.at_once) as pool:
        started = [pool.submit(train, run, args) for run in runs]
        for future in tqdm(started, unit="run"):
            future.result()


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
