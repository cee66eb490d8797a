"""The command `vlmrm-gym program verify`: whether experts complete a program, and nothing else."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import tyro

from vlmrm_gym.cli.settings import parse
from vlmrm_gym.cli.verification import VerificationFlags, note_if_accepted, show
from vlmrm_gym.errors import as_input_error
from vlmrm_gym.folders import output_folder
from vlmrm_gym.programs.execution import Inputs
from vlmrm_gym.rewards.program import Program
from vlmrm_gym.terminal import say
from vlmrm_gym.validation import check_choice

if TYPE_CHECKING:
    from vlmrm_gym.verification.results import Verification


@dataclass(frozen=True, kw_only=True)
class Verify(VerificationFlags):
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
    inputs: Inputs = "frames"
    """what the program sees: frames or states"""
    out: Path | None = None
    """the folder to write (None: NAME_verification)"""


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
    return _verify(Verify(file=Path(file), id=id, **settings))


def _verify(command: Verify) -> "Verification":
    from tqdm import tqdm

    from vlmrm_gym.verification.results import FILES
    from vlmrm_gym.verification.verify import verify as verify_program

    limits = command.limits()
    with as_input_error():
        check_choice("inputs", command.inputs, get_args(Inputs))
        program = Program(
            path=str(command.file), inputs=command.inputs, size=command.frame_size, isolate=command.isolate
        )
    folder = command.out or Path(f"{command.file.stem}_verification")
    with output_folder(folder, overwrite=command.overwrite):
        with (
            tqdm(unit=" episodes", desc="play", file=sys.stderr, dynamic_ncols=True) as progress,
            command.gather(command.id, progress.update) as episodes,
        ):
            progress.reset(len(episodes))
            progress.set_description("score")
            found = verify_program(program, episodes, limits, progress.update)
        found.write(folder)
    show(found)
    say(f"Report: {folder / FILES[0]}")
    note_if_accepted(found)
    return found
