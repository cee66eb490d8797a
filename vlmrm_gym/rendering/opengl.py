"""OpenGL without a window: EGL (the default on Linux) or OSMesa. Independent of scenes.

`MUJOCO_GL=egl` or `MUJOCO_GL=osmesa` selects one, as in MuJoCo; a process can use only one of them.
"""

import gc
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
"""ID of the process that made the first context."""
_collection_lock = threading.RLock()
_num_drawing = 0
_resume_collection = False


def backend() -> str:
    """The OpenGL backend: "egl", "osmesa", or "" for the platform's own (not on Linux, or with a window system)."""
    chosen = os.environ.get("MUJOCO_GL", "").lower().strip()
    if chosen in _PACKAGES:
        return chosen
    return "egl" if sys.platform == "linux" and not chosen else ""


class OpenGLContext:
    """An OpenGL context. Creating, using or freeing it leaves the thread's current context unchanged.

    MuJoCo's own contexts replace the current one when they are created and freed. Other users of OpenGL, such as the
    viewers of Gymnasium's environments, do not make theirs current again, and would render black frames.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        with _collection_paused(), _kept_current():
            self._context = make()

    @contextmanager
    def as_current(self) -> Iterator[None]:
        """Make it current; see `as_current`."""
        with as_current(self._context):
            yield

    def free(self) -> None:
        """Free it. It cannot be used afterwards."""
        with _collection_paused(), _kept_current():
            self._context.free()


@contextmanager
def as_current(context: Any) -> Iterator[None]:
    """Make an OpenGL context of MuJoCo's current. Garbage collection is paused meanwhile; see `_collection_paused`."""
    with _collection_paused(), _kept_current(), context.as_current():
        yield


def make_context(width: int, height: int, egl_device: int | None = None) -> OpenGLContext:
    """Make an OpenGL context; it is not current yet.

    Args:
        width: Width of its framebuffer, in pixels.
        height: Height of its framebuffer, in pixels.
        egl_device: Number of the EGL device (a GPU, or Mesa's software renderer). None uses MUJOCO_EGL_DEVICE_ID, or
            the first device that works. All contexts of a process are on the same device.

    Raises:
        DependencyNotInstalled: A library is missing; the message names the package.
        ValueError: `egl_device` is not the number of an EGL device.
        RuntimeError: This process already uses another EGL device, or it was forked from one that uses OpenGL.
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
        make = importlib.import_module(f"mujoco.{name or 'gl_context'}").GLContext
        context = OpenGLContext(lambda: make(width, height))
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


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Pause garbage collection in the whole process while any thread renders.

    The destructor of a Gymnasium viewer frees OpenGL objects by number in whichever context is current. In ours it
    would delete the framebuffer, and all later frames would be black.
    """
    global _num_drawing, _resume_collection
    with _collection_lock:
        if _num_drawing == 0:
            _resume_collection = gc.isenabled()
            gc.disable()
        _num_drawing += 1
    try:
        yield
    finally:
        with _collection_lock:
            _num_drawing -= 1
            if _num_drawing == 0 and _resume_collection:
                gc.enable()


@contextmanager
def _kept_current() -> Iterator[None]:
    """Restore the current context afterwards."""
    restore = {"egl": _egl_restorer, "osmesa": _osmesa_restorer}.get(backend(), lambda: None)()
    try:
        yield
    finally:
        if restore is not None:
            restore()


def _egl_restorer() -> Callable[[], object] | None:
    from OpenGL import EGL

    EGL.eglBindAPI(EGL.EGL_OPENGL_API)  # else the current context of another API would be returned
    context = EGL.eglGetCurrentContext()
    if not context:
        return None
    surfaces = EGL.eglGetCurrentSurface(EGL.EGL_DRAW), EGL.eglGetCurrentSurface(EGL.EGL_READ)
    display = EGL.eglGetCurrentDisplay()

    def restore() -> None:
        EGL.eglBindAPI(EGL.EGL_OPENGL_API)
        try:
            EGL.eglMakeCurrent(display, *surfaces, context)
        except EGL.EGLError as error:
            if error.err != EGL.EGL_BAD_CONTEXT:
                raise
            # Its owner had destroyed it while it was current, as the viewer of a closed environment may do.
            EGL.eglMakeCurrent(display, EGL.EGL_NO_SURFACE, EGL.EGL_NO_SURFACE, EGL.EGL_NO_CONTEXT)

    return restore


def _osmesa_restorer() -> Callable[[], object] | None:
    from OpenGL import osmesa

    context = osmesa.OSMesaGetCurrentContext()
    if not context:
        return None
    width, height, _, buffer = osmesa.OSMesaGetColorBuffer(context)
    number_type = osmesa.OSMesaGetIntegerv(osmesa.OSMESA_TYPE)
    return lambda: osmesa.OSMesaMakeCurrent(context, buffer, number_type, width, height)
