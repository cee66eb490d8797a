"""Heads: from features of frames, which are expensive and stay, to rewards, which are cheap and may change.

Also how the rewards of a state's views make one. `current_head` applies heads. Imports torch only where one is called.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from vlmrm_gym._util.validation import as_float32, short_repr
from vlmrm_gym.rewards.model import Rewards
from vlmrm_gym.rewards.own import ByValue, find_callable

if TYPE_CHECKING:
    import torch

CombineFunction = Callable[[Rewards], Any]
"""Maps the rewards of the views, float32 (B, V), to those of the states, (B,), row by row."""
_REDUCTIONS: dict[str, CombineFunction] = {
    "min": lambda rewards: rewards.min(1),
    "mean": lambda rewards: rewards.mean(1),
}


class SequenceHead(ABC):
    """Base class of heads that look at more than one state: they map the states of an episode, in order, to rewards.

    What the reward of a state needs of the states before it travels in a carry, so that an episode that is scored in
    parts gets the rewards that it gets as a whole.

    >>> import torch
    >>> class Progress(SequenceHead):
    ...     def advance(self, features, carry):
    ...         scores = features[:, 0, 0]
    ...         before = torch.cat([scores[:1] if carry is None else carry, scores[:-1]])
    ...         return scores - before, scores[-1:]
    >>> rewards, carry = Progress().advance(torch.tensor([1.0, 2.0, 4.0])[:, None, None], None)
    >>> rewards.tolist()
    [0.0, 1.0, 2.0]
    """

    looks_back: bool = True
    """Whether the reward of a state depends on the states before it: a replay buffer cannot follow it then."""
    sees_first: bool = False
    """Whether `begin` is called: then the state before the first action is drawn and encoded, too. The head of the
    reward that environments are made with decides that, not one that replaces it."""

    def begin(self, first: "torch.Tensor") -> Any:
        """Make the carry of an episode that begins in a state with these features, float32 (1, V, D)."""
        return None

    @abstractmethod
    def advance(self, features: "torch.Tensor", carry: Any) -> tuple["torch.Tensor", Any]:
        """Score the next T states of an episode.

        Args:
            features: float32 (T, V, D), with T at least 1. The `head` of a model without `multi_view` gets each view
                for itself, V = 1; a head that replaces it gets all.
            carry: What the call before, or `begin`, returned; None where the episode begins.

        Returns:
            Rewards, float32 (T,), and the carry of the states after these. It is not changed later.
        """

    def __call__(self, features: "torch.Tensor") -> "torch.Tensor":
        """Score an episode from its beginning by its features, float32 (T, V, D): float32 (T,)."""
        return self.advance(features, None)[0]


def looks_back(head: Any) -> bool:
    """Tell whether a head looks at the states before."""
    return isinstance(head, SequenceHead) and head.looks_back


def advance(head: Any, features: "torch.Tensor", carry: Any) -> tuple["torch.Tensor", Any]:
    """Score the next T states of an episode by any head, see `SequenceHead`; one of single states carries None."""
    return head.advance(features, carry) if isinstance(head, SequenceHead) else (head(features), None)


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


TERM = "term "
"""Begins the names of reports that are the scores of terms."""
Reports = Mapping[str, Any]
"""Other numbers of T states than their rewards, (T,) each: float32 for "term NAME", bool for "success" and "terminate",
where the episode ends."""
