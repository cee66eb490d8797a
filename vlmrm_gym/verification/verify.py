"""Verifies a program: experts complete it, random behaviour hardly ever, and frames that show nothing never.

A program of sub-tasks is completed by an episode in which all its sub-tasks are completed; a function, by an episode in
which as many frames get `Limits.threshold` as must succeed for the episode to be a success. The rule is that of VLM-CaR
(arXiv 2402.04764): experts always complete a program, and random behaviour at most 10% of the time.
"""

from collections.abc import Callable, Sequence
from contextlib import closing

from vlmrm_gym.errors import InputError
from vlmrm_gym.rewards.program import Program
from vlmrm_gym.verification.behaviour import Episode, Episodes
from vlmrm_gym.verification.results import Limits, Verification
from vlmrm_gym.verification.session import Session
from vlmrm_gym.verification.tally import measure_accuracy


def verify(
    program: Program,
    episodes: Sequence[Episode],
    limits: Limits | None = None,
    progress: Callable[[], object] = lambda: None,
) -> Verification:
    """Verify a program.

    Each episode is scored twice, in two processes and in other batches, and must get the same answers. Experts are
    scored again with frames that are moved by a pixel, and frozen, reversed, shuffled and black; `session` says where
    those apply. An untrained episode that is known to be a success does not count.

    Args:
        program: The program. No warning says that it was not verified.
        episodes: What `gather` returned.
        limits: None: the defaults.
        progress: Called after each episode.

    Raises:
        ProgramError: The program cannot be executed at all.
        InputError: It sees states, and those of the environment are frames; or frames of another size.
    """
    if program.inputs == "states" and any(one.states.rows.ndim != 2 for one in episodes):
        raise InputError(
            "`inputs` must be 'frames' for an environment whose frames are stored. Received 'states'. Write the "
            "program for frames."
        )
    if isinstance(episodes, Episodes) and program.inputs == "frames" and program.size != episodes.size:
        raise InputError(f"`size` must be that of the episodes, {episodes.size}. Received a program of {program.size}.")
    with closing(program.execute()) as reward, closing(program.execute()) as other:
        session = Session(reward, other, program.inputs, limits or Limits())
        for number, episode in enumerate(episodes):
            session.look_at(number, episode)
            progress()
    return Verification(
        program=program,
        environment=episodes.environment if isinstance(episodes, Episodes) else "",
        limits=session.limits,
        subtasks=reward.subtasks,
        rows=[tally.row() for tally in session.tallies.values()],
        failures=session.all_failures(),
        accuracy=measure_accuracy(session.shown),
        verified=any(episode.is_expert for episode in episodes),
    )
