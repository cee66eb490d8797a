"""Humanoid frames to score and to compare, the same in every process."""

from typing import Any, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

import vlmrm_gym  # noqa: F401 (registers the IDs)

ENV_ID = "VLMRM/Humanoid-stand-v0"


def humanoid_frames(
    count: int, quality: Literal["fast", "faithful"] = "fast", egl_device: int | None = None
) -> NDArray[np.uint8]:
    """What a falling humanoid looks like, uint8 (count, H, W, 3): frame i after i random actions.

    Args:
        count: Up to 90, less than an episode.
        quality: See `MuJoCoRenderer`.
        egl_device: The EGL device to draw on; None: the default.
    """
    from vlmrm_gym.rendering.opengl import make_context

    if egl_device is not None:
        make_context(8, 8, egl_device)  # chooses the device for the whole process
    # A reward of one's own: the model is not needed to draw.
    envs: Any = gym.make_vec(ENV_ID, num_envs=1, reward=no_reward, quality=quality)
    envs.action_space.seed(0)
    envs.reset(seed=0)
    frames = []
    for _ in range(count):
        frames.append(envs.render()[0].copy())
        envs.step(envs.action_space.sample())
    envs.close()
    return np.stack(frames)


def no_reward(frames: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Zeros, float32 (B,), for frames (B, H, W, 3)."""
    return np.zeros(len(frames), dtype=np.float32)
