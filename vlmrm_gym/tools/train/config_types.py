"""Types of settings, and names of the published format."""

from collections.abc import Mapping
from dataclasses import Field as DataclassField
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_type_hints

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PlainValidator, Strict
from pydantic_core import PydanticCustomError

from vlmrm_gym.tools.yaml_values import as_whole, yaml_flag

LEGACY_NAMES: Mapping[str, str] = {
    "CartPole-v1": "VLMRM/CartPole-v1",
    "MountainCarContinuous-v0": "VLMRM/MountainCarContinuous-v0",
    "Humanoid-v4": "VLMRM/Humanoid-v0",
}
"""Environment names of the published code, and their IDs here."""

ALIASES: Mapping[str, str] = {
    "target_prompts": "prompt",
    "baseline_prompts": "baseline",
    "pretrained_model": "model",
    "camera_config": "camera",
    "reward": "name",
    "reward_kwargs": "kwargs",
}
"""Words of the published format in `reward`, and of Python, in files and flags, and the keys here."""

_SHORT = ("prompt", "goal_images", "baseline", "baseline_images", "alpha", "model", "camera", "labeler")
_SHORT += ("combine_views", "num_workers", "score_every", "task_reward_weight")
FLAGS: Mapping[str, str] = {
    **{name: f"reward.{name}" for name in _SHORT},
    "reward": "reward.name",
    "reward_kwargs": "reward.kwargs",
    "total_timesteps": "rl.n_steps",
    "algorithm": "rl.algorithm",
    "episode_length": "rl.episode_length",
    **{f"reward.{word}": f"reward.{name}" for word, name in ALIASES.items()},
}
"""Short flags, and those of the published format's words, with the keys that they stand for."""


def _name(given: str) -> str:
    if given in (".", "..") or not given.strip() or not given.isprintable() or set(given) & set("/\\"):
        raise ValueError("must be a plain name: not empty, without / and \\, and neither . nor ..")
    return given


Integer = Annotated[int, Strict(), BeforeValidator(as_whole)]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Flag = Annotated[bool, Strict()]
Steps = Annotated[Integer, Field(ge=1, le=10**12)]
"""At most 10^12: years of training."""
StepsOrNone = Annotated[Integer, Field(ge=0, le=10**12)]
Count = Annotated[Integer, Field(ge=1, le=10**9)]
"""At most 10^9: more than memory holds."""
Fraction = Annotated[Number, Field(ge=0, le=1)]
Name = Annotated[str, AfterValidator(_name)]
"""Name of a file or folder, without a path."""
Texts = Annotated[list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)]
YAMLMapping = Annotated[dict[str, Any], yaml_flag(dict)]
LabelerValue = Annotated[Any, yaml_flag(dict, str)]
"""A labeler's kind, "package.module:attribute" or mapping form, as `resolve_labeler` takes it."""
Kind = TypeVar("Kind", bound=type[Any])
AlgorithmName = Literal["SAC", "TD3", "DDPG", "TQC", "CrossQ", "DQN", "QRDQN", "PPO", "A2C"]


class Section:
    """A section without other keys than its fields."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


def with_checks(section: Kind) -> Kind:
    """Class decorator: fields that a section inherits are checked by their own checks, as constructors check them."""
    for base in filter(is_dataclass, section.__bases__):
        hints = get_type_hints(base)
        for one in fields(base):
            if one.name not in section.__annotations__ and "check" in one.metadata:
                section.__annotations__[one.name] = Annotated[hints[one.name], PlainValidator(partial(_check, one))]
    return section


def _check(own: "DataclassField[Any]", given: Any) -> Any:
    """Return the value as the check of a field stores it; 1e6 is an integer here."""
    is_whole = int in (own.type, *get_args(own.type))
    try:
        return own.metadata["check"](own.name, as_whole(given) if is_whole else given)
    except (TypeError, ValueError) as error:
        raise PydanticCustomError("own_check", "{rule}", {"rule": str(error).removeprefix(f"`{own.name}` ")}) from error
