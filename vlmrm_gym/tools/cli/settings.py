"""Flags that several commands share, and how a command line is read."""

import inspect
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import tyro
from gymnasium.error import DependencyNotInstalled
from rich.console import Console
from rich.text import Text

from vlmrm_gym._util.errors import InputError, as_input_error, check_values, printable, said_warnings, say
from vlmrm_gym.data.recordings import Recording, Source, find_recordings
from vlmrm_gym.envs.make import draw_goals
from vlmrm_gym.rewards import specification
from vlmrm_gym.rewards.clip import CLIPFields
from vlmrm_gym.rewards.heads import CombineViews
from vlmrm_gym.rewards.saved import PICTURES, is_saved, read_saved
from vlmrm_gym.rewards.sources import default_model
from vlmrm_gym.rewards.spec import RewardSpec
from vlmrm_gym.rewards.specification import resolve_reward
from vlmrm_gym.scoring.options import DeviceOption
from vlmrm_gym.scoring.scorer import MakeRenderer
from vlmrm_gym.scoring.several import SeveralRewards
from vlmrm_gym.states import StateView
from vlmrm_gym.states.drawing import FrameStore
from vlmrm_gym.tasks import Task
from vlmrm_gym.tools.environments import NamedEnv
from vlmrm_gym.tools.flags import tyro_rules
from vlmrm_gym.tools.yaml_values import yaml_flag

Command = TypeVar("Command")
Texts = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]
"""Values of a flag that may be repeated. From Python: also a list, or one value."""
Numbers = Annotated[tuple[float, ...], tyro.conf.UseAppendAction]
YAML = Annotated[Any, yaml_flag(object, strict=True)]
"""A flag that is written as YAML; from Python its value."""


@dataclass(frozen=True, kw_only=True)
class OutputFlags:
    """Flags of a command that writes a folder. From Python a text stands for a path, and one value for several."""

    overwrite: bool = False
    """replace earlier results in a folder that exists"""

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            value, is_path = getattr(self, name), Path in (hint, *get_args(hint))
            if get_origin(hint) is tuple:
                value = tuple(value) if isinstance(value, tuple | list) else (value,)
                value = tuple(map(Path, value)) if is_path else value
            elif is_path and isinstance(value, str):
                value = Path(value)
            object.__setattr__(self, name, value)


@dataclass(frozen=True, kw_only=True)
class RewardFlags(OutputFlags, DeviceOption, CLIPFields):
    """The rewards to score by, and where: of prompts, or any other. Fields of CLIP that are not here are flags too."""

    prompt: Texts = ()
    """what should be seen: a reward for each (none: the task's own)"""
    baseline: str | None = None
    """the scene without the goal, for all prompts; used for alpha above 0 (None: the task's own)"""
    goal_images: Texts = ()  # pyright: ignore[reportIncompatibleVariableOverride]
    """pictures of the goal, in place of the task's prompt, or beside each prompt that is given: files; or "task",
    states of the task's goal"""
    baseline_images: Texts = ()  # pyright: ignore[reportIncompatibleVariableOverride]
    """pictures of the scene without the goal"""
    alpha: Numbers = ()  # pyright: ignore[reportIncompatibleVariableOverride]
    """strengths of the goal-baseline regularisation, from 0 to 1: a reward for each (none: 0)"""
    model: Texts = ()  # pyright: ignore[reportIncompatibleVariableOverride]
    """tiny, Architecture/pretrained tag, Architecture/checkpoint file, hf-hub:organisation/repository or
    local-dir:folder: a reward for each (none: tiny, which is bundled, for environments of this package and their
    originals in Gymnasium; ViT-B-32/laion2b_s34b_b79k for others, and for videos and pictures)"""
    reward: Texts = ()
    """in place of prompts: "package.module:attribute", a kind, or a JSON file of a specification"""
    reward_kwargs: YAML = None
    """keyword arguments of --reward, such as '{threshold: 0.5}'"""
    trust_code: bool = False
    """run the code that a file names: the class of a reward in a JSON file, or what a dataset or a run names"""
    out: Path | None = None
    """the folder to write"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("alpha", "model"):  # not as the fields' defaults: tyro appends to those
            object.__setattr__(self, name, getattr(self, name) or (getattr(CLIPFields, name),))

    def specifications(self, task: Task | None = None) -> dict[str, RewardSpec]:
        """The rewards by their labels; none without a prompt, also of the task, and a reward.

        Raises an InputError if a value cannot be used.
        """
        for name in ("prompt", "alpha", "model", "reward"):
            check_values(name, getattr(self, name))
        with as_input_error(OSError, TypeError):
            return self._rewards() if self.reward else self._prompts(task)

    def settings(self) -> dict[str, Any]:
        """See `CLIPFields`; pictures are read."""
        checks = {one.name: one.metadata["check"] for one in fields(CLIPFields) if one.name in PICTURES}
        pictures = {name: check(name, getattr(self, name) or None) for name, check in checks.items()}
        return {**super().settings(), **pictures}

    def _rewards(self) -> dict[str, RewardSpec]:
        settings = self.settings()
        options = {one.name: (settings[one.name], one.default) for one in fields(CLIPFields)}
        del options["prompt"]
        given = {name: value for name, (value, default) in options.items() if value not in (default, (default,))}
        return {_label(one): self._resolve(one, given) for one in self.reward}

    def _resolve(self, reward: Any, options: Mapping[str, Any]) -> RewardSpec:
        """Make the specification of a `--reward`: also of a kind, or a file."""
        kwargs = self.reward_kwargs
        if isinstance(reward, str) and is_saved(reward):
            reward = read_saved(reward, trust_code=self.trust_code)
        elif isinstance(reward, str) and ":" not in reward and isinstance(kwargs or {}, Mapping):
            reward, kwargs = {"kind": reward, **(kwargs or {})}, None
        return resolve_reward(reward, kwargs, self.prompt or None, options)

    def _prompts(self, task: Task | None) -> dict[str, RewardSpec]:
        if self.reward_kwargs is not None:
            raise InputError("`reward_kwargs` needs a `reward` to pass them to. Received no reward.")
        given, specs = self.settings(), {}
        of_task = () if task is None or task.prompt is None else (task.prompt,)
        prompts = self.prompt or ((None,) if self.goal_images else of_task)
        if self.baseline is None and not self.baseline_images and task is not None and any(self.alpha):
            given["baseline"] = task.baseline
        for model, prompt, alpha in product(self.model, prompts, self.alpha):
            more = [f"alpha {alpha}"] * (len(self.alpha) > 1) + [model] * (len(self.model) > 1)
            label = prompt or f"goal images: {', '.join(map(_label, self.goal_images))}"
            label = f"{label} ({', '.join(more)})" if more else label
            specs[label] = specification.CLIP(**{**given, "prompt": prompt, "alpha": alpha, "model": model})
        return specs


def _label(reward: Any) -> str:
    """A reward's name in tables: what names it, or the class of a value from Python."""
    return reward if isinstance(reward, str) else getattr(reward, "__name__", type(reward).__name__)


def specify(flags: RewardFlags, named: NamedEnv) -> dict[str, RewardSpec]:
    """Make the rewards of flags for an environment: with its model, and with pictures of its task's goal."""
    model = default_model(named.env)
    specs = {label: spec.with_model(model) for label, spec in flags.specifications(named.task).items()}
    if named.task is None:
        return specs
    with as_input_error(DependencyNotInstalled):
        draw = partial(draw_goals, named.task, camera=named.camera)
        return {label: spec.with_goal_images(draw) for label, spec in specs.items()}


def open_rewards(
    specs: Mapping[str, RewardSpec], device: str, view: StateView | None = None, combine_views: Any = None
) -> SeveralRewards:
    """Load the models of rewards, and print what they warn of, once; raises an InputError if one cannot be used.

    `view` is that of the states which are scored; None: they are frames.
    """
    num_views = 1 if view is None else view.num_views
    with as_input_error(DependencyNotInstalled, OSError, RuntimeError, TypeError), said_warnings():
        combine = None if combine_views is None else CombineViews(combine_views, num_views)
        scorer = SeveralRewards(list(specs.values()), device)
        scorer.open(make_renderer_of(view), num_views, combine)
    return scorer


def make_renderer_of(view: StateView | None) -> MakeRenderer:
    """How the renderer of a model is made: from a view, or for frames without one."""
    return (lambda render_size: FrameStore()) if view is None else view.make_renderer


def describe_rewards(specs: Mapping[str, RewardSpec]) -> dict[str, Any]:
    """Describe rewards as the settings of a dataset do; an InputError if one is a function that no file can name."""
    with as_input_error(TypeError):
        rewards = [specification.to_mapping(spec) for spec in specs.values()]
    prompts = list(dict.fromkeys(one["prompt"] for one in rewards if one.get("prompt")))
    return {"rewards": rewards, "columns": list(specs), "prompt": prompts}


def find_videos(path: Path, fps: float | None = None) -> list[Recording]:
    """Find the recordings in a file or a folder, see `find_recordings`, and say what is none of them."""
    found, skipped = find_recordings(path, fps)
    if skipped:
        more = f" and {len(skipped) - 5} more" if len(skipped) > 5 else ""
        say(f"{path}: skipped, as no recordings: {', '.join(skipped[:5])}{more}", error=True)
    return found


def say_notes(sources: Iterable[Source]) -> None:
    """Say what is to be known of videos, such as a strip that is left out."""
    for note in dict.fromkeys(one.note for one in sources):
        if note is not None:
            say(note, error=True)


def parse(command: type[Command], name: str, arguments: Sequence[str]) -> Command:
    """The settings of a command of this name, a dataclass; ends the program after a usage error or --help."""
    about = inspect.cleandoc(command.__doc__ or "")
    if issubclass(command, RewardFlags):
        about += f"\n\n{describe_kinds()}"
    words, registry = spread(arguments, command), tyro_rules(strict=True)
    return tyro.cli(command, args=words, prog=f"vlmrm-gym {name}", description=about, registry=registry)


def describe_kinds() -> str:
    """A sentence for help: the registered kinds of rewards, with their fields."""
    kinds = {kind: own for kind, own in specification.KINDS.items() if kind != "import"}  # a path names those itself
    shown = (f"{kind}({', '.join(inspect.signature(own).parameters)})" for kind, own in kinds.items())
    return f"Kinds of --reward, with their --reward-kwargs: {', '.join(shown)}."


def spread(arguments: Sequence[str], command: type[Any]) -> list[str]:
    """Arguments in which a flag of several values is repeated, once for each: what tyro reads without ambiguity."""
    hints = get_type_hints(command, include_extras=True)
    several = {name for name, hint in hints.items() if tyro.conf.UseAppendAction in getattr(hint, "__metadata__", ())}
    spelled: list[str] = []
    flag = ""
    for word in arguments:
        if found := re.match(r"--?([A-Za-z][\w-]*)", word):  # and not a negative number
            flag = word if found[1].replace("-", "_") in several and "=" not in word else ""
        elif flag:
            if spelled[-1] == flag:
                spelled.pop()
            word = f"{flag}={word}"
        spelled.append(word)
    return spelled


class PlainConsole(Console):
    """Prints strings as they are: no markup, no control characters, nothing that the terminal cannot show.

    It is as wide as the terminal, or wide enough where there is none.
    """

    def __init__(self) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, width=None if sys.stdout.isatty() else 10_000)

    def render_str(self, text: str, **options: Any) -> Text:
        """Render the text as `printable` makes it."""
        return super().render_str(printable(text, self.encoding), **options)
