"""Makes OpenGL contexts without a window: EGL (default on Linux) or OSMesa, as `MUJOCO_GL` says; one kind a process."""

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

_PACKAGES = {"egl": "libegl1 libopengl0 libgl1-mesa-dri", "osmesa": "libosmesa6"}
"""What Debian and Ubuntu need for each backend; an NVIDIA driver has its own EGL."""

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


def make_context(width: int, height: int) -> Any:
    """Make an OpenGL context of MuJoCo's with a framebuffer of this size, in pixels, for `as_current`.

    MUJOCO_EGL_DEVICE_ID chooses EGL's device. Making, using or freeing the context leaves the thread's current one
    unchanged: MuJoCo alone would replace that, and other users of OpenGL, such as the viewers of Gymnasium's
    environments, do not make theirs current again, and would render black frames.
    """
    global _started_in
    name = backend()
    if name and _started_in not in (None, os.getpid()):
        raise RuntimeError(
            "This process was forked from one that had already drawn with OpenGL, which does not survive a fork. Start "
            'processes with "spawn" instead, e.g. vector_kwargs={"context": "spawn"}, or draw nothing before forking.'
        )
    try:
        make = importlib.import_module(f"mujoco.{name or 'gl_context'}").GLContext
        with _collection_paused(), _kept_current():
            context = make(width, height)
    except (ImportError, AttributeError, OSError, ArgumentError) as error:  # what PyOpenGL raises without the library
        if not name:
            raise
        raise DependencyNotInstalled(
            f"MuJoCo scenes cannot be drawn: OpenGL ({name}) is not usable here ({error}). On Debian and Ubuntu run "
            f"`apt-get install {_PACKAGES[name]}`, or set MUJOCO_GL to the other of {' and '.join(_PACKAGES)}."
        ) from error
    _started_in = os.getpid()
    return context


@contextmanager
def as_current(context: Any) -> Iterator[None]:
    """Make an OpenGL context of MuJoCo's current. Garbage collection is paused meanwhile; see `_collection_paused`."""
    with _collection_paused(), _kept_current():
        if hasattr(context, "as_current"):  # since MuJoCo 4, whose contexts remember which of them was current
            with context.as_current():
                yield
        else:
            context.make_current()
            yield


def free_context(context: Any) -> None:
    """Free an OpenGL context. It cannot be used afterwards."""
    with _collection_paused(), _kept_current():
        context.free()


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
    """Restore the current context afterwards, or that there was none: a context is current in one thread at a time."""
    restore = {"egl": _egl_restorer, "osmesa": _osmesa_restorer}.get(backend(), _window_restorer)()
    try:
        yield
    finally:
        restore()


def _egl_restorer() -> Callable[[], object]:
    from OpenGL import EGL

    EGL.eglBindAPI(EGL.EGL_OPENGL_API)  # else the current context of another API would be returned
    context = EGL.eglGetCurrentContext()
    surfaces = EGL.eglGetCurrentSurface(EGL.EGL_DRAW), EGL.eglGetCurrentSurface(EGL.EGL_READ)
    display = EGL.eglGetCurrentDisplay()

    def restore() -> None:
        EGL.eglBindAPI(EGL.EGL_OPENGL_API)
        if not context:
            _release_egl()
            return
        try:
            EGL.eglMakeCurrent(display, *surfaces, context)
        except EGL.EGLError as error:
            if error.err != EGL.EGL_BAD_CONTEXT:
                raise
            _release_egl()  # its owner had destroyed it while it was current, as the viewer of a closed environment may

    return restore


def _release_egl() -> None:
    from OpenGL import EGL

    if display := EGL.eglGetCurrentDisplay():
        EGL.eglMakeCurrent(display, EGL.EGL_NO_SURFACE, EGL.EGL_NO_SURFACE, EGL.EGL_NO_CONTEXT)


def _osmesa_restorer() -> Callable[[], object]:
    from OpenGL import GL, osmesa

    context = osmesa.OSMesaGetCurrentContext()
    if not context:
        return lambda: osmesa.OSMesaMakeCurrent(None, None, GL.GL_FLOAT, 0, 0)
    width, height, _, buffer = osmesa.OSMesaGetColorBuffer(context)
    number_type = osmesa.OSMesaGetIntegerv(osmesa.OSMESA_TYPE)
    return lambda: osmesa.OSMesaMakeCurrent(context, buffer, number_type, width, height)


def _window_restorer() -> Callable[[], object]:
    """Not on macOS, where MuJoCo's contexts are not GLFW's: MuJoCo before 4 restores none there."""
    if sys.platform == "darwin":
        return lambda: None
    import glfw

    glfw.init()
    context = glfw.get_current_context()
    return lambda: glfw.make_context_current(context)
