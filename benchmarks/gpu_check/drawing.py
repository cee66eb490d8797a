"""Which driver draws, on which device, and whether its frames are those of software."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_check.report import Row, Skipped
from benchmarks.gpu_check.settings import ROOT, Settings

SOFTWARE = ("llvmpipe", "softpipe", "swrast")
MAX_MEAN_DIFFERENCE = 1.0
"""Grey levels of 255, over all pixels and channels."""
MAX_OUTLIERS = 0.02
"""Share of the pixels that differ by more than 32 grey levels: edges, where drivers round differently."""
MAX_REWARD_DIFFERENCE = 0.02
VENDOR_FOLDERS = ("/usr/share/glvnd/egl_vendor.d", "/etc/glvnd/egl_vendor.d")


def compare_renderers(settings: Settings) -> Iterator[Row]:
    """The default renderer's name, frames and speed beside those of software; then every EGL device."""
    count = 4 if settings.quick else 64
    with tempfile.TemporaryDirectory() as folder:
        default = draw(Path(folder) / "default.npz", count, {})
        yield Row("OpenGL", f"{default['vendor']}, version {default['version']}")
        by_gpu = not any(name in default["renderer"].lower() for name in SOFTWARE)
        hint = (
            "" if by_gpu else ": the CPU draws. In a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics"
        )
        yield Row("renderer", default["renderer"] + hint, "" if not settings.on_gpu else "ok" if by_gpu else "FAIL")
        yield from _egl_devices(Path(folder), 2 if settings.quick else 16)
        software = draw_in_software(Path(folder) / "software.npz", count)
        yield Row("compared with", software["renderer"])
        for quality in ("fast", "faithful"):
            yield Row(
                f"{quality}, frames/s one by one, with physics",
                f"{default[f'{quality}_rate']:.0f}, software {software[f'{quality}_rate']:.0f}",
            )
            yield from _compare_frames(quality, default[quality], software[quality])


def draw(file: Path, count: int, environment: Mapping[str, str], *, egl_device: int | None = None) -> dict[str, Any]:
    """Draw in a new process, since a process has one OpenGL driver.

    Raises:
        RuntimeError: It failed; the message is the last line that it printed.
    """
    arguments = json.dumps({"file": str(file), "count": count, "egl_device": egl_device})
    command = [sys.executable, "-m", "benchmarks.gpu_check.draw", arguments]
    inherited = {name: value for name, value in os.environ.items() if name != "PYOPENGL_PLATFORM"}
    done = subprocess.run(
        command, cwd=ROOT, env={**inherited, **environment}, capture_output=True, text=True, timeout=120
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise RuntimeError(lines[-1][:300])
    with np.load(file) as arrays:
        return {name: array if array.ndim else array.item() for name, array in arrays.items()}


def draw_in_software(file: Path, count: int) -> dict[str, Any]:
    """Draw with Mesa's EGL, or else with OSMesa.

    Raises:
        Skipped: Neither is installed.
    """
    failures = []
    vendors = [path for folder in VENDOR_FOLDERS for path in sorted(Path(folder).glob("*mesa*.json"))]
    mesa = {"MUJOCO_GL": "egl", "LIBGL_ALWAYS_SOFTWARE": "1", "MUJOCO_EGL_DEVICE_ID": ""}
    for environment in (
        *({**mesa, "__EGL_VENDOR_LIBRARY_FILENAMES": str(path)} for path in vendors),
        {"MUJOCO_GL": "osmesa"},
    ):
        try:
            drawn = draw(file, count, {name: value for name, value in environment.items() if value})
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            failures.append(f"{environment['MUJOCO_GL']}: {error}")
            continue
        if any(name in drawn["renderer"].lower() for name in SOFTWARE):
            return drawn
        failures.append(f"{environment['MUJOCO_GL']}: drawn by {drawn['renderer']}")
    raise Skipped(f"no software renderer to compare with (apt-get install libosmesa6): {'; '.join(failures)}")


def _compare_frames(quality: str, frames: np.ndarray, expected: np.ndarray) -> Iterator[Row]:
    from vlmrm_gym import CLIPReward

    apart = np.abs(frames.astype(np.int16) - expected)
    outliers = float((apart.max(-1) > 32).mean())
    yield Row.holds(f"{quality}, frames show something", f"mean {frames.mean():.0f}", frames.std() > 10)
    yield Row.at_most(f"{quality}, mean difference in grey levels", float(apart.mean()), MAX_MEAN_DIFFERENCE)
    yield Row.at_most(f"{quality}, share of pixels that differ by more than 32", outliers, MAX_OUTLIERS)
    score = CLIPReward(prompt="a humanoid robot standing up", device="cpu")
    rewards = float(np.abs(score(frames) - score(expected)).max())
    yield Row.at_most(f"{quality}, largest difference of rewards", rewards, MAX_REWARD_DIFFERENCE)


def _egl_devices(folder: Path, most: int) -> Iterator[Row]:
    """What draws on each EGL device, until there is no further one."""
    for number in range(most):
        try:
            drawn = draw(folder / "device.npz", 0, {"MUJOCO_GL": "egl"}, egl_device=number)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            if "not the number of an EGL device" in str(error):
                return
            yield Row(f"EGL device {number}", str(error))
        else:
            yield Row(f"EGL device {number}", drawn["renderer"])
