"""Heads: from features of frames, which are expensive and stay, to rewards, which are cheap and may change.

Also how the rewards of a state's views make one reward. Imports torch only where a head is called.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.validation import as_array, as_float32, short_repr
from vlmrm_gym.rewards.base import Rewards
from vlmrm_gym.rewards.custom import ByValue, find_callable

if TYPE_CHECKING:
    import torch

Head = Callable[["torch.Tensor"], "torch.Tensor"]
"""From the features of states, float32 (B, V, D) of V views, to rewards, float32 (B,), each row for itself."""
Features = NDArray[np.float32]
"""float32 (B, V, D); or float16, where a buffer keeps them so."""

PIECE_BYTES = 2**26
"""Size of the features, as float32, that a head scores in one call."""

CombineFunction = Callable[[Rewards], Any]
"""From the rewards of the views, float32 (B, V), to those of the states, (B,), row by row."""
_REDUCTIONS: dict[str, CombineFunction] = {
    "min": lambda rewards: rewards.min(1),
    "mean": lambda rewards: rewards.mean(1),
}


class CombineViews(ByValue):
    """How the rewards of a state's views make one: "min" (all views must agree), "mean", or a function or its name.

    A function maps float32 (B, V) to finite numbers (B,), and does not mix rows: batches mix states of many episodes.
    """

    _parameter, _noun = "combine_views", "function"

    def __init__(self, how: CombineFunction | str, num_views: int) -> None:
        self._function = _find_function(how)
        rewards = np.linspace(0.2, 0.9, 3 * num_views, dtype=np.float32).reshape(num_views, 3).T
        rule = f"`combine_views` must map the rewards of views, float32 (B, {num_views}), to numbers (B,), row by row"
        try:
            together, one_by_one = self(rewards.copy()), [self(rewards[i : i + 1].copy()) for i in range(3)]
        except Exception as error:
            raise ValueError(f"{rule}. Received {how!r}, which raised {type(error).__name__}: {error}") from error
        if not np.allclose(together, np.concatenate(one_by_one), atol=1e-5):
            raise ValueError(f"{rule}. Received {how!r}, whose result depends on the other rows.")

    def __call__(self, rewards: Rewards) -> Rewards:
        """Combine the rewards of views, float32 (B, V): float32 (B,)."""
        combined = np.asarray(self._function(rewards))
        is_row_wise = combined.shape == (len(rewards),) and combined.dtype.kind in "fiu"
        if not is_row_wise or not np.isfinite(result := as_float32(combined)).all():
            raise ValueError(
                f"`combine_views` must return a finite number for each row. Received {combined.dtype} of shape "
                f"{combined.shape} for {rewards.shape}: {short_repr(combined.tolist())}."
            )
        return result


def _find_function(how: Any) -> CombineFunction:
    if isinstance(how, str) and how in _REDUCTIONS:
        return _REDUCTIONS[how]
    if isinstance(how, str) and ":" in how:
        return find_callable(how, "combine_views")
    if not callable(how):
        raise ValueError(
            f"`combine_views` must be one of {', '.join(map(repr, _REDUCTIONS))}, a function from float32 (B, V) to "
            f'(B,), or "package.module:attribute". Received {short_repr(how)}.'
        )
    return how


class ViewsHead:
    """The head of states with several views: that of one view, and how the rewards of the views are combined.

    With `combine` the head scores each view for itself; without, it sees all views. The fingerprint is of what the
    features are of: see `RewardModel`.
    """

    def __init__(self, head: Head, combine: CombineViews | None = None, fingerprint: str = "") -> None:
        self.head, self._combine, self.fingerprint = head, combine, fingerprint

    def __call__(self, features: "torch.Tensor") -> "torch.Tensor":
        """Rewards of features, float32 (B, V, D): float32 (B,)."""
        if self._combine is None:
            return self.head(features)
        import torch

        of_views = self.head(features.flatten(0, 1)[:, None]).reshape(features.shape[:2])
        return torch.from_numpy(self._combine(of_views.cpu().numpy()))


@dataclass(frozen=True, kw_only=True)
class FeatureInfo:
    """What is known of the features of a reward before the first states are scored."""

    head: Head | None
    """The first head, on the CPU; None: there is none yet."""
    fingerprint: str = ""
    """See `RewardModel`."""
    shape: tuple[int, int] | None = None
    """Of a state's features, (V, D); None if the model does not say its `feature_size`."""


class NewestHead:
    """The head that makes the rewards of environments, and its version. A new head replaces the one before it.

    Environments that share this object follow the same head: `evaluation_envs.head = envs.head`.

    Args:
        head: The first one, version 1. None: there is none yet, and rewards are NaN.
        fingerprint: Of the features that these environments have.
    """

    def __init__(self, head: Head | None = None, fingerprint: str = "") -> None:
        self.fingerprint = fingerprint
        self.version = 0
        """How many heads there have been."""
        self.head: Head | None = None
        """The newest head."""
        if head is not None:
            self.replace(head)

    def replace(self, head: Head) -> int:
        """Make rewards with another head from now on. Returns its version.

        Raises:
            TypeError: It cannot be called.
            ValueError: It is of other features than those of these environments.
        """
        check_fingerprint(head, self.fingerprint)
        self.head, self.version = head, self.version + 1
        return self.version

    def __call__(self, features: Features, of: str = "") -> Rewards:
        """Rewards of features, float32 (B, V, D): float32 (B,), NaN without a head. `of` says whose, for messages."""
        if self.head is None:
            return np.full(len(features), np.nan, dtype=np.float32)
        return apply_head(self.head, features, f"version {self.version}", of)


def check_fingerprint(head: object, fingerprint: str) -> None:
    """Raise an error unless a head can be called, and is of features with this fingerprint."""
    if not callable(head):
        raise TypeError(f"`head` must be a callable from float32 (B, V, D) to (B,). Received {short_repr(head)}.")
    own = getattr(head, "fingerprint", "")
    if own and fingerprint and own != fingerprint:
        raise ValueError(f"`head` must be of the features {fingerprint!r}. Received a head of the features {own!r}.")


def apply_head(head: Head, features: Features, version: str = "", of: str = "") -> Rewards:
    """The rewards, float32 (B,), that a head makes of features, float32 or float16 (B, V, D).

    A head that raises, returns another shape, NaN or infinity, or writes to the features is refused, by a ValueError
    that says its version and of which transitions the features are.
    """
    import torch

    parts = [np.empty(0, dtype=np.float32)]
    count = max(1, PIECE_BYTES // max(1, 4 * features[:1].size))
    with torch.no_grad():
        for start in range(0, len(features), count):
            rows = torch.tensor(features[start : start + count], dtype=torch.float32)  # a copy: a buffer keeps these
            parts.append(_checked(head, rows, start, " ".join(filter(None, ["`head`", version])), of))
    return np.concatenate(parts)


def _checked(head: Head, rows: "torch.Tensor", start: int, name: str, of: str) -> Rewards:
    shape = tuple(rows.shape)
    rule = f"{name} must map features, float32 {shape}, to a finite number for each of {len(rows)} transitions"
    rule += f" of {of}" if of else ""
    version = rows._version  # torch counts what writes to a tensor
    try:
        returned: Any = head(rows)
        rewards = as_array(returned)
    except Exception as error:
        raise ValueError(f"{rule}. It raised {type(error).__name__}: {error}") from error
    if rows._version != version:
        raise ValueError(f"{rule}. It wrote to the features: `features + 1` makes new ones, `features += 1` does not.")
    if rewards.shape != shape[:1] or rewards.dtype.kind not in "fiu":
        raise ValueError(f"{rule}. It returned {rewards.dtype} {rewards.shape}.")
    narrow = as_float32(rewards)
    if not np.isfinite(narrow).all():
        bad = np.flatnonzero(~np.isfinite(narrow))
        raise ValueError(f"{rule}. It returned {rewards[bad[0]]} for transition {start + bad[0]}, and {len(bad)} such.")
    return narrow
