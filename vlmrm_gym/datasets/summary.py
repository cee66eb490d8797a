"""What a dataset has, in a few lines on the terminal."""

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.datasets.folder import DatasetFolder
from vlmrm_gym.datasets.labels import iterate_dataset, read_settings
from vlmrm_gym.terminal import say


def print_summary(folder: DatasetFolder) -> None:
    """Print the numbers of episodes and steps, the fraction of successes, the ranges of rewards, and how to load it."""
    settings, lengths = read_settings(folder.path), []
    columns: defaultdict[str, list[NDArray[Any]]] = defaultdict(list)
    for rollout in iterate_dataset(folder.path):  # states can be large
        lengths.append(len(rollout))
        columns["task reward"].append(rollout.task_rewards)
        if rollout.prompt_rewards is not None:
            for prompt, rewards in zip(settings["columns"], rollout.prompt_rewards.T, strict=True):
                columns[f'"{prompt}"'].append(rewards)
        if rollout.success is not None:
            columns["success"].append(rollout.success)
    say(f"{len(lengths):,} episodes of {min(lengths):,} to {max(lengths):,} steps, {sum(lengths):,} in all")
    success = columns.pop("success", [])
    if len(success) == len(lengths):
        say(f"success: {np.concatenate(success).mean():.1%} of the steps")
    for name, parts in columns.items():
        values = np.concatenate(parts)
        say(f"{name}: from {values.min():.3f} to {values.max():.3f}, mean {values.mean():.3f}")
    say(f"Written: {folder.data}, {folder.labels}{f', {folder.videos}' if settings['frames'] else ''}")
    say(f"Load it: minari.MinariDataset({str(folder.data)!r})")
    if folder.dataset_id is not None:
        say(f"or with MINARI_DATASETS_PATH={folder.path.parent}: minari.load_dataset({folder.dataset_id!r})")
