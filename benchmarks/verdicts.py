"""Compare the verdicts of `vlmrm-gym check` with what trainings came to.

    python benchmarks/verdict_measures.py   # measures the rewards; minutes each
    python -m benchmarks.verdicts

Prints, as Markdown, a row for each reward of `verdict_measures.csv`: its measures, the verdict, and the best success of
the trainings that followed it. A reward *works* if a training came to at least half of the episodes. In the first
table each row is left out in turn: the thresholds of exploitable and flat are chosen on the other rows, and judge the
one that was left out. The rewards of the second table were measured after the thresholds had been chosen.
"""

import csv
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from benchmarks.training_outcomes import load_outcomes
from benchmarks.verdict_measures import MEASURES, RewardSetting
from vlmrm_gym.check.results import Measures
from vlmrm_gym.check.verdict import THRESHOLDS, Thresholds, classify

WORKS = 0.5
"""The least success of the best training of a reward that works."""
HELD_OUT = ("b9f5f26",)
"""Weights whose rewards were measured after the thresholds had been chosen."""
GRID: Mapping[str, Sequence[float]] = {
    "exploitable_success": [0.05 * i for i in range(1, 21)],
    "exploitable_progress": [0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0],
    "flat_progress": [0.05 * i for i in range(21)],
}
"""Thresholds to choose from, by their names in `Thresholds`."""


@dataclass(frozen=True)
class Known:
    """A reward whose trainings are known."""

    setting: RewardSetting
    measures: Measures
    success: float
    """Of the best training."""

    @property
    def works(self) -> bool:
        """Whether a training succeeded."""
        return self.success >= WORKS


def load() -> list[Known]:
    """All rewards that were measured, with the outcome of their trainings."""
    best: dict[RewardSetting, float] = {}
    for outcome in load_outcomes():
        setting = RewardSetting.of(outcome)
        best[setting] = max(best.get(setting, 0.0), outcome.success)
    known = []
    with MEASURES.open(newline="") as file:
        for row in csv.DictReader(file):
            setting = RewardSetting(**{field.name: row[field.name] for field in fields(RewardSetting)})
            numbers = {field.name: float(text) if (text := row[field.name]) else None for field in fields(Measures)}
            known.append(Known(setting, Measures(**numbers), best[setting]))
    return known


def is_right(known: Known, thresholds: Thresholds = THRESHOLDS) -> bool:
    """Whether the verdict says what the trainings came to: usable if the reward works, else anything but usable."""
    return (classify(known.measures, thresholds) == "usable") == known.works


def choose(rows: Sequence[Known]) -> Thresholds:
    """The thresholds with the most right verdicts; of several such, those in the middle."""
    candidates = [Thresholds(**dict(zip(GRID, values, strict=True))) for values in itertools.product(*GRID.values())]
    counts = [sum(is_right(row, candidate) for row in rows) for candidate in candidates]
    best = [candidate for candidate, count in zip(candidates, counts, strict=True) if count == max(counts)]
    middle = {name: sorted(getattr(candidate, name) for candidate in best)[len(best) // 2] for name in GRID}
    chosen = Thresholds(**middle)
    return chosen if sum(is_right(row, chosen) for row in rows) == max(counts) else best[len(best) // 2]


def describe(setting: RewardSetting) -> str:
    """A reward in a few words."""
    task = setting.task_id.removeprefix("VLMRM/").removeprefix("Humanoid-").rpartition("-v")[0]
    camera = "three quarters" if setting.camera.startswith("{") else setting.camera.replace("paper", "front")
    look = setting.look if not setting.camera else ""
    return ", ".join(filter(None, [task, look, camera, setting.combine_views, setting.weights_commit]))


def print_table(rows: Sequence[Known], left_out: Sequence[str] = ()) -> None:
    """Print a row for each reward; `left_out` is a last column."""
    names = ["reward", "AUC", "cheat excess", "climb: success", "climb: progress", "verdict", "best training", "right"]
    names += ["left out"] if left_out else []
    print(f"| {' | '.join(names)} |\n{'|---' * len(names)}|")
    for i, row in enumerate(rows):
        values = [getattr(row.measures, name) for name in ("auc", "cheat_excess", "climb_success", "climb_progress")]
        cells = [describe(row.setting), *("" if value is None else f"{value:.2f}" for value in values)]
        cells += [classify(row.measures), f"{row.success:.0%}", "yes" if is_right(row) else "no", *left_out[i : i + 1]]
        print(f"| {' | '.join(cells)} |")
    works = sum(row.works for row in rows)
    print(f"\n{sum(map(is_right, rows))} of {len(rows)} right; {works} work.")


def main() -> None:
    """Print the tables."""
    known = load()
    rows = [row for row in known if row.setting.weights_commit not in HELD_OUT]
    chosen = [choose([*rows[:i], *rows[i + 1 :]]) for i in range(len(rows))]
    right = [is_right(row, thresholds) for row, thresholds in zip(rows, chosen, strict=True)]
    left_out = [
        f"{classify(row.measures, thresholds)}, {'right' if is_one else 'wrong'}"
        for row, thresholds, is_one in zip(rows, chosen, right, strict=True)
    ]
    print_table(rows, left_out)
    print(f"With each row left out {sum(right)} are right. Limits chosen on all of these rows: {choose(rows)}\n")
    print_table([row for row in known if row not in rows])


if __name__ == "__main__":
    main()
