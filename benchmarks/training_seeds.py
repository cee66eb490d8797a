"""Train with several seeds; report success, returns, minutes and learning curves.

    python benchmarks/training_seeds.py cart-pole
    python benchmarks/training_seeds.py mountain-car-plain --seeds 1 2 3 --at-once 1
    python benchmarks/training_seeds.py humanoid --task kneel --seeds 1

The prompt is the agent's only reward. Success is computed from the simulator's state over 100 episodes of the
deterministic policy with the best VLM return.

    cart-pole                examples/dqn_cartpole.py
    cart-pole-sb3            vlmrm-gym train, Stable-Baselines3's DQN
    mountain-car             examples/sac_continuous.py, photo-like scene
    mountain-car-plain       the same, Gymnasium's scene
    mountain-car-sb3         vlmrm-gym train, Stable-Baselines3's SAC, photo-like scene
    humanoid                 examples/sac_continuous.py, task chosen by --task
    humanoid-sb3             vlmrm-gym train, Stable-Baselines3's SAC
"""

import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tqdm import tqdm

ROOT = Path(__file__).parent.parent
CURVES = {
    "VLM return": ("charts/vlm_return", "rollout/vlm_return"),
    "Task return (not shown to the agent)": ("charts/task_return", "rollout/task_return"),
    "Success (fraction of steps)": ("charts/success_fraction", "rollout/success_fraction"),
}
"""Titles of the curves, and the TensorBoard tags of the examples and of `vlmrm-gym train`."""


@dataclass
class Args:
    what: Annotated[
        Literal[
            "cart-pole",
            "cart-pole-sb3",
            "mountain-car",
            "mountain-car-plain",
            "mountain-car-sb3",
            "humanoid",
            "humanoid-sb3",
        ],
        tyro.conf.Positional,
    ]
    """environment and program"""
    task: str = "stand"
    """the humanoid task"""
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    """one run per seed"""
    at_once: int = 2
    """number of parallel runs, with one CPU thread each"""
    runs_folder: Path = Path("runs/training_seeds")
    """parent folder of the runs"""
    total_timesteps: int | None = None
    """overrides the program's number of steps"""
    options: str = ""
    """more options for the program, such as --options="--exploration-hold 10\""""
    picture: Path | None = None
    """file for the learning curves"""


def train(seed: int, args: Args) -> dict[str, Any]:
    """Train and evaluate in separate processes with one thread each."""
    folder = args.runs_folder / (f"{args.what}-{args.task}" if "humanoid" in args.what else args.what) / str(seed)
    env_id = {
        "cart-pole": "VLMRM/CartPole-v1",
        "mountain-car": "VLMRM/MountainCarContinuous-v0",
        "humanoid": f"VLMRM/Humanoid-{args.task}-v0",
    }[args.what.removesuffix("-sb3").removesuffix("-plain")]
    started = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    if args.what.endswith("-sb3"):
        cli, run = [sys.executable, "-m", "vlmrm_gym"], folder / f"run-{int(time.time())}"
        steps = [] if args.total_timesteps is None else ["--rl.n-steps", str(args.total_timesteps)]
        where = ["--base-path", str(folder), "--run-name", run.name]
        options = ["--logging.video-freq", "0", *where, *steps, *shlex.split(args.options)]
        call([*cli, "train", "--env-name", env_id, "--seed", str(seed), *options])
        minutes = (time.monotonic() - started) / 60
        call([*cli, "evaluate", str(run)])
        result = {**json.loads((run / "evaluation.json").read_text()), "minutes": minutes}
    else:
        example = "dqn_cartpole.py" if args.what == "cart-pole" else "sac_continuous.py"
        options = ["--no-textured"] if args.what.endswith("-plain") else []
        options += [] if args.total_timesteps is None else ["--total-timesteps", str(args.total_timesteps)]
        command = [sys.executable, str(ROOT / "examples" / example), "--env-id", env_id, "--seed", str(seed)]
        call([*command, "--runs-folder", str(folder), *options, *shlex.split(args.options)])
        file = max(folder.glob("*/result.json"), key=lambda file: file.stat().st_mtime)
        result, run = json.loads(file.read_text()), file.parent
        result.setdefault("vlm_return", result.get("best_greedy_vlm_return"))
    return {**result, "run": run}


def call(command: list[str]) -> None:
    """Run a program on one thread; show its output if it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")


def draw_curves(runs: list[Path], path: Path, title: str) -> None:
    """Plot means over seeds, with the range between them."""
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    events = [EventAccumulator(str(run)).Reload() for run in runs]
    for axis, (label, names) in zip(figure.subplots(1, 3), CURVES.items(), strict=True):
        curves = [curve(own, names) for own in events]
        steps = np.linspace(max(own[0][0] for own in curves), min(own[0][-1] for own in curves), 50)
        values = np.stack([np.interp(steps, *own) for own in curves])
        axis.fill_between(steps / 1_000, values.min(0), values.max(0), alpha=0.2, label="between seeds")
        axis.plot(steps / 1_000, values.mean(0), label=f"mean of {len(runs)}")
        axis.set(title=label, xlabel="thousand steps")
    if len(runs) > 1:
        figure.axes[0].legend()
    figure.suptitle(title)
    figure.savefig(path, dpi=100)


def curve(events: EventAccumulator, names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Steps at which episodes ended, and the mean over episodes that ended at the same step."""
    (name,) = set(names) & set(events.Tags()["scalars"])
    steps, values = np.array([(scalar.step, scalar.value) for scalar in events.Scalars(name)]).T
    steps, place = np.unique(steps, return_inverse=True)
    return steps, np.bincount(place, values) / np.bincount(place)


def main(args: Args) -> None:
    with ThreadPoolExecutor(args.at_once) as pool:
        results = list(tqdm(pool.map(lambda seed: train(seed, args), args.seeds), total=len(args.seeds), unit="seed"))
    print("| seed | success | task return | VLM return | minutes |\n|---|---|---|---|---|")
    for seed, result in zip(args.seeds, results, strict=True):
        print(
            f"| {seed} | {result['success']:.0%} | {result['task_return']:.1f} | {result['vlm_return']:.1f} "
            f"| {result['minutes']:.1f} |"
        )
    if len(results) > 1:
        success = [result["success"] for result in results]
        print(f"\nSuccess: {statistics.mean(success):.1%} ± {statistics.stdev(success):.1%} over {len(results)} seeds")
    if args.picture is not None:
        title = f"{args.what}, {args.task}" if "humanoid" in args.what else args.what
        draw_curves([result["run"] for result in results], args.picture, title)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
