"""The command `vlmrm-gym check`: measures of a reward before training, and the failures that it pays most."""

import itertools
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import gymnasium as gym
import numpy as np
import tyro
from tqdm import tqdm

from vlmrm_gym._util.errors import InputError, as_input_error, check_values, say
from vlmrm_gym._util.files import atomic_write, atomic_write_text, output_folder
from vlmrm_gym._util.validation import check_integer
from vlmrm_gym.rewards.clip import CLIP
from vlmrm_gym.rewards.endpoint.reward import Endpoint
from vlmrm_gym.rewards.spec import RewardSpec
from vlmrm_gym.scoring.options import ViewOptions
from vlmrm_gym.tasks import Task
from vlmrm_gym.tools.cli.settings import YAML, PlainConsole, RewardFlags, Texts, parse
from vlmrm_gym.tools.environments import find_named_task, make_unscored_env
from vlmrm_gym.tools.yaml_values import read_flag

if TYPE_CHECKING:
    from vlmrm_gym.tools.check.results import Candidate, Report

FILES = ("report.html", "measures.json")
"""What the command writes."""


@dataclass(frozen=True, kw_only=True)
class Check(RewardFlags, ViewOptions):
    """Check a reward before training: can it work, and what failures does it pay?

        vlmrm-gym check VLMRM/Humanoid-kneel-v0
        vlmrm-gym check VLMRM/Humanoid-arms-raised-v0 --camera paper side front-side --combine-views min mean
        vlmrm-gym check VLMRM/CartPole-v1 --prompt "an upright pole" --baseline "a pole" --alpha 0 0.5 1
        vlmrm-gym check Ant-v5 --prompt "an ant on its back" --model ViT-B-32/laion2b_s34b_b79k --success tasks:on_back
        vlmrm-gym check my_package.envs:make_env --env-kwargs '{balls: 2}' --prompt "a red ball in the box"

    It measures agreement with what is known of success, the highest rewards of failures (by a search), rewards along
    known states, and controls. A reward "does not rank" if its AUC is not above those of the controls. Without anything
    that says which states succeed there is no AUC, and the report shows the states with the highest rewards.

    Several values of one flag are compared; a list in brackets is one value: a camera of several views. The report's
    table lists all combinations, the highest AUC first; its other sections are about one combination, the first value
    of every flag.

    The folder (--out) gets report.html, which opens in any browser, and measures.json. No model is trained.
    """

    id: Annotated[str | None, tyro.conf.Positional] = None
    """a registered ID, such as Ant-v5; module:ID, which imports the module first; or package.module:function"""
    env_kwargs: YAML = None
    """keyword arguments of the function, or of another package's ID, such as '{size: 3}'"""
    textured: Literal["yes", "no", "both"] | None = None
    """the render style, for tasks that have two"""
    success: str | None = None
    """for other packages' MuJoCo environments: "package.module:function", from states, float64 (N, S), to bool (N,)"""
    rollouts: Path | None = None
    """a folder made by `vlmrm-gym dataset`, in place of new rollouts"""
    labels: Path | None = None
    """a CSV file with the columns episode, step, success, for the steps of --rollouts"""
    threshold: float | Literal["auto"] | None = None
    """measure what a threshold of Success tells apart, on the states whose success is known; auto proposes one"""
    seed: int = 0
    """of everything that is drawn, from 0"""
    camera: Texts = ()  # pyright: ignore[reportIncompatibleVariableOverride]  # several values are compared
    combine_views: Texts = ()  # pyright: ignore[reportIncompatibleVariableOverride]


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    _check(parse(Check, "check", arguments), shlex.join(["vlmrm-gym", "check", *arguments]))


def check(env: Any = None, rewards: Any = (), **settings: Any) -> "Report":
    """Check rewards before training, in Python and in notebooks: `vlmrm-gym check` as a function.

    Args:
        env: A registered ID; or an environment made with `render_mode="rgb_array"`, or what makes one.
        rewards: A reward, or several to compare; without one, the task's own prompt.
        settings: The flags, see `Check`: `check("VLMRM/CartPole-v1", prompt=["a pole", "an upright pole"])`.

    Returns:
        The report, which a notebook shows, and the folder (`out`) has as `FILES`.

    Raises:
        InputError: A setting, the environment or the output folder cannot be used.
    """
    given = {"rewards": rewards, **settings} if rewards else settings
    values = [repr(env), *(f"{name}={value!r}" for name, value in given.items())]
    settings |= {"reward": rewards} if rewards else {}
    return _check(Check(id=env, **settings), f"vlmrm_gym.check({', '.join(values)})")


def _check(command: Check, made_by: str) -> "Report":
    _check_settings(command)
    task = find_named_task(command.id)
    rewards = {name: _with_baseline(spec, task) for name, spec in command.specifications(task).items()}
    from vlmrm_gym.tools.check.pipeline import audit
    from vlmrm_gym.tools.check.report import write_report
    from vlmrm_gym.tools.check.settings import AuditSettings, find_candidates, find_success_fn
    from vlmrm_gym.tools.check.summary import print_summary

    settings = AuditSettings(
        name=_name(command.id),
        make_env=lambda textured: make_unscored_env(command.id, command.env_kwargs, textured=textured),
        task=task,
        success_fn=None if command.success is None else find_success_fn(command.success),
        seed=command.seed,
        device=command.device,
        threshold=command.threshold,
        **_read_rollouts(command),
    )
    cameras = {str(camera): read_flag(camera) for camera in command.camera}
    candidates = find_candidates(
        settings,
        rewards,
        cameras=cameras or {"own": None if task is None else task.camera},
        combine_views=command.combine_views or ("min",),
        textured=_textured(command, task),
    )
    if not candidates:
        raise InputError('`prompt` must be given: what the agent should do. Pass --prompt "a text".')
    _say_calls(candidates)
    folder = command.out or _new_folder(settings.name, overwrite=command.overwrite)
    with output_folder(folder, overwrite=command.overwrite):
        with tqdm(unit=" states", file=sys.stderr, dynamic_ncols=True) as progress:
            report = audit(settings, candidates, progress=progress, command=made_by)
        page, table = (folder / name for name in FILES)
        try:
            atomic_write(page, lambda path: write_report(report, path))
            atomic_write_text(table, _measures(report))
        except OSError:
            print_summary(report, PlainConsole(), None)
            raise
    print_summary(report, PlainConsole(), page)
    return report


def _name(env: Any) -> str:
    """Name what makes an environment, or an environment: by its ID if it has one."""
    if isinstance(env, gym.Env):
        return env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    return env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)


def _new_folder(name: str, *, overwrite: bool) -> Path:
    """A folder for the check of an environment: numbered, if there is one."""
    stem = f"{name.split('/')[-1].replace(':', '.')}_check"
    names = itertools.chain([stem], (f"{stem}_{number}" for number in itertools.count(2)))
    return next(folder for folder in map(Path, names) if overwrite or not folder.exists())


def _check_settings(command: Check) -> None:
    if command.labels is not None and command.rollouts is None:
        raise InputError("`labels` needs --rollouts, the dataset whose steps it labels. Make one: vlmrm-gym dataset")
    if command.labels is not None and command.success is not None:
        raise InputError("`labels` and `success` cannot both be passed: both say which states succeed. Pass one.")
    for name in ("camera", "combine_views"):
        check_values(name, [str(value) for value in getattr(command, name)])
    with as_input_error():
        check_integer("seed", command.seed, minimum=0, maximum=2**31 - 1)


def _with_baseline(spec: RewardSpec, task: Task | None) -> RewardSpec:
    """Fill in the reward with the task's baseline, if it has none: controls and the landscape use it for any alpha."""
    if not isinstance(spec, CLIP) or spec.baseline or task is None or task.baseline in (None, spec.prompt):
        return spec
    return replace(spec, baseline=task.baseline)


def _textured(command: Check, task: Task | None) -> Sequence[bool | None]:
    if task is not None and "textured" in task.kwargs:
        return {None: (True,), "yes": (True,), "no": (False,), "both": (True, False)}[command.textured]
    if command.textured is not None:
        raise InputError(
            f"`textured` is for tasks with two render styles. Received {command.textured!r}. Leave it out."
        )
    return (None,)


def _read_rollouts(command: Check) -> dict[str, Any]:
    """Read the rollouts and the labels of their states; empty for new rollouts."""
    if command.rollouts is None:
        return {}
    from vlmrm_gym.data.dataset_folder import check_environment, read_dataset
    from vlmrm_gym.data.labels import read_labels

    check_environment(command.rollouts, _name(command.id), command.env_kwargs)
    rollouts = read_dataset(command.rollouts)
    labels = None if command.labels is None else np.concatenate(read_labels(command.labels, rollouts))
    return {"rollouts": rollouts, "labels": labels}


def _say_calls(candidates: "Sequence[Candidate]") -> None:
    """Say how many requests rewards will make that ask a server."""
    from vlmrm_gym.tools.check.pipeline import estimate_states

    for spec in {id(one.reward): one.reward for one in candidates}.values():
        if isinstance(spec, Endpoint):
            states = estimate_states([one for one in candidates if one.reward is spec])
            say(
                f"The check will ask {spec.model} about some {states:,} states: a call each, or {spec.votes} if there "
                f"are no log probabilities. max_calls: {spec.max_calls or 'none'}.",
                error=True,
            )


def _measures(report: "Report") -> str:
    """The numbers of the report as JSON."""
    table = [
        {"candidate": row.candidate.settings, "measures": asdict(row.measures), "ranks": row.measures.ranks}
        for row in report.table
    ]
    exploits = [{"reward": one.reward, "failed": dict(one.failed)} for one in report.exploits.exploits]
    values = {name: getattr(report, name) for name in ("subject", "command", "provenance", "seconds")}
    values |= {"table": table, "exploits": exploits, "median_success": report.exploits.median_success}
    return json.dumps(values, indent=2, default=str)
