"""Looks for wrappers around environments whose rewards arrive later: what they would compute of NaN."""

import sys
import warnings
from typing import Any

from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from vlmrm_gym._util.validation import REWARD_WRAPPERS


def check_outer_wrappers(envs: VectorEnv[Any, Any, Any]) -> None:
    """Look at the wrappers through which `envs.step` is called: Gymnasium tells a wrapper nothing of those around it.

    Raises:
        ValueError: One changes rewards, which are NaN until an episode has been scored.

    Warns:
        UserWarning: One sums up rewards.
    """
    frame = sys._getframe(1)
    while frame is not None:
        outer = frame.f_locals.get("self") if frame.f_code.co_name == "step" else None
        if isinstance(outer, VectorWrapper) and outer is not envs and outer.unwrapped is envs.unwrapped:
            name = type(outer).__name__
            if isinstance(outer, REWARD_WRAPPERS):
                raise ValueError(
                    f"`env` must not be wrapped in {name}: rewards are NaN until an episode is scored, and arrive "
                    'in infos["vlm_rewards"]. Change those, or pass scoring="step".'
                )
            if isinstance(outer, RecordEpisodeStatistics):
                warnings.warn(
                    f"{name} sums up rewards before they arrive: its returns are NaN. In its place use "
                    'vlmrm_gym.data.statistics.EpisodeStatistics, whose infos["scored_episode"] has them; or pass '
                    'scoring="step". Inside, around the environments themselves, it sums up their own rewards.',
                    stacklevel=4,
                )
        frame = frame.f_back
