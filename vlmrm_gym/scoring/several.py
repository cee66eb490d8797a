"""Several rewards of the same states, in this process: those of one encoder are heads on one pass of its features."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.closing import close_on_error
from vlmrm_gym.rewards.base import RewardModel
from vlmrm_gym.rewards.heads import CombineViews, apply_head
from vlmrm_gym.rewards.specification import RewardSpec
from vlmrm_gym.rewards.state_reward import StateReward
from vlmrm_gym.scoring.backends import make_scoring_queue
from vlmrm_gym.scoring.requests import Request
from vlmrm_gym.scoring.scorer import MakeRenderer
from vlmrm_gym.scoring.select import EpisodeClips
from vlmrm_gym.states import States


class SeveralRewards:
    """Scores episodes, or the successive frames of a video, by several rewards."""

    def __init__(self, specs: Sequence[RewardSpec], device: str = "auto") -> None:
        models: dict[object, list[tuple[int, RewardModel]]] = {}
        for number, spec in enumerate(specs):
            model = spec.build(device)
            fingerprint = getattr(model, "fingerprint", "") if getattr(model, "head", None) is not None else ""
            key = (fingerprint, getattr(spec, "precision", None)) if fingerprint else number
            models.setdefault(key, []).append((number, model))
        self._models = list(models.values())
        self._count = len(specs)
        self._scorers: list[_Scorer] = []

    @property
    def microbatch_size(self) -> int:
        """Frames per interruptible call, of the model with the fewest."""
        return min(model.microbatch_size for own in self._models for _, model in own)

    def open(self, make_renderer: MakeRenderer, num_views: int = 1, combine: CombineViews | None = None) -> None:
        """Begin to score; `close` ends it. `make_renderer` makes the renderer from a model's `render_size`."""
        with close_on_error([self]):
            for models in self._models:
                self._scorers.append(_Scorer(models, make_renderer, num_views, combine))

    def __call__(self, states: States) -> NDArray[np.float32]:
        """The rewards of the next B states of an episode, float32 (B, number of rewards)."""
        return self._score([states])

    def episodes(self, *episodes: States) -> NDArray[np.float32]:
        """The rewards of all states of episodes, one after the other: float32 (B, number of rewards)."""
        return self._score(episodes, begins=True)

    def _score(self, parts: Sequence[States], *, begins: bool = False) -> NDArray[np.float32]:
        rewards = np.empty((sum(map(len, parts)), self._count), dtype=np.float32)
        for scorer in self._scorers:
            rewards[:, scorer.numbers] = scorer(parts, begins=begins)
        return rewards

    def close(self) -> None:
        """Free the models' threads and renderers."""
        for scorer in self._scorers:
            scorer.queue.close()


class _Scorer:
    """Scores by the rewards of one encoder, or by one reward of any kind."""

    def __init__(
        self,
        models: Sequence[tuple[int, RewardModel]],
        make_renderer: MakeRenderer,
        num_views: int,
        combine: CombineViews | None,
    ) -> None:
        self.numbers = [number for number, _ in models]
        reward = StateReward(models[0][1], num_views, combine)
        self._clips = EpisodeClips(reward.info.clip)
        self.queue = make_scoring_queue(lambda device: reward, make_renderer)
        self._newest: Request | None = None
        """The episode's newest request, of an ordered reward."""
        shared = [model for _, model in models] if len(models) > 1 else []
        infos = [StateReward(model, num_views, combine, return_features=True).info.features for model in shared]
        self._heads = [info.head for info in infos if info is not None and info.head is not None]

    def __call__(self, parts: Sequence[States], *, begins: bool) -> NDArray[np.float32]:
        """The rewards of B states, float32 (B, number of rewards)."""
        requests = []
        for part in filter(len, parts):
            if begins:
                self._clips.begin_episode()
                self._newest = None
            output = "features" if self._heads else self.queue.output
            requests.append(Request(self._clips.extend(part), np.arange(len(part)), output, self._newest))
            self._newest = requests[-1] if output == "ordered" else None
        values = self.queue.score(*requests)
        return np.stack([apply_head(head, values) for head in self._heads], axis=1) if self._heads else values[:, None]
