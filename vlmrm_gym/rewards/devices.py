"""The devices that score: which there are, and which a parameter names. Imports torch.

Importing this also works around a crash when Triton and Mesa's software renderer are in one process.
"""

import ctypes
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import torch

from vlmrm_gym._util.system import mapped_files
from vlmrm_gym._util.validation import short_repr


def resolve_device(device: str, parameter: str = "device") -> torch.device:
    """The device that a parameter names. Raise a ValueError if this machine has none such."""
    has_mps = torch.backends.mps.is_available()
    available = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count())), *(["mps"] if has_mps else [])]
    name = {"cpu:0": "cpu", "mps:0": "mps"}.get(str(device), str(device))  # "mps:0" is how tensors call it
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if has_mps else "cpu"
    if name == "cuda" and torch.cuda.is_available():
        # The current device of a process that scores in workers only: asking CUDA would take hundreds of MB of it.
        name = f"cuda:{torch.cuda.current_device() if torch.cuda.is_initialized() else 0}"
    if name not in available:
        raise ValueError(
            f'`{parameter}` must be "auto" or a device of this machine ({", ".join(available)}). '
            f"Received {short_repr(device)}."
        )
    return torch.device(name)


def load_triton_beside_mesa() -> None:
    """Load Triton's library, with RTLD_DEEPBIND if Mesa's LLVM is already in this process.

    torchvision imports Triton, and so does the first step of an optimizer of torch. If Mesa was there before, Triton's
    LLVM would bind to the symbols of Mesa's LLVM, of another version, and crash the process. With RTLD_DEEPBIND the
    library prefers its own symbols; a later import finds it loaded. Does nothing without Triton, or where the flag does
    not exist (it is glibc's).
    """
    is_loaded = "triton._C.libtriton" in sys.modules
    spec = None if is_loaded or not hasattr(os, "RTLD_DEEPBIND") else find_spec("triton")
    mode = os.RTLD_NOW | (os.RTLD_DEEPBIND if spec and any("libLLVM" in path for path in mapped_files()) else 0)
    for folder in (spec and spec.submodule_search_locations) or ():
        for library in Path(folder, "_C").glob("libtriton*.so"):
            ctypes.CDLL(str(library), mode=mode)


load_triton_beside_mesa()

if hasattr(os, "register_at_fork"):  # a fork has none of the threads of torch's pool
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
