"""A reward for exploration before there is one to learn from: how far states are from others that were visited."""

import numpy as np
import torch

from vlmrm_gym.rewards.heads import Features

NEIGHBOUR, REFERENCE, PIECE = 5, 1_000, 4_096
"""Which nearest neighbour counts (PEBBLE's), the most states to compare with, and states that are compared at once."""


class StateEntropy:
    """Pays states by the distance to their nearest neighbours among visited ones, in the features of the reward.

    That is the k-nearest-neighbour estimate of the entropy of states as an intrinsic reward: log(1 + distance to the
    k-th neighbour) in the features of a frozen network (RE3, arXiv 2102.09430); PEBBLE (arXiv 2106.05091) takes
    observations. Over the visited states it has mean 0 and standard deviation 1, as the rewards of a `PreferenceHead`.

    Args:
        features: Of visited states, float (N, V, D), N > 0. At most `REFERENCE` of them are drawn.
        seed: Of which.
    """

    def __init__(self, features: Features, seed: int = 0) -> None:
        rows = np.random.default_rng(seed).permutation(len(features))[:REFERENCE]
        self._reference = torch.from_numpy(features[rows]).float().flatten(1)
        self._mean, self._std = torch.zeros(()), torch.ones(())
        own = self(self._reference[:, None])
        self._mean, self._std = own.mean(), own.std(correction=0).clamp_min(1e-6)

    @torch.no_grad()
    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        """Rewards of states: features float32 (B, V, D) to float32 (B,)."""
        rank = min(NEIGHBOUR + 1, len(self._reference))  # one more: the nearest is the state itself
        exact = "donot_use_mm_for_euclid_dist"  # states may be close to each other
        pieces = [
            torch.cdist(rows, self._reference, compute_mode=exact).kthvalue(rank, dim=1).values
            for rows in features.flatten(1).split(PIECE)
        ]
        return (torch.cat(pieces).log1p() - self._mean) / self._std
