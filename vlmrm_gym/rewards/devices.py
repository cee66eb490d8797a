"""The devices that score: which there are, and which a parameter names. Imports torch."""

import vlmrm_gym.rewards.triton  # noqa: F401 (before anything that imports Triton)

# isort: split
import os

import torch

from vlmrm_gym.validation import short_repr


def resolve_device(device: str, parameter: str = "device") -> torch.device:
    """The device that a parameter names.

    Raises:
        ValueError: This machine has no such device.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    available = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        available.append("mps")
    try:
        target = torch.device(device)
        if target.type != "cuda":
            target = torch.device(target.type)
        elif target.index is None and torch.cuda.is_available():
            # The current device of a process that scores in workers only: asking CUDA would take hundreds of MB of it.
            target = torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_initialized() else 0)
    except (RuntimeError, TypeError):
        target = None
    if target is None or str(target) not in available:
        raise ValueError(
            f'`{parameter}` must be "auto" or a device of this machine ({", ".join(available)}). '
            f"Received {short_repr(device)}."
        )
    return target


def _after_fork() -> None:
    """A fork has none of the threads of torch's pool."""
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
