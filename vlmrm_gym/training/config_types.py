"""Types of configuration values: validation, and parsing of flags."""

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, get_args

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, Strict, TypeAdapter, ValidationError
from tyro.constructors import PrimitiveConstructorSpec

from vlmrm_gym.rewards.custom import check_import_path
from vlmrm_gym.rewards.specification import KINDS
from vlmrm_gym.rewards.views import CombineName
from vlmrm_gym.training.plain_yaml import ConfigDumper, read_yaml
from vlmrm_gym.validation import short_repr


def _whole(given: Any) -> Any:
    """Accept 1e6 as an integer."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


def _texts(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


def _not_empty(given: str) -> str:
    if not given.strip():
        raise ValueError("must not be empty")
    return given


def _name(given: str) -> str:
    if given in (".", "..") or not given.strip() or not given.isprintable() or set(given) & set("/\\"):
        raise ValueError("must be a plain name: not empty, without / and \\, and neither . nor ..")
    return given


def _is_plain(given: Any) -> bool:
    if isinstance(given, dict):
        return all(isinstance(key, str) and _is_plain(value) for key, value in given.items())
    return (
        all(map(_is_plain, given)) if isinstance(given, list) else given is None or isinstance(given, str | int | float)
    )


def _plain(given: dict[str, Any]) -> dict[str, Any]:
    if not _is_plain(given):
        raise ValueError("must consist of numbers, texts, true, false, null, lists, and mappings whose keys are texts")
    return given


def _cameras(given: Any) -> Any:
    """Check what does not depend on a model; see `make_cameras` for the rest."""
    cameras = given if isinstance(given, list) else [given]
    if not cameras or any(isinstance(one, bool) or not isinstance(one, dict | str | int) for one in cameras):
        raise ValueError("must be a camera's settings, its name or number, a named set, or a list of at least one such")
    for settings in cameras:
        if isinstance(settings, dict):
            _plain(settings)
    return given


def _combine(given: str) -> str:
    return _named_or_imported(given, get_args(CombineName))


def _reward(given: str) -> str:
    kinds = (kind for kind in KINDS if kind not in ("clip", "import"))  # the path of "import" is itself a name here
    return _named_or_imported(given, ("clip", "ground_truth", *kinds))


def _named_or_imported(given: str, names: Sequence[str]) -> str:
    if given not in names:
        try:
            check_import_path("", given)
        except ValueError:
            raise ValueError(f'must be {", ".join(names)} or "package.module:attribute"') from None
    return given


def _auto(given: str) -> str:
    found = re.fullmatch(r"auto(?:_((?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?))?", given)
    if found is None or (found[1] is not None and not 0 < float(found[1]) < math.inf):
        raise ValueError("must be a number, auto, or auto_0.1")
    return given


def _device(given: str) -> str:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", given):
        raise ValueError("must be auto, cpu, mps, cuda or cuda:1")
    return given


def _integer(words: list[str]) -> int | str:
    """Parse an integer flag; 1e6 is an integer. Invalid text is kept, so that it is reported with all other errors."""
    for kind in (int, float):
        with suppress(ValueError):
            if isinstance(number := _whole(kind(words[0])), int):
                return number
    return words[0]


class _Unreadable:
    """A flag's value that is not YAML; reported with all other errors."""

    def __init__(self, text: str, reason: str) -> None:
        self.text, self.reason = text, reason

    def __repr__(self) -> str:
        return short_repr(self.text)


def _read_flag(words: list[str]) -> Any:
    """Parse a flag's value as YAML."""
    try:
        return read_yaml(words[0])[1]
    except ValueError as error:
        return _Unreadable(words[0], str(error))


def _yaml_flag(*kinds: type[Any]) -> PrimitiveConstructorSpec[Any]:
    """How a flag whose value is YAML is read and shown."""

    def written(given: Any) -> list[str]:
        text = yaml.dump(given, Dumper=ConfigDumper, default_flow_style=True, width=math.inf)
        return [text.removesuffix("...\n").strip()]  # the end of a document, after a value that is no collection

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="YAML",
        instance_from_str=_read_flag,
        is_instance=lambda given: isinstance(given, kinds),
        str_from_instance=written,
    )


def _readable(given: Any) -> Any:
    if isinstance(given, _Unreadable):
        raise ValueError(f"cannot be read: {given.reason.removesuffix('.')}")
    return given


Integer = Annotated[
    int,
    Strict(),
    BeforeValidator(_whole),
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=_integer,
        is_instance=lambda given: isinstance(given, int),
        str_from_instance=lambda given: [str(given)],
    ),
]
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
Positive = Annotated[Number, Field(gt=0)]
Device = Annotated[str, AfterValidator(_device)]
Text = Annotated[str, AfterValidator(_not_empty)]
RewardName = Annotated[str, AfterValidator(_reward)]
EntropyCoefficient = Number | Annotated[str, AfterValidator(_auto)]
Name = Annotated[str, AfterValidator(_name)]
"""Name of a file or folder, without a path."""
Texts = Annotated[list[Text], Field(min_length=1), BeforeValidator(_texts)]
CombineViews = Annotated[str, AfterValidator(_combine)]
YAMLMapping = Annotated[dict[str, Any], BeforeValidator(_readable), AfterValidator(_plain), _yaml_flag(dict)]
Cameras = Annotated[Any, BeforeValidator(_readable), AfterValidator(_cameras), _yaml_flag(dict, str, int, list)]
"""One camera or several: the settings, names and numbers that `make_cameras` takes."""


def check_cameras(given: Any) -> Any:
    """Return the value of a command's flag `--camera`, whose type is `Cameras`.

    Raises:
        ValueError: It is not YAML, or not a camera or several.
    """
    try:
        return TypeAdapter(Cameras).validate_python(given)
    except ValidationError as error:
        rule = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ValueError(f"`camera` {rule}. Received {short_repr(given)}.") from error
