"""Lets a vision-language model write a program, verifies it, and feeds broken rules back (VLM-CaR)."""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.errors import InputError, as_input_error
from vlmrm_gym._util.files import atomic_write_text
from vlmrm_gym.data.trajectory import Trajectory
from vlmrm_gym.rewards.endpoint.messages import Message, ask_about, encode, strip_reasoning
from vlmrm_gym.rewards.endpoint.questioner import Question, Questioner
from vlmrm_gym.rewards.endpoint.scores import ScoresFile
from vlmrm_gym.rewards.endpoint.settings import EndpointSettings
from vlmrm_gym.rewards.program.spec import Program
from vlmrm_gym.tools.program.episodes import Examples
from vlmrm_gym.tools.program.results import Failure, Limits, Verification
from vlmrm_gym.tools.program.verify import verify

NUM_IMAGES, MAX_SHOWN = 3, 4
"""Images of initial states, and of goal states, that the model is shown; failures that are fed back at a time."""
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

It is accepted if at least {experts:.0%} of the episodes that reach the goal complete it, at most {random:.0%} of \
those of random actions, and at most {negatives:.0%} of those that stand still, are black, run backwards or are \
shuffled.

Answer with the whole file in one block that begins with ```python."""
MEND = "Find the cause, and answer with the whole mended file in one block that begins with ```python."


class Conversation:
    """Holds a conversation within a budget. Replies are kept in a file: nothing is asked twice."""

    def __init__(self, settings: EndpointSettings, replies: Path) -> None:
        self._settings, self._answer_key = settings, settings.answer_key
        self._questioner, self._replies = Questioner(settings, logprobs=False), ScoresFile(replies)
        self._messages = list[Message]()

    def ask(self, messages: Sequence[Message]) -> tuple[str | None, bool]:
        """Ask a question after all before it; returns the reply's text, and whether it was cut off.

        Raises an InputError if the budget is used up, or the server cannot be reached or answers with an error.
        """
        self._messages += messages
        key = hashlib.sha256((self._answer_key + json.dumps(self._messages)).encode()).hexdigest()
        if (reply := self._replies.find_details(key)) is None:
            with as_input_error(ConnectionError, RuntimeError):
                replies = [reply for _, reply in self._questioner.answer([self._messages], self._send, sends=1)]
            if not replies:
                more = "The replies so far are kept: pass a higher budget, and --overwrite, to go on."
                raise InputError(f"{self._settings.used_up} after {self.spending}. {more}")
            (reply,) = replies
            self._replies.write(key, self._answer_key, None, reply)
        self._messages.append({"role": "assistant", "content": reply["text"] or ""})
        return reply["text"], reply["truncated"]

    def _send(self, messages: Sequence[Message], question: Question) -> dict[str, Any]:
        reply = self._questioner.send(messages, question)
        return {**question.details, "text": reply.text, "truncated": reply.truncated}

    @property
    def spending(self) -> str:
        """The requests and tokens of this conversation, as a phrase."""
        return f"{self._questioner.budget.calls:,} requests and {self._questioner.budget.tokens:,} tokens"

    def write(self, folder: Path) -> None:
        """Write the conversation as conversation.md, and its images, into a folder."""
        lines = list[str]()
        (folder / "pictures").mkdir(exist_ok=True)
        for message in self._messages:
            lines.append(f"## {message['role']}\n")
            content = message["content"]
            parts: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content
            for part in parts:
                if part["type"] == "text":
                    lines.append(f"{part['text']}\n")
                else:
                    image = base64.b64decode(part["image_url"]["url"].partition(",")[2])
                    name = f"pictures/{hashlib.sha256(image).hexdigest()[:16]}.png"
                    (folder / name).write_bytes(image)
                    lines.append(f"![]({name})\n")
        atomic_write_text(folder / "conversation.md", "\n".join(lines))

    def close(self) -> None:
        """End the connection."""
        self._questioner.close()
        self._replies.close()


def write_program(
    conversation: Conversation,
    prompt: str,
    examples: Examples,
    folder: Path,
    *,
    goals: Sequence[NDArray[np.uint8]] = (),
    limits: Limits | None = None,
    rounds: int = 3,
    isolate: bool = True,
    progress: Callable[[], object] = lambda: None,
) -> Verification:
    """Ask for a program until one is accepted, as VLM-CaR does (arXiv 2402.04764): the verification of program.py.

    The folder, which exists, gets program_1.py and round_1, its verification, and so on; program.py, the accepted one
    or the last one; and conversation.md after every answer. `goals` are images of goal states, uint8 (H, W, 3); without
    them the states are shown in which experts end. Raises an InputError as `Conversation.ask` does, and if no answer of
    so many rounds has a program that can be executed.
    """
    limits, verification, problem = limits or Limits(), None, ""
    options: dict[str, Any] = {"size": examples.size, "isolate": isolate}
    others = examples.select(experts=False) or examples.episodes
    initial = [examples.draw(one.states[:1])[0] for one in others[:NUM_IMAGES]]
    experts = [] if goals else examples.select(experts=True)[:NUM_IMAGES]
    goals = [*goals, *(examples.draw(one.states[_find_goal(one) :][:1])[0] for one in experts)]
    images = [(f"Beginning {number}:", encode(image)) for number, image in enumerate(initial, 1)]
    images += [(f"Goal {number}:", encode(image)) for number, image in enumerate(goals, 1)]
    introduction = INTRODUCTION.format(prompt=prompt, goals=", and as the goal is reached" if goals else "")
    conversation.ask(ask_about(introduction, images, SUBTASKS))
    height, width, _ = initial[0].shape
    question = _ask(PROGRAM.format(height=height, width=width, **asdict(limits)))
    for number in range(1, rounds + 1):
        text, truncated = conversation.ask(question)
        conversation.write(folder)
        problem = "Your answer was cut off." if truncated else "There is no program in your answer."
        if not truncated and (source := read_program(text)) is not None:
            atomic_write_text(path := folder / f"program_{number}.py", source)
            try:
                found = verify(Program(source=source, **options), examples, limits, progress)
            except ValueError as error:
                problem = f"The program cannot be executed: {error}"
            else:
                verification = replace(found, program=Program(path=str(path), **options))
                verification.write(folder / f"round_{number}")
                if not verification.failures:
                    break
                question = ask_to_mend(verification.failures)
                continue
        question = _ask(f"{problem} {MEND}")
    if verification is None:
        raise InputError(
            f"`model` must answer with a program that can be executed. None of {rounds} answers had one; of the last: "
            f"{problem} All of it is in {folder / 'conversation.md'}. Pass another model, or more rounds."
        )
    atomic_write_text(path := folder / "program.py", verification.program.files["program.py"])
    return replace(verification, program=replace(verification.program, path=str(path)))


def _find_goal(expert: Trajectory) -> int:
    success = expert.known_success
    return len(expert) - 1 if success is None else int(np.flatnonzero(success)[-1])


def _ask(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def ask_to_mend(failures: Sequence[Failure]) -> list[Message]:
    """Build the question after a failed verification: broken rules, and the frames that decide."""
    rules = ["The program was tried, and is not accepted.", *dict.fromkeys(f"- {one.rule}" for one in failures)]
    first = {one.rule: one for one in reversed(failures)}
    chosen = sorted(failures, key=lambda one: one is not first[one.rule])[:MAX_SHOWN]
    images, texts = [], []
    for letter, failure in zip("ABCD", chosen, strict=False):
        texts.append(f"Episode {letter}, {failure.behaviour}, is against this rule: {failure.rule}")
        for step, value, frame in zip(failure.steps, failure.values, failure.frames, strict=True):
            returned = "failed" if np.isnan(value) else f"the reward was {value:.3g}"
            images.append((f"Episode {letter}, step {step}: {returned}", encode(frame)))
    return ask_about("\n".join([*rules, "", *texts]), images, MEND)


def read_program(text: str | None) -> str | None:
    """Extract the program from an answer: its last block of code with a definition; None if there is none."""
    answer = strip_reasoning(text or "")
    blocks = re.findall(r"```[^\n`]*\n(.*?)(?:```|\Z)", answer, flags=re.DOTALL) or [answer]
    programs = [block for block in blocks if re.search(r"^(?:def|class) ", block, flags=re.MULTILINE)]
    return programs[-1] if programs else None
