"""Records beside the files of programs that were verified: `vlmrm-gym program verify` writes them."""

import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from vlmrm_gym.errors import InputError
from vlmrm_gym.files import atomic_write_text
from vlmrm_gym.untrusted import read_json


def record_file(path: str | Path) -> Path:
    """Where the record of a program is: kneel.verification.json beside kneel.py."""
    return Path(path).with_suffix(".verification.json")


def write_record(path: str | Path, sha256: str, environment: str, counts: Mapping[str, Any]) -> Path:
    """Note that a program was verified.

    Args:
        path: The program's file.
        sha256: `Program.sha256`.
        environment: What it was verified for.
        counts: Numbers of episodes, and whatever else the record should say.

    Returns:
        The file of the record.
    """
    values = {"sha256": sha256, "environment": environment, "date": date.today().isoformat(), **counts}
    atomic_write_text(record_file(path), json.dumps(values, indent=2))
    return record_file(path)


def is_verified(path: str | None, sha256: str) -> bool:
    """Whether a record beside a program's file says that this very program, with its fallback, was verified."""
    if path is None:
        return False
    try:
        values = read_json(record_file(path))
    except InputError:
        return False
    return isinstance(values, dict) and values.get("sha256") == sha256
