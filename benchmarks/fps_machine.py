"""What `benchmarks/fps.py` says of the machine, and of its bfloat16 besides the speed."""

import platform
import re
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
from fps_stages import Args, record
from stubs import DrawOnly

import vlmrm_gym
from vlmrm_gym._util.system import read_commit, usable_cores
from vlmrm_gym.states import States


def has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 by itself."""
    import torch

    capability = torch.cpu.get_capabilities()
    return any(capability.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def difference(first: Args, second: Args) -> tuple[float, float, float]:
    """Rewards of an episode's states in two precisions: their largest difference, range in the second, correlation."""
    score = first.reward(first.model, prompt=first.task.prompt, device=first.device)
    other = second.reward(second.model, prompt=second.task.prompt, device=second.device)
    renderer, states = record(first, partial(DrawOnly, score.render_size, score.batch_size))
    frames = np.concatenate([States(states[i : i + 64]).draw(renderer) for i in range(0, len(states), 64)])
    renderer.close()
    frames = frames.reshape(-1, *frames.shape[-3:])  # of all views
    rewards = [np.concatenate([one(frames[i : i + 64]) for i in range(0, len(frames), 64)]) for one in (score, other)]
    return (
        float(np.abs(rewards[0] - rewards[1]).max()),
        float(np.ptp(rewards[1])),
        float(np.corrcoef(rewards[0], rewards[1])[0, 1]),
    )


def machine(args: Args) -> dict[str, str]:
    import torch

    from vlmrm_gym.states.opengl import as_current, free_context, make_context

    cpuinfo = Path("/proc/cpuinfo")
    cpu = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    about = {"CPU": f"{cpu[1] if cpu else platform.processor()}, {usable_cores()} cores"}
    if torch.cuda.is_available():
        about["GPU"] = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    if args.is_humanoid:
        context = make_context(16, 16)
        with as_current(context):
            from OpenGL import GL

            about["OpenGL"] = bytes(GL.glGetString(GL.GL_RENDERER) or b"").decode()
        free_context(context)
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "mujoco", "gymnasium"))
    about["versions"] = f"Python {platform.python_version()}, {packages}, vlmrm_gym {vlmrm_gym.__version__}"
    about["commit"] = read_commit() or "unknown"
    return about
