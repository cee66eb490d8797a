"""Works around a crash when Triton and Mesa's software renderer are in one process. Importing this applies it."""

import ctypes
import os
import sys
from importlib.util import find_spec
from pathlib import Path

_LIBRARY = "triton._C.libtriton"


def load_beside_mesa() -> None:
    """Load Triton's library with RTLD_DEEPBIND if Mesa's LLVM is already in this process.

    Importing torchvision imports Triton, whose LLVM would bind to the symbols of Mesa's LLVM, of another version, and
    crash the process. With RTLD_DEEPBIND the library prefers its own symbols; a later import finds it loaded. Does
    nothing without Triton, without Mesa, or where the flag does not exist (it is glibc's).
    """
    spec = None if _LIBRARY in sys.modules or not hasattr(os, "RTLD_DEEPBIND") else find_spec("triton")
    if spec is None or not _is_mapped("libLLVM"):
        return
    for folder in spec.submodule_search_locations or ():
        for library in Path(folder, "_C").glob("libtriton*.so"):
            ctypes.CDLL(str(library), mode=os.RTLD_NOW | os.RTLD_DEEPBIND)


def _is_mapped(library: str) -> bool:
    try:
        return library in Path("/proc/self/maps").read_text()
    except OSError:
        return False


load_beside_mesa()
