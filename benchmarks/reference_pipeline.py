"""Reimplementation of the published VLM-RM pipeline, for comparison: it sends and stores frames, not states.

Written from its description (arXiv 2310.12921) for `benchmarks/fps.py`. One process per environment renders a 480x480
frame with shadows and antialiasing after every step and sends it through a pipe. The frames of a whole rollout are
stored, then resized to the model's input and scored in batches of equal size. Scoring uses this package's code, so only
rendering and frame transport differ.
"""

import os
import time
from dataclasses import dataclass
from typing import Any

# Gymnasium's renderer tries GLFW first, which needs a display. MuJoCo reads this variable at import.
os.environ.setdefault("MUJOCO_GL", "egl")

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv

import vlmrm_gym  # CLIPReward is looked up lazily: the environments' processes need no torch
from vlmrm_gym.states.cameras import PAPER_CAMERA
from vlmrm_gym.tasks.humanoid import Humanoid

SIZE = 480
"""Height and width of the frames, in pixels: Gymnasium's default and the paper's."""


class FrameInInfo(gym.Wrapper[Any, Any, Any, Any]):
    """Adds the frame after each step as `info["frame"]`, uint8 (480, 480, 3)."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, then render."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, {**info, "frame": self.env.render()}


def make_env() -> FrameInInfo:
    """The textured humanoid with the paper's camera and faithful rendering; it never terminates."""
    env = Humanoid(render_mode="rgb_array", textured=True)
    # Read when the first frame is drawn; of the values, Gymnasium copies arrays into the camera and assigns the others.
    env.mujoco_renderer.default_cam_config = {**PAPER_CAMERA, "lookat": np.array(PAPER_CAMERA["lookat"])}
    return FrameInInfo(env)


@dataclass(frozen=True, kw_only=True, eq=False)
class RolloutTimes:
    """Measurements of one rollout of T steps in N environments."""

    seconds_physics_and_rendering: float
    """From the reset until the last frame arrives."""
    seconds_scoring: float
    """From the first batch to the last reward."""
    pending_bytes: int
    """Bytes of the stored frames."""


class ReferencePipeline:
    """Rollouts of random actions in N processes, scored at their end.

    The constructor starts the processes, renders a frame in each and scores one batch, so rollouts do not include
    creating OpenGL contexts or the model's first run.

    Args:
        num_envs: N, the number of environments, each in its own process.
        episode_length: T, the steps of a rollout.
        prompt: The goal prompt.
        model: As in `vlmrm_gym.CLIPReward`.
        device: As in `vlmrm_gym.CLIPReward`.
        batch_size: Frames scored at once; it divides T * N, as in the published code.
        seed: Seed of environments and actions.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        episode_length: int,
        prompt: str,
        model: str,
        device: str,
        batch_size: int,
        seed: int = 0,
    ) -> None:
        self.num_envs, self.episode_length, self.batch_size = num_envs, episode_length, batch_size
        self._reward = vlmrm_gym.CLIPReward(model, prompt=prompt, device=device, batch_size=batch_size)
        self._reward(np.zeros((batch_size, SIZE, SIZE, 3), dtype=np.uint8))
        # Spawned: a process that has used CUDA or OpenGL cannot be forked.
        self._envs = AsyncVectorEnv([make_env for _ in range(num_envs)], context="spawn")
        self._envs.action_space.seed(seed)
        self._envs.reset(seed=seed)
        self._envs.call("render")

    def rollout(self) -> RolloutTimes:
        """Reset, take T steps, then score their frames."""
        start = time.perf_counter()
        frames = np.empty((self.episode_length, self.num_envs, SIZE, SIZE, 3), dtype=np.uint8)
        self._envs.reset()
        for step in range(self.episode_length):
            infos = self._envs.step(self._envs.action_space.sample())[4]
            frames[step] = infos["frame"]
        drawn = time.perf_counter()
        flat = frames.reshape(-1, SIZE, SIZE, 3)
        for start_of_batch in range(0, len(flat), self.batch_size):
            self._reward(flat[start_of_batch : start_of_batch + self.batch_size])
        return RolloutTimes(
            seconds_physics_and_rendering=drawn - start,
            seconds_scoring=time.perf_counter() - drawn,
            pending_bytes=frames.nbytes,
        )

    def close(self) -> None:
        """End the processes."""
        self._envs.close()
