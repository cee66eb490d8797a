"""`benchmarks/fps.py`, with models from small to large."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.report import Row, Skipped, Verdict
from benchmarks.gpu_check.settings import ROOT, Settings

BIGG_DISK, BIGG_MEMORY, BIGG_GPU_MEMORY = 15e9, 40e9, 12e9
"""Bytes that ViT-bigG-14 needs: a file of 10 GB, which is read twice over into memory, and 5 GB of fp16 weights."""


def tiny(settings: Settings) -> Iterator[Row]:
    """The bundled model."""
    return fps(settings, model="tiny", num_envs=64, num_workers=4, seconds=3)


def vit_b_32(settings: Settings) -> Iterator[Row]:
    """A model that a GPU encodes about as fast as it draws."""
    return fps(settings, model="ViT-B-32", num_envs=64, num_workers=4, seconds=3)


def vit_bigg_14(settings: Settings) -> Iterator[Row]:
    """The paper's largest model; without worker processes, since each would load 10 GB."""
    import torch

    if settings.on_gpu:
        free = shutil.disk_usage(tempfile.gettempdir()).free
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
        gpu = torch.cuda.mem_get_info(0)[0]
        for what, there, needed in (
            (f"{tempfile.gettempdir()} has", free, BIGG_DISK),
            ("memory has", memory, BIGG_MEMORY),
            ("the GPU has", gpu, BIGG_GPU_MEMORY),
        ):
            if there < needed:
                raise Skipped(f"{what} {there / 1e9:.0f} GB free, {needed / 1e9:.0f} GB are needed")
    yield from fps(settings, model="ViT-bigG-14", num_envs=16, num_workers=0, seconds=3)


def fps(settings: Settings, *, model: str, num_envs: int, num_workers: int, seconds: float) -> Iterator[Row]:
    """Run fps.py; its rows, with its own targets."""
    options: dict[str, Any] = {"env": "VLMRM/Humanoid-stand-v0", "device": settings.device, "seconds": seconds}
    options |= {"model": model, "num-envs": num_envs, "num-workers": num_workers}
    if settings.quick:
        options |= {"model": "tiny", "env": "VLMRM/CartPole-v1", "num-envs": 1, "num-workers": 1, "seconds": 0.1}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        command = [
            sys.executable,
            "benchmarks/fps.py",
            *arguments,
            "--no-reference",
            "--views",
            "off",
            "--json",
            str(file),
        ]
        subprocess.run(command, cwd=ROOT, check=True)  # what it prints goes to the check's log
        figures = json.loads(file.read_text())
    yield Row("command", " ".join(["python", *command[1:-2]]))
    verdicts: dict[bool | None, Verdict] = {None: "", True: "ok", False: "below target"}
    for row in figures["rows"]:
        value = f"{row['value']:,.2f}" if row["section"] == "ratios" else f"{row['value']:,.0f}"
        yield Row(f"{row['section']}: {row['what']}", value, verdicts[row["met"]])
