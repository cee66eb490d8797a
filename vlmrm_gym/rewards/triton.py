"""Works around a crash when Triton and Mesa's software renderer are in one process. Importing this applies it."""

import ctypes
import os
import sys
from importlib.util import find_spec
from pathlib import Path

_LIBRARY = "triton._C.libtriton"


def load_beside_mesa() -> None:
    """Load Triton's library, with RTLD_DEEPBIND if Mesa's LLVM is already in this process.

    torchvision imports Triton, and so does the first step of an optimizer of torch. If Mesa was there before, Triton's
    LLVM would bind to the symbols of Mesa's LLVM, of another version, and crash the process. With RTLD_DEEPBIND the
    library prefers its own symbols; a later import finds it loaded. Does nothing without Triton, or where the flag does
    not exist (it is glibc's).
    """
    spec = None if _LIBRARY in sys.modules or not hasattr(os, "RTLD_DEEPBIND") else find_spec("triton")
    mode = os.RTLD_NOW | (os.RTLD_DEEPBIND if spec and _is_mapped("libLLVM") else 0)
    for folder in (spec and spec.submodule_search_locations) or ():
        for library in Path(folder, "_C").glob("libtriton*.so"):
            ctypes.CDLL(str(library), mode=mode)


def _is_mapped(library: str) -> bool:
    try:
        return library in Path("/proc/self/maps").read_text()
    except OSError:
        return False


load_beside_mesa()
