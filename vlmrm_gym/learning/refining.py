"""Refines a reward from videos while an agent learns: where episodes fail, it pays less."""

from collections import deque
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from vlmrm_gym.rewards.distance import DistanceNetwork

_WIDTH, _BATCH = 64, 256
_NEWEST, _EPISODES = 20, 1_000
"""Episodes that are shown as often as all together, and those that are kept, at most."""


class RefinedPlaceHead:
    """Scores a state by its place, times the probability that it is of a video, and not of an episode that failed.

    A reward that was learned from videos alone says anything of states that no video shows, such as an arm where an
    open door would be; and agents find those that pay. As in Rank2Reward (arXiv 2404.14735), a small network learns to
    tell the agent's states from those of the videos, while the agent learns. It is shown failures alone, so that no
    success is held against the agent.

    Args:
        network: What was learned from the videos, `head.safetensors` of a reward's folder.
        seed: Of the small network, and of the states that it is shown.
    """

    def __init__(self, network: DistanceNetwork, *, seed: int = 0) -> None:
        self.network, self.fingerprint = network, network.fingerprint
        self._generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            self._layers = torch.nn.Sequential(
                torch.nn.Linear(network.size, _WIDTH),
                torch.nn.GELU(),
                torch.nn.Linear(_WIDTH, _WIDTH),
                torch.nn.GELU(),
                torch.nn.Linear(_WIDTH, 1),
            )
        self._optimizer = torch.optim.AdamW(self._layers.parameters(), lr=3e-4)
        self._failed, self._newest, self.num_failed = list[torch.Tensor](), deque[torch.Tensor](maxlen=_NEWEST), 0

    def add(self, features: NDArray[np.floating[Any]]) -> None:
        """Add an episode that failed: the features of its states, (T, V, D). A thousand are kept, drawn from all."""
        states = torch.from_numpy(np.asarray(features, dtype=np.float32)).flatten(0, 1)
        self._newest.append(states)
        self.num_failed += 1
        if len(self._failed) < _EPISODES:
            self._failed.append(states)
        elif (number := self._draw(self.num_failed, 1).item()) < _EPISODES:
            self._failed[int(number)] = states

    def likeness(self, features: torch.Tensor) -> torch.Tensor:
        """The probabilities that states are of a video: features float32 (..., D) to (...)."""
        return self._logits(features).sigmoid()

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        """Score states by features, float32 (B, V, D): float32 (B,), from 0 to 1, the lowest of all views.

        `RefineCallback` has views combined as `combine_views` says.
        """
        return (self.network.places(features).clamp_min(0) * self.likeness(features)).amin(1)

    def fit(self, steps: int = 100) -> None:
        """Take gradient steps with states of videos, and as many of episodes that failed; there must be one."""
        newest, failed, half = torch.cat([*self._newest]), torch.cat(self._failed), _BATCH // 2
        labels = (torch.arange(_BATCH) < half).float()
        for _ in range(steps):
            shown = ((self.network.videos, half), (newest, half // 2), (failed, half // 2))
            states = torch.cat([of[self._draw(len(of), count)] for of, count in shown])
            # Mixtures of states, as videos show few: https://arxiv.org/abs/1710.09412.
            other = torch.randperm(_BATCH, generator=self._generator)
            share = torch.rand(_BATCH, 1, generator=self._generator)
            logits = self._logits(states.lerp(states[other], share))
            loss = F.binary_cross_entropy_with_logits(logits, labels.lerp(labels[other], share[:, 0]))
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()

    def _draw(self, size: int, count: int) -> torch.Tensor:
        return torch.randint(size, (count,), generator=self._generator)

    def _logits(self, features: torch.Tensor) -> torch.Tensor:
        return self._layers((features - self.network.feature_mean) / self.network.feature_scale)[..., 0]
