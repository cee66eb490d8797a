"""Rules for parameters that more than one door has."""

import math
from collections.abc import Collection
from numbers import Integral, Real

from gymnasium.vector import AutoresetMode, VectorEnv


def check_integer(parameter: str, value: object, *, least: int) -> None:
    """Raise a ValueError unless a value is an integer, and not too small."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"`{parameter}` must be an integer of at least {least}. Received {value!r}.")


def check_positive_integer(parameter: str, value: object) -> None:
    """Raise a ValueError unless a value is an integer of at least 1."""
    check_integer(parameter, value, least=1)


def check_choice(parameter: str, value: object, choices: Collection[str]) -> None:
    """Raise a ValueError unless a value is one of some strings."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"`{parameter}` must be one of {', '.join(map(repr, choices))}. Received {value!r}.")


def is_number(value: object) -> bool:
    """Whether a value is a real number, Python's or NumPy's; a bool is not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_flag(parameter: str, value: object) -> None:
    """Raise a ValueError unless a value is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"`{parameter}` must be True or False. Received {value!r}.")


def check_weight(task_reward_weight: object) -> None:
    """Raise a ValueError unless the weight of the environment's own reward is a finite number."""
    if not is_number(task_reward_weight) or not math.isfinite(task_reward_weight):  # pyright: ignore[reportArgumentType]
        raise ValueError(f"`task_reward_weight` must be a finite number. Received {task_reward_weight!r}.")


def check_vector(envs: object) -> None:
    """Raise a ValueError unless environments are a vector."""
    if not isinstance(envs, VectorEnv):
        raise ValueError(f"`envs` must be a vector environment, such as `gym.make_vec` makes. Received {envs!r}.")


def check_autoreset_mode(autoreset_mode: AutoresetMode | str) -> AutoresetMode:
    """The mode that a name means; a ValueError if there is none of that name."""
    try:
        return AutoresetMode(autoreset_mode)
    except ValueError:
        names = ", ".join(repr(mode.value) for mode in AutoresetMode)
        raise ValueError(f"`autoreset_mode` must be one of {names}. Received {autoreset_mode!r}.") from None
