"""The command `vlmrm-gym program`: `verify` says what a program is worth, and `write` has a model write one."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from gymnasium.error import DependencyNotInstalled
from rich.box import SIMPLE_HEAD
from rich.table import Table
from tqdm import tqdm

from vlmrm_gym._util.errors import InputError, as_input_error, say
from vlmrm_gym._util.files import atomic_write_text, output_folder
from vlmrm_gym._util.validation import short_repr
from vlmrm_gym.data.frames import Pictures, open_frames
from vlmrm_gym.data.rollouts import Policy
from vlmrm_gym.rewards.endpoint.settings import EndpointSettings
from vlmrm_gym.rewards.program.spec import Inputs, Program, record_file
from vlmrm_gym.scoring.options import CameraOption
from vlmrm_gym.tools.cli.settings import YAML, OutputFlags, PlainConsole, parse
from vlmrm_gym.tools.environments import find_named_task
from vlmrm_gym.tools.program.episodes import Examples, gather
from vlmrm_gym.tools.program.results import Limits, Verification
from vlmrm_gym.tools.program.verify import verify as verify_program
from vlmrm_gym.tools.program.writing import Conversation, write_program

Paths = Annotated[tuple[Path, ...], tyro.conf.UseAppendAction]
USAGE = """\
usage: vlmrm-gym program COMMAND ...

  verify    see whether experts complete a program, and nothing else
  write     have a vision-language model write a program, and verify it"""


@dataclass(frozen=True, kw_only=True)
class VerificationFlags(OutputFlags, CameraOption):
    """On which episodes a program is verified, and by which limits."""

    env_kwargs: YAML = None
    """keyword arguments of the function, or of another package's ID, such as '{size: 3}'"""
    run: Paths = ()
    """folders of trained runs: experts"""
    rollouts: Paths = ()
    """folders made by `vlmrm-gym dataset`: experts, unless they are of random or constant actions whose success is not
    known"""
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

    @property
    def limits(self) -> Limits:
        """The limits."""
        shares = {"random": self.limit_random, "experts": self.limit_experts, "negatives": self.limit_negatives}
        with as_input_error():
            return Limits(**shares, threshold=self.threshold)

    @contextmanager
    def gather(self, id: str | None) -> Iterator[tuple[Examples, "tqdm[Any]"]]:
        """The episodes of an ID, and the bar that shows which of them are done."""
        same = ("env_kwargs", "camera", "size", "rollouts", "episodes", "steps", "seed")
        settings = {name: getattr(self, name) for name in same}
        settings["policies"] = {run.name: partial(self._play_run, run, id) for run in self.run}
        with (
            tqdm(unit=" episodes", desc="play", file=sys.stderr, dynamic_ncols=True) as progress,
            gather(id, **settings, progress=progress.update) as examples,
        ):
            progress.reset(len(examples))
            progress.set_description("score")
            yield examples, progress

    def _play_run(self, run: Path, id: str | None, env: Any) -> Policy:
        from vlmrm_gym.tools.train.evaluation import run_actions  # deferred: loads torch

        return run_actions(run, env, id, trust_code=self.trust_code)


@dataclass(frozen=True, kw_only=True)
class Verify(VerificationFlags):
    """Verify a program before it is a reward: do experts complete it, and nothing else?

        vlmrm-gym program verify kneel.py VLMRM/Humanoid-kneel-v0
        vlmrm-gym program verify pole.py VLMRM/CartPole-v1 --run runs/CartPole-v1__DQN__0__1700000000
        vlmrm-gym program verify push.py Pusher-v5 --rollouts pushes --steps 100

    Experts (--run, --rollouts, or, without these, the way to the goal states of the task) must all complete it, also
    with frames that are moved by a pixel; random and constant behaviour in at most 10% of the episodes; frozen,
    reversed, shuffled and black episodes of the experts never. Every episode is scored twice, and must get the same
    answers. Where success is known, only successes are experts.

    The folder (--out) gets report.html, with the frames that decide, and verification.json. If the program is accepted,
    a file beside it says so (kneel.verification.json), and it no longer warns where it is used.

    Exit codes: 0 accepted, 1 not accepted or nothing was verified, 2 bad input.
    """

    file: Annotated[Path, tyro.conf.Positional]
    """the program: Python, see `vlmrm_gym.Program`"""
    id: Annotated[str | None, tyro.conf.Positional] = None
    """a registered ID, such as Ant-v5; module:ID, which imports the module first; or package.module:function"""
    inputs: Inputs = "frames"
    """what the program sees: frames or states"""
    out: Path | None = None
    """the folder to write (None: NAME_verification)"""

    def carry_out(self) -> Verification:
        """Verify the program."""
        limits = self.limits
        with as_input_error():
            program = Program(path=str(self.file), inputs=self.inputs, size=self.size, isolate=self.isolate)
        folder = self.out or Path(f"{self.file.stem}_verification")
        with output_folder(folder, overwrite=self.overwrite), self.gather(self.id) as (examples, progress):
            verification = verify_program(program, examples, limits, progress.update)
            verification.write(folder)
        _show(verification, f"Report: {folder / 'report.html'}")
        return verification


@dataclass(frozen=True, kw_only=True)
class Write(VerificationFlags):
    """Let a vision-language model write a program that recognises a goal (VLM-CaR), and verify it.

        vlmrm-gym program write VLMRM/CartPole-v1 --model gpt-5
        vlmrm-gym program write Pusher-v5 --prompt "puck on the disc" --goal-image goal.png --rollouts pushes --model x
        vlmrm-gym program write VLMRM/CartPole-v1 --endpoint URL --api-key-env None --model llava

    The model sees initial states and goal states, splits the goal into sub-tasks, and writes a program. The program is
    verified as by `vlmrm-gym program verify`. What is against the rules goes back to the model, with the frames that
    decide and what the program returned there, for a number of rounds.

    The folder gets program.py, which is `reward=vlmrm_gym.Program(path=...)`; each round's program and its report; and
    conversation.md. Answers are kept: with --overwrite the same command goes on where it ended, and asks nothing twice.
    Programs run isolated. The key is read from the environment, and is in no file.

    Exit codes: 0 accepted, 1 not accepted or nothing was verified, 2 bad input.
    """

    id: Annotated[str | None, tyro.conf.Positional] = None
    """a registered ID, such as Ant-v5; module:ID, which imports the module first; or package.module:function"""
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
    api_key_env: str | None = "OPENAI_API_KEY"
    """environment variable that has the key (None: the server needs none)"""
    max_calls: int | None = None
    """the most requests"""
    max_total_tokens: int | None = None
    """the most tokens, in and out"""
    request: YAML = None
    """other fields of each request, such as '{temperature: 0, max_completion_tokens: 4000}'"""
    out: Path = Path("program")
    """the folder to write"""

    def carry_out(self) -> Verification:
        """Write and verify the program."""
        limits, folder = self.limits, self.out
        if self.rounds < 1:
            raise InputError(f"`rounds` must be at least 1. Received {self.rounds}.")
        task = find_named_task(self.id)
        prompt = self.prompt or (None if task is None else task.prompt)
        if prompt is None:
            raise InputError('`prompt` must be given: what the program should recognise. Pass --prompt "a text".')
        goals = [frame for path in self.goal_image for frame in _read_pictures(path)]
        shared = {name: getattr(self, name) for name in ("model", "api_key_env", "max_calls", "max_total_tokens")}
        with as_input_error(TypeError):
            settings = EndpointSettings(**shared, base_url=self.endpoint, request=self.request or {})
        with output_folder(folder, overwrite=self.overwrite):
            with as_input_error(DependencyNotInstalled, OSError):
                conversation = Conversation(settings, folder / "answers.db")
            with closing(conversation), self.gather(self.id) as (examples, progress):
                progress.reset(len(examples) * self.rounds)
                how: Any = {"rounds": self.rounds, "isolate": self.isolate, "progress": progress.update}
                verification = write_program(conversation, prompt, examples, folder, goals=goals, limits=limits, **how)
                written = f"Program: {verification.program.path}, after {conversation.spending}."
        _show(verification, f"{written} Conversation: {folder / 'conversation.md'}")
        return verification


COMMANDS: dict[str, type[Verify | Write]] = {"verify": Verify, "write": Write}


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help"):
        return say(USAGE)
    if name not in COMMANDS:
        raise InputError(f"`program` must be followed by {' or '.join(COMMANDS)}. Received {short_repr(name)}.")
    if not parse(COMMANDS[name], f"program {name}", rest).carry_out().accepted:
        sys.exit(1)


def verify(file: str | Path, id: str | None = None, **settings: Any) -> Verification:
    """Verify a program: `vlmrm-gym program verify` as a function.

    The settings are the flags, see `Verify`: `verify("kneel.py", "VLMRM/Humanoid-kneel-v0", episodes=5)`. Raises an
    InputError if a setting, the program, the environment, an expert or the output folder cannot be used.
    """
    return Verify(file=Path(file), id=id, **settings).carry_out()


def write(id: str | None = None, **settings: Any) -> Verification:
    """Let a model write a program, and verify it: `vlmrm-gym program write` as a function.

    The settings are the flags, see `Write`: `write("VLMRM/CartPole-v1", model="gpt-5", rounds=5)`. Raises an InputError
    if a setting cannot be used, the budget is used up, the server fails, or no answer has a program.
    """
    return Write(id=id, **settings).carry_out()


def _read_pictures(path: Path) -> list[np.ndarray]:
    pictures = open_frames(path)
    if not isinstance(pictures, Pictures):
        raise InputError(f"`goal_image` must be pictures. Received the video {path}.")
    return [one.frame for one in pictures.frames()]


def _show(result: Verification, where: str) -> None:
    """Print what was found, and note beside the program that it is accepted, or no longer."""
    head, *lines = result.table()
    table = Table(*head, box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for line in lines:
        table.add_row(*line)
    PlainConsole().print(table)
    rules = dict.fromkeys(failure.rule for failure in result.failures)
    accuracy = [] if result.accuracy is None else [result.accuracy.describe()]
    for text in (*accuracy, *rules, result.verdict, where):
        say(text)
    record = record_file(str(result.program.path))
    if not result.accepted:
        return record.unlink(missing_ok=True)
    values = {"sha256": result.program.sha256, "environment": result.environment, "date": date.today().isoformat()}
    values |= {"episodes": {row.behaviour: row.episodes for row in result.rows}, "limits": asdict(result.limits)}
    atomic_write_text(record, json.dumps(values, indent=2))
    say(f"Written: {record}")
