"""Encodes states: draws them, and has a reward model encode what it sees of them."""

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.errors import InputError
from vlmrm_gym.rewards.heads import CombineViews, SequenceHead, ViewsHead, make_head
from vlmrm_gym.rewards.model import (
    ClipShape,
    Features,
    RenderSize,
    RewardModel,
    check_features,
    checked_size,
    encode_frames,
)
from vlmrm_gym.rewards.program.spec import ProgramError
from vlmrm_gym.scoring.requests import MAX_STEPS, Keys, StateBatch
from vlmrm_gym.states import Renderer

FRAMES_PER_DRAW = 64
"""Frames drawn between two progress reports."""

Stage = Literal["draw", "encode"]
Progress = Callable[[Stage], object]


@dataclass(frozen=True, kw_only=True)
class EncoderInfo:
    """Describes a reward model to the process of the environments, wherever the model is loaded."""

    batch_size: int
    """States per call, at most."""
    render_size: RenderSize
    clip: ClipShape
    """The clips whose features a state has."""
    sees_states: bool
    """Whether it sees the numbers of states in place of their frames."""
    ordered: bool
    """Whether features depend on the states of the episode before."""
    interpolate: bool
    """Whether rewards may be interpolated between those of other states."""
    num_views: int
    """Views that features are of: V."""
    head: Any
    """The head of the model, on the CPU; None: there is none yet."""
    multi_view: bool
    """Whether the head sees all views at once."""
    fingerprint: str
    feature_shape: tuple[int, int] | None
    """Shape of a state's features, (V, D); None if the model does not say its `feature_size`."""

    def make_head(self, combine: CombineViews | None) -> ViewsHead | None:
        """Make the head of states, None if there is none yet; rewards of views are combined, by "min" for None."""
        if self.multi_view:
            if combine is not None:
                seen = "no view, but the states" if self.sees_states else "all views at once"
                raise ValueError(f"`combine_views` is not for a reward that sees {seen}. Leave it out.")
        elif combine is None and self.num_views > 1:
            combine = CombineViews("min", self.num_views)
        return None if self.head is None else make_head(self.head, combine, self.fingerprint)

    def check_fits(self, time_limit: int | None, score_every: int = 1) -> None:
        """Raise a ValueError if clips do not fit into an episode, or rewards cannot be interpolated as asked for."""
        clip = self.clip
        if time_limit is not None and clip.span >= time_limit:
            raise ValueError(
                f"`clip_length` and `clip_stride` must make clips that fit into an episode, of {time_limit} steps at "
                f"most. Received {clip.length} frames, {clip.stride} steps apart: {clip.span + 1} steps."
            )
        if clip.every > 1 and isinstance(self.head, SequenceHead):
            raise ValueError("`every` of a reward is not for a head that looks at sequences of states.")
        reason = "depends on the states before" if self.ordered else None
        if not self.interpolate:
            reason = "says that it cannot be interpolated"
        if isinstance(self.head, SequenceHead):
            reason = "looks at sequences of states"
        if clip.length > 1:
            reason = "is of clips, which overlap"
        if clip.every > 1:
            reason = f"says itself that one state in {clip.every} is scored"
        if reason is not None and score_every > 1:
            rule = f"`score_every` is not for this reward: it {reason}"
            raise ValueError(f"{rule}. Received {score_every}. Leave it out.")


class StateEncoder:
    """Encodes states of `num_views` views by a reward model: their features are float32 (B, V, D)."""

    def __init__(self, model: RewardModel, num_views: int) -> None:
        if model.num_views not in (None, num_views):
            raise ValueError(
                f"`head` must be of as many views as there are cameras, {num_views}. Received a head of "
                f"{model.num_views}. Pass the cameras that it was fitted to."
            )
        self.model = model
        self._is_single = model.encodes == "view"
        per_state = 1 if model.encodes == "states" else num_views
        self.microbatch_size: int = max(1, (model.microbatch_size or model.batch_size) // per_state)
        """States per interruptible call."""
        self._width = model.feature_size
        """Width of the features, D; None before the first ones, if the model does not say it."""
        self._ndim = 4 if model.clip_length == 1 else 5
        """Dimensions of frames, or of clips, from one view."""
        views = num_views if self._is_single else 1
        self.info = EncoderInfo(
            batch_size=max(1, model.batch_size // per_state),
            render_size=partial(checked_size, model.render_size),
            clip=model.clip,
            sees_states=model.encodes == "states",
            ordered=model.ordered,
            interpolate=model.interpolate,
            num_views=views,
            head=head_on_cpu(model),
            multi_view=model.multi_view or not self._is_single,
            fingerprint=model.fingerprint,
            feature_shape=None if model.feature_size is None else (views, int(model.feature_size)),
        )

    def see(self, batch: StateBatch, renderer: Renderer, progress: Progress = lambda stage: None) -> NDArray[Any]:
        """Draw the rows of a batch, N of them: what the model sees of states, frames or their numbers."""
        rows = replace(batch.states, clips=None)
        if self.info.sees_states:
            if rows.rows.ndim != 2 or rows.rows.dtype != np.float64:
                raise InputError(
                    '`inputs="states"` needs states from which frames can be drawn. Received frames, of shape '
                    f'{rows.rows.shape[1:]}. Pass inputs="frames".'
                )
            return read_only(rows.rows)
        drawn = []
        for start in range(0, len(rows), FRAMES_PER_DRAW):
            drawn.append(rows[start : start + FRAMES_PER_DRAW].draw(renderer))
            progress("draw")
        frames = drawn[0] if len(drawn) == 1 else np.concatenate(drawn)
        return read_only(frames) if np.may_share_memory(frames, rows.rows) else frames  # stored: they may come again

    def encode(
        self,
        seen: NDArray[Any],
        batch: StateBatch,
        begin: Callable[[], object] = lambda: None,
        progress: Progress = lambda stage: None,
    ) -> Features:
        """Return the features of a batch, of whose rows `seen` was drawn: float32 (B, V, D).

        It encodes in microbatches, so that a large model on a CPU can be stopped: `begin` is called before each.
        """
        held = batch.states.clips
        if held is not None and held.ndim == 1:
            return self.encode(seen, replace(batch, states=replace(batch.states, clips=None)), begin, progress)[held]
        parts, size = [], self.microbatch_size
        for start, stop, memory in batch.runs:
            for first in range(start, stop, size):
                begin()
                last = min(first + size, stop)
                keys = batch.keys[first:last]
                with _naming_states(keys):
                    frames = batch.states.gather(seen, slice(first, last))
                    if memory is None:
                        parts.append(self.features(frames))
                    else:
                        parts.append(self._continue(frames, int(keys[0]), memory))
                self._width = width = self._width or parts[-1].shape[2]
                if parts[-1].shape[2] != width:
                    rule = "`encode` must return features of one width"
                    raise ValueError(f"{rule}. Received {parts[-1].shape[2]}, after {width}.")
                progress("encode")
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def features(self, frames: NDArray[Any]) -> Features:
        """Return the features of states, float32 (B, V, D).

        Frames are uint8 (B, V, H, W, 3), or (B, H, W, 3) of one view; clips (B, F, V, H, W, 3) or (B, F, H, W, 3); or
        states, float64 (B, S).
        """
        if self.info.sees_states:
            return encode_frames(self.model, frames)[:, None]
        views = self._with_views(frames)
        if not self._is_single:
            return encode_frames(self.model, views)[:, None]
        views = np.moveaxis(views, -4, 1)  # the frames of each view of each state, one after the other
        return encode_frames(self.model, views.reshape(-1, *views.shape[2:])).reshape(*views.shape[:2], -1)

    def _continue(self, frames: NDArray[Any], key: int, memory: "dict[int, Any]") -> Features:
        """Return the features of the next states of an episode; what is remembered is found and kept by keys."""
        if key not in memory:
            raise RuntimeError("The states of the episode before these were not scored.")
        views = frames[:, None] if self.info.sees_states else self._with_views(frames)
        before = (None,) * views.shape[1] if memory[key] is None else memory[key]
        encoded = [self.model.continue_episode(views[:, view], last) for view, last in enumerate(before)]
        memory[key + len(frames)] = tuple(after for _, after in encoded)
        return np.stack([check_features(self.model, features, len(frames)) for features, _ in encoded], axis=1)

    def _with_views(self, frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Frames with the dimension of the views, which comes before height and width."""
        return frames if frames.ndim > self._ndim else np.expand_dims(frames, -4)

    def close(self) -> None:
        """End the processes of the model, if it has any. Any thread may call this, also again."""
        self.model.close()


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Make a view that nobody can write to."""
    view = array.view()
    view.flags.writeable = False
    return view


def head_on_cpu(model: RewardModel) -> Any:
    """Copy the head of a model to the CPU; a function, or a method of the model, is its head as it is."""
    head = model.head
    if head is None or inspect.ismethod(head) or inspect.isfunction(head):
        return head
    head = copy.deepcopy(head)  # the model's stays on its device
    return head.cpu() if hasattr(head, "cpu") else head


@contextmanager
def _naming_states(keys: Keys) -> Iterator[None]:
    """Add to the error of a program which state the frame is of."""
    try:
        yield
    except ProgramError as error:
        if error.frame is not None:
            views = max(1, error.count // len(keys))
            environment, step = divmod(int(keys[error.frame // views]), MAX_STEPS)
            error.args = (f"{error} The frame is of environment {environment}, step {step}.",)
        raise


def build_encoder(build: Callable[..., RewardModel], num_views: int, device: str = "auto") -> StateEncoder:
    """Make the `StateEncoder` of the model that `build` loads on a device."""
    return StateEncoder(build(device=device), num_views)


class DirectScorer:
    """Encodes states at once, in the calling thread; otherwise like a `ScoringQueue`. It can be copied and pickled."""

    def __init__(self, encoder: StateEncoder, renderer: Renderer) -> None:
        self._encoder, self._renderer = encoder, renderer
        self.info, self.batch_size, self.pending_bytes = encoder.info, encoder.info.batch_size, 0

    def submit(self, *requests: Any) -> None:
        """Encode the states of requests."""
        for request in requests:
            request.begin()
            try:
                batch = request.whole()
                request.deliver(self._encoder.encode(self._encoder.see(batch, self._renderer), batch))
            except BaseException:
                request.end(RuntimeError("Encoding has failed."))  # not the error: it may forbid copies
                raise

    def close(self) -> None:
        """Free the renderer and the model's processes."""
        self._renderer.close()
        self._encoder.close()
