"""Hardware and versions."""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.gpu_check.report import Row
from benchmarks.gpu_check.settings import ROOT, Settings

PACKAGES = ("torch", "triton", "torchvision", "open_clip_torch", "mujoco", "gymnasium", "stable_baselines3", "ray")


def describe(settings: Settings) -> Iterator[Row]:
    """The machine; fails where torch cannot use the GPU that the driver reports."""
    import torch

    cpuinfo = Path("/proc/cpuinfo")
    cpu = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Row("system", f"{platform.platform()}, {cpu[1] if cpu else platform.processor()}, {cores} cores usable")
    if hasattr(os, "sysconf"):
        yield Row("memory", f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB")
    if settings.on_gpu:
        yield Row.holds("torch.cuda.is_available()", torch.cuda.is_available(), torch.cuda.is_available())
        for number in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(number)
            capability = f"compute capability {about.major}.{about.minor}"
            yield Row(f"GPU {number}", f"{about.name}, {about.total_memory / 1e9:.0f} GB, {capability}")
        yield Row("bf16", str(torch.cuda.is_bf16_supported()))
        yield Row("CUDA of torch, cuDNN", f"{torch.version.cuda}, {torch.backends.cudnn.version()}")
        yield Row("driver", _driver())
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    yield Row("C compiler (torch.compile needs one)", compiler or "none")
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "MUJOCO_GL", "MUJOCO_EGL_DEVICE_ID"):
        yield Row(name, os.environ.get(name, "not set"))
    yield Row("Python", platform.python_version())
    for package in PACKAGES:
        try:
            yield Row(package, version(package))
        except PackageNotFoundError:
            yield Row(package, "not installed")
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        yield Row("commit", subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip())
    except (OSError, subprocess.CalledProcessError):
        yield Row("commit", "unknown")


def _driver() -> str:
    """The driver's version and the MIG mode of each GPU, as nvidia-smi says."""
    command = ["nvidia-smi", "--query-gpu=index,driver_version,mig.mode.current", "--format=csv,noheader"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown: {error}"
    return "; ".join(f"GPU {line}" for line in lines)
