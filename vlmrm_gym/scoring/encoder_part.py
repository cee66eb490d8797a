"""Encodes what one model sees of states, in microbatches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.rewards.model import Features, RewardModel, check_features, encode_frames
from vlmrm_gym.rewards.program.spec import ProgramError
from vlmrm_gym.scoring.requests import MAX_STEPS, EpisodeMemory, Keys, StateBatch

Stage = Literal["draw", "drawn", "encode"]
Progress = Callable[[Stage], object]
"""Called before every microbatch that is encoded, and after every `FRAMES_PER_DRAW` frames and every batch that were
drawn. May raise to stop."""
Index = NDArray[np.int64]
Seen = tuple[NDArray[Any], Index | None]
"""What a model sees of the rows of a batch, (N, ...), and the rows of each state: int64 (B,), or (B, F) of clips; None:
one after the other."""


class EncoderPart:
    """Encodes what one model sees of states of `num_views` views. Messages name it, if it is one of several."""

    def __init__(self, model: RewardModel, num_views: int, name: str = "") -> None:
        self.model, self.clip, self._name = model, model.clip_shape, name
        self.sees_states, self._is_single = model.encodes == "states", model.encodes == "view"
        per_state = 1 if self.sees_states else num_views
        self.batch_size = max(1, model.batch_size // per_state)
        """States per call, at most."""
        self.microbatch_size = max(1, (model.microbatch_size or model.batch_size) // per_state)
        """States per interruptible call."""
        self.num_views = num_views if self._is_single else 1
        """Views that features are of."""
        self._width = model.feature_size
        """Width of the features, D; None before the first ones, if the model does not say it."""

    def encode(self, of: Seen, batch: StateBatch, progress: Progress) -> Features:
        """Return the features of a batch, float32 (B, V, D)."""
        (seen, index), of_states = of, None
        if index is not None and index.ndim == 1 and not self.model.ordered:  # held rewards
            index, of_states = np.unique(index, return_inverse=True)
        parts, size, count = list[Features](), self.microbatch_size, len(batch if index is None else index)
        for start, stop, memory in batch.runs if self.model.ordered else [(0, count, None)]:
            for first in range(start, stop, size):
                progress("encode")
                rows = slice(first, min(first + size, stop))
                keys, frames = batch.keys[rows], seen[rows if index is None else index[rows]]
                with self._naming(keys):
                    own = self.features(frames) if memory is None else self._continue(frames, int(keys[0]), memory)
                    self._width = width = self._width or own.shape[2]
                    if own.shape[2] != width:
                        rule = "`encode` must return features of one width"
                        raise ValueError(f"{rule}. Received {own.shape[2]}, after {width}.")
                parts.append(own)
        features = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return features if of_states is None else features[of_states]

    def features(self, frames: NDArray[Any]) -> Features:
        """Return the features of frames (B, V, H, W, 3), of clips (B, F, V, H, W, 3), or of states, float64 (B, S)."""
        if not self._is_single:
            return encode_frames(self.model, frames)[:, None]
        views = np.moveaxis(frames, -4, 1)  # the frames of each view of each state, one after the other
        return encode_frames(self.model, views.reshape(-1, *views.shape[2:])).reshape(*views.shape[:2], -1)

    def _continue(self, frames: NDArray[Any], key: int, memory: EpisodeMemory) -> Features:
        """Return the features of the next states of an episode; what is remembered is found and kept by keys."""
        if key not in memory or (memory[key] and self not in memory[key]):
            raise RuntimeError("The states of the episode before these were not scored.")
        views = frames[:, None] if self.sees_states else frames
        before = (memory[key] or {}).get(self, (None,) * views.shape[1])
        encoded = [self.model.continue_episode(views[:, view], last) for view, last in enumerate(before)]
        after = key + len(frames)
        memory[after] = {**(memory.get(after) or {}), self: tuple(last for _, last in encoded)}
        return np.stack([check_features(self.model, features, len(frames)) for features, _ in encoded], axis=1)

    @contextmanager
    def _naming(self, keys: Keys) -> Iterator[None]:
        """Add to an error which of several rewards failed, and of a program which state the frame is of."""
        try:
            yield
        except Exception as error:
            if isinstance(error, ProgramError) and error.frame is not None:
                views = max(1, error.count // len(keys))
                environment, step = divmod(int(keys[error.frame // views]), MAX_STEPS)
                error.args = (f"{error} The frame is of environment {environment}, step {step}.",)
            failed = f"The term `{self._name}` of the reward failed"
            if self._name and error.args and isinstance(error.args[0], str):
                error.args = (f"{failed}: {error.args[0]}", *error.args[1:])
            elif self._name:
                error.add_note(f"{failed}.")
            raise
