"""Specifications: rewards as values that can be passed as `reward=`, written to files, and sent to worker processes.

Imports no torch.
"""

import difflib
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeGuard, cast

from vlmrm_gym._util.validation import short_repr
from vlmrm_gym.rewards.clip import CLIP, CLIPFields, Prompt
from vlmrm_gym.rewards.combination import Combination, Sum, TaskReward, find_rewards
from vlmrm_gym.rewards.endpoint.reward import Endpoint
from vlmrm_gym.rewards.learned import Demonstrations, Preference
from vlmrm_gym.rewards.lerobot import LeRobot
from vlmrm_gym.rewards.over_time import Progress, Success
from vlmrm_gym.rewards.own import ImportedReward, OwnReward, Unwritten, find_callable
from vlmrm_gym.rewards.program.spec import Program
from vlmrm_gym.rewards.robometer import Robometer
from vlmrm_gym.rewards.saved import is_saved, read_saved, write_saved
from vlmrm_gym.rewards.spec import RewardSpec

KINDS: Mapping[str, type[Any]] = {
    "clip": CLIP,
    "demonstrations": Demonstrations,
    "preference": Preference,
    "program": Program,
    "endpoint": Endpoint,
    "lerobot": LeRobot,
    "robometer": Robometer,
    "import": ImportedReward,
    "sum": Sum,
    "progress": Progress,
    "success": Success,
    "task_reward": TaskReward,
}
"""The kinds of specifications of this package, by `kind`. A new one is registered here.

Files may name all of which `names_code` is False without --trust-code: no other may run code that its fields name.
"""


def load_reward(path: str | Path, *, trust_code: bool = False) -> RewardSpec:
    """Load a reward that `RewardSpec.save` wrote: the folder, any JSON file of a specification, or a name on the hub.

    Raises an InputError if it cannot be read; or names code or a server, and is not trusted.
    """
    return from_mapping(read_saved(path, trust_code=trust_code))


def save_reward(reward: RewardSpec, folder: str | Path) -> None:
    """Write a reward to a folder, with copies of the pictures and heads that it names: see `RewardSpec.save`."""
    write_saved(to_mapping(_with_sources(reward)), Path(folder))


def _with_sources(reward: RewardSpec) -> RewardSpec:
    """Replace the files of programs, also of those in a combination, by their texts."""
    if isinstance(reward, Program):
        return replace(reward, path=None, source=reward.files["program.py"])
    return reward._each(_with_sources)


def resolve_reward(
    reward: Any,
    reward_kwargs: Mapping[str, Any] | None = None,
    prompt: Prompt | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
    keywords: Collection[str] = (),
) -> RewardSpec:
    """The specification that an environment's keyword arguments describe.

    `reward` is a specification, its mapping form, "package.module:attribute", a callable, or None for `CLIP` with this
    prompt and these other fields. `reward_kwargs` are of a callable or a class. `keywords` are other keywords of the
    environment, which a misspelt option may be.
    """
    if not isinstance(reward_kwargs, Mapping | None):
        raise TypeError(f"`reward_kwargs` must be a mapping of names to values. Received {short_repr(reward_kwargs)}.")
    check_names("an option of a reward", options, [*(one.name for one in fields(CLIPFields)), *keywords])
    kwargs = dict(reward_kwargs or {})
    reward = reward.reward if isinstance(reward, Unwritten) else reward
    if reward is None:
        if kwargs:
            raise TypeError("`reward_kwargs` needs a `reward` to pass them to. Received no reward.")
        return CLIP(prompt=prompt, **options)
    if given := [name for name, value in {"prompt": prompt, **options}.items() if value is not None]:
        raise TypeError(f"`reward` and `{given[0]}` cannot both be passed: `{given[0]}` is short for a field of CLIP.")
    if isinstance(reward, str) and is_saved(reward):
        reward = read_saved(reward)
    if isinstance(reward, str):
        if ":" not in reward and (near := difflib.get_close_matches(reward, KINDS, 1)):
            raise ValueError(
                f'`reward` must be "package.module:attribute". Received {reward!r}. For the kind {near[0]!r} pass '
                f"{KINDS[near[0]].__name__}(...), or its mapping form."
            )
        reward, kwargs = ImportedReward(path=reward, kwargs=kwargs), {}
    if isinstance(reward, Mapping):
        reward = from_mapping(reward)
    if isinstance(reward, RewardSpec) and kwargs:
        raise TypeError("`reward_kwargs` is for a callable or a class. Received a specification: set them there.")
    if isinstance(reward, ImportedReward):
        found = reward.find()
        return found(**reward.kwargs) if _is_kind(found) else reward
    if _is_kind(reward):
        return reward(**kwargs)
    return reward if isinstance(reward, RewardSpec) else OwnReward(reward, kwargs)


def _is_kind(value: Any) -> TypeGuard[type[RewardSpec]]:
    return isinstance(value, type) and issubclass(value, RewardSpec)


def to_mapping(specification: RewardSpec) -> dict[str, Any]:
    """A specification as a mapping, which JSON can hold if its fields can; `from_mapping` is the inverse.

    `kind` is the key in `KINDS`, or of a user's kind the name of its class, "package.module:Class". A TypeError if it
    is not a dataclass, a ValueError if its class cannot be imported: it is of a notebook, or of a function.
    """
    cls = type(specification)
    if not is_dataclass(specification):
        raise TypeError(f"`reward` must be a dataclass to be written as a mapping. Received {specification!r}.")
    kind = next((kind for kind, known in KINDS.items() if known is cls), f"{cls.__module__}:{cls.__qualname__}")
    if kind not in KINDS and not _is_importable(cls):
        raise ValueError(
            f"`reward` must be of a class that can be imported to be written as a mapping. Received {kind}. "
            "Move the class into a module."
        )
    values = {one.name: getattr(specification, one.name) for one in fields(specification) if one.init}
    return {"kind": kind, **{name: _as_values(value) for name, value in values.items() if name != "kind"}}


def _as_values(value: Any) -> Any:
    """The value of a field as a mapping has it: rewards, and those of terms, are mappings too."""
    if isinstance(value, RewardSpec):
        return to_mapping(value)
    if isinstance(value, list) and any(isinstance(one, tuple) and isinstance(one[-1], RewardSpec) for one in value):
        terms = [(weight, to_mapping(reward)) for weight, reward in value]
        # Beside the fields of the reward, unless one of these is called "weight" as well.
        return [{"weight": weight, **({"reward": one} if "weight" in one else one)} for weight, one in terms]
    return value


def _as_term(term: Any) -> Any:
    if isinstance(term, Mapping):
        values = dict(term)
        weight = values.pop("weight", 1.0)
        return weight, from_mapping(values["reward"] if values.keys() == {"reward"} else values)
    is_pair = isinstance(term, list | tuple) and len(term) == 2 and isinstance(term[1], Mapping)
    return (term[0], from_mapping(term[1])) if is_pair else term


def _is_importable(cls: type[Any]) -> bool:
    value: Any = None if cls.__module__ == "__main__" else sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        value = getattr(value, name, None)
    return value is cls


def from_mapping(values: Mapping[str, Any]) -> RewardSpec:
    """The inverse of `to_mapping`; imports the class of a user's kind. A TypeError or ValueError names the field."""
    settings = dict(values)
    kind = settings.pop("kind", None)
    cls = _find_kind(kind)
    check_names("a field of a reward", settings, [one.name for one in fields(cls) if one.init and one.name != "kind"])
    if issubclass(cls, Combination):
        if isinstance(reward := settings.get("reward"), Mapping):
            settings["reward"] = from_mapping(reward)
        if isinstance(terms := settings.get("terms"), list | tuple):
            settings["terms"] = [_as_term(one) for one in terms]
    return cls(**settings)  # a missing field is named by the class itself


def _find_kind(kind: object) -> type[Any]:
    """The class of a kind: of this package, or one that its name says, "package.module:Class"."""
    if isinstance(kind, str) and kind in KINDS:
        return KINDS[kind]
    if isinstance(kind, str) and ":" in kind:
        value: Any = find_callable(kind, "reward")
        if not (_is_kind(value) and is_dataclass(value)):
            rule = "`reward`: kind must name a dataclass that derives from vlmrm_gym.RewardSpec"
            raise ValueError(f"{rule}. Received {short_repr(kind)}, which is {short_repr(value)}.")
        return cast(type[Any], value)
    near = difflib.get_close_matches(str(kind), KINDS, 1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    kinds = ", ".join(map(repr, KINDS))
    raise ValueError(f'`reward`: kind must be one of {kinds}, or "package.module:Class". Received {kind!r}.{meant}')


def pinned_fields(specification: RewardSpec) -> Mapping[str, Any]:
    """The fields that a run keeps, so that it is resumed with the same programs."""
    if isinstance(specification, Program):
        return {"sha256": specification.sha256}
    if not any(isinstance(part, Program) for part in find_rewards(specification)):
        return {}
    return {name: value for name, value in to_mapping(specification).items() if name != "kind"}


def recorded(reward: Any) -> Any:
    """The `reward` that the spec of an environment keeps.

    Gymnasium deep-copies it, and writes `dataclasses.asdict` of it as JSON, which names no class. So a kind of one's
    own, and a combination, which may have one in it, are kept in their mapping form; without one, JSON refuses them.
    """
    if isinstance(reward, Combination) or (isinstance(reward, RewardSpec) and type(reward) not in KINDS.values()):
        try:
            return to_mapping(reward)
        except (TypeError, ValueError):  # it, or a part of it, has none
            return Unwritten(reward)
    return reward


def check_names(noun: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise a TypeError if one of the given names is not known."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            meant = f"Did you mean `{near[0]}`?" if near else f"Known: {', '.join(known)}."
            raise TypeError(f"`{name}` is not {noun}. {meant}")
