"""Train a humanoid on the grade of its state: what the physics allows when the reward is right.

    python benchmarks/grade_training.py --task one-leg

No frame is drawn and no model is asked: what fails with this reward, too, does not fail for the reward from the prompt.
Stable-Baselines3's SAC with the settings of examples/sac_continuous.py, one thread. Success is decided in 100 episodes,
over 100 steps as for the tasks, and over the 50 steps before steps 300 and 1,000, which are never trained for.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import tyro
from gymnasium.wrappers import TimeLimit
from stable_baselines3 import SAC
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from vlmrm_gym.tasks import REGISTERED
from vlmrm_gym.tasks.humanoid import Humanoid

EPISODE_LENGTH = 100
WINDOWS = {100: 100, 300: 50, 1_000: 50}
"""The steps after which success is decided, and the number of steps before them that count."""


@dataclass
class Args:
    task: str = "one-leg"
    """the humanoid task"""
    seed: int = 1
    """of the training"""
    total_timesteps: int = 120_000
    """steps of the training"""
    eval_episodes: int = 100
    """episodes in which success is decided"""


class GradeReward(gym.Wrapper[Any, Any, Any, Any]):
    """Rewards the grade of the state after the action, from 0 to 1."""

    def __init__(self, env: Humanoid) -> None:
        super().__init__(env)
        self._data, self._states = env.data, REGISTERED[f"VLMRM/Humanoid-{env.task}-v0"].make_states()

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step, and grade the state."""
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(self._states.grade(self._data.qpos[None])[0]), terminated, truncated, info


def make_env(task: str, episode_length: int) -> gym.Env[Any, Any]:
    """A humanoid that is rewarded by the grade of its state."""
    return TimeLimit(GradeReward(Humanoid(task=task, textured=False)), episode_length)


def main(args: Args) -> None:
    torch.set_num_threads(1)
    envs = VecNormalize(DummyVecEnv([partial(make_env, args.task, EPISODE_LENGTH)] * 8), norm_reward=False)
    model = SAC(
        "MlpPolicy",
        envs,
        learning_rate=6e-4,
        learning_starts=4_800,
        batch_size=256,
        gamma=0.95,
        train_freq=1,
        gradient_steps=4,
        policy_kwargs={"net_arch": [256, 256]},
        seed=args.seed,
        device="cpu",
    )
    model.learn(args.total_timesteps, progress_bar=True)
    evaluated = DummyVecEnv([partial(make_env, args.task, max(WINDOWS))] * args.eval_episodes)
    evaluated.seed(10_000)
    observations, succeeded, grades = evaluated.reset(), [], []
    for _ in range(max(WINDOWS)):
        actions, _ = model.predict(envs.normalize_obs(observations), deterministic=True)  # pyright: ignore[reportArgumentType]
        observations, rewards, _, infos = evaluated.step(actions)
        succeeded.append([info["success"] for info in infos])
        grades.append(rewards)
    print(f"Mean grade in {EPISODE_LENGTH} steps: {np.mean(grades[:EPISODE_LENGTH]):.2f}")
    for step, window in WINDOWS.items():
        share = (np.mean(succeeded[step - window : step], axis=0) >= 0.5).mean()
        print(f"Success in the {window} steps before step {step:,}: {share:.0%} of {args.eval_episodes} episodes")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
