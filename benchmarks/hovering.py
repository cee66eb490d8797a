"""Does an agent finish a task, or hover where a saturated progress model pays it? Raw, progress and success compared.

    python benchmarks/hovering.py --seeds 1 2 3

A hand reaches for a ball in the plane; grasping it ends the episode. The reward model says how far the task is: it
rises to 0.9 within reach of the ball, and is 1 only at the grasp. SAC of Stable-Baselines3 is paid by the model itself,
by progress, and by success. Success is that of 50 episodes of the deterministic agent.
"""

import time
from typing import Any

import gymnasium as gym
import numpy as np
import tyro
from stable_baselines3 import SAC

import vlmrm_gym
from vlmrm_gym.sb3 import DeferredReplayBuffer, VLMVecEnv

NEAR, GRASP, SPEED, STEPS = 0.25, 0.05, 0.12, 50


class Reach(gym.Env[Any, Any]):
    """A hand and a ball in a square. A frame has their coordinates as colours."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"
    observation_space = gym.spaces.Box(-2, 2, (4,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Place hand and ball."""
        super().reset(seed=seed)
        self.hand, self.ball = self.np_random.uniform(-1, 1, (2, 2))
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move the hand."""
        self.hand = np.clip(self.hand + SPEED * np.clip(action, -1, 1), -1, 1)
        self.steps += 1
        grasped = bool(np.linalg.norm(self.hand - self.ball) < GRASP)
        return self._observe(), 0.0, grasped, self.steps >= STEPS, {"success": grasped}

    def _observe(self) -> Any:
        return np.concatenate([self.hand, self.ball - self.hand]).astype(np.float32)

    def render(self) -> Any:
        """Draw both points, a row each."""
        frame = np.zeros((2, 2, 3), dtype=np.uint8)
        for row, point in enumerate((self.hand, self.ball)):
            for column, value in enumerate(point):
                number = round((value + 1) * 2**22)
                frame[row, column] = number % 256, number // 256 % 256, number // 65536
        return frame


class ProgressModel(vlmrm_gym.RewardModel):
    """How far the task is: 0.9 within reach of the ball, 1 at the grasp, less with the distance before."""

    batch_size = 1024

    def encode(self, frames: Any) -> Any:
        """See `RewardModel`."""
        numbers = frames.astype(np.int64) @ (1, 256, 65536) / 2**22 - 1
        distance = np.linalg.norm(numbers[:, 0] - numbers[:, 1], axis=1)
        score = 0.9 * np.clip(1 - (distance - NEAR), 0, 1)
        return np.where(distance < GRASP, 1.0, score).astype(np.float32)[:, None]


REWARDS = {
    "raw": lambda: ProgressModel(),
    "Progress": lambda: 10 * vlmrm_gym.Progress(ProgressModel()),
    "Progress(best=True)": lambda: 10 * vlmrm_gym.Progress(ProgressModel(), best=True),
    "Success": lambda: 10 * vlmrm_gym.Success(ProgressModel(), threshold=0.95, hold=1),
    "Progress + Success": lambda: (
        10 * (vlmrm_gym.Progress(ProgressModel()) + vlmrm_gym.Success(ProgressModel(), threshold=0.95, hold=1))
    ),
}
"""Where progress or success is paid, with a weight: SAC's entropy would outweigh 1 in all."""


def train(name: str, seed: int, steps: int) -> dict[str, float]:
    """Train one agent: success and length of 50 episodes, and the mean score of their last states."""
    envs = VLMVecEnv(vlmrm_gym.VLMRewardVectorEnv([Reach] * 4, reward=REWARDS[name](), autoreset_mode="SameStep"))
    agent = SAC(
        "MlpPolicy",
        envs,
        seed=seed,
        learning_starts=1_000,
        learning_rate=1e-3,
        gradient_steps=2,
        gamma=0.95,
        policy_kwargs={"net_arch": [64, 64]},
        replay_buffer_class=DeferredReplayBuffer,
        device="cpu",
    )
    agent.learn(steps)
    envs.close()
    lengths, successes, near = [], [], []
    env = Reach()
    for episode in range(50):
        observation, _ = env.reset(seed=10_000 + episode)
        ended, close, info = False, 0, {}
        while not ended:
            action, _ = agent.predict(observation, deterministic=True)
            observation, _, terminated, truncated, info = env.step(action)
            close += np.linalg.norm(env.hand - env.ball) < NEAR
            ended = terminated or truncated
        lengths.append(env.steps)
        successes.append(bool(info["success"]))
        near.append(close)
    figures = {"success": successes, "length": lengths, "steps within reach": near}
    return {what: float(np.mean(values)) for what, values in figures.items()}


def main(seeds: tuple[int, ...] = (1, 2, 3), steps: int = 16_000) -> None:
    """Train with every reward and seed."""
    for name in REWARDS:
        for seed in seeds:
            begun = time.perf_counter()
            figures = train(name, seed, steps)
            text = ", ".join(f"{what} {value:.2f}" for what, value in figures.items())
            print(f"{name}, seed {seed}: {text}; {(time.perf_counter() - begun) / 60:.1f} minutes", flush=True)


if __name__ == "__main__":
    tyro.cli(main)
