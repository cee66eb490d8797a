"""Clips: the last states of an episode, for reward models of motion."""

from dataclasses import replace

import numpy as np

from vlmrm_gym.rendering import States
from vlmrm_gym.rewards.base import ClipShape


def check_clip_fits(shape: ClipShape, time_limit: int | None) -> None:
    """Raise a ValueError if clips are longer than an episode.

    Args:
        shape: Of the clips.
        time_limit: Steps of an episode, at most; None if it is not known.
    """
    if time_limit is not None and shape.span >= time_limit:
        raise ValueError(
            f"`clip_length` and `clip_stride` must make clips that fit into an episode, of {time_limit} steps at most. "
            f"Received {shape.length} frames, {shape.stride} steps apart: {shape.span + 1} steps."
        )


class EpisodeClips:
    """Makes clips of the successive states of one environment.

    The clip of a state is a function of the last states of its episode only. So clips carry what they need: they can be
    split, sent anywhere and scored again in any order.

    Args:
        shape: Which clips.
    """

    def __init__(self, shape: ClipShape) -> None:
        self._shape = shape
        self._before: States | None = None
        """The newest states of the episode, `shape.span` at most; None if it has none yet."""

    def begin_episode(self) -> None:
        """Forget the states so far."""
        self._before = None

    def extend(self, states: States) -> States:
        """Add the next states of the episode.

        Args:
            states: T states, without clips.

        Returns:
            The T states with their clips; the first state is repeated while the episode is younger than a clip.
        """
        if self._shape.length == 1:
            return states
        every = states if self._before is None else States.concatenate([self._before, states])
        newest = np.arange(len(every) - len(states), len(every))
        back = self._shape.stride * np.arange(self._shape.length - 1, -1, -1)
        self._before = every[len(every) - min(len(every), self._shape.span) :]
        return replace(every, clips=np.maximum(newest[:, None] - back, 0))
