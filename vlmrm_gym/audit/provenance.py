"""Where the numbers of a report are from: date, versions, weights, seed and hardware."""

import platform
import re
import time
from collections.abc import Mapping
from pathlib import Path

import vlmrm_gym
from vlmrm_gym.cpu import usable_cores
from vlmrm_gym.versions import read_commit


def read_provenance(*, weights: str, seed: int) -> Mapping[str, str]:
    """What a reader needs to make the numbers again, by its label.

    Args:
        weights: Name and digest of the model's weights.
        seed: Of everything that was drawn.
    """
    commit = read_commit()
    return {
        "Date": time.strftime("%Y-%m-%d %H:%M %z"),
        "Version": f"vlmrm_gym {vlmrm_gym.__version__}" + (f", commit {commit}" if commit else ""),
        "Weights": weights,
        "Seed": str(seed),
        "Hardware": _read_hardware(),
    }


def _read_hardware() -> str:
    """The processor, how many of its cores this process may use, and the GPUs."""
    import torch

    cpuinfo = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    name = named[1] if named else platform.processor() or platform.machine()
    parts = [f"{name}, {usable_cores()} cores"]
    if torch.cuda.is_available():
        parts.append(f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}")
    return "; ".join(parts)
