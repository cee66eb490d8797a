"""Writes Minari datasets as others have them."""

import minari
import numpy as np
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage


def write_minari(folder, space, episodes, *, jpeg=False):
    """Write episodes by their observations, (T + 1, ...), or a dictionary of these; step t is rewarded t + 0.5."""
    folder.mkdir(parents=True)
    storage = MinariStorage.new(folder, space, spaces.Discrete(2), jpeg_encoding=jpeg)
    storage.update_metadata({"dataset_id": "theirs-v0", "minari_version": minari.__version__})
    for number, observations in enumerate(episodes):
        first = next(iter(observations.values())) if isinstance(observations, dict) else observations
        steps = np.arange(len(first) - 1)
        ends = {"terminations": np.zeros(len(steps), bool), "truncations": steps == steps[-1]}
        columns = {"rewards": steps + 0.5, "actions": np.zeros(len(steps), dtype=int), "infos": {}, **ends}
        storage.update_episodes([EpisodeBuffer(id=number, observations=observations, **columns)])
    return folder
