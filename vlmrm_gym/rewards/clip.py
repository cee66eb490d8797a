"""CLIP rewards as values: their fields with types, defaults, documentation and checks, once for all who take them.

Imports no torch. `CLIP` and `CLIPReward` are made of them; environments, configuration files and commands take them as
keywords, keys and flags.
"""

import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal, Self, TypedDict, get_args

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.validation import check_choice, check_fraction, check_integer, short_repr
from vlmrm_gym.rewards.model import RewardModel
from vlmrm_gym.rewards.pictures import as_pictures
from vlmrm_gym.rewards.sources import announced
from vlmrm_gym.rewards.spec import RewardSpec, checked

Prompt = str | Sequence[str]
"""A text, or several whose embeddings are averaged."""
Images = Sequence[str | NDArray[np.uint8]] | NDArray[np.uint8] | str
"""Pictures whose embeddings are averaged: files or arrays; see `as_pictures`."""
TASK_GOALS = "task"
"""The `goal_images` that are states of the task's goal, which its environment draws."""
Precision = Literal["auto", "fp32", "bf16", "fp16"]
ResizeMode = Literal["squash", "shortest", "longest"]

Check = Callable[[str, Any], Any]
"""Of a field: from its name and a value to the value as JSON stores it, so that what is read back is equal."""


def optional(check: Check) -> Check:
    """The check of a field that may be None."""
    return lambda name, value: None if value is None else check(name, value)


def check_text(name: str, value: Any) -> str:
    """Return a text. Raise a TypeError or ValueError unless it is one, and not empty."""
    if not isinstance(value, str):
        raise TypeError(f"`{name}` must be a text. Received {short_repr(value)}.")
    if not value.strip():
        raise ValueError(f"`{name}` must not be empty. Received {short_repr(value)}.")
    return value


def check_prompt(name: str, value: Any) -> str:
    """Return a single prompt. Raise a TypeError or ValueError unless it says in words what should be seen."""
    if os.path.splitext(check_text(name, value))[1] and os.path.isfile(value):
        raise ValueError(
            f"`{name}` must say in words what should be seen. Received {value!r}, which is a file. Pass a picture as "
            f"goal_images=[{value!r}]."
        )
    return value


def _prompts(name: str, value: Any) -> Prompt:
    if isinstance(value, str):
        return check_prompt(name, value)
    if not isinstance(value, Sequence):
        raise TypeError(f"`{name}` must be a text or a list of texts. Received {short_repr(value)}.")
    if not value:
        raise ValueError(f"`{name}` must not be empty. Received {short_repr(value)}.")
    return [check_prompt(name, text) for text in value]


def of_type(kind: type[Any], words: str) -> Check:
    """The check of a field that is of a type; `words` say which."""

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"`{name}` must be {words}. Received {short_repr(value)}.")
        return value

    return check


def one_of(choices: Any) -> Check:
    """The check of a field that has one of the values of a Literal."""
    return partial(check_choice, choices=get_args(choices))


def integer(minimum: int, maximum: int) -> Check:
    """The check of a field that is an integer from `minimum` to `maximum`."""
    return partial(check_integer, minimum=minimum, maximum=maximum)


check_count = integer(1, 10**9)
"""At most 10^9: more than memory holds."""


@dataclass(frozen=True, kw_only=True)
class EncoderFields:
    """The fields that say how features are made: a vision-language model, and how it sees frames."""

    model: str | None = field(default=None, metadata={"check": optional(of_type(str, 'a string, such as "tiny"'))})
    """The vision-language model: "tiny" (bundled), "Architecture/pretrained tag" (as in `open_clip.list_pretrained()`),
    "Architecture/path to a checkpoint file", "hf-hub:organisation/repository" or "local-dir:folder". None: "tiny" for
    the environments of this package and their originals in Gymnasium, whose scenes it was trained on, and
    "ViT-B-32/laion2b_s34b_b79k" (605 MB, downloaded once) for anything else."""
    precision: Precision = field(default="auto", metadata={"check": one_of(Precision)})
    """"auto", "fp32", "bf16" or "fp16"; auto is fp32 on the CPU and fp16 on CUDA."""
    resize_mode: ResizeMode | None = field(default=None, metadata={"check": optional(one_of(ResizeMode))})
    """How a frame gets the model's input size: "squash" (None; as in the paper), "shortest" (crop) or "longest"
    (pad)."""
    batch_size: int | None = field(default=None, metadata={"check": optional(check_count)})
    """Maximum number of frames encoded at once (None: chosen). It does not affect rewards. When a GPU runs out of
    memory, it is halved permanently."""

    def __post_init__(self) -> None:
        checked(self)

    def with_model(self, model: str) -> Self:
        """See `RewardSpec`."""
        return self if self.model is not None else replace(self, model=announced(model))


def asks_for_task_goals(value: Any) -> bool:
    """Tell whether `goal_images` are states of the task's goal: also in a list, as flags and files have it."""
    only = value[0] if isinstance(value, list | tuple) and len(value) == 1 else value
    return isinstance(only, str) and only == TASK_GOALS


def _goal_images(name: str, value: Any) -> Images:
    return TASK_GOALS if asks_for_task_goals(value) else as_pictures(name, value)


@dataclass(frozen=True, kw_only=True)
class PromptFields:
    """The fields that say what should be seen."""

    prompt: Prompt | None = field(default=None, metadata={"check": optional(_prompts)})
    """The goal: a text or a list of texts."""
    goal_images: Images | None = field(default=None, metadata={"check": optional(_goal_images)})
    """Pictures of the goal, in place of a prompt or beside it: files, or uint8 arrays (H, W, 3). "task": states of the
    task's goal, drawn as the environment is."""
    baseline: Prompt | None = field(default=None, metadata={"check": optional(_prompts)})
    """The scene without the goal: a text or a list of texts. This or `baseline_images` is required for `alpha` above
    0."""
    baseline_images: Images | None = field(default=None, metadata={"check": optional(as_pictures)})
    """Pictures of the scene without the goal, in place of a baseline or beside it."""
    alpha: float = field(default=0.0, metadata={"check": check_fraction})
    """Strength of the goal-baseline regularisation, from 0 (cosine similarity) to 1."""


@dataclass(frozen=True, kw_only=True)
class CLIPFields(EncoderFields, PromptFields):
    """The fields that describe a CLIP reward. All that takes them is derived from them, or tested to be equal."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompt is None and self.goal_images is None:
            rule = "`prompt` must be a text or a list of texts. Received None"
            raise TypeError(f"{rule}. Say what the agent should do, or show it: goal_images.")
        if self.alpha > 0 and self.baseline is None and self.baseline_images is None:
            raise ValueError(
                "`alpha` above 0 needs a `baseline` or `baseline_images`: the scene without the goal. "
                f"Received alpha={short_repr(self.alpha)} and neither."
            )
        if self.baseline is not None and _text_set(self.baseline) == _text_set(self.prompt or ()):
            raise ValueError(
                f"`baseline` must differ from `prompt`. Received {short_repr(self.baseline)} for both. "
                "Describe the scene without the goal, or pass baseline=None."
            )

    def settings(self) -> dict[str, Any]:
        """The fields and their values, as keyword arguments."""
        return {one.name: getattr(self, one.name) for one in fields(CLIPFields)}


def _text_set(prompt: Prompt) -> set[str]:
    return {prompt} if isinstance(prompt, str) else set(prompt)


class CLIPKeywords(TypedDict, total=False):
    """The fields that `CLIPReward` takes besides `model` and `prompt`. For type checkers: a test compares them."""

    goal_images: Images | None
    baseline: Prompt | None
    baseline_images: Images | None
    alpha: float
    precision: Precision
    resize_mode: ResizeMode | None
    batch_size: int | None


@dataclass(frozen=True, kw_only=True)
class CLIP(CLIPFields, RewardSpec):
    """How well a frame matches a prompt, goal images or both, by a vision-language model (VLM-RM, arXiv 2310.12921).

    The embeddings of all texts and pictures of the goal, unit vectors, are averaged, and the average is normalised:
    with pictures p_i and texts t_j, g = n(sum_i n(image(p_i)) + sum_j n(text(t_j))), where n(x) = x / ||x||. The
    baseline is made of its texts and pictures in the same way. The reward is that of `GoalBaseline`, equation 3, which
    assumes unit vectors; the published code does not normalise the average.

    >>> import vlmrm_gym
    >>> vlmrm_gym.CLIP(prompt="an upright pole", baseline="a pole", alpha=0.5, model="tiny").alpha
    0.5

    Raises:
        TypeError: A prompt or model name is not a string, or there is neither a prompt nor goal images.
        FileNotFoundError: The file of a picture does not exist.
        ValueError: A value is out of its range, or a file is no picture; the message names the field.
    """

    kind: str = field(default="clip", init=False)

    def with_goal_images(self, draw: Callable[[], Images]) -> Self:
        """See `RewardSpec`."""
        return replace(self, goal_images=draw()) if self.goal_images == TASK_GOALS else self

    def build(self, device: str = "auto") -> RewardModel:
        """Load the model. Raises what `CLIPReward` does, also for goal images "task" without a task."""
        model = importlib.import_module("vlmrm_gym.rewards.clip_model")  # by name: it imports this file, and torch
        return model.CLIPReward(device=device, **self.settings())
