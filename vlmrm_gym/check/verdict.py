"""The verdict on a reward, by thresholds of its measures. `docs/guides/verdicts.md` has what verdicts are worth.

- *hopeless*: the reward does not rank successes above failures (AUC), or no better than a control does.
- *weak*: it ranks many of them wrongly.
- *exploitable*: a climb from initial states leads to failures with rewards as high as those of successes.
- *flat*: the climb does not come far.
- *usable*: none of these.
- *unknown*: nothing says which states succeed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from vlmrm_gym.check.results import CheatSearch, Measures, Row, Verdict, VerdictName
from vlmrm_gym.check.words import SETTINGS, format_number, format_percent, setting


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Limits of the verdicts."""

    hopeless_errors: float = 0.7
    """Hopeless: 1 - AUC is at least this times that of the best control, or of chance.

    Without a control that is better than chance: if the AUC is at most 0.65.
    """
    weak_auc: float = 0.9
    """An AUC below this is weak."""
    exploitable_success: float = 0.5
    """A reward is exploitable if `Measures.climb_success` is below this,"""
    exploitable_progress: float = 0.9
    """and `Measures.climb_progress` at least this: the climb's rewards are as high as those of successes."""
    flat_progress: float = 0.4
    """Flat: the climb's progress is below this."""


THRESHOLDS = Thresholds()
"""Those that the command uses."""
ORDER: Sequence[VerdictName] = ("usable", "unknown", "flat", "exploitable", "weak", "hopeless")
"""From the best verdict to the worst."""


def judge(measures: Measures, cheats: CheatSearch) -> Verdict:
    """The verdict on one combination of settings.

    Args:
        measures: Its numbers.
        cheats: What the search for cheats found.
    """
    name = classify(measures)
    rules: dict[VerdictName, Callable[[], tuple[list[str], list[str]]]] = {
        "unknown": _unknown,
        "hopeless": lambda: _hopeless(measures),
        "weak": lambda: _weak(measures),
        "exploitable": lambda: _exploitable(measures, cheats),
        "flat": lambda: _flat(measures),
        "usable": lambda: _usable(measures),
    }
    reasons, next_steps = rules[name]()
    return Verdict(name=name, reasons=reasons, next_steps=next_steps)


def classify(measures: Measures, thresholds: Thresholds = THRESHOLDS) -> VerdictName:
    """The verdict's name: the first of hopeless, weak, exploitable and flat that holds."""
    auc, success, progress = measures.auc, measures.climb_success, measures.climb_progress
    if auc is None:
        return "unknown"
    if 1 - auc >= thresholds.hopeless_errors * (1 - max(0.5, measures.control_auc or 0.5)):
        return "hopeless"
    if auc < thresholds.weak_auc:
        return "weak"
    if success is None or progress is None:
        return "usable"
    if progress >= thresholds.exploitable_progress and success < thresholds.exploitable_success:
        return "exploitable"
    return "flat" if progress < thresholds.flat_progress else "usable"


def _unknown() -> tuple[list[str], list[str]]:
    return (
        ["No states are labelled as success or failure, or all alike: the reward cannot be compared with success."],
        [
            "Look at the highest-reward states in the report: would you call them successes?",
            "Pass --success, a function from states to success, or label rollouts: vlmrm-gym dataset, then --labels.",
        ],
    )


def _hopeless(measures: Measures) -> tuple[list[str], list[str]]:
    reasons = [
        f"A success has a higher reward than a failure in {_percent(measures.auc)} of all pairs: chance is 50 %."
    ]
    if measures.control_auc is not None and measures.control_auc > 0.5:
        reasons.append(f"A control, which should be at chance, reaches {_percent(measures.control_auc)}.")
    return reasons, [
        "Try another --model: the bundled one knows the scenes of this package only.",
        "Describe what is seen, not what is meant, and try several --prompt.",
    ]


def _weak(measures: Measures) -> tuple[list[str], list[str]]:
    return (
        [f"A success has a higher reward than a failure in {_percent(measures.auc)} of all pairs only."],
        [
            "Compare several --prompt, and --alpha 0 0.25 0.5 with a --baseline.",
            "Move the --camera to the best viewpoint of the report, or try a larger --model.",
        ],
    )


def _exploitable(measures: Measures, cheats: CheatSearch) -> tuple[list[str], list[str]]:
    reasons = [
        "A climb from initial states, a little at a time, leads to failures with rewards as high as those of "
        f"successes: of its highest-reward states, {_percent(measures.climb_success)} succeed or nearly do."
    ]
    if cheats.cheats:
        best, median = cheats.cheats[0], float(np.median(cheats.true_rewards))
        reasons.append(
            f"The best failure found gets {format_number(best.reward)}, a median success {format_number(median)}."
        )
        if best.failed:
            worst = next(iter(best.failed))
            reasons.append(f'It fails the condition "{worst}" by {format_number(best.failed[worst])} times its margin.')
    return reasons, [
        "Look at the cheats in the report: what do the cameras not see?",
        "Score several views, such as --camera front-side, or the pair that the report names.",
        "Name in the prompt what the cheats lack.",
    ]


def _flat(measures: Measures) -> tuple[list[str], list[str]]:
    return (
        [
            f"A climb from initial states, a little at a time, comes {_progress(measures)} of the way to the goal's "
            "reward: there is little to climb."
        ],
        [
            "Explore longer: repeat random actions for several steps, and begin to learn later.",
            "Start episodes near the goal, or train for an intermediate pose first.",
            "Try a prompt that also fits states on the way.",
        ],
    )


def _usable(measures: Measures) -> tuple[list[str], list[str]]:
    reasons = [f"A success has a higher reward than a failure in {_percent(measures.auc)} of all pairs."]
    if measures.climb_success is not None:
        reasons.append(
            f"A climb from initial states comes {_progress(measures)} of the way to the goal's reward; of its "
            f"highest-reward states, {_percent(measures.climb_success)} succeed or nearly do."
        )
    else:
        reasons.append(
            "There was no climb from initial states: whether the reward leads to failures or is flat was not measured."
        )
    if measures.cheat_excess is not None and measures.cheat_excess > 0:
        reasons.append(
            "Still, the search found failures that get more than a median success: watch the first agent for them."
        )
    return reasons, ["Train one seed, and watch its video before you train more."]


def best_first(rows: Sequence[Row]) -> Sequence[Row]:
    """The table, best first: by verdict, then by the rewards of cheats, then by AUC."""

    def rank(row: Row) -> tuple[int, float, float]:
        measures = row.measures
        excess = 0.0 if measures.cheat_excess is None else measures.cheat_excess
        return ORDER.index(row.verdict.name), excess, -(measures.auc or 0.0)

    return sorted(rows, key=rank)


def list_gains(rows: Sequence[Row]) -> Sequence[str]:
    """What each choice gains: for every setting with several values, the best combination with each of them.

    Args:
        rows: The table, best first.
    """
    gains = []
    for name in SETTINGS:
        best: dict[str, Row] = {}
        for row in rows:
            best.setdefault(setting(row.choice, name), row)
        if len(best) < 2:
            continue
        gains.append(
            f"{SETTINGS[name]}: "
            + "; ".join(f"{value}, at best {row.verdict.name}{_numbers(row.measures)}" for value, row in best.items())
            + "."
        )
    return gains


def _numbers(measures: Measures) -> str:
    parts = {"AUC": measures.auc, "cheat excess": measures.cheat_excess}
    known = [f"{name} {format_number(value)}" for name, value in parts.items() if value is not None]
    return f" ({', '.join(known)})" if known else ""


def _progress(measures: Measures) -> str:
    return format_percent(max(0.0, measures.climb_progress or 0.0))


def _percent(fraction: float | None) -> str:
    assert fraction is not None
    return format_percent(fraction)
