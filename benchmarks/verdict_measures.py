"""Measure every reward that a training of `training_outcomes.csv` followed, as `vlmrm-gym check` does.

    python benchmarks/verdict_measures.py

Writes `verdict_measures.csv`: a row for each reward (task, look, cameras, combination of views and weights of the
bundled model) and seed of the check, with the numbers that a verdict is made of. Rows that are there are not measured
again.
"""

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import tyro
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.training_outcomes import Outcome, load_outcomes, weights_folder
from vlmrm_gym.check.command import Check
from vlmrm_gym.check.model_rewards import ModelRewards
from vlmrm_gym.check.results import CheatSearch
from vlmrm_gym.check.scene_check import Clock, SceneCheck
from vlmrm_gym.check.subject import find_subject

MEASURES = Path(__file__).parent / "verdict_measures.csv"


@dataclass(frozen=True)
class RewardSetting:
    """What makes a reward: trainings that share it differ in the algorithm only."""

    task_id: str
    look: str
    camera: str
    combine_views: str
    weights_commit: str

    @classmethod
    def of(cls, outcome: Outcome) -> "RewardSetting":
        """The reward of a training."""
        camera = outcome.camera if isinstance(outcome.camera, str) else json.dumps(outcome.camera or "")
        return cls(
            outcome.task_id,
            outcome.look or "",
            camera.strip('"'),
            outcome.combine_views or "",
            outcome.weights_commit,
        )

    def command(self, seed: int) -> Check:
        """The check of this reward."""
        return Check(
            id=self.task_id,
            model=(f"local-dir:{weights_folder(self.weights_commit)}",),
            textured={"textured": "yes", "plain": "no", "": None}[self.look],  # pyright: ignore[reportArgumentType]
            camera=(self.camera,) if self.camera else (),
            combine_views=(self.combine_views or "min",),
            seed=seed,
        )


def measure(setting: RewardSetting, seed: int) -> dict[str, float | None]:
    """The numbers of a verdict, and the rewards that they are made of."""
    command = setting.command(seed)
    subject = find_subject(command)
    rewards = ModelRewards(command, subject.choices)
    with (
        tqdm(unit=" states", leave=False) as progress,
        SceneCheck(command, subject, rewards, subject.choices, progress, Clock()) as check,
    ):
        measured = check.measure(subject.choices[0])
    return {**asdict(measured.measures), **_rewards(measured.cheats)}


def _rewards(cheats: CheatSearch) -> dict[str, float | None]:
    true = cheats.true_rewards
    return {
        "best_cheat": cheats.cheats[0].reward if cheats.cheats else None,
        "fifth_cheat": cheats.cheats[-1].reward if cheats.cheats else None,
        "near_miss": cheats.near_miss,
        "true_low": float(np.quantile(true, 0.1)),
        "true_median": float(np.median(true)),
        "true_high": float(np.quantile(true, 0.9)),
    }


def main(seeds: Sequence[int] = (0, 1)) -> None:
    """Measure what is missing.

    Args:
        seeds: Of the checks.
    """
    settings = dict.fromkeys(RewardSetting.of(outcome) for outcome in load_outcomes())
    done = set()
    if MEASURES.exists():
        with MEASURES.open(newline="") as file:
            done = {tuple(row.values())[:6] for row in csv.DictReader(file)}
    missing = [
        (setting, seed) for seed in seeds for setting in settings if (*asdict(setting).values(), str(seed)) not in done
    ]
    for setting, seed in tqdm(missing, unit="reward"):
        row = {**asdict(setting), "seed": seed, **measure(setting, seed)}
        new = not MEASURES.exists()
        with MEASURES.open("a", newline="") as file:
            writer = csv.DictWriter(file, row)
            if new:
                writer.writeheader()
            writer.writerow({name: round(x, 4) if isinstance(x, float) else x for name, x in row.items()})


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
