"""Train with several seeds: success, returns, minutes and learning curves.

    python benchmarks/training_seeds.py cart-pole
    python benchmarks/training_seeds.py mountain-car-plain --seeds 1 2 3 --at-once 1
    python benchmarks/training_seeds.py humanoid --task kneel --seeds 1

Agents are told nothing but the prompt; success is judged from the simulator's state, over 100 episodes of the
deterministic agent that was the best by scored return. What is trained, and how:

    cart-pole                examples/dqn_cartpole.py
    cart-pole-sb3            vlmrm-gym train, Stable-Baselines3's DQN
    mountain-car             examples/sac_continuous.py, photo-like scene
    mountain-car-plain       the same, Gymnasium's scene
    mountain-car-sb3         vlmrm-gym train, Stable-Baselines3's SAC, photo-like scene
    humanoid                 examples/sac_continuous.py, --task says which
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
    "Scored return": ("charts/vlm_return", "rollout/vlm_return"),
    "Task return (not shown to the agent)": ("charts/task_return", "rollout/task_return"),
    "Success (share of steps)": ("charts/success", "charts/success_share", "rollout/success_share"),
}
"""What events call it, in any of the programs."""


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
    """what is trained"""
    task: str = "stand"
    """the humanoid's"""
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    """the seeds"""
    at_once: int = 2
    """how many run at the same time, on one CPU thread each"""
    runs_folder: Path = Path("runs/training_seeds")
    """where the runs' folders are made"""
    total_timesteps: int | None = None
    """another number of steps than the program's own"""
    options: str = ""
    """further options of the program, such as --options="--exploration-hold 10\""""
    picture: Path | None = None
    """where the learning curves are drawn"""


def train(seed: int, args: Args) -> dict[str, Any]:
    """Train and judge in processes of their own, with one thread each."""
    folder = args.runs_folder / (f"{args.what}-{args.task}" if "humanoid" in args.what else args.what) / str(seed)
    env_id = {
        "cart-pole": "VLMRM/CartPole-v1",
        "mountain-car": "VLMRM/MountainCarContinuous-v0",
        "humanoid": f"VLMRM/Humanoid-{args.task}-v0",
    }[args.what.removesuffix("-sb3").removesuffix("-plain")]
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    if args.what.endswith("-sb3"):
        cli, run = [sys.executable, "-m", "vlmrm_gym.cli"], folder / f"run-{int(time.time())}"
        steps = [] if args.total_timesteps is None else ["--rl.n-steps", str(args.total_timesteps)]
        where = ["--base-path", str(folder), "--run-name", run.name]
        options = ["--logging.video-freq", "0", *where, *steps, *shlex.split(args.options)]
        call([*cli, "train", "--env-name", env_id, "--seed", str(seed), *options])
        minutes = (time.monotonic() - began) / 60
        call([*cli, "evaluate", str(run)])
        told = json.loads((run / "evaluation.json").read_text())
        result = {"vlm_return": told["scored_return"], **told, "minutes": minutes}
    else:
        example = "dqn_cartpole.py" if args.what == "cart-pole" else "sac_continuous.py"
        options = ["--no-textured"] if args.what.endswith("-plain") else []
        options += [] if args.total_timesteps is None else ["--total-timesteps", str(args.total_timesteps)]
        command = [sys.executable, str(ROOT / "examples" / example), "--env-id", env_id, "--seed", str(seed)]
        call([*command, "--torch-threads", "1", "--runs-folder", str(folder), *options, *shlex.split(args.options)])
        file = max(folder.glob("*/result.json"), key=lambda file: file.stat().st_mtime)
        result, run = json.loads(file.read_text()), file.parent
        result.setdefault("vlm_return", result.get("best_greedy_vlm_return"))
    return {**result, "run": run}


def call(command: list[str]) -> None:
    """Run a program on one thread; its output is shown if it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")


def draw_curves(runs: list[Path], path: Path, title: str) -> None:
    """Means over seeds, with the range between them."""
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
    """Steps at which episodes ended, and the means of those that ended together."""
    (name,) = set(names) & set(events.Tags()["scalars"])
    told = np.array([(one.step, one.value) for one in events.Scalars(name)])
    steps, place = np.unique(told[:, 0], return_inverse=True)
    return steps, np.bincount(place, told[:, 1]) / np.bincount(place)


def main(args: Args) -> None:
    with ThreadPoolExecutor(args.at_once) as pool:
        results = list(tqdm(pool.map(lambda seed: train(seed, args), args.seeds), total=len(args.seeds), unit="seed"))
    print("| seed | success | task return | scored return | minutes |\n|---|---|---|---|---|")
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
