r"""Train the humanoid tasks, one run for each task, view and seed; go on where a run was cut off.

    python benchmarks/humanoid_tasks.py runs/tasks --tasks kneel stand --cameras front-side
    python benchmarks/humanoid_tasks.py runs/ablation --tasks arms-raised --cameras paper side front-side \
        --combine-views min mean

Every run is examples/sac_continuous.py on one thread, in FOLDER/<task>-<camera>-<combination>-<seed>. A finished run is
not repeated; an unfinished one is resumed from its last checkpoint. The table has what all finished runs of the folder
came to: success in 100 episodes, judged by the simulator's state, and how many of them still succeed in the 50 steps
before steps 300 and 1,000 when the agent plays on; training episodes have 100 steps.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro
from tqdm import tqdm

from vlmrm_gym.envs.humanoid_success import SUCCESS_CRITERIA
from vlmrm_gym.envs.humanoid_vector import HumanoidVectorEnv
from vlmrm_gym.rendering.views import VIEW_SETS

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import sac_continuous

LATER = (300, 1_000)
"""Steps after which success is judged again, over the 50 steps before."""


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
    at_once: int = 2
    """number of runs at a time, each on one thread"""


def run_name(task: str, camera: str, combine: str, seed: int) -> str:
    return "-".join([task, camera, *([combine] if is_set(camera) else []), str(seed)])


def is_set(camera: str) -> bool:
    """Whether a named set has several cameras."""
    return len(VIEW_SETS.get(camera) or ()) > 1


def train(folder: Path, task: str, camera: str, combine: str, seed: int, args: Args) -> None:
    """Train, or go on with, one run."""
    finished = list(folder.glob("*/result.json"))
    if finished:
        return
    unfinished = sorted(folder.glob("*/checkpoint.pt"), key=lambda file: file.stat().st_mtime)
    command = [sys.executable, sac_continuous.__file__]
    if unfinished:
        command += ["--resume", str(unfinished[-1].parent)]
    else:
        command += ["--env-id", f"VLMRM/Humanoid-{task}-v0", "--seed", str(seed), "--camera", camera]
        command += ["--combine-views", combine] if is_set(camera) else []
        command += ["--total-timesteps", str(args.total_timesteps), "--runs-folder", str(folder)]
        command += ["--torch-threads", "1"]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log.txt").open("a") as log:
        done = subprocess.run(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        print(f"{folder.name} failed: see {folder / 'log.txt'}", file=sys.stderr)


def later_success(run: Path, task: str, episodes: int = 100) -> list[float]:
    """Fraction of episodes that succeed in at least half of the 50 steps before each step of `LATER`."""
    saved = json.loads((run / "result.json").read_text())["args"]
    envs = HumanoidVectorEnv(episodes, episode_length=max(LATER), task=task, textured=False)
    agent = sac_continuous.Agent(envs, sac_continuous.Args(hidden=saved["hidden"]))
    agent.load_state_dict(torch.load(run / "agent.pt", map_location="cpu"))
    observations, _ = envs.reset(seed=20_000)
    succeeded = np.zeros((max(LATER), episodes), dtype=bool)
    for step in range(max(LATER)):
        observations, *_, infos = envs.step(agent.act(observations, deterministic=True))
        succeeded[step] = infos["success"]
    envs.close()
    return [float((succeeded[step - 50 : step].mean(0) >= 0.5).mean()) for step in LATER]


def report(folder: Path) -> None:
    """Print a table of all finished runs."""
    print(f"| run | success | {' | '.join(f'at step {step:,}' for step in LATER)} | VLM return | minutes |")
    print("|---|" + "---|" * (len(LATER) + 3))
    for file in tqdm(sorted(folder.glob("*/*/result.json")), desc="judging again, later"):
        result, name = json.loads(file.read_text()), file.parent.parent.name
        task = result["args"]["env_id"].removeprefix("VLMRM/Humanoid-").removesuffix("-v0")
        later = " | ".join(f"{share:.0%}" for share in later_success(file.parent, task))
        print(f"| {name} | {result['success']:.0%} | {later} | {result['vlm_return']:.1f} | {result['minutes']:.0f} |")


def main(args: Args) -> None:
    wanted = [
        (task, camera, combine, seed)
        for seed, task, camera, combine in product(args.seeds, args.tasks, args.cameras, args.combine_views)
        if is_set(camera) or combine == args.combine_views[0]
    ]
    with ThreadPoolExecutor(args.at_once) as pool:
        started = [pool.submit(train, args.folder / run_name(*one), *one, args) for one in wanted]
        for future in tqdm(started, unit="run"):
            future.result()
    report(args.folder)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
