"""The command `vlmrm-gym program write`: a vision-language model writes a program, which is verified and mended."""

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import tyro
from gymnasium.error import DependencyNotInstalled

from vlmrm_gym.cli.settings import YAML, parse, read_yaml
from vlmrm_gym.cli.verification import Paths, VerificationFlags, as_paths, note_if_accepted, show
from vlmrm_gym.endpoint.settings import EndpointSettings
from vlmrm_gym.errors import InputError, as_input_error
from vlmrm_gym.folders import output_folder
from vlmrm_gym.media.frames import Pictures, open_frames
from vlmrm_gym.rollouts.environments import find_named_task
from vlmrm_gym.terminal import say

if TYPE_CHECKING:
    from vlmrm_gym.verification.results import Verification


@dataclass(frozen=True, kw_only=True)
class Write(VerificationFlags):
    """Have a vision-language model write a program that recognises a goal (VLM-CaR), and verify it.

        vlmrm-gym program write VLMRM/CartPole-v1 --model gpt-5
        vlmrm-gym program write Pusher-v5 --prompt "puck on the disc" --goal-image goal.png --rollouts pushes --model x
        vlmrm-gym program write VLMRM/CartPole-v1 --endpoint URL --key-variable None --model llava

    The model sees initial states and goal states, splits the goal into sub-tasks, and writes a program. The program is
    verified as by `vlmrm-gym program verify`. What is against the rules goes back to the model, with the frames that
    decide and what the program returned there, for a number of rounds.

    The folder gets program.py, which is `reward=vlmrm_gym.Program(path=...)`; each round's program and its report; and
    conversation.md. Answers are kept: with --overwrite the same command goes on where it ended, and asks nothing twice.
    Programs run isolated. The key is read from the environment, and is in no file.

    Exit codes: 0 accepted, 1 not accepted or nothing was verified, 2 bad input.
    """

    id: Annotated[str | None, tyro.conf.Positional] = None
    """a registered ID, of this package or of another one ("module:ID" imports the module first)"""
    model: str
    """the model, as the server names it"""
    prompt: str | None = None
    """the goal (None: the task's own)"""
    goal_image: Paths = ()
    """pictures of the goal, or folders of them (none: the states that experts end in)"""
    rounds: int = 3
    """the most programs that are asked for"""
    endpoint: str | None = None
    """an OpenAI-compatible server (None: the environment's OPENAI_BASE_URL, else OpenAI's)"""
    key_variable: str | None = "OPENAI_API_KEY"
    """environment variable that has the key (None: the server needs none)"""
    call_budget: int | None = None
    """the most requests"""
    token_budget: int | None = None
    """the most tokens, in and out"""
    request: YAML = None
    """other fields of each request, such as '{temperature: 0, max_completion_tokens: 4000}'"""
    answers: Path | None = None
    """the file that keeps answers (None: answers.db in the folder)"""
    out: Path = Path("program")
    """the folder to write"""


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    if not _write(parse(Write, "program write", arguments)).accepted:
        sys.exit(1)


def write(id: str | None = None, **settings: Any) -> "Verification":
    """Have a model write a program: `vlmrm-gym program write` as a function.

    Args:
        id: The environment's ID; None with `env`.
        settings: The flags, see `Write`: `write("VLMRM/CartPole-v1", model="gpt-5", rounds=5)`.

    Returns:
        What the verification of program.py found.

    Raises:
        InputError: A setting cannot be used, the budget is used up, the server fails, or no answer has a program.
    """
    return _write(Write(id=id, **settings))


def _write(command: Write) -> "Verification":
    from tqdm import tqdm

    from vlmrm_gym.writing.conversation import Conversation
    from vlmrm_gym.writing.write import write_program

    limits = command.limits()
    if command.rounds < 1:
        raise InputError(f"`rounds` must be at least 1. Received {command.rounds}.")
    task = None if command.id is None else find_named_task(command.id)
    if (prompt := command.prompt or (None if task is None else task.prompt)) is None:
        raise InputError('`prompt` must be given: what the program should recognise. Pass --prompt "a text".')
    goals = [frame for path in as_paths(command.goal_image) for frame in _read_pictures(path)]
    with as_input_error(TypeError):
        settings = EndpointSettings(
            model=command.model,
            base_url=command.endpoint,
            key_variable=command.key_variable,
            call_budget=command.call_budget,
            token_budget=command.token_budget,
            request=read_yaml("request", command.request) or {},
        )
    folder = command.out
    with output_folder(folder, overwrite=command.overwrite):
        with as_input_error(DependencyNotInstalled, OSError):
            conversation = Conversation(settings, command.answers or folder / "answers.db")
        with (
            closing(conversation),
            tqdm(unit=" episodes", desc="play", file=sys.stderr, dynamic_ncols=True) as progress,
            command.gather(command.id, progress.update) as episodes,
        ):

            def begin_round(number: int) -> None:
                progress.reset(len(episodes))
                progress.set_description(f"round {number}")

            found = write_program(
                conversation,
                prompt,
                episodes,
                folder,
                goals=goals,
                limits=limits,
                rounds=command.rounds,
                options={"size": command.frame_size, "isolate": command.isolate},
                begin_round=begin_round,
                progress=progress.update,
            )
            spending = conversation.spending
    show(found)
    say(f"Program: {found.program.path}, after {spending}. What was said: {folder / 'conversation.md'}")
    note_if_accepted(found)
    return found


def _read_pictures(path: Path) -> list[np.ndarray]:
    pictures = open_frames(path)
    if not isinstance(pictures, Pictures):
        raise InputError(f"`goal_image` must be pictures. Received the video {path}.")
    return [one.frame for one in pictures.frames()]
