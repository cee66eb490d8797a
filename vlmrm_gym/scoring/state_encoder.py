"""Encodes states: draws them, and has reward models encode what they see of them, in microbatches."""

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.errors import InputError
from vlmrm_gym.rewards.combined_model import CombinedModel, Expression, Member, is_missing, size_of
from vlmrm_gym.rewards.heads import CombineViews
from vlmrm_gym.rewards.learned import NO_HEAD
from vlmrm_gym.rewards.model import (
    ClipShape,
    Features,
    RenderSize,
    RewardModel,
    check_features,
    checked_size,
    encode_frames,
    unchanged_size,
)
from vlmrm_gym.rewards.own import as_model
from vlmrm_gym.rewards.program.spec import ProgramError
from vlmrm_gym.scoring.requests import MAX_STEPS, EpisodeMemory, Keys, StateBatch
from vlmrm_gym.states import Renderer, States
from vlmrm_gym.states.drawing import Drawings, FrameStore

FRAMES_PER_DRAW = 64
"""Frames drawn between two progress reports."""
Stage = Literal["draw", "drawn", "encode"]
Progress = Callable[[Stage], object]
"""Called before every microbatch that is encoded, and after every `FRAMES_PER_DRAW` frames and every batch that were
drawn. May raise to stop."""
Seen = tuple[NDArray[Any], NDArray[np.int64] | None]
"""What a model sees of the rows of a batch, (N, ...), and the rows of each state: int64 (B,), or (B, F) of clips; None:
one after the other."""


@dataclass(frozen=True, kw_only=True)
class EncoderInfo:
    """Describes a reward model to the process of the environments, wherever the model is loaded."""

    batch_size: int
    """States per call, at most."""
    render_size: RenderSize
    clips: Sequence[ClipShape]
    """The clips whose features a state has, for each encoder."""
    ordered: bool
    """Whether features depend on the states of the episode before."""
    interpolate: bool
    """Whether rewards may be interpolated between those of other states."""
    expression: Expression
    """Makes the head, on the CPU."""
    sees_states: bool
    """Whether it sees the numbers of states in place of their frames."""
    fingerprint: str
    shapes: Sequence[tuple[int, int | None]]
    """The shape of the features of a state, (V, D), for each encoder; D is None if the model does not say it."""

    @property
    def feature_shape(self) -> tuple[int, int] | None:
        """Shape of a state's features, (V, D); of several encoders (1, sum of V * D). None if it is not known."""
        shapes = [(views, size) for views, size in self.shapes if size is not None]
        if len(shapes) < len(self.shapes):
            return None
        return shapes[0] if len(shapes) == 1 else (1, sum(views * size for views, size in shapes))

    @property
    def looks_back(self) -> bool:
        """Whether the reward of a state depends on those before it."""
        return self.expression.looks_back

    @property
    def multi_view(self) -> bool:
        """Whether all heads see all views at once."""
        return all(one.multi_view for one in self.expression.members)

    def make_head(self, combine: CombineViews | None, *, may_be_missing: bool = False) -> Any:
        """Make the head of states; rewards of views are combined, by "min" for None.

        A ValueError if it, or a part of it, is yet to be learned, unless it `may_be_missing`.
        """
        if self.multi_view and combine is not None:
            seen = "no view, but the states" if self.sees_states else "all views at once"
            raise ValueError(f"`combine_views` is not for a reward that sees {seen}. Leave it out.")
        head = self.expression.bind(self.shapes, combine)
        if is_missing(head) and not may_be_missing:
            raise ValueError(NO_HEAD)
        return head

    def check_fits(self, time_limit: int | None, score_every: int = 1) -> None:
        """Raise a ValueError if clips do not fit into an episode, or rewards cannot be interpolated as asked for."""
        for clip in self.clips:
            if time_limit is not None and clip.span >= time_limit and not clip.is_prefix:
                raise ValueError(
                    f"`clip_length` and `clip_stride` must make clips that fit into an episode, of {time_limit} steps "
                    f"at most. Received {clip.length} frames, {clip.stride} steps apart: {clip.span + 1} steps."
                )
        reason = "depends on the states before" if self.ordered else None
        if not self.interpolate:
            reason = "says that it cannot be interpolated"
        if self.looks_back:
            reason = "looks at sequences of states"
        if any(clip.length > 1 for clip in self.clips):
            reason = "is of clips, which overlap"
        for every in {clip.every for clip in self.clips} - {1}:
            reason = f"says itself that one state in {every} is scored"
        if reason is not None and score_every > 1:
            rule = f"`score_every` is not for this reward: it {reason}"
            raise ValueError(f"{rule}. Received {score_every}. Leave it out.")


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


class StateEncoder:
    """Encodes states of `num_views` views by one model, or by all models of a combination, to features, (B, V, D)."""

    def __init__(self, model: RewardModel, num_views: int) -> None:
        if model.num_views not in (None, num_views):
            raise ValueError(
                f"`head` must be of as many views as there are cameras, {num_views}. Received a head of "
                f"{model.num_views}. Pass the cameras that it was fitted to."
            )
        self.model = model
        encoders, expression = [model], Expression([Member.of(model)])
        if isinstance(model, CombinedModel):
            encoders, expression = model.encoders, model.expression
        names = [next(one.name for one in expression.members if one.encoder == i) for i in range(len(encoders))]
        self._parts = [EncoderPart(one, num_views, name) for one, name in zip(encoders, names, strict=True)]
        self._drawings: dict[object, Drawings] = {}
        """Draws what the encoders see, by size."""
        is_alone = len(encoders) == 1
        self.info = EncoderInfo(
            batch_size=min(part.batch_size for part in self._parts),
            # Several encoders draw at the sizes that they see, from a renderer of the environment's own.
            render_size=partial(checked_size, model.render_size) if is_alone else unchanged_size,
            clips=[part.clip for part in self._parts],
            ordered=any(one.ordered for one in encoders),
            interpolate=model.interpolate,
            expression=expression.on_cpu(head_on_cpu),
            sees_states=all(part.sees_states for part in self._parts),
            fingerprint=model.fingerprint,
            shapes=[(part.num_views, size_of(part.model)) for part in self._parts],
        )

    def see(self, batch: StateBatch, renderer: Renderer, progress: Progress = lambda stage: None) -> Sequence[Seen]:
        """Draw the rows of a batch: what each encoder sees of them, and which of these rows each state has."""
        rows, clips = replace(batch.states, clips=None), batch.states.clips
        columns = None
        if len(self._parts) > 1 and clips is not None:
            columns = np.split(clips, np.cumsum([part.clip.length for part in self._parts]), axis=1)
        sizes = [self._find_size(part, renderer) for part in self._parts]
        seen: list[Seen] = [(rows.rows, None)] * len(self._parts)
        for size in dict.fromkeys(sizes):  # each is drawn once
            own = [i for i, other in enumerate(sizes) if other == size]
            used = None if columns is None else np.unique(np.concatenate([columns[i].ravel() for i in own]))
            some = rows if used is None else rows[used]
            frames = _see_states(some) if size == "states" else self._draw(some, size, renderer, progress)
            for i in own:
                index = clips
                if columns is not None and used is not None:
                    index = np.searchsorted(used, columns[i][:, 0] if columns[i].shape[1] == 1 else columns[i])
                seen[i] = frames, index
        return seen

    def _find_size(self, part: EncoderPart, renderer: Any) -> Any:
        """The size at which an encoder sees frames; None: as they are drawn, or stored. "states": it sees none."""
        if part.sees_states:
            return "states"
        if len(self._parts) == 1 or isinstance(renderer, FrameStore):
            return None
        return checked_size(part.model.render_size, renderer.height, renderer.width)

    def _draw(self, rows: States, size: Any, renderer: Renderer, progress: Progress) -> NDArray[np.uint8]:
        drawings, drawn = self._drawings.setdefault(size, Drawings(renderer)), []
        for start in range(0, len(rows), FRAMES_PER_DRAW):
            drawn.append(drawings.draw(rows[start : start + FRAMES_PER_DRAW], size))
            progress("draw")
        frames = drawn[0] if len(drawn) == 1 else np.concatenate(drawn)
        return read_only(frames) if np.may_share_memory(frames, rows.rows) else frames  # stored: they may come again

    def encode(self, seen: Sequence[Seen], batch: StateBatch, progress: Progress = lambda stage: None) -> Features:
        """Return the features of a batch, of what `see` made: float32 (B, V, D)."""
        return _join([part.encode(own, batch, progress) for part, own in zip(self._parts, seen, strict=True)])

    def features(self, frames: NDArray[Any]) -> Features:
        """Return the features of frames of states, see `EncoderPart.features`: float32 (B, V, D)."""
        return _join([part.features(frames) for part in self._parts])

    def close(self) -> None:
        """End the processes of the model, if it has any. Any thread may call this, also again."""
        self.model.close()

    def close_drawings(self) -> None:
        """Free the graphics resources: in the thread that drew."""
        for drawings in self._drawings.values():
            drawings.close()


def _join(features: Sequence[Features]) -> Features:
    """The features of several encoders, (B, V, D) each, one after the other: (B, 1, sum of V * D)."""
    return features[0] if len(features) == 1 else np.concatenate([one.reshape(len(one), 1, -1) for one in features], 2)


def _see_states(rows: States) -> NDArray[np.float64]:
    """The numbers of states that can be drawn."""
    if rows.rows.ndim != 2 or rows.rows.dtype != np.float64:
        raise InputError(
            '`inputs="states"` needs states from which frames can be drawn. Received frames, of shape '
            f'{rows.rows.shape[1:]}. Pass inputs="frames".'
        )
    return read_only(rows.rows)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Make a view that nobody can write to."""
    view = array.view()
    view.flags.writeable = False
    return view


def head_on_cpu(head: Any) -> Any:
    """Copy the head of a model to the CPU; a function, or a method of the model, is its head as it is."""
    if head is None or inspect.ismethod(head) or inspect.isfunction(head):
        return head
    head = copy.deepcopy(head)  # the model's stays on its device
    return head.cpu() if hasattr(head, "cpu") else head


def build_encoder(build: Callable[..., RewardModel], num_views: int, device: str = "auto") -> StateEncoder:
    """Make the `StateEncoder` of the model that `build` loads on a device."""
    return StateEncoder(as_model(build(device=device)), num_views)
