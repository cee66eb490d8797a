"""Answers by a CLIP score."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from vlmrm_gym.identity import undecisive
from vlmrm_gym.preferences.labelers import LabelerSpec
from vlmrm_gym.preferences.pairs import Answer, Pair, Side
from vlmrm_gym.rewards.base import RewardModel
from vlmrm_gym.rewards.clip_options import Prompt, ResizeMode
from vlmrm_gym.rewards.specification import CLIP
from vlmrm_gym.validation import check_choice, check_size, is_number


@dataclass(frozen=True, kw_only=True)
class CLIPLabeler(LabelerSpec):
    """Prefers the segment with the higher mean of a CLIP reward for the pair's prompt.

    The model and the cameras may be others than those of the reward that is learned.

    Raises:
        TypeError: `model` is not a text.
        ValueError: A value is out of its range; the message names the field.
    """

    model: str = "tiny"
    """As `CLIP.model`: any model of open_clip."""
    baseline: Prompt | None = None
    """As `CLIP.baseline`."""
    alpha: float = 0.0
    """As `CLIP.alpha`."""
    resize_mode: ResizeMode | None = None
    """As `CLIP.resize_mode`."""
    combine_views: Literal["min", "mean"] = "min"
    """How the scores of several views make one."""
    temperature: float = 0.0
    """0: the preference is 0 or 1. Above: sigmoid((second - first) / temperature)."""
    views: Any = None
    """MuJoCo environments only: own cameras, as `camera` of `VLMReward`; None: those of the pair."""
    size: tuple[int, int] | None = None
    """Height and width at which states are drawn, in pixels; None: as the pair's frames."""
    device: str = undecisive("auto")
    """"auto", "cpu", "cuda", "cuda:1", "mps"."""
    kind: ClassVar[str] = "clip"

    def __post_init__(self) -> None:
        self._spec("the goal")
        check_choice("combine_views", self.combine_views, ("min", "mean"))
        if not is_number(self.temperature) or not 0 <= self.temperature < np.inf:
            raise ValueError(f"`temperature` must be a finite number of at least 0. Received {self.temperature!r}.")
        object.__setattr__(self, "size", check_size(self.size))

    def answers(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, Answer]]:
        """Answer all pairs.

        Raises:
            ValueError: The environment cannot be drawn by `views`.
            Exception: As `CLIP.build`.
        """
        for number, pair in enumerate(pairs):
            first, second = self._score(pair.first, pair.prompt), self._score(pair.second, pair.prompt)
            preference = 0.5 * (1 + np.sign(second - first))
            if self.temperature:
                preference = 0.5 * (1 + np.tanh(0.5 * (second - first) / self.temperature))  # the sigmoid
            yield number, Answer(preference=float(preference), details={"scores": [first, second]})

    def _score(self, side: Side, prompt: str) -> float:
        if prompt not in self._models:
            self._models[prompt] = self._spec(prompt).build(self.device)
        frames = side.draw(side.states, size=self.size, views=self.views)
        scores = np.asarray(self._models[prompt](frames.reshape(-1, *frames.shape[2:])), np.float64)
        return float(getattr(scores.reshape(frames.shape[:2]), self.combine_views)(axis=1).mean())

    def _spec(self, prompt: str) -> CLIP:
        return CLIP(
            prompt=prompt, model=self.model, baseline=self.baseline, alpha=self.alpha, resize_mode=self.resize_mode
        )

    @cached_property
    def _models(self) -> dict[str, RewardModel]:
        """By prompt. They share the network, which is loaded once."""
        return {}
