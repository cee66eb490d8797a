"""Specifications: rewards as values that can be passed as `reward=`, written to files, and sent to worker processes.

Imports no torch.
"""

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Protocol, TypedDict

from vlmrm_gym.rewards.base import RewardModel, is_reward
from vlmrm_gym.rewards.clip_options import Precision, Prompt, ResizeMode, check_clip_options
from vlmrm_gym.rewards.custom import CallableReward, ImportedReward, check_kwargs


class RewardSpec(Protocol):
    """A kind of reward with its settings: a frozen dataclass, validated when it is made, before anything is loaded.

    `dataclasses.asdict`, which `EnvSpec.to_json` uses, turns it into a mapping; `from_mapping` is the inverse.
    """

    @property
    def kind(self) -> str:
        """Its key in `KINDS`."""
        ...

    def build(self, device: str = "auto") -> RewardModel:
        """Load the reward model on a device."""
        ...


@dataclass(frozen=True, kw_only=True)
class CLIP:
    """How well a frame matches a prompt, by a vision-language model (VLM-RM, arXiv 2310.12921).

    >>> import vlmrm_gym
    >>> vlmrm_gym.CLIP(prompt="an upright pole", baseline="a pole", alpha=0.5).model
    'tiny'

    Raises:
        TypeError: A prompt or model name is not a string.
        ValueError: A value is out of its range; the message names the field.
    """

    prompt: Prompt
    """The goal: a text or a list of texts."""
    baseline: Prompt | None = None
    """The scene without the goal: a text or a list of texts. Required for `alpha` above 0."""
    alpha: float = 0.0
    """Strength of the goal-baseline regularisation, from 0 (cosine similarity) to 1."""
    model: str = "tiny"
    """The vision-language model; `CLIPReward` lists the forms. The default is bundled, and was trained on the scenes of
    this package only."""
    precision: Precision = "auto"
    """"auto", "fp32", "bf16" or "fp16"; auto is fp32 on the CPU and fp16 on CUDA."""
    resize_mode: ResizeMode | None = None
    """How a frame gets the model's input size: "squash" (None), "shortest" (crop) or "longest" (pad)."""
    batch_size: int | None = None
    """Maximum number of frames encoded at once; None chooses. It does not affect rewards."""
    kind: str = field(default="clip", init=False)

    def __post_init__(self) -> None:
        check_clip_options(**self._settings())
        # Stored as JSON stores them, so that a specification that was read back equals this one.
        for name in ("prompt", "baseline"):
            if not isinstance(texts := getattr(self, name), str | None):
                object.__setattr__(self, name, list(texts))
        object.__setattr__(self, "alpha", float(self.alpha))
        if self.batch_size is not None:
            object.__setattr__(self, "batch_size", int(self.batch_size))

    def build(self, device: str = "auto") -> RewardModel:
        """Load the model.

        Raises:
            ValueError: Unknown model or device, or a prompt longer than the model's context.
            FileNotFoundError: The checkpoint does not exist.
            RuntimeError: The weights cannot be downloaded.
        """
        from vlmrm_gym.rewards.clip import CLIPReward

        return CLIPReward(device=device, **self._settings())

    def _settings(self) -> dict[str, Any]:
        return {option.name: getattr(self, option.name) for option in fields(self) if option.init}


class CLIPOptions(TypedDict, total=False):
    """Fields of `CLIP` that environments take as keyword arguments, besides `prompt`."""

    baseline: Prompt | None
    alpha: float
    model: str
    precision: Precision
    resize_mode: ResizeMode | None
    batch_size: int | None


KINDS: Mapping[str, type[Any]] = {"clip": CLIP, "import": ImportedReward}
"""The kinds of specifications that have a mapping form, by `kind`. A new kind of reward is registered here."""


def resolve_reward(
    reward: Any,
    reward_kwargs: Mapping[str, Any] | None,
    prompt: Prompt | None,
    options: Mapping[str, Any],
    keywords: Collection[str] = (),
) -> RewardSpec:
    """The specification that an environment's keyword arguments describe.

    Args:
        reward: A specification, its mapping form, "package.module:attribute", a callable, or None for `CLIP`.
        reward_kwargs: Keyword arguments of a callable or a class.
        prompt: `CLIP`'s prompt, if `reward` is None.
        options: Other fields of `CLIP`, if `reward` is None.
        keywords: Other keywords of the environment, which a misspelt option may be.

    Raises:
        TypeError: Both a reward and fields of `CLIP`, neither of them, an unknown option, an unsupported reward, or one
            that cannot be called with `reward_kwargs`.
        ValueError: A value is out of its range, or a path leads nowhere; the message names it.
    """
    if reward_kwargs is not None and not isinstance(reward_kwargs, Mapping):
        raise TypeError(f"`reward_kwargs` must be a mapping of names to values. Received {reward_kwargs!r}.")
    _check_names("an option", options, [*CLIPOptions.__annotations__, *keywords])
    if reward is None:
        if reward_kwargs:
            raise TypeError("`reward_kwargs` needs a `reward` to pass them to. Received no reward.")
        if prompt is None:
            raise TypeError("`prompt` must be a text or a list of texts. Received None. Say what the agent should do.")
        return CLIP(prompt=prompt, **options)
    given = [name for name, value in {"prompt": prompt, **options}.items() if value is not None]
    if given:
        raise TypeError(f"`reward` and `{given[0]}` cannot both be passed: `{given[0]}` is short for a field of CLIP.")
    kwargs = dict(reward_kwargs or {})
    if isinstance(reward, str):
        _check_is_no_kind(reward)
        specification = ImportedReward(path=reward, kwargs=kwargs)
        check_kwargs(specification.find(), kwargs, reward)
        return specification
    if isinstance(reward, Mapping):
        reward = from_mapping(reward)
    if _is_specification(reward):
        if kwargs:
            raise TypeError("`reward_kwargs` is for a callable or a class. Received a specification: set them there.")
        if isinstance(reward, ImportedReward):
            _check_imported(reward)
        return reward
    if not is_reward(reward):
        raise TypeError(
            '`reward` must be a specification such as vlmrm_gym.CLIP(prompt=...), "package.module:attribute", or a '
            f"callable. Received {reward!r}."
        )
    return CallableReward(reward, kwargs)


def _check_is_no_kind(reward: str) -> None:
    """Raise a ValueError if a text is the name of a kind, or nearly."""
    near = difflib.get_close_matches(reward, KINDS, 1)
    if near and ":" not in reward:
        raise ValueError(
            f'`reward` must be "package.module:attribute". Received {reward!r}. For the kind {near[0]!r} pass '
            f"{KINDS[near[0]].__name__}(...), or its mapping form."
        )


def _check_imported(reward: ImportedReward) -> None:
    """Raise an error as for "package.module:attribute", unless what a specification names takes its `kwargs`."""
    if not isinstance(reward.kwargs, Mapping):
        raise TypeError(f"`reward`: kwargs must be a mapping of names to values. Received {reward.kwargs!r}.")
    try:
        check_kwargs(reward.find(), reward.kwargs, reward.path)
    except TypeError as error:
        raise TypeError(str(error).replace("`reward_kwargs`", "`reward`: kwargs", 1)) from None


def _is_specification(reward: Any) -> bool:
    has_kind = isinstance(getattr(reward, "kind", None), str)
    return has_kind and callable(getattr(reward, "build", None)) and not isinstance(reward, type)


def from_mapping(values: Mapping[str, Any]) -> RewardSpec:
    """The specification whose `dataclasses.asdict` is this mapping.

    Raises:
        ValueError: Unknown kind, or a value is out of its range.
        TypeError: Unknown or missing field.
    """
    settings = dict(values)
    kind = settings.pop("kind", None)
    if not isinstance(kind, str) or kind not in KINDS:
        near = difflib.get_close_matches(str(kind), KINDS, 1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"`reward`: kind must be one of {', '.join(map(repr, KINDS))}. Received {kind!r}.{meant}")
    known = {option.name: option for option in fields(KINDS[kind]) if option.init}
    _check_names("a field", settings, list(known))
    for name, option in known.items():
        if name not in settings and option.default is MISSING and option.default_factory is MISSING:
            raise TypeError(
                f"`reward`: the kind {kind!r} needs a `{name}`. Received only {', '.join(settings) or 'the kind'}."
            )
    return KINDS[kind](**settings)


def _check_names(noun: str, given: Mapping[str, Any], known: Sequence[str] | Mapping[str, Any]) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            meant = f"Did you mean `{near[0]}`?" if near else f"Known: {', '.join(known)}."
            raise TypeError(f"`{name}` is not {noun} of a reward. {meant}")
