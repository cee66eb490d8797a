"""The reward of states: a reward model, and what it makes of the views of a state."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.validation import short_repr
from vlmrm_gym.rewards.base import ClipShape, RenderSize, RewardModel, Rewards, encode_frames
from vlmrm_gym.rewards.heads import CombineViews, FeatureInfo, Features, ViewsHead


@dataclass(frozen=True, kw_only=True)
class RewardInfo:
    """What the process of the environments knows of a reward, wherever it is loaded."""

    clip: ClipShape = field(default_factory=ClipShape)
    """What the reward of a state is of."""
    features: FeatureInfo | None = None
    """What the features are, if they are asked for."""
    interpolate: bool = True
    """Whether rewards may be interpolated between those of other states."""
    ordered: bool = False
    """Whether states are scored in the order of their episode: `StateReward.continue_episode` in place of a call."""
    sees_states: bool = False
    """Whether it sees the numbers of states in place of their frames."""


Memory = tuple[bytes | None, ...] | None
"""What an ordered reward remembers of an episode, for each view; None: nothing, as when it begins."""


class StateReward:
    """Scores states by the frames of their views.

    A model that sees one view scores each view for itself, and the rewards are combined, by "min" without `combine`; a
    model that sees all views (`multi_view`) gets them together. A model of states (`inputs = "states"`) gets those in
    place of frames. With `return_features` a head makes the rewards elsewhere.
    """

    def __init__(
        self, model: RewardModel, num_views: int, combine: CombineViews | None = None, *, return_features: bool = False
    ) -> None:
        self._model, self._is_joint = model, bool(getattr(model, "multi_view", False))
        sees_states = getattr(model, "inputs", "frames") == "states"
        if combine is not None and (self._is_joint or sees_states):
            seen = "all views at once" if self._is_joint else "no view, but the states"
            raise ValueError(f"`combine_views` is not for a reward that sees {seen}. Leave it out.")
        head: Any = getattr(model, "head", self)
        if self._is_joint and getattr(head, "shape", (num_views,))[0] != num_views:
            raise ValueError(
                f"`head` must be of as many views as there are cameras, {num_views}. Received a head of "
                f"{head.shape[0]}. Pass the cameras that it was fitted to."
            )
        if head is None and not return_features:
            raise ValueError(
                "`reward` has no head yet: it is learned in vector environments, with return_features=True. For a "
                "reward that scores at once, pass vlmrm_gym.Preference(head=...), the file of a head that has been "
                "learned."
            )
        if not self._is_joint and not sees_states and combine is None and num_views > 1:
            combine = CombineViews("min", num_views)
        self._combine = combine
        clip = ClipShape(*(getattr(model, name, 1) for name in ("clip_length", "clip_stride", "every")))
        self._ndim = 4 if clip.length == 1 else 5
        """Dimensions of frames, or of clips, from one view."""
        per_state = num_views if self._is_joint or combine is not None else 1
        self.batch_size: int = max(1, model.batch_size // per_state)
        """Maximum number of states per call."""
        self.microbatch_size: int = max(1, model.microbatch_size // per_state)
        """States per interruptible call."""
        self.render_size: RenderSize = model.render_size
        self.info = RewardInfo(
            clip=clip,
            features=self._describe_features(per_state) if return_features else None,
            interpolate=bool(getattr(model, "interpolate", True)),
            ordered=bool(getattr(model, "ordered", False)),
            sees_states=sees_states,
        )

    def _describe_features(self, per_state: int) -> FeatureInfo:
        model: Any = self._model
        if not hasattr(model, "encode") or not hasattr(model, "head"):
            raise ValueError(
                "`return_features` needs a reward with `encode` and `head`, such as vlmrm_gym.CLIP. "
                f"Received {short_repr(model)}."
            )
        head, size = model.head, getattr(model, "feature_size", None)
        fingerprint = str(getattr(model, "fingerprint", ""))
        if head is not None:
            head = copy.deepcopy(head)  # the model's own stays on its device
            head = ViewsHead(head.cpu() if hasattr(head, "cpu") else head, self._combine, fingerprint)
        return FeatureInfo(head=head, fingerprint=fingerprint, shape=None if size is None else (per_state, int(size)))

    def __call__(self, frames: NDArray[np.uint8]) -> Rewards:
        """Score states by frames, uint8 (B, V, H, W, 3), or (B, H, W, 3) of one view: float32 (B,).

        Clips are uint8 (B, F, V, H, W, 3) or (B, F, H, W, 3), states float64 (B, S).
        """
        if self._is_joint:
            return self._model(self._with_views(frames))
        if self._combine is None or self.info.sees_states:
            return np.asarray(self._model(frames), dtype=np.float32)
        views, single = self._split(frames)
        return self._combine(np.asarray(self._model(single), dtype=np.float32).reshape(-1, views))

    def continue_episode(self, frames: NDArray[Any], memory: Memory) -> tuple[Rewards, Memory]:
        """Score the next states of an episode, and say what is remembered now; only for an ordered reward."""
        model: Any = self._model
        every = frames[:, None] if self.info.sees_states else self._with_views(frames)
        before = (None,) * every.shape[1] if memory is None else memory
        made = [model.continue_episode(every[:, view], own) for view, own in enumerate(before)]
        rewards = np.stack([rewards for rewards, _ in made], axis=1)
        combined = rewards[:, 0] if self._combine is None else self._combine(rewards)
        return combined, tuple(own for _, own in made)

    def close(self) -> None:
        """End the processes of the model, if it has any. Any thread may call this, also again."""
        getattr(self._model, "close", lambda: None)()

    def features(self, frames: NDArray[np.uint8]) -> Features:
        """The features of states, frames as above: float32 (B, V, D)."""
        views, single = self._split(frames)
        return encode_frames(self._model, single).cpu().numpy().reshape(len(frames), views, -1)

    def _with_views(self, frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Frames with the dimension of the views, which comes before height and width."""
        return frames if frames.ndim > self._ndim else np.expand_dims(frames, -4)

    def _split(self, frames: NDArray[np.uint8]) -> tuple[int, NDArray[np.uint8]]:
        """The number of views, and the frames of each view of each state, or their clips, one after the other."""
        views_first = np.moveaxis(self._with_views(frames), -4, 1)
        return views_first.shape[1], views_first.reshape(-1, *views_first.shape[2:])


def build_reward(
    build: Callable[..., RewardModel],
    num_views: int,
    combine: CombineViews | None,
    device: str = "auto",
    *,
    return_features: bool = False,
) -> StateReward:
    """The `StateReward` of the model that `build` loads on a device."""
    return StateReward(build(device=device), num_views, combine, return_features=return_features)
