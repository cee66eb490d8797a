"""The reward of states: a reward model, and what it makes of the views of a state."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.rewards.base import ClipShape, RenderSize, RewardModel, Rewards, encode_frames
from vlmrm_gym.rewards.heads import FeatureInfo, Features, ViewsHead
from vlmrm_gym.rewards.views import CombineViews
from vlmrm_gym.validation import short_repr


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

    A model that sees one view scores each view for itself, and the rewards are combined; a model that sees all views
    (`multi_view`) gets them together. A model of states (`inputs = "states"`) gets those in place of frames.

    Args:
        model: The reward model.
        num_views: Number of views of a state, V.
        combine: Combines the rewards of the views; None: the default, "min".
        return_features: Whether features are asked for, so that a head can make the rewards elsewhere.

    Raises:
        ValueError: `combine` is passed for a reward that sees all views at once, or none; or features are asked of a
            model without `encode` and `head`. Or they are not, and it has no head yet; or its head is of another number
            of views.
    """

    def __init__(
        self, model: RewardModel, num_views: int, combine: CombineViews | None = None, *, return_features: bool = False
    ) -> None:
        self._model, self._is_joint = model, bool(getattr(model, "multi_view", False))
        if self._is_joint and combine is not None:
            raise ValueError("`combine_views` is not for a reward that sees all views at once. Leave it out.")
        shape = getattr(getattr(model, "head", None), "shape", None) if self._is_joint else None
        if shape is not None and shape[0] != num_views:
            raise ValueError(
                f"`head` must be of as many views as there are cameras, {num_views}. Received a head of {shape[0]}. "
                "Pass the cameras that it was fitted to."
            )
        sees_states = getattr(model, "inputs", "frames") == "states"
        if sees_states and combine is not None:
            raise ValueError("`combine_views` is not for a reward that sees no view, but the states. Leave it out.")
        if not self._is_joint and not sees_states and combine is None and num_views > 1:
            combine = CombineViews("min", num_views)
        self._combine = combine
        names = ("clip_length", "clip_stride", "every")
        clip = ClipShape(*(getattr(model, name, 1) for name in names))
        ordered = bool(getattr(model, "ordered", False))
        self._ndim = 4 if clip.length == 1 else 5
        """Dimensions of frames, or of clips, from one view."""
        per_state = num_views if self._is_joint or self._combine is not None else 1
        self.batch_size: int = max(1, model.batch_size // per_state)
        """Maximum number of states per call."""
        self.microbatch_size: int = max(1, model.microbatch_size // per_state)
        """States per interruptible call."""
        self.render_size: RenderSize = model.render_size
        if not return_features and getattr(model, "head", self) is None:
            raise ValueError(
                "`reward` has no head yet: it is learned in vector environments, with return_features=True. For a "
                "reward that scores at once, pass vlmrm_gym.Preference(head=...), the file of a head that has been "
                "learned."
            )
        features = self._describe_features(per_state) if return_features else None
        interpolate = bool(getattr(model, "interpolate", True))
        self.info = RewardInfo(
            clip=clip, features=features, interpolate=interpolate, ordered=ordered, sees_states=sees_states
        )

    def _describe_features(self, per_state: int) -> FeatureInfo:
        if not hasattr(self._model, "encode") or not hasattr(self._model, "head"):
            raise ValueError(
                "`return_features` needs a reward with `encode` and `head`, such as vlmrm_gym.CLIP. "
                f"Received {short_repr(self._model)}."
            )
        head, size = getattr(self._model, "head"), getattr(self._model, "feature_size", None)  # noqa: B009
        fingerprint = str(getattr(self._model, "fingerprint", ""))
        if head is not None:
            head = copy.deepcopy(head)  # the model's own stays on its device
            head = ViewsHead(head.cpu() if hasattr(head, "cpu") else head, self._combine, fingerprint)
        return FeatureInfo(head=head, fingerprint=fingerprint, shape=None if size is None else (per_state, int(size)))

    def __call__(self, frames: NDArray[np.uint8]) -> Rewards:
        """Score states.

        Args:
            frames: uint8 (B, V, H, W, 3), or (B, H, W, 3) of one view; of clips (B, F, V, H, W, 3) or (B, F, H, W, 3).
                Or the states, float64 (B, S), if it sees those.

        Returns:
            float32 (B,).
        """
        if self._is_joint:
            return self._model(self._with_views(frames))
        if self._combine is None or self.info.sees_states:
            return np.asarray(self._model(frames), dtype=np.float32)
        views, single = self._split(frames)
        return self._combine(np.asarray(self._model(single), dtype=np.float32).reshape(-1, views))

    def continue_episode(self, frames: NDArray[Any], memory: Memory) -> tuple[Rewards, Memory]:
        """Score the next states of an episode; only for an ordered reward.

        Args:
            frames: As above.
            memory: What is remembered of the states before.

        Returns:
            float32 (B,), and what is remembered now.
        """
        score: Any = getattr(self._model, "continue_episode")  # noqa: B009
        every = frames[:, None] if self.info.sees_states else self._with_views(frames)
        before = (None,) * every.shape[1] if memory is None else memory
        made = [score(every[:, view], own) for view, own in enumerate(before)]
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
