"""Load, evaluate and record policies."""

from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from tqdm import tqdm

from vlmrm_gym import videos
from vlmrm_gym.episodes import Episodes, play_episodes
from vlmrm_gym.sb3 import VLMVecEnv
from vlmrm_gym.training.algorithms import accepted_keys, algorithm_class, algorithm_options
from vlmrm_gym.training.config import Config
from vlmrm_gym.training.data_files import load_weights
from vlmrm_gym.training.environments import make_envs, make_one

NUM_EVAL_ENVS = 16
"""Number of parallel environments in an evaluation."""


def load_policy(config: Config, path: Path) -> BaseAlgorithm:
    """Build the algorithm of a configuration and load the weights of a file into it.

    Args:
        config: With defaults filled in.
        path: A file written by `model.save`. Only its tensors are read.

    Raises:
        RunError: The file is for another algorithm or network, contains objects, or is damaged.
    """
    assert config.rl.algorithm is not None
    assert config.rl.policy_name is not None
    algorithm, policy_name = config.rl.algorithm, config.rl.policy_name
    config = replace(config, reward=replace(config.reward, name="ground_truth"))  # avoids loading a reward model
    with closing(VLMVecEnv(make_envs(config, config.num_envs), success_threshold=config.success_threshold)) as envs:
        options = algorithm_options(config, envs)
        if "buffer_size" in accepted_keys(algorithm):
            options["buffer_size"] = 1
        model = algorithm_class(algorithm)(policy_name, envs, **options)
    load_weights(model, path)
    return model


def evaluate(config: Config, model: BaseAlgorithm, episodes: int, *, seed: int) -> Episodes:
    """Play episodes with the deterministic policy.

    Args:
        config: With defaults filled in.
        model: The algorithm with the policy.
        episodes: Number of episodes.
        seed: Seed of the first episode; later ones count up. Choose it far from training seeds, for new initial states.

    Raises:
        ValueError, TypeError, FileNotFoundError, RuntimeError: As `VLMRewardVectorEnv`.
    """
    num_envs = min(episodes, NUM_EVAL_ENVS)
    starts = range(0, episodes, num_envs)
    with (
        closing(make_envs(config, num_envs)) as envs,
        tqdm(total=len(starts) * num_envs, unit="episode", leave=False) as progress,
    ):
        batches = []
        for start in starts:
            batches.append(play_episodes(envs, lambda seen: _act(model, seen), seed=seed + start))
            progress.update(num_envs)
    names = (field.name for field in fields(Episodes))
    return Episodes(**{name: np.concatenate([getattr(one, name) for one in batches])[:episodes] for name in names})


def record_video(config: Config, model: BaseAlgorithm, path: Path, *, seed: int) -> None:
    """Write a video of one episode of the deterministic policy, with the reward drawn in.

    Raises:
        OSError: The file could not be written.
    """
    title = (config.reward.prompt or [""])[0] if config.reward.name == "clip" else config.id
    with closing(make_one(config)) as env:
        videos.record_video(env, lambda seen: _act(model, seen), path, seed=seed, title=title)


def _act(model: BaseAlgorithm, observation: Any) -> Any:
    return model.predict(observation, deterministic=True)[0]
