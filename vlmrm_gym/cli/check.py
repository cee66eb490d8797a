"""The command `vlmrm-gym check`: measures of a reward before training, and the failures that it pays most."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from vlmrm_gym.cli.settings import RewardFlags, Texts, parse
from vlmrm_gym.folders import output_folder
from vlmrm_gym.rollouts.environments import find_named_task

if TYPE_CHECKING:
    from vlmrm_gym.audit.results import Report

FILES = ("report.html", "measures.json")
"""What the command writes."""


@dataclass(frozen=True)
class Check(RewardFlags):
    """Check a reward before training: can it work, and what failures does it pay?

        vlmrm-gym check VLMRM/Humanoid-kneel-v0
        vlmrm-gym check VLMRM/Humanoid-arms-raised-v0 --camera paper side front-side --combine-views min mean
        vlmrm-gym check VLMRM/CartPole-v1 --prompt "an upright pole" --baseline "a pole" --alpha 0 0.5 1
        vlmrm-gym check Ant-v5 --prompt "an ant on its back" --model ViT-B-32/laion2b_s34b_b79k --success tasks:on_back
        vlmrm-gym check --env my_package.envs:make_env --prompt "a red ball in the box"

    It measures agreement with what is known of success, the highest rewards of failures (by a search), the way to the
    goal from untrained behaviour, other viewpoints, and controls. A reward "does not rank" if its AUC is not above
    those of the controls. Without anything that says which states succeed there is no AUC, and the report shows the
    states with the highest rewards.

    Several values of one flag are compared. The report's table lists all combinations, the highest AUC first; its other
    sections are about one combination, the first value of every flag.

    The folder (--out) gets report.html, which opens in any browser, and measures.json. No model is trained.
    """

    id: Annotated[str | None, tyro.conf.Positional] = None
    """a registered ID, of this package or of another one ("module:ID" imports the module first)"""
    env: str | None = None
    """instead of an ID: "package.module:function", which returns an environment made with render_mode="rgb_array" """
    camera: Texts = ()
    """MuJoCo only: paper, side, front-side, around, a name or number of the model's cameras, or settings such as
    "{azimuth: 90, distance: 3}"; a list in brackets is one choice with several views. Without it: the task's own"""
    combine_views: Texts = ()
    """how several views make one reward: min, mean, random or package.module:function (none: min)"""
    textured: Literal["yes", "no", "both"] | None = None
    """the look, for tasks that have two"""
    success: str | None = None
    """for other packages' MuJoCo environments: "package.module:function", from states, float64 (N, S), to bool (N,)"""
    rollouts: Path | None = None
    """a folder made by `vlmrm-gym dataset`, in place of new rollouts"""
    labels: Path | None = None
    """a CSV file with the columns episode, step, success, for the steps of --rollouts; or the folder of a dataset, for
    its labels.csv. Without --rollouts: those of the dataset whose folder the file is in"""
    run: Path | None = None
    """the folder of a trained run, whose policy is played as well"""
    reach: bool = False
    """search for actions that lead from the initial state to each exploit (minutes)"""
    effort: int = 1
    """how long the search is: 1,700 states times this, for each combination"""
    seed: int = 0
    """of everything that is drawn, from 0"""


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    _check(parse(Check, "check", arguments))


def check(id: str | None = None, **settings: Any) -> "Report":
    """Check a reward before training: `vlmrm-gym check` as a function.

    Args:
        id: The environment's ID; None with `env`.
        settings: The flags, see `Check`: `check("VLMRM/CartPole-v1", prompt=["a pole", "an upright pole"])`.

    Returns:
        What was found; the folder has it as `FILES`.

    Raises:
        InputError: A setting, the environment or the output folder cannot be used.
    """
    return _check(Check(id, **settings))


def _check(command: Check) -> "Report":
    command.specifications(None if command.id is None else find_named_task(command.id))
    from tqdm import tqdm

    from vlmrm_gym.audit.compare import compare
    from vlmrm_gym.audit.report import write_report
    from vlmrm_gym.audit.subject import find_subject
    from vlmrm_gym.audit.summary import print_summary
    from vlmrm_gym.cli.tasks import console
    from vlmrm_gym.training.files import atomic_write

    command = _find_rollouts(replace(command, combine_views=command.combine_views or ("min",)))
    subject = find_subject(command)
    folder = Path(f"{subject.name}_check") if command.out is None else command.out
    with output_folder(folder, overwrite=command.overwrite):
        with tqdm(unit=" states", file=sys.stderr, dynamic_ncols=True) as progress:
            report = compare(command, subject, progress)
        page, table = (folder / name for name in FILES)
        try:
            atomic_write(page, lambda path: write_report(report, path))
            atomic_write(table, lambda path: _write_measures(report, path))
        except OSError:
            print_summary(report, console(), None)
            raise
    print_summary(report, console(), page)
    return report


def _find_rollouts(command: Check) -> Check:
    """The command with the dataset that its labels are of, if they lie in its folder, or are named by it."""
    from vlmrm_gym.datasets.folder import DatasetFolder

    labels = command.labels
    if labels is None:
        return command
    folder = DatasetFolder(labels if labels.is_dir() else labels.parent)
    if labels.is_dir():
        command = replace(command, labels=folder.labels)
    if command.rollouts is None and folder.settings() is not None:
        command = replace(command, rollouts=folder.path)
    return command


def _write_measures(report: "Report", path: Path) -> None:
    """Write the numbers of the report as JSON."""
    values = {
        "subject": report.subject,
        "command": report.command,
        "provenance": dict(report.provenance),
        "table": [{**asdict(row), "ranks": row.measures.ranks} for row in report.table],
        "exploits": [
            {"reward": exploit.reward, "failed": dict(exploit.failed), "reached": exploit.reached}
            for exploit in report.exploits.exploits
        ],
        "seconds": dict(report.seconds),
    }
    path.write_text(json.dumps(values, indent=2), encoding="utf-8")
