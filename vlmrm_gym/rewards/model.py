"""`RewardModel`, the base class of what makes rewards of frames.

Imports torch only where a model is called.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.validation import (
    as_array,
    as_float32,
    check_choice,
    check_flag,
    check_positive_integer,
    short_repr,
)

if TYPE_CHECKING:
    import torch

Rewards = NDArray[np.float32]
Features = NDArray[np.float32]
"""float32 (B, V, D), of B states and V views; or float16, where a buffer keeps them so."""
Head = Callable[["torch.Tensor"], "torch.Tensor"]
"""Maps features of states, float32 (B, V, D) of V views, to rewards, float32 (B,), each row for itself."""
RenderSize = Callable[[int, int], tuple[int, int]]
"""Maps (height, width) of an environment's own frames to the (height, width) at which they are rendered, in pixels.

It must be picklable: renderers carry it into worker processes.
"""


def unchanged_size(height: int, width: int) -> tuple[int, int]:
    """Return the environment's own size: the default `RenderSize`."""
    return height, width


def fixed_size(size: tuple[int, int] | None) -> RenderSize:
    """Make the `RenderSize` that is always (height, width); the environment's own for None."""
    return unchanged_size if size is None else partial(_choose_size, size)


def _choose_size(size: tuple[int, int], height: int, width: int) -> tuple[int, int]:
    return size


@dataclass(frozen=True)
class ClipShape:
    """The clips that a reward model looks at; those of length 1 are single frames."""

    length: int = 1
    """Frames of a clip, F."""
    stride: int = 1
    """Steps of the environment from one frame to the next."""
    every: int = 1
    """Steps from one state that is scored to the next. Those in between have its reward."""
    is_prefix: bool = False
    """Whether a clip is of the episode so far: its first state, before any action, its newest, and others in between
    at equal distances; else of the last steps."""

    @property
    def span(self) -> int:
        """Steps from the first frame to the last, at least."""
        return (self.length - 1) * self.stride

    @property
    def is_current(self) -> bool:
        """Whether it is the state itself."""
        return self.length == self.every == 1


def only_feature(features: Any) -> Any:
    """Return features of width 1, (B, 1) or (B, 1, 1), as rewards, (B,): the head of models that score by `encode`."""
    columns = features.reshape(len(features), -1)
    if columns.shape[1] != 1:
        raise ValueError(
            f"`head` must be defined for features of width {columns.shape[1]}: only one number is a reward."
        )
    return columns[:, 0]


class RewardModel:
    """Base class of reward models: `encode` maps frames to features, `head` maps features to rewards.

    Encoding is expensive and happens anywhere: here, in worker processes, on a cluster. The head is cheap and is
    applied by the process of the environments. A subclass defines `encode`, and `head` where features are not rewards
    already. It sees frames only: no actions, no observations, no environment.

    >>> import gymnasium as gym, vlmrm_gym
    >>> class Brightness(vlmrm_gym.RewardModel):
    ...     batch_size = 256
    ...
    ...     def encode(self, frames):
    ...         return frames.mean(axis=(1, 2, 3))[:, None] / 255
    >>> env = gym.make("CartPole-v1", render_mode="rgb_array")
    >>> env = vlmrm_gym.VLMReward(env, reward=Brightness())
    >>> observation, info = env.reset(seed=0)
    >>> observation, reward, terminated, truncated, info = env.step(0)
    >>> 0.9 < reward < 1
    True
    >>> env.close()

    In YAML files and on the command line, name the class: "my_package.rewards:Brightness". If its constructor has a
    parameter `device`, it gets the device that scores, such as "cuda:1". Run networks in evaluation mode.

    The features of a frame must not depend on the rest of its batch: batches mix frames of several episodes and
    environments, and their sizes vary.
    """

    batch_size: int = 64
    """Maximum number of frames, or clips, per call."""
    microbatch_size: int | None = None
    """Frames per interruptible call, about one second of work on a CPU; None: `batch_size`. It must be a constant, not
    measured: the last digits of features can depend on it."""
    encodes: Literal["view", "views", "states"] = "view"
    """What `encode` gets of B states: "view", frames of single views, uint8 (B, H, W, 3); "views", all views of a state
    at once, uint8 (B, V, H, W, 3); "states", the numbers that frames are drawn from, float64 (B, S)."""
    multi_view: bool = False
    """Whether the head sees all views of a state at once. Otherwise it scores each view, and `combine_views` says how
    the rewards of the views make one."""
    num_views: int | None = None
    """The number of views that the head is made for; None: any."""
    clip_length: int = 1
    """Frames of a clip, F. Above 1 `encode` gets clips, uint8 (B, F, H, W, 3) or (B, F, V, H, W, 3): the frames of the
    last F states of the episode, the newest last. The first state that an action led to is repeated while the episode
    is younger than a clip."""
    clip_stride: int = 1
    """Steps of the environment from one frame of a clip to the next."""
    clip: Literal["window", "prefix"] = "window"
    """"window": clips of the last states; "prefix": of the episode so far, as models of progress need them. Their first
    frame is of the state before any action, the newest is last, and the others lie evenly between, repeated while the
    episode is younger than a clip. The states of the episode in progress are kept in memory then."""
    every: int = 1
    """Steps from one state that is scored to the next. Those in between have its reward."""
    ordered: bool = False
    """Whether a state's features depend on the states of its episode before it: then `continue_episode` is called, by
    the process of the environments, in place of `encode`."""
    interpolate: bool = True
    """Whether rewards may be interpolated between those of other states: False makes environments refuse
    `score_every`."""
    feature_size: int | None = None
    """Width of the features, D; None: it is known from the first ones."""
    encoder_key: object = None
    """Equal for models whose `encode` is the same: they share its work. None: no other model's is."""
    fingerprint: str = ""
    """What the features are of: heads of features with another fingerprint are refused. Empty: unknown."""
    weights: str = "not known"
    """The name of a network and the digest of its weights, for reports."""
    render_size: RenderSize = staticmethod(unchanged_size)
    """The size at which frames are rendered; the environment's own by default. Stored frames, of environments that
    cannot be rendered from their states, always have the environment's size."""
    head: Any = staticmethod(only_feature)
    """Maps features, a torch tensor, float32 (B, V, D), to rewards, float32 (B,); or a `SequenceHead`. It is copied or
    pickled to the process of the environments, and must work on a CPU there. None: there is none yet."""

    def encode(self, frames: Any) -> Any:
        """Encode frames, or what `encodes` says.

        Args:
            frames: uint8 (B, H, W, 3), RGB, read-only.

        Returns:
            Features, float32 (B, D), finite: an array, or a torch tensor of any device.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `encode`.")

    def continue_episode(self, frames: Any, memory: Any) -> tuple[Any, Any]:
        """Encode the next B states of an episode, for an `ordered` model.

        Returns features, as `encode`, and what to remember of the states so far. `memory` is what the call before
        returned; None where the episode begins.
        """
        return self.encode(frames), None

    def __call__(self, frames: Any) -> Any:
        """Score frames, or what `encodes` says: `head(encode(frames))`.

        With `multi_view` frames are uint8 (B, V, H, W, 3). A head of sequences scores the frames of an episode in
        order.

        Returns:
            float32 (B,), of the same kind as `frames`: NumPy, or torch on the frames' device.
        """
        import torch

        seen, views = frames, 1
        if self.multi_view and self.encodes == "view":
            seen = frames.swapaxes(1, frames.ndim - 4)  # of clips, the views come after the frames
            seen, views = seen.reshape(-1, *seen.shape[2:]), seen.shape[1]
        features = self.encode(seen)
        if not isinstance(features, torch.Tensor):
            features = torch.from_numpy(as_float32(as_array(features)))
        with torch.no_grad():
            rewards = self.head(features.float().reshape(len(frames), views, -1))
        return rewards.to(frames.device) if isinstance(frames, torch.Tensor) else rewards.cpu().numpy()

    def close(self) -> None:
        """End the processes of the model, if it has any. Any thread may call this, also again."""

    @property
    def clip_shape(self) -> ClipShape:
        """The clips that it looks at."""
        is_prefix = self.clip == "prefix" and self.clip_length > 1
        return ClipShape(self.clip_length, self.clip_stride, self.every, is_prefix)


_SIZE_RULE = "`reward.render_size` must be a function from (height, width) to such, two integers of at least 1"


def check_model(model: RewardModel) -> None:
    """Raise a ValueError if what the class of a model declares is out of range."""
    if type(model).__call__ is not RewardModel.__call__:
        rule = "`reward` must not override `__call__`, which environments do not call"
        raise ValueError(f"{rule}. Received {short_repr(model)}. Override `encode` or `head`.")
    if type(model).encode is RewardModel.encode:
        raise ValueError(f"`reward` must define `encode`. Received {short_repr(model)}, which does not.")
    if model.head is not None and not callable(model.head):
        raise ValueError(
            f"`reward.head` must be a callable, a SequenceHead or None. Received {short_repr(model.head)}."
        )
    for name in ("batch_size", "clip_length", "clip_stride", "every"):
        check_positive_integer(f"reward.{name}", getattr(model, name))
    if model.microbatch_size is not None:
        check_positive_integer("reward.microbatch_size", model.microbatch_size)
    for name in ("multi_view", "ordered", "interpolate"):
        check_flag(f"reward.{name}", getattr(model, name))
    if model.every > 1 and (model.ordered or model.clip_length > 1):
        other = "ordered" if model.ordered else "clip_length"
        raise ValueError(f"`reward.every` above 1 is not for a model with `{other}`. Received {model.every}.")
    check_choice("reward.encodes", model.encodes, ("view", "views", "states"))
    check_choice("reward.clip", model.clip, ("window", "prefix"))
    if model.clip == "prefix" and model.clip_stride > 1:
        raise ValueError(f'`reward.clip_stride` is for clip="window". Received {model.clip_stride}. Leave it out.')
    if not callable(model.render_size):
        raise ValueError(f"{_SIZE_RULE}. Received {short_repr(model.render_size)}.")
    if model.multi_view and model.encodes == "view" and model.head is only_feature:
        raise ValueError(
            '`reward.multi_view` needs a `head` of the features of all views. Set encodes = "views" if `encode` sees '
            "all views of a state at once."
        )


def encode_frames(model: RewardModel, frames: Any) -> NDArray[np.float32]:
    """Return the features that a model's `encode` makes of N frames, or clips: float32 (N, D)."""
    return check_features(model, model.encode(frames), len(frames))


def check_features(model: RewardModel, returned: Any, count: int) -> NDArray[np.float32]:
    """Return features as float32 (count, D). Raise an error if they have another shape, or are not finite."""
    size = model.feature_size
    rule = f"`encode` must return features of shape ({count}, {size or 'D'}), a row for each frame"
    features = as_numbers(returned, rule)
    if features.ndim != 2 or len(features) != count or features.shape[1] != (size or features.shape[1] or 1):
        raise ValueError(f"{rule}. Received {features.dtype} of shape {features.shape}.")
    features = features if features.dtype == np.float32 else as_float32(features)
    if not np.isfinite(features).all():
        raise ValueError(f"{rule}, and finite ones. Received a NaN or an infinity.")
    return features


def as_numbers(returned: Any, rule: str) -> NDArray[Any]:
    """Return what a callable returned as an array. Raise a TypeError unless it is of numbers."""
    try:
        numbers = as_array(returned)
    except ValueError:  # of several shapes
        numbers = np.array(None)
    if numbers.dtype.kind not in "fiub":
        raise TypeError(f"{rule}, and nothing beside them. Received {short_repr(returned)}.")
    return numbers


def checked_size(render_size: RenderSize, height: int, width: int) -> tuple[int, int]:
    """Return the size that a model asks for. Raise a ValueError unless it is two integers of at least 1."""
    size: Any = render_size(height, width)
    try:
        new_height, new_width = (operator.index(pixels) for pixels in size)
    except (TypeError, ValueError):
        new_height = new_width = 0
    if min(new_height, new_width) < 1:
        raise ValueError(f"{_SIZE_RULE}. Received {short_repr(size)} for {(height, width)}.")
    return new_height, new_width
