"""The command `vlmrm-gym check`: measures of a reward before training, and the failures that it pays most."""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any, Literal

import tyro
from tqdm import tqdm

from vlmrm_gym.audit.results import Report
from vlmrm_gym.errors import InputError
from vlmrm_gym.rewards.clip_options import CLIPFields
from vlmrm_gym.training.spec_fields import with_spec_fields

FILES = ("report.html", "measures.json")
"""What the command writes."""


_FIELDS: Any = with_spec_fields(CLIPFields, without=("prompt", "baseline", "alpha", "model"))


@dataclass
class Check(_FIELDS):
    """Check a reward before training: can it work, and how would an agent exploit?

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
    prompt: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """what the agent should do; repeat --prompt to compare several. Without it: the task's own"""
    baseline: str | None = None
    """the scene without the goal, for all prompts; required for alpha above 0. Without it: the task's own"""
    alpha: tuple[float, ...] = (0.0,)
    """strengths of the goal-baseline regularisation, from 0 to 1"""
    model: tuple[str, ...] = ("tiny",)
    """tiny, Architecture/pretrained tag, Architecture/checkpoint file, hf-hub:organisation/repository or
    local-dir:folder"""
    camera: tuple[str, ...] = ()
    """MuJoCo only: paper, side, front-side, around, a name or number of the model's cameras, or settings such as
    "{azimuth: 90, distance: 3}"; a list in brackets is one choice with several views. Without it: the task's own"""
    combine_views: tuple[str, ...] = ("min",)
    """how several views make one reward: min, mean, random or package.module:function"""
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
    trust_code: bool = False
    """run the code that the run's configuration names: an environment, as module:name, or in its env_kwargs"""
    reach: bool = False
    """search for actions that lead from the initial state to each exploit (minutes)"""
    effort: int = 1
    """how long the search is: 1,700 states times this, for each combination"""
    seed: int = 0
    """of everything that is drawn, from 0"""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps"""
    out: Path | None = None
    """the folder to write; None is NAME_check, in the current folder"""
    overwrite: bool = False
    """replace the report in a folder that exists"""


def check(command: Check) -> None:
    """Run the command.

    Raises:
        InputError: A setting, the environment or the output folder cannot be used.
    """
    from vlmrm_gym.audit.compare import compare
    from vlmrm_gym.audit.report import write_report
    from vlmrm_gym.audit.subject import find_subject
    from vlmrm_gym.audit.summary import print_summary
    from vlmrm_gym.cli.tasks import console
    from vlmrm_gym.training.files import atomic_write

    command = _find_rollouts(command)
    subject = find_subject(command)
    with _open_folder(command, subject.name) as folder:
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


@contextmanager
def _open_folder(command: Check, name: str) -> Iterator[Path]:
    """Make the folder, and see that it can be written to. A new one is removed again if the check fails."""
    folder = Path(f"{name}_check") if command.out is None else command.out
    try:
        is_new = not folder.exists()
        if not is_new and not folder.is_dir():
            raise InputError(f"`out` must be a folder. {folder} is a file. Choose another.")
        if not is_new and not command.overwrite:
            raise InputError(f"The folder {folder} exists. Pass --overwrite to replace its report, or another --out.")
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"The folder {folder} cannot be written to: {error.strerror}. Choose another --out."
        ) from error
    try:
        yield folder
    except BaseException:
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _write_measures(report: Report, path: Path) -> None:
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
