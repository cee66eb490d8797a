"""The command `vlmrm-gym program verify`: whether experts complete a program, and nothing else."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import tyro

from vlmrm_gym.cli.settings import YAML, parse, read_yaml
from vlmrm_gym.errors import InputError, as_input_error
from vlmrm_gym.folders import output_folder
from vlmrm_gym.programs.execution import Inputs
from vlmrm_gym.rewards.program import Program
from vlmrm_gym.rewards.verified import record_file, write_record
from vlmrm_gym.terminal import say
from vlmrm_gym.validation import check_choice

if TYPE_CHECKING:
    from vlmrm_gym.verification.results import Verification

Paths = Annotated[tuple[Path, ...], tyro.conf.UseAppendAction]


@dataclass(frozen=True)
class Verify:
    """Verify a program before it is a reward: do experts complete it, and nothing else?

        vlmrm-gym program verify kneel.py VLMRM/Humanoid-kneel-v0
        vlmrm-gym program verify pole.py VLMRM/CartPole-v1 --run runs/CartPole-v1__DQN__0__1700000000
        vlmrm-gym program verify push.py Pusher-v5 --rollouts pushes --steps 100

    Sub-tasks are completed once each of them is. A function is completed by an episode in which as many frames get
    True or --threshold as must succeed for the episode to be a success: of other packages' environments, one frame.

    Experts (--run, --rollouts, or, without these, the way to the goal states of the task) must all complete it, also
    with frames that are moved by a pixel; random and constant behaviour in at most 10% of the episodes; frozen,
    reversed, shuffled and black episodes of the experts never. Every episode is scored twice, and must get the same
    answers. Where success is known, only successes are experts.

    The folder (--out) gets report.html, with the frames that decide, and verification.json. If the program is accepted,
    a file beside it says so (kneel.verification.json), and it no longer warns where it is used.

    Exit codes: 0 accepted, 1 not accepted or nothing was verified, 2 bad input.
    """

    file: Annotated[Path, tyro.conf.Positional]
    """the program"""
    id: Annotated[str | None, tyro.conf.Positional] = None
    """a registered ID, of this package or of another one ("module:ID" imports the module first)"""
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
    """height and width of the frames that the program sees, such as '[120, 160]' (None: the environment's own)"""
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
    inputs: Inputs = "frames"
    """what the program sees: frames or states"""
    isolate: bool = True
    """--no-isolate runs it in this process, where it can do what you can"""
    seed: int = 0
    """of everything that is drawn, from 0"""
    trust_code: bool = False
    """run the code that the configuration of a run names"""
    out: Path | None = None
    """the folder to write (None: NAME_verification)"""
    overwrite: bool = False
    """replace earlier results in a folder that exists"""


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    if not _verify(parse(Verify, "program verify", arguments)).accepted:
        sys.exit(1)


def verify(file: str | Path, id: str | None = None, **settings: Any) -> "Verification":
    """Verify a program: `vlmrm-gym program verify` as a function.

    Args:
        file: The program.
        id: The environment's ID; None with `env`.
        settings: The flags, see `Verify`: `verify("kneel.py", "VLMRM/Humanoid-kneel-v0", episodes=5)`.

    Returns:
        What was found; the folder has it as `vlmrm_gym.verification.results.FILES`.

    Raises:
        InputError: A setting, the program, the environment, an expert or the output folder cannot be used.
    """
    return _verify(Verify(Path(file), id, **settings))


def _verify(command: Verify) -> "Verification":
    for name, least in (("episodes", 1), ("steps", 1), ("seed", 0)):
        value = getattr(command, name)
        if value is not None and not least <= value < 2**31:
            raise InputError(f"`{name}` must be from {least} to {2**31 - 1}. Received {value}.")
    from tqdm import tqdm

    from vlmrm_gym.verification.behaviour import gather
    from vlmrm_gym.verification.results import FILES, Limits
    from vlmrm_gym.verification.verify import verify as verify_program

    size = read_yaml("size", command.size)
    with as_input_error():
        check_choice("inputs", command.inputs, get_args(Inputs))
        limits = Limits(
            random=command.limit_random,
            experts=command.limit_experts,
            negatives=command.limit_negatives,
            threshold=command.threshold,
        )
        program = Program(path=str(command.file), inputs=command.inputs, size=size, isolate=command.isolate)
    folder = command.out or Path(f"{command.file.stem}_verification")
    with output_folder(folder, overwrite=command.overwrite):
        with (
            tqdm(unit=" episodes", desc="play", file=sys.stderr, dynamic_ncols=True) as progress,
            gather(
                command.id,
                env=command.env,
                camera=read_yaml("camera", command.camera),
                size=program.size,
                runs=_as_tuple(command.run),
                rollouts=_as_tuple(command.rollouts),
                episodes=command.episodes,
                steps=command.steps,
                seed=command.seed,
                trust_code=command.trust_code,
                progress=progress.update,
            ) as episodes,
        ):
            progress.reset(len(episodes))
            progress.set_description("score")
            found = verify_program(program, episodes, limits, progress.update)
        found.write(folder)
    _print(found)
    say(f"Report: {folder / FILES[0]}")
    if found.accepted:
        counts = {"episodes": {row.behaviour: row.episodes for row in found.rows}, "limits": asdict(limits)}
        say(f"Written: {write_record(command.file, str(program.sha256), found.environment, counts)}")
    else:
        record_file(command.file).unlink(missing_ok=True)
    return found


def _as_tuple(given: Any) -> tuple[Path, ...]:
    """From Python a flag of several values may also be a list, or one value."""
    return tuple(map(Path, given if isinstance(given, tuple | list) else (given,)))


def _print(found: "Verification") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from vlmrm_gym.cli.tasks import console
    from vlmrm_gym.terminal import printable

    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name in ("Episodes", "count", "completed", "limit", *(found.subtasks or ("frames",)), ""):
        table.add_column(Text(printable(name)))
    for row in found.rows:
        shares = row.subtasks or (None,) * max(1, len(found.subtasks))
        cells = [row.behaviour, str(row.episodes), _percent(row.completed)]
        cells += [f"{row.rule}{'' if row.kept else ', broken'}", *map(_percent, shares), row.note]
        table.add_row(*(Text(printable(cell)) for cell in cells))
    console().print(table)
    if found.accuracy is not None:
        say(found.accuracy.describe())
    for rule in dict.fromkeys(failure.rule for failure in found.failures):
        say(rule)
    say(found.verdict)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
