"""The rewards that a check compares, and the scene whose states they are of.

States are drawn and encoded once for all rewards that share an encoder; each is a head.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray

from vlmrm_gym._util.errors import InputError, as_input_error, said_warnings
from vlmrm_gym.rewards import RewardModel
from vlmrm_gym.rewards.clip import CLIP
from vlmrm_gym.rewards.current_head import apply_head
from vlmrm_gym.rewards.heads import CombineViews
from vlmrm_gym.rewards.model import Features, Rewards
from vlmrm_gym.rewards.own import as_model
from vlmrm_gym.rewards.spec import RewardSpec
from vlmrm_gym.scoring import make_scoring_queue
from vlmrm_gym.scoring.state_encoder import StateEncoder
from vlmrm_gym.states import States, StateView

Reward = Callable[[Features], Rewards]
"""A reward of the features of N states, float32 (N, V, D): float32 (N,)."""

UNRELATED = "a bowl of fruit on a wooden table"
"""A prompt that has nothing to do with any environment."""
ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Alphas of the landscape, besides that of the reward, if there is a baseline."""
BATCH = 32
"""States that are drawn while those before them are encoded."""
PROGRESS = 256
"""States that are scored before the progress is told."""


class EncodedRewards:
    """Rewards that share an encoder (their `encoder_key` is equal), and their heads.

    What loading the `specs` warns of is printed, once. One that cannot be loaded, is of clips or has no head yet is an
    `InputError`.
    """

    def __init__(self, specs: Sequence[RewardSpec], device: str) -> None:
        self._device = device
        with as_input_error(DependencyNotInstalled, OSError, RuntimeError, TypeError), said_warnings():
            self._models = [(spec, as_model(spec.build(device))) for spec in specs]
        self.encoder = self._models[0][1]
        info = StateEncoder(self.encoder, self.encoder.num_views or 1).info
        if info.looks_back or any(clip.length > 1 for clip in info.clips):
            raise InputError("`reward` must be of single frames to be checked. Received one of several.")
        with as_input_error():
            info.make_head(None)

    def view(self, spec: RewardSpec, combine_views: str | None, num_views: int) -> Reward:
        """Choose a reward of this encoder, such as a control, with its combination of views.

        A reward that sees all views at once has its own.
        """
        model = next((model for own, model in self._models if own == spec), None)
        if model is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                model = spec.build(self._device)
            self._models.append((spec, model))
        info = StateEncoder(model, num_views).info
        combine = None if combine_views is None or info.multi_view else CombineViews(combine_views, num_views)
        return partial(apply_head, info.make_head(combine))


def encoder_key(spec: RewardSpec) -> object:
    """Make a key that rewards of one encoder share: those of prompts by one model."""
    return (spec.model, spec.precision, spec.resize_mode, spec.batch_size) if type(spec) is CLIP else id(spec)


def alpha_curves(spec: RewardSpec) -> dict[str, RewardSpec]:
    """The lines of the landscape, by their labels: a reward with a baseline for several alphas, any other as it is."""
    if type(spec) is not CLIP or (spec.baseline is None and spec.baseline_images is None):
        return {"reward": spec}
    return {f"alpha {alpha:g}": replace(spec, alpha=alpha) for alpha in sorted({spec.alpha, *ALPHAS})}


def control_rewards(spec: RewardSpec) -> dict[str, RewardSpec]:
    """Rewards of prompts that say nothing of the task, by what they are called; none for a reward without prompts."""
    if type(spec) is not CLIP:
        return {}
    texts = {"an unrelated prompt": UNRELATED, "the baseline as the prompt": spec.baseline}
    without = {"goal_images": None, "baseline": None, "baseline_images": None, "alpha": 0.0}
    return {name: replace(spec, prompt=text, **without) for name, text in texts.items() if text}


class Scene:
    """An environment, its cameras and the model that encodes what they see: each state is drawn and encoded once.

    `progress` is called with the numbers of states that have been encoded. A camera that does not exist is a
    ValueError. Close it; the environment stays open.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        encoder: RewardModel,
        camera: Any = None,
        progress: Callable[[int], object] = lambda states: None,
    ) -> None:
        self.env, self._progress = env, progress
        self.view = StateView(env, camera)
        self.num_views = self.view.num_views
        self._encoder = StateEncoder(encoder, self.num_views)
        self._queue = make_scoring_queue(lambda device: self._encoder, self.view.make_renderer)
        self._queue.batch_size = min(BATCH, self._queue.batch_size)

    def features(self, states: States, lengths: Sequence[int] = ()) -> Features:
        """Encode the features of N states from every camera, float32 (N, V, D).

        An ordered model needs the `lengths` of the episodes that the states are of, one after the other.
        """
        if not self._queue.info.ordered:
            lengths = [PROGRESS] * -(-len(states) // PROGRESS)
        features: list[Features] = []
        for end, length in zip(np.cumsum(lengths), lengths, strict=True):
            features.append(self._queue.features(states[end - length : end]))
            self._progress(len(features[-1]))
        return np.concatenate(features)

    def black(self, states: States) -> Features | None:
        """The features of frames of N states if they were black, float32 (N, V, D); None if no frame is seen."""
        if self._queue.info.sees_states:
            return None
        frames = np.zeros_like(self._queue.frames(states))
        with warnings.catch_warnings():  # of a scene that the model does not know
            warnings.simplefilter("ignore", UserWarning)
            return self._encoder.features(frames)

    def draw(self, states: States) -> NDArray[np.uint8]:
        """Draw states from every camera at the environment's own size: uint8 (N, V, H, W, 3)."""
        return self._queue.frames(states, self.view.size)

    def close(self) -> None:
        """Free the graphics resources."""
        self._queue.close()
        self.view.close()
