"""What the measures of a reward say about a training, by thresholds; `docs/guides/verdicts.md` has what they are worth.

- *hopeless*: the reward does not rank successes above failures (AUC), or no better than a control does.
- *weak*: it ranks many of them wrongly.
- *exploitable*: what it pays most are failures.
- *flat*: untrained behaviour sees next to nothing of the way to the goal's reward.
- *usable*: none of these.
- *unknown*: nothing says which states succeed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vlmrm_gym.check.results import CheatSearch, Choice, Measures, Row, Verdict, VerdictName
from vlmrm_gym.check.words import SETTINGS, format_number, format_percent, setting


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Limits of the verdicts."""

    hopeless_auc: float = 0.65
    """An AUC below this is hopeless."""
    control_distance: float = 0.1
    """As is one that is not above the best control's by this."""
    weak_auc: float = 0.9
    """An AUC below this is weak."""
    exploitable_success: float = 0.3
    """A reward is exploitable if `Measures.optimum_success` is below this, and its best cheat is paid too much:"""
    exploitable_excess: float = 0.0
    """if `Measures.cheat_excess` is above this."""
    flat_gap: float = 0.6
    """A gap above this is flat."""


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
    auc, success, excess = measures.auc, measures.optimum_success, measures.cheat_excess
    if auc is None:
        return "unknown"
    if auc < thresholds.hopeless_auc or auc < (measures.control_auc or 0.0) + thresholds.control_distance:
        return "hopeless"
    if auc < thresholds.weak_auc:
        return "weak"
    pays_cheats = excess is not None and excess > thresholds.exploitable_excess
    if pays_cheats and success is not None and success < thresholds.exploitable_success:
        return "exploitable"
    if measures.gap is not None and measures.gap > thresholds.flat_gap:
        return "flat"
    return "usable"


def _unknown() -> tuple[list[str], list[str]]:
    return (
        ["Nothing says which states succeed, or all of them do, or none: the reward cannot be compared with that."],
        [
            "Look at what the reward pays most, in the report: would you call that a success?",
            "Pass --success, a function from states to success, or label rollouts: vlmrm-gym dataset, then --labels.",
        ],
    )


def _hopeless(measures: Measures) -> tuple[list[str], list[str]]:
    reasons = [
        f"A success has a higher reward than a failure in {_percent(measures.auc)} of all pairs: chance is 50 %."
    ]
    if measures.control_auc is not None and measures.control_auc > 0.5:
        reasons.append(f"A reward that must not agree with the task reaches {_percent(measures.control_auc)}.")
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
    best = cheats.cheats[0]
    reasons = [
        f"The best failure found is paid {format_number(best.reward)}, a median success "
        f"{format_number(best.reward - _median_excess(cheats))}: an agent will find it.",
        f"Of the states that are paid most, {_percent(measures.optimum_success)} succeed.",
    ]
    if best.failed:
        worst = next(iter(best.failed))
        reasons.append(f'What it fails: "{worst}", by {format_number(best.failed[worst])} units of its margin.')
    return reasons, [
        "Look at the cheats in the report: what do the cameras not see?",
        "Score several views, such as --camera front-side, or the pair that the report names.",
        "Name in the prompt what the cheats lack.",
    ]


def _flat(measures: Measures) -> tuple[list[str], list[str]]:
    return (
        [f"Untrained behaviour leaves {_percent(measures.gap)} of the way to the goal's reward: little to climb."],
        [
            "Explore longer: repeat random actions for several steps, and begin to learn later.",
            "Start episodes near the goal, or train for an intermediate pose first.",
            "Try a prompt that also fits states on the way.",
        ],
    )


def _usable(measures: Measures) -> tuple[list[str], list[str]]:
    reasons = [f"A success has a higher reward than a failure in {_percent(measures.auc)} of all pairs."]
    if measures.optimum_success is not None:
        reasons.append(f"Of the states that are paid most, {_percent(measures.optimum_success)} succeed.")
    if measures.cheat_excess is not None and measures.cheat_excess > 0:
        reasons.append(
            "Still, the search found failures that are paid more than a median success: watch the first agent for them."
        )
    return reasons, ["Train one seed, and watch its video before you train more."]


def best_first(rows: Sequence[Row]) -> Sequence[Row]:
    """The table, best first: by verdict, then by what cheating pays, then by AUC."""

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
        values: dict[str, Choice] = {}
        for row in rows:
            values.setdefault(setting(row.choice, name), row.choice)
        if len(values) < 2:
            continue
        best = {value: next(row for row in rows if row.choice is choice) for value, choice in values.items()}
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


def _median_excess(cheats: CheatSearch) -> float:
    from vlmrm_gym.check.measure import median_excess

    excess = median_excess(cheats)
    assert excess is not None
    return excess


def _percent(fraction: float | None) -> str:
    assert fraction is not None
    return format_percent(fraction)
