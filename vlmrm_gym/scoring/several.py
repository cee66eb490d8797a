"""Several rewards of the same states, in this process: those of one encoder are heads on one pass of its features."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.errors import close_on_error
from vlmrm_gym._util.validation import weigh_task_rewards
from vlmrm_gym.rewards.current_head import CurrentHead
from vlmrm_gym.rewards.heads import CombineViews
from vlmrm_gym.rewards.model import Features, RewardModel
from vlmrm_gym.rewards.own import as_model
from vlmrm_gym.rewards.spec import RewardSpec
from vlmrm_gym.scoring import make_scoring_queue
from vlmrm_gym.scoring.requests import Request
from vlmrm_gym.scoring.scorer import MakeRenderer
from vlmrm_gym.scoring.select import EpisodeClips
from vlmrm_gym.scoring.state_encoder import StateEncoder
from vlmrm_gym.states import States


class SeveralRewards:
    """Scores episodes, or the successive frames of a video, by several rewards."""

    def __init__(self, specs: Sequence[RewardSpec], device: str = "auto") -> None:
        self._models: dict[object, dict[int, RewardModel]] = {}
        """Those of each encoder, by the numbers of the rewards."""
        for number, spec in enumerate(specs):
            model = as_model(spec.build(device))
            key = object() if model.encoder_key is None else (model.encoder_key, model.clip_shape)
            self._models.setdefault(key, {})[number] = model
        self._order = np.argsort([number for models in self._models.values() for number in models])
        """Sorts the rewards of all encoders, side by side, by their numbers."""
        self.task_weights = [spec.task_reward_weight for spec in specs]
        """Of the environment's own reward, in each."""
        self._scorers: list[_Scorer] = []

    @property
    def microbatch_size(self) -> int:
        """Frames per interruptible call, of the model with the fewest."""
        every = [model for models in self._models.values() for model in models.values()]
        return min(model.microbatch_size or model.batch_size for model in every)

    def open(self, make_renderer: MakeRenderer, num_views: int = 1, combine: CombineViews | None = None) -> None:
        """Begin to score; `close` ends it. `make_renderer` makes the renderer from a model's `render_size`."""
        with close_on_error([self]):
            for models in self._models.values():
                self._scorers.append(_Scorer(models.values(), make_renderer, num_views, combine))

    def begin_episode(self) -> None:
        """Begin another episode, or video."""
        for scorer in self._scorers:
            scorer.begin_episode()

    def __call__(self, states: States) -> NDArray[np.float32]:
        """Score the next B states of an episode: float32 (B, number of rewards)."""
        return np.concatenate([scorer(states) for scorer in self._scorers], axis=1)[:, self._order]

    def begin(self, first: States) -> NDArray[np.float32]:
        """Begin another episode with its state before any action; float32 (1, number of rewards), scored for itself."""
        return np.concatenate([scorer.begin(first) for scorer in self._scorers], axis=1)[:, self._order]

    def add_task_rewards(self, rewards: NDArray[np.float32], own: NDArray[np.float64]) -> NDArray[np.float32]:
        """Add the environment's own rewards (T,), weighted, to those of an episode's T + 1 states."""
        for column, weight in zip(rewards[1:].T, self.task_weights, strict=True):
            column += weigh_task_rewards(weight, own).astype(np.float32)
        return rewards

    def close(self) -> None:
        """Free the models' threads and renderers."""
        for scorer in self._scorers:
            scorer.queue.close()


class _Scorer:
    """Scores by the rewards of one encoder."""

    def __init__(
        self,
        models: Iterable[RewardModel],
        make_renderer: MakeRenderer,
        num_views: int,
        combine: CombineViews | None,
    ) -> None:
        encoders = [StateEncoder(model, num_views) for model in models]
        self._heads = [CurrentHead(encoder.info.make_head(combine)) for encoder in encoders]
        self.queue = make_scoring_queue(lambda device: encoders[0], make_renderer)
        self._clips = EpisodeClips(self.queue.info.clips)
        self.begin_episode()

    def begin_episode(self, first: States | None = None) -> None:
        self._clips.begin_episode(first)
        self._count, self._memory = 0, {0: None} if self.queue.info.ordered else None
        self._carries: Sequence[Any] = [None] * len(self._heads)

    def begin(self, first: States) -> NDArray[np.float32]:
        self.begin_episode()
        features = self.queue.encode(Request(self._clips.first(first), np.arange(1), self._memory))
        rewards = self._pay(features)
        self.begin_episode(first)
        self._carries = [head.begin(features) for head in self._heads]
        return rewards

    def __call__(self, states: States) -> NDArray[np.float32]:
        """Score the next B states of the episode: float32 (B, number of rewards)."""
        keys = self._count + np.arange(len(states))
        self._count += len(states)
        return self._pay(self.queue.encode(Request(self._clips.extend(states), keys, self._memory)))

    def _pay(self, features: Features) -> NDArray[np.float32]:
        paid = [head.pay(features, carry) for head, carry in zip(self._heads, self._carries, strict=True)]
        self._carries = [one.carry for one in paid]
        return np.stack([one.rewards for one in paid], axis=1)
