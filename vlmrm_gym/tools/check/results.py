"""Results of a check as data: `check.pipeline` measures them, and `check.report` shows them."""

import importlib
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util import __version__
from vlmrm_gym._util.system import read_commit, usable_cores
from vlmrm_gym.rewards.saved import PICTURES
from vlmrm_gym.rewards.spec import RewardSpec
from vlmrm_gym.tools.check.measures import Agreement, Control, Interval


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A combination of a reward, a render style and cameras: a row of the table."""

    name: str
    reward: RewardSpec
    textured: bool | None
    """None if the environment has one render style."""
    camera_name: str
    """The camera or cameras, as the user named them; "own" for the environment's."""
    camera: Any
    """The value of `camera`."""
    combine_views: str | None
    """None if there is one view."""
    note: str = ""
    """Said of it in its report."""

    @property
    def title(self) -> str:
        """The reward in a few words: its prompt if it has one, else its name."""
        prompt = self.settings.get("prompt") or self.name
        return prompt if isinstance(prompt, str) else "; ".join(prompt)

    @property
    def settings(self) -> dict[str, Any]:
        """All settings by their names; those of the reward first."""
        spec = self.reward
        values = {one.name: getattr(spec, one.name) for one in fields(spec) if one.init} if is_dataclass(spec) else {}
        values |= {name: [repr(one) for one in values[name]] for name in PICTURES if values.get(name)}
        values = values or {"reward": self.name}
        return {**values, "textured": self.textured, "camera": self.camera_name, "combine_views": self.combine_views}


@dataclass(frozen=True, kw_only=True)
class Landscape:
    """Rewards `curves`, float (N,), along a line of states, over `positions`, float64 (N,) (the paper's figure 2).

    `axis` says what positions are, with their unit; `goal`, bool (N,), which states succeed, None if that is unknown.
    """

    title: str
    axis: str
    positions: NDArray[np.float64]
    curves: Mapping[str, NDArray[Any]]
    goal: NDArray[np.bool_] | None


@dataclass(frozen=True, kw_only=True)
class Exploit:
    """A state that fails the task and is rewarded highly; if success is unknown, any with a high reward."""

    state: NDArray[np.float64]
    """float64 (S,)."""
    reward: float
    frames: NDArray[np.uint8]
    """uint8 (V, H, W, 3), from every camera."""
    failed: Mapping[str, float]
    """Conditions that it fails, and by how many margins, the worst first; empty if success has no conditions."""


@dataclass(frozen=True, kw_only=True)
class AdversarialSearch:
    """The result of a search for failing states with high rewards."""

    left_out: str | None = None
    """Why there was no search, as a sentence; the other fields are then empty."""
    knows_success: bool = False
    """Whether failures were searched for. Otherwise success is unknown, and the search is for high rewards."""
    exploits: Sequence[Exploit] = ()
    """The best distinct ones, the highest reward first."""
    median_success: float | None = None
    """The median reward of states that succeed; None if none is known."""
    true_frames: NDArray[np.uint8] | None = None
    """The state that succeeds with the median reward, from every camera: uint8 (V, H, W, 3)."""
    scored: int = 0
    """How many failing states were scored."""

    @property
    def noun(self) -> str:
        """The noun for a state that the search found: an exploit gets at least as much as the median success."""
        if not self.knows_success:
            return "exploit" if self.left_out else "state"
        return "failure" if self.excess is not None and self.excess < 0 else "exploit"

    @property
    def excess(self) -> float | None:
        """The highest reward that was found minus the median reward of successes; None without one of them."""
        found, success = self.exploits, self.median_success
        return None if success is None or not found else found[0].reward - success


@dataclass(frozen=True, kw_only=True)
class ContactSheet:
    """Frames, uint8 (N, H, W, 3), views side by side, with their rewards, float (N,), and success, bool (N,)."""

    title: str
    frames: NDArray[np.uint8]
    rewards: NDArray[Any]
    success: NDArray[np.bool_] | None


@dataclass(frozen=True, kw_only=True)
class Measures:
    """The numbers of one combination of settings, which `summary.MEASURES` explains. None: it could not be measured."""

    states: str | None = None
    """Which states AUC and EPIC distance are of: "rollouts" or "states around the goal"."""
    auc: Interval | None = None
    epic: Interval | None = None
    control_auc: float | None = None
    """0.5 if chance explains all controls."""
    exploit_excess: float | None = None
    threshold: float | None = None
    """The threshold of a `Success` that was asked for, or that tells successes from failures best."""
    false_positives: float | None = None
    misses: float | None = None

    @property
    def ranks(self) -> bool | None:
        """Whether the whole interval of the AUC is above chance and above the best control; None without an AUC."""
        return None if self.auc is None else self.auc.low > (self.control_auc or 0.5)


@dataclass(frozen=True, kw_only=True)
class MeasuredCandidate:
    """A row of the table: a candidate and its measures."""

    candidate: Candidate
    measures: Measures


@dataclass(frozen=True, kw_only=True)
class Report:
    """The results of a check. Sections other than `table` are about the first combination of settings."""

    subject: str
    """The environment's ID or name."""
    candidate: Candidate
    measures: Measures
    agreements: Mapping[str, Agreement]
    """Agreement with success, by where the states are from: "rollouts", "states around the goal"."""
    exploits: AdversarialSearch
    controls: Sequence[Control]
    landscapes: Sequence[Landscape] = ()
    sheets: Sequence[ContactSheet] = ()
    table: Sequence[MeasuredCandidate] = ()
    """All combinations, the highest AUC first."""
    notes: Sequence[str] = ()
    """What was left out, and why; warnings."""
    seconds: float = 0.0
    """How long the check took."""
    command: str = ""
    """The command that makes this report again."""
    provenance: Mapping[str, str] = field(default_factory=dict)
    """Date, version, weights, seed and hardware, by their labels."""

    def _repr_html_(self) -> str:
        page = importlib.import_module("vlmrm_gym.tools.check.report").render(self)  # by name: it imports this file
        return f'<iframe srcdoc="{escape(page)}" width="100%" height="640" style="border: 0"></iframe>'


def read_provenance(*, weights: str, seed: int) -> Mapping[str, str]:
    """Collect what a reader needs to reproduce the numbers, by its label."""
    import torch

    commit = read_commit()
    hardware = f"{platform.processor() or platform.machine()}, {usable_cores()} cores"
    if torch.cuda.is_available():
        hardware += f"; {torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return {
        "Date": time.strftime("%Y-%m-%d %H:%M %z"),
        "Version": f"vlmrm_gym {__version__}" + (f", commit {commit}" if commit else ""),
        "Weights": weights,
        "Seed": str(seed),
        "Hardware": hardware,
    }
