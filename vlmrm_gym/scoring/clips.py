"""Clips: the last states of an episode, for reward models of motion. Rewards that are held are of earlier states."""

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
    """Makes clips of the successive states of one environment, or takes the state whose reward is held.

    The clip of a state, or the state whose reward it has, is a function of the last states of its episode only. So
    clips carry what they need: they can be split, sent anywhere and scored again in any order.

    Args:
        shape: Which clips.
    """

    def __init__(self, shape: ClipShape) -> None:
        self._shape = shape
        self._before: States | None = None
        """The newest states of the episode, as many as clips reach back; None if it has none yet."""
        self._count = 0
        """Number of states of the episode."""

    def begin_episode(self) -> None:
        """Forget the states so far."""
        self._before, self._count = None, 0

    def extend(self, states: States) -> States:
        """Add the next states of the episode.

        Args:
            states: T states, without clips.

        Returns:
            The T states with their clips; the first state is repeated while the episode is younger than a clip. Where
            rewards are held, clips are (T,): the last state that is scored.
        """
        if self._shape == ClipShape():
            return states
        every = states if self._before is None else States.concatenate([self._before, states])
        newest = np.arange(len(every) - len(states), len(every))
        numbers = self._count + np.arange(len(states))
        self._count += len(states)
        if self._shape.every > 1:
            clips, span = newest - numbers % self._shape.every, self._shape.every - 1
        else:
            back = self._shape.stride * np.arange(self._shape.length - 1, -1, -1)
            clips, span = np.maximum(newest[:, None] - back, 0), self._shape.span
        self._before = every[len(every) - min(len(every), span) :]
        return replace(every, clips=clips)[:]  # without rows that no clip has
