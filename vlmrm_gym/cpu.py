"""CPU cores available to this process, and what they can do."""

import os


def usable_cores() -> int:
    """Number of CPU cores that this process may use: its affinity, where the platform has one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_bfloat16() -> bool:
    """Whether the CPU multiplies in bfloat16 (AVX-512 BF16 or AMX). False where PyTorch cannot tell."""
    import torch

    capabilities = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
