"""OpenGL without a window: EGL (the default on Linux) or OSMesa. Knows nothing of scenes.

`MUJOCO_GL=egl` or `MUJOCO_GL=osmesa` chooses, as everywhere in MuJoCo; a process can use only one of them.
"""

import importlib
import os
import sys
from ctypes import ArgumentError
from typing import Any

from gymnasium.error import DependencyNotInstalled

_MISSING = (
    "MuJoCo scenes cannot be drawn: OpenGL ({backend}) is not usable here ({error}). On Debian and Ubuntu run "
    "`apt-get install {packages}`{otherwise}"
)
_PACKAGES = {"egl": "libegl1 libopengl0 libgl1-mesa-dri", "osmesa": "libosmesa6"}
_OTHERWISE = {
    "egl": ", or `apt-get install libosmesa6` and set MUJOCO_GL=osmesa. An NVIDIA driver has its own EGL.",
    "osmesa": ", or `apt-get install libegl1 libopengl0 libgl1-mesa-dri` and set MUJOCO_GL=egl.",
}

_started_in: int | None = None
"""The process that made the first context."""


def backend() -> str:
    """What draws: "egl", "osmesa", or "" for the platform's own (not Linux, or MUJOCO_GL names a window system)."""
    chosen = os.environ.get("MUJOCO_GL", "").lower().strip()
    if chosen in _PACKAGES:
        return chosen
    return "egl" if sys.platform == "linux" and not chosen else ""


def make_context(width: int, height: int, egl_device: int | None = None) -> Any:
    """An OpenGL context that is not current yet: MuJoCo's GLContext.

    Args:
        width: In pixels.
        height: In pixels.
        egl_device: The number of the EGL device (a GPU, or Mesa's software). None leaves it to MUJOCO_EGL_DEVICE_ID,
            or takes the first that works. Every context of a process is on the same device.

    Raises:
        DependencyNotInstalled: A library is missing; says which package has it.
        ValueError: `egl_device` is not the number of an EGL device.
        RuntimeError: Another EGL device is in use by this process already, or the process is a fork of one that draws.
    """
    global _started_in
    name = backend()
    if name and _started_in not in (None, os.getpid()):
        raise RuntimeError(
            "This process was forked from one that had already drawn with OpenGL, which does not survive a fork. Start "
            'processes with "spawn" instead, e.g. vector_kwargs={"context": "spawn"}, or draw nothing before forking.'
        )
    if egl_device is not None:
        _select_egl_device(name, egl_device)
    try:
        context = importlib.import_module(f"mujoco.{name or 'gl_context'}").GLContext(width, height)
    except RuntimeError as error:
        if "MUJOCO_EGL_DEVICE_ID" in str(error):
            raise ValueError(f"`egl_device` is not the number of an EGL device. {error}") from error
        raise
    except (
        ImportError,
        AttributeError,
        OSError,
        ArgumentError,
    ) as error:  # what PyOpenGL raises where a library is missing
        if name not in _PACKAGES:
            raise
        raise DependencyNotInstalled(
            _MISSING.format(backend=name, error=error, packages=_PACKAGES[name], otherwise=_OTHERWISE[name])
        ) from error
    _started_in = os.getpid()
    return context


def _select_egl_device(backend: str, egl_device: int) -> None:
    if isinstance(egl_device, bool) or not isinstance(egl_device, int) or egl_device < 0:
        raise ValueError(f"`egl_device` must be an integer of at least 0. Received {egl_device!r}.")
    if backend != "egl":
        raise ValueError(f"`egl_device` needs EGL, but MUJOCO_GL is {os.environ.get('MUJOCO_GL')!r}.")
    in_use = os.environ.get("MUJOCO_EGL_DEVICE_ID")
    if _started_in is not None and in_use != str(egl_device):
        raise RuntimeError(
            f"`egl_device` is {egl_device}, but this process draws on {in_use or 'the default device'} already, and a "
            "process has one EGL device. Use another process."
        )
    os.environ["MUJOCO_EGL_DEVICE_ID"] = str(egl_device)
