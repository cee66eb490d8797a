"""The report's charts: rewards of both classes, along lines of states along rollouts, and the place of an exploit."""

from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from vlmrm_gym.audit.formatting import format_number
from vlmrm_gym.audit.measures.agreement import Agreement
from vlmrm_gym.audit.report.svg import Style, curve_style, draw_bars, make_axes, padded, to_svg
from vlmrm_gym.audit.results import AdversarialSearch, Landscape, SignalCurves

SUCCESSES, FAILURES = (Style(name, filled=True, opacity=0.75) for name in ("success", "failure"))
GOAL = Style("goal", filled=True, opacity=0.2)
MEDIAN = Style("success", dashes=(5, 3))
EXPLOIT, ROLLOUT = Style("exploit", 3), Style("series-6", 1, opacity=0.65)
MAX_LINES = 20
"""How many rollouts of one behaviour are drawn."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart with the text around it."""

    title: str
    svg: Markup
    axis: str
    """What the horizontal axis is."""
    legend: tuple[tuple[Style, str], ...] = ()
    """Style and label of each kind of mark."""
    caption: str = ""


def draw_histograms(source: str, agreement: Agreement) -> Chart:
    """The rewards of successes above the axis, those of failures below, each as fractions of its class."""
    histograms = agreement.histograms
    above = histograms.successes / max(agreement.successes, 1)
    below = histograms.failures / max(agreement.failures, 1)
    edges = histograms.edges
    axes = make_axes(
        (edges[0], edges[-1]),
        padded(-below.max(), above.max()),
        y_format=lambda value: f"{abs(100 * value):.3g} %",
    )
    draw_bars(axes, edges, above, SUCCESSES)
    draw_bars(axes, edges, -below, FAILURES)
    axes.axhline(0, **Style("muted", 1).line)
    legend = []
    if agreement.successes:
        legend.append((SUCCESSES, f"{agreement.successes:,} successes (above the line)"))
    if agreement.failures:
        legend.append((FAILURES, f"{agreement.failures:,} failures (below the line)"))
    description = f"Histograms of the rewards of {agreement.successes} successes and {agreement.failures} failures."
    return Chart(title=source, svg=to_svg(axes, description), axis="reward", legend=tuple(legend))


def draw_landscape(landscape: Landscape) -> Chart:
    """One line per curve over the positions; the states that succeed are shaded."""
    rewards = np.concatenate(list(landscape.curves.values()))
    axes = make_axes((landscape.positions[0], landscape.positions[-1]), padded(rewards.min(), rewards.max()))
    legend = [(curve_style(number), label) for number, label in enumerate(landscape.curves)]
    caption = "Which of these states succeed is unknown."
    if landscape.goal is not None:
        caption = "All of these states succeed." if landscape.goal.all() else ""
        caption = caption if landscape.goal.any() else "None of these states succeeds."
        for low, high in goal_spans(landscape.positions, landscape.goal):
            axes.axvspan(low, high, **GOAL.area)
        if landscape.goal.any():
            legend.append((GOAL, "success"))
    for (style, _), values in zip(legend, landscape.curves.values(), strict=False):
        axes.plot(landscape.positions, values, **style.line)
    ends = (f"{label}: from {_low_to_high(values)}" for label, values in landscape.curves.items())
    description = f"Reward over {landscape.axis}. {'; '.join(ends)}."
    return Chart(
        title=landscape.title, svg=to_svg(axes, description), axis=landscape.axis, legend=tuple(legend), caption=caption
    )


def goal_spans(positions: NDArray[np.float64], goal: NDArray[np.bool_]) -> list[tuple[float, float]]:
    """The ranges of positions that succeed. A range ends halfway to the next position that does not.

    Args:
        positions: float64 (N,), ascending.
        goal: bool (N,).
    """
    halfway = (positions[1:] + positions[:-1]) / 2
    edges = np.concatenate([positions[:1], halfway, positions[-1:]])
    changes = np.flatnonzero(np.diff(np.concatenate([[False], goal, [False]]).astype(np.int8)))
    return [(float(edges[first]), float(edges[end])) for first, end in changes.reshape(-1, 2)]


def draw_signal(curves: SignalCurves) -> list[Chart]:
    """The rewards along rollouts, one chart per behaviour, all over the same range."""
    if not curves.rewards.size:
        return []
    goal = None if curves.signal is None else curves.signal.goal
    shown = curves.rewards if goal is None else np.append(curves.rewards, goal)
    steps = np.arange(curves.rewards.shape[1])
    charts = []
    for behaviour in dict.fromkeys(curves.behaviours):
        own = curves.rewards[[name == behaviour for name in curves.behaviours]]
        drawn = own[np.linspace(0, len(own) - 1, min(len(own), MAX_LINES)).round().astype(int)]
        axes = make_axes((0, max(len(steps) - 1, 1)), padded(float(shown.min()), float(shown.max())))
        for rewards in drawn:
            axes.plot(steps, rewards, **ROLLOUT.line)
        legend = [(ROLLOUT, "a rollout")]
        description = f"Rewards along {len(own)} rollouts ({behaviour}), from {_low_to_high(own)}."
        if goal is not None:
            axes.axhline(goal, **MEDIAN.line)
            legend.append((MEDIAN, f"median of the goal states, {format_number(goal)}"))
            description += f" The goal's reward is {format_number(goal)}."
        charts.append(
            Chart(
                title=behaviour,
                svg=to_svg(axes, description),
                axis="step",
                legend=tuple(legend),
                caption=f"{len(drawn)} of {len(own)} rollouts are drawn." if len(drawn) < len(own) else "",
            )
        )
    return charts


def draw_strips(found: AdversarialSearch) -> list[Markup]:
    """For each exploit: its reward beside those of true successes, over the same range; empty without these."""
    median = found.median_success
    if median is None:
        return []
    rewards = [*found.true_rewards.tolist(), *(exploit.reward for exploit in found.exploits)]
    ends = padded(min(rewards), max(rewards))
    counts, edges = np.histogram(found.true_rewards, 40, ends)
    strips = []
    for exploit in found.exploits:
        axes = make_axes(ends, (0, 1.1 * counts.max()), height=84, x_ticks=5, y_ticks=0)
        draw_bars(axes, edges, counts, SUCCESSES)
        axes.axvline(median, **MEDIAN.line)
        axes.axvline(exploit.reward, **EXPLOIT.line)
        strips.append(
            to_svg(
                axes,
                f"Histogram of the rewards of {len(found.true_rewards)} successes, with the median at "
                f"{format_number(median)} and the {found.noun} at {format_number(exploit.reward)}.",
            )
        )
    return strips


def _low_to_high(values: NDArray[np.float64]) -> str:
    return f"{format_number(float(values.min()))} to {format_number(float(values.max()))}"
