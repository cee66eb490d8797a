"""How the rewards of a state's views make one reward."""

from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np

from vlmrm_gym.rewards.base import Rewards
from vlmrm_gym.rewards.custom import ByValue, find_callable
from vlmrm_gym.validation import as_float32, short_repr

CombineName = Literal["min", "mean"]
CombineFunction = Callable[[Rewards], Any]
"""From the rewards of the views, float32 (B, V), to those of the states, (B,), row by row."""
_REDUCTIONS: dict[str, CombineFunction] = {
    "min": lambda rewards: rewards.min(1),
    "mean": lambda rewards: rewards.mean(1),
}


class CombineViews(ByValue):
    """How the rewards of a state's views make one reward.

    Args:
        how: "min" (all views must agree), "mean", a function from float32 (B, V) to (B,) or the name of one,
            "package.module:attribute".
        num_views: Number of views, V.

    Raises:
        ValueError: The name is unknown; or the function raises, does not return finite numbers (B,), or mixes rows.
    """

    _parameter, _noun = "combine_views", "function"

    def __init__(self, how: CombineName | CombineFunction | str, num_views: int) -> None:
        self._function = _find_function(how)
        _check_function(self._function, how, num_views)

    def __call__(self, rewards: Rewards) -> Rewards:
        """Combine the rewards of views, float32 (B, V): float32 (B,)."""
        combined = np.asarray(self._function(rewards))
        is_row_wise = combined.shape == (len(rewards),) and combined.dtype.kind in "fiu"
        if not is_row_wise or not np.isfinite(result := as_float32(combined)).all():
            raise ValueError(
                f"`combine_views` must return a finite number for each row, of shape ({len(rewards)},). Received "
                f"{combined.dtype} of shape {combined.shape}: {short_repr(combined.tolist())}."
            )
        return result


def _find_function(how: Any) -> CombineFunction:
    if isinstance(how, str) and how in _REDUCTIONS:
        return _REDUCTIONS[how]
    if isinstance(how, str) and ":" in how:
        return find_callable(how, "combine_views")
    if not callable(how):
        names = ", ".join(map(repr, get_args(CombineName)))
        raise ValueError(
            f'`combine_views` must be one of {names}, a function from float32 (B, V) to (B,), or "package.module:'
            f'attribute". Received {short_repr(how)}.'
        )
    return how


def _check_function(function: CombineFunction, how: object, num_views: int) -> None:
    """Raise a ValueError unless a function maps (B, V) to (B,), each row for itself."""
    rule = f"`combine_views` must map the rewards of views, float32 (B, {num_views}), to numbers (B,), row by row"
    rewards = np.linspace(0.2, 0.9, 3 * num_views, dtype=np.float32).reshape(num_views, 3).T.copy()
    try:
        combined = np.asarray(function(rewards.copy()))
        one_by_one = [np.asarray(function(rewards[i : i + 1].copy())) for i in range(3)]
    except Exception as error:
        raise ValueError(f"{rule}. Received {how!r}, which raised {type(error).__name__}: {error}.") from error
    if combined.shape != (3,) or one_by_one[0].shape != (1,) or combined.dtype.kind not in "fiu":
        received = f"{combined.dtype} of shape {combined.shape} for (3, {num_views})"
        raise ValueError(f"{rule}. Received {short_repr(how)}, which returned {received}.")
    if not np.isfinite(as_float32(combined)).all() or not np.allclose(combined, np.concatenate(one_by_one), atol=1e-5):
        raise ValueError(f"{rule}. Received {how!r}, whose result depends on the other rows or is not finite.")
