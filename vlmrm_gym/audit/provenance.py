"""Records where a report's numbers come from: date, versions, weights, seed and hardware."""

import platform
import time
from collections.abc import Mapping

from vlmrm_gym._util import __version__
from vlmrm_gym._util.cpu import usable_cores
from vlmrm_gym._util.versions import read_commit


def read_provenance(*, weights: str, seed: int) -> Mapping[str, str]:
    """Collect what a reader needs to reproduce the numbers, by its label."""
    import torch

    commit = read_commit()
    hardware = f"{platform.processor() or platform.machine()}, {usable_cores()} cores"
    if torch.cuda.is_available():
        hardware += f"; {torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return {
        "Date": time.strftime("%Y-%m-%d %H:%M %z"),
        "Version": f"vlmrm_gym {__version__}" + (f", commit {commit}" if commit else ""),
        "Weights": weights,
        "Seed": str(seed),
        "Hardware": hardware,
    }
