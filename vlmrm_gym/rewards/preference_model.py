"""The head of rewards that are learned from preferences, an ensemble of networks; and the models of learned rewards."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from vlmrm_gym.rewards.clip import EncoderFields
from vlmrm_gym.rewards.current_head import check_head
from vlmrm_gym.rewards.distance import DistanceNetwork, PlaceHead
from vlmrm_gym.rewards.encoder import FrameEncoder
from vlmrm_gym.rewards.saved_head import SavedHead

PROGRESS_WEIGHT = 5.0
"""Of the progress that a `DistanceNetwork` sees: what is done is preferred to the beginning with odds of 150 to 1."""
LIMIT = 5.0
"""Rewards are between minus this and this, in standard deviations."""


class PreferenceHead(SavedHead):
    """An ensemble of networks with two hidden layers, from the features of a state, of `shape` (V, D), to its reward.

    The reward is their mean, with mean 0 and standard deviation 1 over the states that it was standardised with, so
    that rewards of different heads are alike to the learner; a hyperbolic tangent bounds it at -5 and 5. The networks'
    own outputs are not bounded: bounded ones, as in PEBBLE, end up as the rank of a state among those that were
    compared, which is flat near a goal that exploration seldom reaches.

    `prompt` is the goal, as labelers were told, and `base` the width of the hidden layers of a `DistanceNetwork` whose
    progress the networks correct; None: there is none.
    """

    key = "vlmrm_gym.preference_head"
    arguments = ("shape", "ensemble", "hidden_size", "fingerprint", "prompt", "base")

    def __init__(
        self,
        shape: Sequence[int],
        *,
        ensemble: int = 3,
        hidden_size: int = 64,
        fingerprint: str = "",
        prompt: str | None = None,
        base: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.base = base
        self.progress = None if base is None else DistanceNetwork(shape[-1], hidden_size=base, model="")
        self.shape, self.ensemble, self.hidden_size = tuple(shape), ensemble, hidden_size
        self.fingerprint, self.prompt = fingerprint, prompt
        generator = torch.Generator().manual_seed(seed)
        sizes = [math.prod(shape), hidden_size, hidden_size, 1]
        self.weights, self.biases = torch.nn.ParameterList(), torch.nn.ParameterList()
        for inputs, outputs in pairwise(sizes):
            weight = torch.randn(ensemble, inputs, outputs, generator=generator) * math.sqrt(2 / inputs)
            self.weights.append(weight)
            self.biases.append(torch.zeros(ensemble, 1, outputs))
        self.feature_mean = torch.nn.Buffer(torch.zeros(sizes[0]))
        self.feature_scale = torch.nn.Buffer(torch.ones(()))
        self.reward_mean = torch.nn.Buffer(torch.zeros(()))
        self.reward_std = torch.nn.Buffer(torch.ones(()))

    @classmethod
    def starting_from(cls, init: str, shape: Sequence[int], **options: Any) -> "PreferenceHead":
        """Make the head that sees the progress of a reward from videos and nothing else yet; `options` as of others."""
        network = DistanceNetwork.load(init)
        head = cls(shape, base=network.hidden_size, **options)
        assert head.progress is not None
        own = head.progress.state_dict()
        shared = own.keys() - {"videos"}
        head.progress.load_state_dict(own | {name: network.state_dict()[name] for name in shared})
        head.progress.requires_grad_(False)
        with torch.no_grad():
            head.weights[-1].zero_()
            head.reward_mean.fill_(PROGRESS_WEIGHT / 2)  # of progress from 0 to 1, all of it as frequent
            head.reward_std.fill_(PROGRESS_WEIGHT / math.sqrt(12))
        return head

    def members(self, features: torch.Tensor) -> torch.Tensor:
        """Each network's output, (E, B), of features, float32 (B, V, D), or (E, B, V, D): other states for each."""
        before: Any = 0.0
        if self.progress is not None:
            before = PROGRESS_WEIGHT * self.progress.places(features).mean(-1)
        x = ((features.flatten(-2) - self.feature_mean) / self.feature_scale).expand(self.ensemble, -1, -1)
        *hidden, last = zip(self.weights, self.biases, strict=True)
        for weight, bias in hidden:
            x = torch.baddbmm(bias, x, weight).relu()
        return torch.baddbmm(last[1], x, last[0]).squeeze(-1) + before

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Rewards of states: features float32 (B, V, D) to float32 (B,), from -5 to 5."""
        rewards = (self.members(features).mean(0) - self.reward_mean) / self.reward_std
        return LIMIT * (rewards / LIMIT).tanh()

    @torch.no_grad()
    def standardise(self, features: torch.Tensor) -> None:
        """Give rewards, before they are bounded, mean 0 and standard deviation 1 over features float32 (B, V, D)."""
        rewards = self.members(features).mean(0)
        self.reward_mean.copy_(rewards.mean())
        self.reward_std.copy_(rewards.std(correction=0).clamp_min(1e-3))

    def check(self) -> None:
        """See `SavedHead`."""
        super().check()
        if not isinstance(self.prompt, str | None):
            raise TypeError("its prompt must be a text")


class HeadReward(FrameEncoder):
    """Scores states by a head that was learned; a `PreferenceHead` sees all of their views. None: there is none yet."""

    def __init__(
        self, fields: EncoderFields, *, head: PreferenceHead | PlaceHead | None = None, device: str = "auto"
    ) -> None:
        super().__init__(fields, device)
        self.head = None if head is None else head.to(self.model.device)
        self.feature_size = self.model.feature_size
        """Width of the embeddings, D."""
        self.multi_view = not isinstance(head, PlaceHead)
        if head is not None:
            check_head(head, self.fingerprint)
        if isinstance(head, PreferenceHead):
            self.num_views = head.shape[0]
