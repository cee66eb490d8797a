"""What the commands `vlmrm-gym program verify` and `program write` share: flags, episodes, and the table of results."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from vlmrm_gym.cli.settings import YAML, read_yaml
from vlmrm_gym.errors import InputError, as_input_error
from vlmrm_gym.rewards.verified import record_file, write_record
from vlmrm_gym.terminal import say
from vlmrm_gym.validation import check_size

if TYPE_CHECKING:
    from vlmrm_gym.rollouts.play import Policy
    from vlmrm_gym.verification.behaviour import Episodes
    from vlmrm_gym.verification.results import Limits, Verification

Paths = Annotated[tuple[Path, ...], tyro.conf.UseAppendAction]


@dataclass(frozen=True, kw_only=True)
class VerificationFlags:
    """On which episodes a program is verified, and by which limits."""

    env: str | None = None
    """instead of an ID: "package.module:function", which returns an environment made with render_mode="rgb_array" """
    run: Paths = ()
    """folders of trained runs: experts"""
    rollouts: Paths = ()
    """folders made by `vlmrm-gym dataset`: experts, unless they are of random or constant actions whose success is not
    known"""
    camera: YAML = None
    """MuJoCo only: one view, as in `vlmrm-gym dataset` (None: the task's, else the environment's)"""
    size: YAML = None
    """height and width of the frames, in pixels, such as '[96, 144]' (None: as large as the environment draws them)"""
    episodes: int = 10
    """of each behaviour that is played"""
    steps: int | None = None
    """the most of an episode (None: the environment's own time limit, else 200)"""
    limit_random: float = 0.1
    """share of random, and of constant, episodes that may complete it"""
    limit_experts: float = 1.0
    """share of experts that must"""
    limit_negatives: float = 0.0
    """share of frozen, reversed, shuffled and black episodes that may"""
    threshold: float = 1.0
    """what a function must return for a frame that is a success; True is 1"""
    isolate: bool = True
    """--no-isolate runs it in this process, where it can do what you can"""
    seed: int = 0
    """of everything that is drawn, from 0"""
    trust_code: bool = False
    """run the code that the configuration of a run names"""
    overwrite: bool = False
    """replace earlier results in a folder that exists"""

    @property
    def frame_size(self) -> tuple[int, int] | None:
        """Height and width of the frames; None: the environment's own. Raises an InputError for anything else."""
        with as_input_error():
            return check_size(read_yaml("size", self.size))

    def limits(self) -> "Limits":
        """The limits, if all numbers can be used.

        Raises:
            InputError: One cannot.
        """
        from vlmrm_gym.verification.results import Limits

        for name, least in (("episodes", 1), ("steps", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and not least <= value < 2**31:
                raise InputError(f"`{name}` must be from {least} to {2**31 - 1}. Received {value}.")
        with as_input_error():
            return Limits(
                random=self.limit_random,
                experts=self.limit_experts,
                negatives=self.limit_negatives,
                threshold=self.threshold,
            )

    def gather(self, id: str | None, progress: Callable[[], object]) -> "AbstractContextManager[Episodes]":
        """Play and read the episodes of an ID; see `vlmrm_gym.verification.behaviour.gather`."""
        from vlmrm_gym.verification.behaviour import gather

        return gather(
            id,
            env=self.env,
            camera=read_yaml("camera", self.camera),
            size=self.frame_size,
            policies={run.name: partial(self._play_run, run, id) for run in as_paths(self.run)},
            rollouts=as_paths(self.rollouts),
            episodes=self.episodes,
            steps=self.steps,
            seed=self.seed,
            progress=progress,
        )

    def _play_run(self, run: Path, id: str | None, env: Any) -> "Policy":
        from vlmrm_gym.training.evaluation import run_actions  # deferred: loads torch

        return run_actions(run, env, id, trust_code=self.trust_code)


def as_paths(given: Any) -> tuple[Path, ...]:
    """The paths of a flag, which from Python may also be a list, or one value."""
    return tuple(map(Path, given if isinstance(given, tuple | list) else (given,)))


def note_if_accepted(found: "Verification") -> None:
    """Write the record that a program was verified; remove one that no longer holds."""
    path = str(found.program.path)
    if found.accepted:
        counts = {"episodes": {row.behaviour: row.episodes for row in found.rows}, "limits": asdict(found.limits)}
        say(f"Written: {write_record(path, str(found.program.sha256), found.environment, counts)}")
    else:
        record_file(path).unlink(missing_ok=True)


def show(found: "Verification") -> None:
    """Print which episodes complete a program, and the verdict."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from vlmrm_gym.cli.console import PlainConsole

    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name in ("Episodes", "count", "completed", "limit", *(found.subtasks or ("frames",)), ""):
        table.add_column(name)
    for row in found.rows:
        shares = row.subtasks or (None,) * max(1, len(found.subtasks))
        cells = [row.behaviour, str(row.episodes), _percent(row.completed)]
        cells += [f"{row.rule}{'' if row.kept else ', broken'}", *map(_percent, shares), row.note]
        table.add_row(*cells)
    PlainConsole().print(table)
    if found.accuracy is not None:
        say(found.accuracy.describe())
    for rule in dict.fromkeys(failure.rule for failure in found.failures):
        say(rule)
    say(found.verdict)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
