"""What a dataset has, in a few lines on the terminal."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.check.dataset_folder import DatasetFolder
from vlmrm_gym.check.labels import read_dataset, read_settings


def print_summary(folder: DatasetFolder) -> None:
    """Print the numbers of episodes and steps, the fraction of successes, the ranges of rewards, and how to load it."""
    rollouts, settings = read_dataset(folder.path), read_settings(folder.path)
    lengths = [len(one) for one in rollouts]
    print(f"{len(rollouts):,} episodes of {min(lengths):,} to {max(lengths):,} steps, {sum(lengths):,} in all")
    success = [one.success for one in rollouts if one.success is not None]
    if len(success) == len(rollouts):
        print(f"success: {np.concatenate(success).mean():.1%} of the steps")
    rewards: dict[str, NDArray[np.floating[Any]]] = {
        "task reward": np.concatenate([one.task_rewards for one in rollouts])
    }
    for i, prompt in enumerate(settings["prompt"]):
        own = [one.prompt_rewards[:, i] for one in rollouts if one.prompt_rewards is not None]
        rewards[f'"{prompt}"'] = np.concatenate(own)
    for name, values in rewards.items():
        print(f"{name}: from {values.min():.3f} to {values.max():.3f}, mean {values.mean():.3f}")
    print(f"Written: {folder.data}, {folder.labels}{f', {folder.videos}' if settings['frames'] else ''}")
    print(f"Load it: minari.MinariDataset({str(folder.data)!r})")
    if folder.dataset_id is not None:
        print(f"or with MINARI_DATASETS_PATH={folder.path.parent}: minari.load_dataset({folder.dataset_id!r})")
