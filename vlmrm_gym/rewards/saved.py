"""Rewards in files: their mapping form as JSON, beside the pictures and heads that it names; and what they may name.

Imports no torch.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vlmrm_gym._util.errors import InputError
from vlmrm_gym._util.files import atomic_write, atomic_write_text
from vlmrm_gym._util.untrusted import read_file, read_json
from vlmrm_gym._util.validation import short_repr
from vlmrm_gym.rewards.clip import TASK_GOALS
from vlmrm_gym.rewards.endpoint.settings import SAMPLING
from vlmrm_gym.rewards.hub import FILE, PREFIX, download
from vlmrm_gym.rewards.pictures import Picture


def names_code(kind: object, values: Mapping[str, Any]) -> bool:
    """Tell whether a reward of this kind with these fields, or one in it, runs code that they name, not isolated."""
    own = (
        kind in ("import", "lerobot")
        or (isinstance(kind, str) and ":" in kind)
        or values.get("isolate", True) is not True
    )
    return own or any(names_code(one.get("kind"), one) for one in _parts(values))


def _parts(values: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the mapping forms of rewards that one is made of, and texts that name one, as such."""
    for name, value in values.items():
        for one in value if name == "terms" and isinstance(value, list | tuple) else [value] * (name == "reward"):
            reward = one[1] if isinstance(one, list | tuple) and len(one) == 2 else one
            yield reward if isinstance(reward, Mapping) else {"kind": "import", "path": reward}


SERVER = f"a server that pictures and a key would be sent to, or has a `request` of more than {', '.join(SAMPLING)}"
"""What messages say that is named where `names_server` is True."""


def names_server(kind: object, values: Mapping[str, Any]) -> bool:
    """Tell whether a reward or labeler of this kind with these fields sends pictures, and a key, where its fields say.

    A server on this machine is free, and so is OpenAI's with its own key; but not fields of `request` that spend the
    key on something else.
    """
    host, key, request = None, values.get("api_key_env"), values.get("request")
    with suppress(ValueError):  # it is no address: the reward says so
        host = urlsplit(str(values.get("base_url") or "")).hostname
    elsewhere = host not in (None, "localhost", "127.0.0.1", "::1") or key not in (None, "OPENAI_API_KEY")
    spends = isinstance(request, Mapping) and not set(request) <= set(SAMPLING)
    own = kind in ("endpoint", "robometer") and (elsewhere or spends)
    return own or any(names_server(one.get("kind"), one) for one in _parts(values))


PICTURES = ("goal_images", "baseline_images")
"""The fields of rewards that are files of pictures, or pictures as data URIs."""
FILES = (*PICTURES, "head", "init")
"""The fields of rewards that are files: also of what was learned."""


def map_files(values: Any, change: Callable[[str], str]) -> Any:
    """Change the files in the mapping form of a reward, and of those that it is made of; not of a user's own kind."""
    if isinstance(values, Mapping) and ":" in str(values.get("kind", values.get("name", ""))):
        return dict(values)
    if isinstance(values, Mapping):
        return {
            name: _map_texts(value, change) if name in FILES else map_files(value, change)
            for name, value in values.items()
        }
    return [map_files(one, change) for one in values] if isinstance(values, list | tuple) else values


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, list | tuple):
        return [_map_texts(one, change) for one in value]
    return change(value) if isinstance(value, str) and value != TASK_GOALS else value


def beside(folder: Path, picture: str) -> str:
    """The path of a file that is relative to a folder; a data URI as it is."""
    return picture if picture.startswith("data:") else str(folder / os.path.expanduser(picture))


MAX_HEAD = 2**28
"""Size of the file of a head, at most."""
HEAD = "head.safetensors"
"""The head of a reward, in the folder that it was saved to."""


def head_file(path: str | Path) -> Path:
    """The file of a head: `HEAD` in a folder, or the file itself."""
    path = Path(os.path.expanduser(path))
    return path / HEAD if os.path.isdir(path) else path  # unlike `Path.is_dir`, False for a name that is too long


def is_saved(reward: str) -> bool:
    """Tell whether a text is the path of a saved reward, a JSON file or a folder, or its name on the hub."""
    return reward.startswith(PREFIX) or reward.endswith((".json", "/", os.sep)) or os.path.isdir(reward)


def read_saved(path: str | Path, *, trust_code: bool = False) -> Mapping[str, Any]:
    """Read the mapping form of a reward, see `to_mapping`, from a JSON file, from `FILE` in a folder, or from the hub.

    The files that it names, pictures and heads, are relative to its folder. Raises an InputError if the file cannot be
    read; or names code or a server, and is not trusted.
    """
    path = download(str(path)) if str(path).startswith(PREFIX) else Path(path)
    path = path / FILE if path.is_dir() else path
    try:
        values = read_json(path)
    except InputError as error:
        raise InputError(f"`reward`: {error}") from error
    if not isinstance(values, dict) or not isinstance(values.get("kind"), str):
        rule = 'must have a mapping such as {"kind": "clip", "prompt": "a pole"}'
        raise InputError(f"`reward`: {path} {rule}. Received {short_repr(values)}.")
    for names, what in ((names_code, "code that would be run"), (names_server, SERVER)):
        if not trust_code and names(values.get("kind"), values):
            rule = f"names {what}. Received {short_repr(values)}. If you trust it, pass --trust-code"
            raise InputError(f"`reward`: {path} {rule}, or load_reward(path, trust_code=True) from Python.")
    return map_files(values, partial(beside, path.parent))


def write_saved(values: Mapping[str, Any], folder: Path) -> None:
    """Write the mapping form of a reward as `FILE`, and copies of the pictures and heads that it names beside it."""
    folder.mkdir(parents=True, exist_ok=True)

    def keep(file: str) -> str:
        is_picture = file.startswith("data:")
        content = Picture(file).content if is_picture else read_file(head_file(file), MAX_HEAD)
        path = folder / ("picture.png" if is_picture else head_file(file).name)
        if path.exists() and path.read_bytes() != content:
            path = path.with_stem(f"{path.stem}_{hashlib.sha256(content).hexdigest()[:8]}")
        if not path.exists():
            atomic_write(path, lambda unfinished: unfinished.write_bytes(content))
        return path.name

    atomic_write_text(folder / FILE, json.dumps(map_files(values, keep), indent=2))
