"""Says, before any training, whether a reward that was learned from videos can work."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vlmrm_gym.data.metrics import mean_ranks
from vlmrm_gym.rewards.distance import DistanceNetwork

MIN_ORDER, MAX_BACKWARDS, MAX_CUT, MAX_RANDOM = 0.8, -0.5, 0.75, 0.5
"""What the warnings compare with; the guide explains them."""


@dataclass(frozen=True)
class Curve:
    """The progress since its beginning that the network sees in one recording."""

    kind: str
    """"held out", "fitted", "backwards", "cut", "random" or "negatives"."""
    places: NDArray[np.float32]
    """float32 (T,), from 0 to 1."""
    progress: NDArray[np.float32]
    """float32 (T,), from -1 to 1."""


@dataclass(frozen=True)
class VideoMeasures:
    """Figures of a network on videos, held-out ones where there are any."""

    of: str
    """"held out" or "fitted"."""
    order: float
    """Mean rank correlation (Spearman) of predicted and true time: GVL's value-order correlation. 1 is perfect."""
    end: float
    """Mean progress at the end; it should be 1."""
    backwards: float
    """The same of videos played backwards; it should be -1."""
    cut: float
    """The same of their first halves; it should be 0.5."""
    random: float | None = None
    """Highest progress in an episode of random behaviour, if there are some; it should be far below `end`."""
    negatives: float | None = None
    """Highest place in a negative that was held out, if there are some; it should be far below `end`."""

    @property
    def warnings(self) -> list[str]:
        """Sentences on what makes the reward doubtful."""
        found = []
        if not self.order >= MIN_ORDER:
            found.append(f"It does not order the frames: the rank correlation is {self.order:.2f}, below {MIN_ORDER}.")
        if self.backwards > MAX_BACKWARDS:
            found.append(f"Videos played backwards end at {self.backwards:.2f}, above {MAX_BACKWARDS}.")
        if self.cut > MAX_CUT * self.end:
            found.append(f"Half of a video counts as {self.cut:.2f}, and a whole one as {self.end:.2f}.")
        if self.random is not None and self.random > MAX_RANDOM * self.end:
            reached = f"Random behaviour reaches {self.random:.2f}, and the videos end at {self.end:.2f}."
            found.append(f"{reached} Pass recordings of it as negatives.")
        if self.negatives is not None and self.negatives > MAX_RANDOM * self.end:
            reached = f"A held-out negative reaches {self.negatives:.2f}, and the videos end at {self.end:.2f}."
            found.append(f"{reached} Pass more that are like it.")
        return found

    def as_json(self) -> dict[str, Any]:
        """The figures and the warnings; NaN is null."""
        figures = {name: None if value != value else value for name, value in asdict(self).items()}
        return {**figures, "warnings": self.warnings}


def rank_correlation(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Spearman's rank correlation of N numbers with N others; ties get their mean rank. NaN for a constant."""
    ranks = [mean_ranks(values) for values in (first, second)]
    if any(np.ptp(rank) == 0 for rank in ranks):
        return float("nan")
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _progress(network: DistanceNetwork, features: torch.Tensor) -> NDArray[np.float32]:
    return network(features[:1].expand_as(features), features).numpy()


@torch.no_grad()
def measure(
    network: DistanceNetwork,
    of: str,
    videos: Sequence[tuple[torch.Tensor, torch.Tensor]],
    random: Sequence[torch.Tensor] = (),
    negatives: Sequence[torch.Tensor] = (),
) -> tuple[VideoMeasures, list[Curve]]:
    """Measure a network that has been fitted: the figures, and the curves that they are made of.

    `of` says which videos these are, "held out" or "fitted". `videos` are features of a video's frames, float32 (T, D),
    and their places in time, (T,); `random` and `negatives` features of such episodes, float32 (T, D) each.
    """
    curves = list[Curve]()
    for features, places in videos:
        times, half = places.numpy(), int((places <= 0.5).sum())
        curves.append(Curve(of, times, _progress(network, features)))
        curves.append(Curve("backwards", 1 - times[::-1], _progress(network, features.flip(0))))
        curves.append(Curve("cut", times[:half], _progress(network, features[:half])))
    others = [("random", _progress(network, features)) for features in random]
    others += [("negatives", network.places(features).numpy()) for features in negatives]
    curves += [Curve(kind, np.linspace(0, 1, len(progress), dtype=np.float32), progress) for kind, progress in others]

    def end(kind: str) -> float:
        return float(np.mean([one.progress[-1] for one in curves if one.kind == kind]))

    def highest(kind: str) -> float | None:
        return max((float(one.progress.max()) for one in curves if one.kind == kind), default=None)

    order = float(np.mean([rank_correlation(one.places, one.progress) for one in curves if one.kind == of]))
    ends = end(of), end("backwards"), end("cut")
    return VideoMeasures(of, order, *ends, random=highest("random"), negatives=highest("negatives")), curves


def draw_curves(curves: Sequence[Curve], path: Path) -> None:
    """Draw progress over time into a PNG file, a line for each recording."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axis = figure.subplots()
    for color, kind in enumerate(dict.fromkeys(one.kind for one in curves)):
        for number, one in enumerate(one for one in curves if one.kind == kind):
            label = None if number else kind
            axis.plot(one.places, one.progress, color=f"C{color}", linewidth=1, alpha=0.8, label=label)
    axis.plot([0, 1], [0, 1], color="black", linestyle=":", linewidth=1, label="as it should be")
    axis.set(xlabel="time in the recording", ylabel="progress since its beginning", ylim=(-1.1, 1.1))
    axis.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=120)
