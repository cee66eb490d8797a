"""Train examples/dqn_cartpole.py with several seeds, and report success.

    python benchmarks/dqn_cartpole_seeds.py

Success is the share of 100 evaluation episodes in which the pole was within 12 degrees of upright and the cart on its
track at every one of 200 steps. The agent is told nothing but the prompt.
"""

import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import tyro
from tqdm import tqdm

EXAMPLE = Path(__file__).parent.parent / "examples" / "dqn_cartpole.py"


@dataclass
class Args:
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    """the seeds"""
    at_once: int = 2
    """how many run at the same time, on one CPU thread each"""
    runs_folder: Path = Path("runs/dqn_cartpole_seeds")
    """where the runs' folders are made"""


def train(seed: int, args: Args) -> dict[str, float]:
    folder = args.runs_folder / str(seed)
    command = [sys.executable, str(EXAMPLE), "--seed", str(seed), "--torch-threads", "1", "--runs-folder", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    newest = max(folder.glob("*/result.json"), key=lambda file: file.stat().st_mtime)
    return json.loads(newest.read_text())


def main(args: Args) -> None:
    with ThreadPoolExecutor(args.at_once) as pool:
        results = list(tqdm(pool.map(lambda seed: train(seed, args), args.seeds), total=len(args.seeds), unit="seed"))
    print("| seed | success | task return | VLM return, greedy | minutes |\n|---|---|---|---|---|")
    for seed, result in zip(args.seeds, results, strict=True):
        print(
            f"| {seed} | {result['success']:.0%} | {result['task_return']:.1f} "
            f"| {result['best_greedy_vlm_return']:.1f} | {result['minutes']:.1f} |"
        )
    if len(results) > 1:
        success = [result["success"] for result in results]
        print(f"\nSuccess: {statistics.mean(success):.1%} ± {statistics.stdev(success):.1%} over {len(results)} seeds")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
