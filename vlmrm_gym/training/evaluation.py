"""What a policy is worth: episodes that nobody learns from, and videos."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from tqdm import tqdm

from vlmrm_gym.sb3 import VLMVecEnv
from vlmrm_gym.training.config import Config
from vlmrm_gym.training.environments import make_env, make_envs
from vlmrm_gym.videos import save_video

AT_ONCE = 16
"""How many episodes are played at the same time."""


@dataclass(frozen=True)
class Evaluation:
    """Episodes of a deterministic policy; float64 (episodes,) each."""

    scored_returns: NDArray[np.float64]
    """Sums of what the agent is told to maximise."""
    task_returns: NDArray[np.float64]
    """Sums of the environment's own rewards."""
    success_shares: NDArray[np.float64]
    """The shares of the steps that succeeded."""
    successes: NDArray[np.float64]
    """1 where enough of them did."""


def evaluate(config: Config, model: BaseAlgorithm, episodes: int, *, seed: int) -> Evaluation:
    """Play episodes, from initial states that no training of the usual seeds has seen.

    Args:
        config: `suited`.
        model: Its policy acts deterministically.
        episodes: How many.
        seed: Of the first one; the others' count on.

    Raises:
        ValueError, TypeError, FileNotFoundError, RuntimeError: As `VLMRewardVectorEnv`.
    """
    played: list[dict[str, float]] = []
    at_once = min(episodes, AT_ONCE)
    with tqdm(total=math.ceil(episodes / at_once) * at_once, unit="episode", leave=False) as bar:
        envs = VLMVecEnv(make_envs(config, at_once), success_share=config.task.success_share)
        try:
            while len(played) < episodes:
                envs.seed(seed + len(played))
                observations, own = envs.reset(), []
                while len(own) < envs.num_envs:
                    actions, _ = model.predict(observations, deterministic=True)  # pyright: ignore[reportArgumentType]
                    observations, _, _, infos = envs.step(actions)
                    own += [info["episode"] for info in infos if "episode" in info]
                played += own
                bar.update(len(own))
        finally:
            envs.close()
    played = played[:episodes]
    shares = np.array([episode["success"] for episode in played])
    return Evaluation(
        scored_returns=np.array([episode["r"] for episode in played]),
        task_returns=np.array([episode["task_return"] for episode in played]),
        success_shares=shares,
        successes=(shares >= config.task.success_share).astype(np.float64),
    )


def film(config: Config, model: BaseAlgorithm, path: Path, *, seed: int) -> None:
    """Write a video of one episode of the deterministic policy, with the reward drawn in.

    Raises:
        OSError: It could not be written.
    """
    env = make_env(config)
    try:
        frames, rewards, done = [], [], False
        observation, _ = env.reset(seed=seed)
        while not done:
            action, _ = model.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(action)
            frames.append(env.render())
            rewards.append(float(reward))
            done = terminated or truncated
    finally:
        env.close()
    title = (config.reward.target_prompts or [""])[0] if config.reward.name == "clip" else config.task.id
    save_video(path, frames, rewards, title=title)
