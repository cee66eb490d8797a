"""Types of settings: what pydantic accepts in a file, and how tyro reads flags."""

import math
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, Strict
from tyro.constructors import PrimitiveConstructorSpec

from vlmrm_gym.training.plain_yaml import ConfigDumper, read_yaml


def _whole(given: Any) -> Any:
    """Accept 1e6 as an integer."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


def _name(given: str) -> str:
    if given in (".", "..") or not given.strip() or not given.isprintable() or set(given) & set("/\\"):
        raise ValueError("must be a plain name: not empty, without / and \\, and neither . nor ..")
    return given


def read_flag(text: str) -> Any:
    """The value of a flag that is YAML. What is no YAML stays a text: its checks tell."""
    try:
        return read_yaml(text)[1]
    except ValueError:
        return text


def _yaml_flag(metavar: str, *kinds: type[Any]) -> PrimitiveConstructorSpec[Any]:
    """How tyro reads and shows a flag whose value is YAML, of these types."""

    def show(given: Any) -> list[str]:
        text = yaml.dump(given, Dumper=ConfigDumper, default_flow_style=True, width=math.inf)
        return [text.removesuffix("...\n").strip()]  # the end of a document, after a value that is no collection

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: read_flag(words[0]),
        is_instance=lambda given: isinstance(given, kinds),
        str_from_instance=show,
    )


Integer = Annotated[int, Strict(), BeforeValidator(_whole), _yaml_flag("INT", int)]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Flag = Annotated[bool, Strict()]
Steps = Annotated[Integer, Field(ge=1, le=10**12)]
"""At most 10^12: years of training."""
StepsOrNone = Annotated[Integer, Field(ge=0, le=10**12)]
Count = Annotated[Integer, Field(ge=1, le=10**9)]
"""At most 10^9: more than memory holds."""
Processes = Annotated[Integer, Field(ge=0, le=1_000)]
"""At most 1,000: more than a machine has cores."""
Fraction = Annotated[Number, Field(ge=0, le=1)]
Name = Annotated[str, AfterValidator(_name)]
"""Name of a file or folder, without a path."""
Texts = Annotated[list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)]
YAMLMapping = Annotated[dict[str, Any], _yaml_flag("YAML", dict)]
LabelerValue = Annotated[Any, _yaml_flag("YAML", dict, str)]
"""A labeler's kind, "package.module:attribute" or mapping form, as `resolve_labeler` takes it."""
Cameras = Annotated[Any, _yaml_flag("YAML", dict, str, int, list)]
"""One camera or several: the settings, names and numbers that `make_cameras` takes."""
AlgorithmName = Literal["SAC", "TD3", "DDPG", "TQC", "CrossQ", "DQN", "QRDQN", "PPO", "A2C"]


class Section:
    """A section without other keys than its fields."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
