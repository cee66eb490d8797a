"""Constructors check what they are given: their errors become those of the settings that they name."""

import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import gymnasium as gym

from vlmrm_gym.training.config import Config
from vlmrm_gym.training.config_file import ConfigError, Key, Problem, flatten
from vlmrm_gym.validation import truncate

_RAISED = (
    gym.error.Error,
    ValueError,
    TypeError,
    AssertionError,
    FileNotFoundError,
    ConnectionError,
    RuntimeError,
    MemoryError,
)
"""What constructors of environments, rewards and algorithms raise."""
_PARAMETERS: Mapping[Key, str] = {("reward", "name"): "reward", ("reward", "kwargs"): "reward_kwargs"}
"""Parameters that are called otherwise in a configuration."""
_MADE_IN = {"policies.py": "policy_kwargs", "buffers.py": "buffer_size", "get_device": "device"}
"""Keys of `rl` whose values these files and functions of Stable-Baselines3 are given."""


@contextmanager
def constructing(config: Config, default: str) -> Iterator[None]:
    """Name the setting that an error of a constructor is about: the first one that its message names.

    Args:
        config: What the constructor is given.
        default: The key, such as "rl.algorithm", of a message that names none. Keys of its section come first.

    Raises:
        ConfigError: A constructor raised.
    """
    try:
        yield
    except ConfigError:
        raise
    except _RAISED as error:
        text = truncate(str(error) or type(error).__name__, 1_000)  # a MemoryError has no text
        key = _find_key(error, config, tuple(default.split(".")))
        parameter = f"`{_PARAMETERS.get(key, key[-1])}`"
        rest = text.removeprefix(parameter) if text.startswith(parameter) else f": {text}"
        raise ConfigError([Problem(key, f"`{'.'.join(key)}`{rest}")]) from error


def _find_key(error: Exception, config: Config, default: Key) -> Key:
    section = default[:-1] or ("reward",)
    settings = sorted(flatten(config).items(), key=lambda pair: pair[0][:-1] == section)
    if default == ("reward", "labeler"):  # its fields are not those of the reward
        settings = [pair for pair in settings if pair[0] == default]
    known = {_PARAMETERS.get(key, key[-1]): key for key, _ in settings}
    for key, value in settings:
        if isinstance(value, dict) and (key != ("reward", "labeler") or key == default):
            known |= {str(name): (*key, str(name)) for name in value}
    for name in re.findall(r"[`'](\w+)[`'=]", str(error)):
        if name in known:
            return known[name]
    frames = [(Path(frame.filename).name, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    made = [_MADE_IN[name] for names in frames for name in names if name in _MADE_IN] if section == ("rl",) else []
    return ("rl", made[-1]) if made else default
