"""The reward model protocol, and `CheckedReward`, which makes a reward model of any callable."""

import operator
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.validation import as_array, as_float32, check_flag, check_positive_integer, short_repr

if TYPE_CHECKING:
    import torch

Rewards = NDArray[np.float32]
RenderSize = Callable[[int, int], tuple[int, int]]
"""From (height, width) of an environment's own frames to the (height, width) at which to render them, in pixels.

It must be picklable: renderers carry it into worker processes.
"""


def unchanged_size(height: int, width: int) -> tuple[int, int]:
    """The default `RenderSize`: the environment's own."""
    return height, width


def fixed_size(size: tuple[int, int] | None) -> RenderSize:
    """The `RenderSize` that is always (height, width); the environment's own for None."""
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

    @property
    def span(self) -> int:
        """Steps from the first frame to the last."""
        return (self.length - 1) * self.stride


class RewardModel(Protocol):
    """Scores frames.

    Any callable from frames to numbers can be passed as `reward=`; the attributes below are optional. It sees frames
    only: no actions, no observations, no environment.

    >>> import gymnasium as gym, vlmrm_gym
    >>> class Brightness:
    ...     batch_size = 256
    ...
    ...     def __call__(self, frames):
    ...         return frames.mean(axis=(1, 2, 3)) / 255
    >>> env = gym.make("CartPole-v1", render_mode="rgb_array")
    >>> env = vlmrm_gym.VLMReward(env, reward=Brightness())
    >>> observation, info = env.reset(seed=0)
    >>> observation, reward, terminated, truncated, info = env.step(0)
    >>> 0.9 < reward < 1
    True
    >>> env.close()

    In YAML files and on the command line, name the class: "my_package.rewards:Brightness". If its constructor has a
    parameter `device`, it gets the device that scores, such as "cuda:1". Run networks in evaluation mode; the result
    may be a torch tensor on any device.

    The reward of a frame must not depend on the rest of its batch: batches mix frames of several episodes and
    environments, and their sizes vary.

    A model of clips has the attributes `clip_length`, F, and perhaps `clip_stride`, in steps of the environment. Its
    frames are then uint8 (B, F, H, W, 3), or (B, F, V, H, W, 3) if it sees all views: those of the last F states of the
    episode, `clip_stride` steps apart and the newest last. The first state that an action led to is repeated while the
    episode is younger than a clip. `batch_size` counts clips.

    A model whose rewards say nothing of the states in between, such as one that counts events, has the attribute
    `interpolate = False`: environments then refuse `score_every`.

    A reward that is a cheap function of expensive features says so, by two more attributes. With `return_features=True`
    environments return the features too, and replay buffers make all rewards anew when the head changes:

    - `encode(frames)`: from frames, uint8 (B, H, W, 3), to features, float32 (B, D).
    - `head`: from features, a torch tensor, float32 (B, V, D), to rewards, float32 (B,). V is 1, and the rewards of
      several views are combined, unless `multi_view` is true. It can be copied and pickled. None: there is none yet.

    A model with both needs no `__call__`. It may also have `feature_size`, D, and `fingerprint`, a text that says what
    the features are of: heads of other features are refused.
    """

    batch_size: int = 64
    """Maximum number of frames per call."""

    multi_view: bool = False
    """Whether it scores all views of a state at once. Frames are then uint8 (B, V, H, W, 3), from V cameras."""

    @property
    def microbatch_size(self) -> int:
        """Frames per interruptible call: about one second of work on a CPU. `batch_size` by default.

        It must be a constant, not measured: the last digits of a reward can depend on it.
        """
        return self.batch_size

    @property
    def render_size(self) -> RenderSize:
        """At which size frames are rendered; the environment's own by default.

        Stored frames, of environments that cannot be rendered from their states, always have the environment's size.
        """
        return unchanged_size

    @abstractmethod
    def __call__(self, frames: NDArray[np.uint8]) -> Rewards:
        """Score frames.

        Args:
            frames: uint8 (B, H, W, 3), RGB, read-only.

        Returns:
            float32 (B,), finite.
        """
        ...


def is_reward(value: object) -> bool:
    """Whether a value scores frames: it can be called, or has an encoder and a head."""
    return callable(value) or (callable(getattr(value, "encode", None)) and hasattr(value, "head"))


class CheckedReward:
    """A reward model made of any callable, or of an object with `encode` and `head`.

    Fills in the attributes that it lacks, and checks what it returns. Messages call it by the name; each call gets the
    keyword arguments.
    """

    def __init__(self, function: Any, name: str = "reward", kwargs: Mapping[str, Any] | None = None) -> None:
        self._function, self._name, self._kwargs = function, name, dict(kwargs or {})
        for attribute in ("encode", "head", "feature_size", "fingerprint", "interpolate"):
            if hasattr(function, attribute):
                setattr(self, attribute, getattr(function, attribute))
        self.batch_size: int = getattr(function, "batch_size", RewardModel.batch_size)
        self.microbatch_size: int = getattr(function, "microbatch_size", self.batch_size)
        self.clip_length: int = getattr(function, "clip_length", 1)
        self.clip_stride: int = getattr(function, "clip_stride", 1)
        for attribute in ("batch_size", "microbatch_size", "clip_length", "clip_stride"):
            check_positive_integer(f"{name}.{attribute}", getattr(self, attribute))
        self.multi_view: bool = getattr(function, "multi_view", False)
        check_flag(f"{name}.multi_view", self.multi_view)
        self.render_size: RenderSize = partial(_checked_size, getattr(function, "render_size", unchanged_size), name)

    def __call__(self, frames: NDArray[np.uint8]) -> Rewards:
        """Score frames, uint8 (B, H, W, 3), or (B, V, H, W, 3) if `multi_view`: float32 (B,), all finite."""
        frames = frames.view()
        frames.flags.writeable = False
        returned = (
            self._function(frames, **self._kwargs) if callable(self._function) else self._encode_and_score(frames)
        )
        rule = f"`{self._name}` must return a number for each frame"
        rewards = _as_numbers(returned, rule)
        if rewards.shape != (len(frames),):
            raise ValueError(f"{rule}, of shape ({len(frames)},). Received shape {rewards.shape}.")
        narrow = as_float32(rewards)
        if not np.isfinite(narrow).all():
            bad = int(np.flatnonzero(~np.isfinite(narrow))[0])
            received = f"{rewards[bad]} for frame {bad} of {len(frames)}, in float32 {narrow[bad]}"
            raise ValueError(f"{rule}, and finite ones. Received {received}.")
        return narrow

    def _encode_and_score(self, frames: NDArray[np.uint8]) -> Any:
        """The rewards of an object that has an encoder and a head, and cannot be called."""
        import torch

        single = np.moveaxis(frames, -4, 1) if self.multi_view else frames[:, None]
        features = encode_frames(self._function, single.reshape(-1, *single.shape[2:]))  # views one after the other
        with torch.no_grad():
            return self._function.head(features.reshape(len(frames), -1, features.shape[1]))


def encode_frames(model: Any, frames: NDArray[np.uint8]) -> "torch.Tensor":
    """The features that a model's `encode` makes of N frames, or clips: float32 (N, D), where it computed them."""
    import torch

    size = getattr(model, "feature_size", None)
    rule = f"`encode` must return features of shape ({len(frames)}, {size or 'D'}), a row for each frame"
    returned = model.encode(frames)
    if not isinstance(returned, torch.Tensor):
        returned = torch.from_numpy(as_float32(_as_numbers(returned, rule)))
    if returned.ndim != 2 or len(returned) != len(frames) or returned.shape[1] != (size or returned.shape[1] or 1):
        raise ValueError(f"{rule}. Received {returned.dtype} of shape {tuple(returned.shape)}.")
    features = returned.detach().float()
    if not features.isfinite().all():
        raise ValueError(f"{rule}, and finite ones. Received a NaN or an infinity.")
    return features


def _as_numbers(returned: Any, rule: str) -> NDArray[Any]:
    """What a callable returned as an array. Raise a TypeError unless that is of numbers."""
    try:
        numbers = as_array(returned)
    except ValueError:  # of several shapes
        numbers = np.array(None)
    if numbers.dtype.kind not in "fiub":
        raise TypeError(f"{rule}, and nothing beside them. Received {short_repr(returned)}.")
    return numbers


def _checked_size(render_size: Any, name: str, height: int, width: int) -> tuple[int, int]:
    """The size that a model asks for. Raise a ValueError unless it is two integers of at least 1."""
    size: Any = render_size(height, width) if callable(render_size) else None
    try:
        new_height, new_width = (operator.index(pixels) for pixels in size)
    except (TypeError, ValueError):
        new_height = new_width = 0
    if min(new_height, new_width) < 1:
        rule = f"`{name}.render_size` must be a function from (height, width) to such, two integers of at least 1"
        received = f"{short_repr(size)} for {(height, width)}" if callable(render_size) else short_repr(render_size)
        raise ValueError(f"{rule}. Received {received}.")
    return new_height, new_width
