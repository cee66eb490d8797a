"""Writes a program with a model's help: asks for sub-tasks, then for a program, verifies it and feeds failures back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.errors import InputError
from vlmrm_gym.files import atomic_write_text
from vlmrm_gym.programs.errors import ProgramError
from vlmrm_gym.rewards.program import Program
from vlmrm_gym.verification.behaviour import Episode
from vlmrm_gym.verification.results import Limits, Verification
from vlmrm_gym.verification.verify import verify
from vlmrm_gym.writing import questions
from vlmrm_gym.writing.conversation import Conversation

NUM_IMAGES = 3
"""Of initial states, and of goal states, that the model is shown."""


def write_program(
    conversation: Conversation,
    prompt: str,
    episodes: Sequence[Episode],
    folder: Path,
    *,
    goals: Sequence[NDArray[np.uint8]] = (),
    limits: Limits | None = None,
    rounds: int = 3,
    options: Mapping[str, Any] = MappingProxyType({}),
    begin_round: Callable[[int], object] = lambda number: None,
    progress: Callable[[], object] = lambda: None,
) -> Verification:
    """Ask for a program until one is accepted, as VLM-CaR does (arXiv 2402.04764).

    The folder gets program_1.py and round_1, its verification, and so on; program.py, the accepted program or the last
    one; and conversation.md after every answer.

    Args:
        conversation: Whom to ask.
        prompt: The goal.
        episodes: What `vlmrm_gym.verification.behaviour.gather` returned.
        folder: Where everything is written; it exists.
        goals: Images of goal states, uint8 (H, W, 3); none: those that experts end in.
        limits: When a program is accepted; None: the defaults.
        rounds: The most programs that are asked for, at least 1.
        options: Fields of `vlmrm_gym.Program`: `size`, that of the episodes' frames, and `isolate`.
        begin_round: Called with the number of each round.
        progress: Called after each episode that a program has scored.

    Returns:
        The verification of program.py.

    Raises:
        InputError: No answer has a program that can be executed; the budget is used up, or the server fails.
    """
    limits, found, problem = limits or Limits(), None, ""
    initial, shown = _show(episodes, goals)
    height, width, _ = initial[0].shape
    conversation.ask(questions.ask_for_subtasks(prompt, initial, shown))
    question = questions.ask_for_program(height, width, limits)
    for number in range(1, rounds + 1):
        begin_round(number)
        text, truncated = conversation.ask(question)
        conversation.write(folder)
        source = questions.read_program(text)
        if source is None or truncated:
            problem = "Your answer was cut off." if truncated else questions.NO_CODE
            question = questions.ask_again(problem)
            continue
        atomic_write_text(path := folder / f"program_{number}.py", source)
        try:
            found = verify(Program(source=source, **options), episodes, limits, progress)
        except (ProgramError, ValueError) as error:
            problem = f"The program cannot be executed: {error}"
            question = questions.ask_again(problem)
            continue
        found = replace(found, program=Program(path=str(path), **options))
        found.write(folder / f"round_{number}")
        if not found.failures:
            break
        question = questions.ask_to_mend(found.failures)
    if found is None:
        raise InputError(
            f"`model` must answer with a program that can be executed. None of {rounds} answers had one; of the last: "
            f"{problem} All of it is in {folder / 'conversation.md'}. Pass another model, or more rounds."
        )
    path = folder / "program.py"
    atomic_write_text(path, found.program.files["program.py"])
    return replace(found, program=Program(path=str(path), **options))


def _show(
    episodes: Sequence[Episode], goals: Sequence[NDArray[np.uint8]]
) -> tuple[list[NDArray[np.uint8]], list[NDArray[np.uint8]]]:
    """Images of initial states and of goal states."""
    others = [one for one in episodes if not one.is_expert] or episodes
    initial = [one.draw(one.states[:1])[0] for one in others[:NUM_IMAGES]]
    if goals:
        return initial, list(goals)
    experts = [one for one in episodes if one.is_expert][:NUM_IMAGES]
    return initial, [one.draw(one.states[last : last + 1])[0] for one in experts for last in [_last_success(one)]]


def _last_success(episode: Episode) -> int:
    return len(episode) - 1 if episode.success is None else int(np.flatnonzero(episode.success)[-1])
