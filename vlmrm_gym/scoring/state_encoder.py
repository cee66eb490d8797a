"""Encodes states: draws them, and has reward models encode what they see of them."""

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.errors import InputError
from vlmrm_gym.rewards.combined_model import CombinedModel, Expression, is_missing, size_of
from vlmrm_gym.rewards.heads import CombineViews
from vlmrm_gym.rewards.learned import NO_HEAD
from vlmrm_gym.rewards.model import ClipShape, Features, RenderSize, RewardModel, checked_size, unchanged_size
from vlmrm_gym.scoring.encoder_part import EncoderPart, Progress, Seen
from vlmrm_gym.scoring.requests import StateBatch
from vlmrm_gym.states import Renderer, States
from vlmrm_gym.states.drawing import Drawings, FrameStore

FRAMES_PER_DRAW = 64
"""Frames drawn between two progress reports."""


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


class StateEncoder:
    """Encodes states of `num_views` views by one model, or by all models of a combination, to features, (B, V, D)."""

    def __init__(self, model: RewardModel, num_views: int) -> None:
        if model.num_views not in (None, num_views):
            raise ValueError(
                f"`head` must be of as many views as there are cameras, {num_views}. Received a head of "
                f"{model.num_views}. Pass the cameras that it was fitted to."
            )
        self.model = model
        encoders, expression = [model], Expression.of(model)
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
                batch = StateBatch.of([request.cut(len(request))])
                request.deliver(self._encoder.encode(self._encoder.see(batch, self._renderer), batch))
            except BaseException:
                request.end(RuntimeError("Encoding has failed."))  # not the error: it may forbid copies
                raise

    def close(self) -> None:
        """Free the renderer and the model's processes."""
        self._renderer.close()
        self._encoder.close_drawings()
        self._encoder.close()
