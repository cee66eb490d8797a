"""What a vision-language model is asked about programs, and how a program is read in its answers."""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.endpoint.messages import Message, ask_about, encode, without_thinking
from vlmrm_gym.verification.results import Failure, Limits

INTRODUCTION = (
    "You help to recognise by a program whether a goal is reached in the images of a scene. The goal is: {prompt}\n"
    "The images show the scene as an episode begins{goals}."
)
SUBTASKS = (
    "Split the way to the goal into sub-tasks, as few as are needed, often one. Say for each in one sentence how the "
    "pixels of an image show that it is completed: by which colours, shapes and positions. Write no program yet."
)
PROGRAM = """\
Write one Python file that recognises these sub-tasks, by one of two forms.

For a single condition, a function:

    def reward(frame):
        return ...

For several sub-tasks, a class for each, in their order:

    class NameOfTheSubTask:
        def reset(self):
            ...
        def __call__(self, frame):
            return ...

`frame` is one image, a NumPy array, uint8 ({height}, {width}, 3), RGB; one frame comes after the other, and `reset` is
called before the first. Return True, or 1.0, where the sub-task is completed, and else False, or how near it is, from 0
to below 1. NumPy may be imported; there are no files and no network. The same frames must get the same answers: use no
time and no random numbers. Recognise the goal by what the scene shows, not by exact pixels: the program is tried on
episodes that you have not seen, and moved by a pixel.

{limits}

Answer with the whole file in one block that begins with ```python."""
LIMITS = (
    "It is accepted if at least {experts:.0%} of the episodes that reach the goal complete it, at most {random:.0%} of "
    "those of random actions, and at most {negatives:.0%} of those that stand still, are black, run backwards or are "
    "shuffled."
)
MEND = "Find the cause, and answer with the whole mended file in one block that begins with ```python."
NO_CODE = "There is no program in your answer."
NOT_ACCEPTED = "The program was tried, and is not accepted."
MAX_SHOWN = 4
"""Failures that are fed back at a time, each with its frames."""


def ask_for_subtasks(
    prompt: str, initial: Sequence[NDArray[np.uint8]], goals: Sequence[NDArray[np.uint8]]
) -> list[Message]:
    """The first question, with images uint8 (H, W, 3) of initial states and of goal states."""
    images = [(f"Beginning {number}:", encode(image)) for number, image in enumerate(initial, 1)]
    images += [(f"Goal {number}:", encode(image)) for number, image in enumerate(goals, 1)]
    introduction = INTRODUCTION.format(prompt=prompt, goals=", and as the goal is reached" if goals else "")
    return ask_about(introduction, images, SUBTASKS)


def ask_for_program(height: int, width: int, limits: Limits) -> list[Message]:
    """The second question; frames are of this size."""
    rules = LIMITS.format(experts=limits.experts, random=limits.random, negatives=limits.negatives)
    return [{"role": "user", "content": PROGRAM.format(height=height, width=width, limits=rules)}]


def ask_to_mend(failures: Sequence[Failure]) -> list[Message]:
    """The question after a program was verified: the rules that it breaks, with the frames that decide."""
    rules = [f"- {rule}" for rule in dict.fromkeys(one.rule for one in failures)]
    images, texts = [], []
    for letter, failure in zip("ABCDEFGH", _choose(failures), strict=False):
        texts.append(f"Episode {letter}, {failure.behaviour}, is against this rule: {failure.rule}")
        for step, value, frame in zip(failure.steps, failure.values, failure.frames, strict=True):
            returned = "failed" if np.isnan(value) else f"the reward was {value:.3g}"
            images.append((f"Episode {letter}, step {step}: {returned}", encode(frame)))
    return ask_about("\n".join([NOT_ACCEPTED, *rules, "", *texts]), images, MEND)


def ask_again(reason: str) -> list[Message]:
    """The question after an answer that is no program."""
    return [{"role": "user", "content": f"{reason} {MEND}"}]


def _choose(failures: Sequence[Failure]) -> list[Failure]:
    """Failures of different rules first, at most `MAX_SHOWN`."""
    first = {one.rule: one for one in reversed(failures)}
    return sorted(failures, key=lambda one: one is not first[one.rule])[:MAX_SHOWN]


def read_program(text: str | None) -> str | None:
    r"""The program in an answer: its last block of code with a definition; None if there is none.

    >>> read_program("Here it is:\n```python\ndef reward(frame):\n    return True\n```")
    'def reward(frame):\n    return True\n'
    """
    said = without_thinking(text or "")
    blocks = re.findall(r"```[^\n`]*\n(.*?)(?:```|\Z)", said, flags=re.DOTALL) or [said]
    programs = [block for block in blocks if re.search(r"^(?:def|class) ", block, flags=re.MULTILINE)]
    return programs[-1] if programs else None
