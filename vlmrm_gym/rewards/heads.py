"""Heads: from features of frames, which are expensive and stay, to rewards, which are cheap and may change.

Also how the rewards of a state's views make one reward. Imports torch only where a head is called.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from vlmrm_gym._util.validation import as_array, as_float32, short_repr
from vlmrm_gym.rewards.model import Features, RewardModel, Rewards, only_feature
from vlmrm_gym.rewards.own import ByValue, find_callable

if TYPE_CHECKING:
    import torch

PIECE_BYTES = 2**22
"""Size of the features, as float32, that a head scores in one call."""

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

    @abstractmethod
    def advance(self, features: "torch.Tensor", carry: Any) -> tuple["torch.Tensor", Any]:
        """Score the next T states of an episode.

        Args:
            features: float32 (T, V, D), with T at least 1. The `head` of a model without `multi_view` gets each view
                for itself, V = 1; a head that replaces it gets all.
            carry: What the call before returned; None where the episode begins.

        Returns:
            Rewards, float32 (T,), and the carry of the states after these. It is not changed later.
        """

    def __call__(self, features: "torch.Tensor") -> "torch.Tensor":
        """Score an episode from its beginning by its features, float32 (T, V, D): float32 (T,)."""
        return self.advance(features, None)[0]


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
    """The head of states with several views: the head of one view, and how the rewards of the views are combined.

    With `combine` the head scores each view for itself; without, it sees all views.
    """

    def __init__(self, head: Any, combine: CombineViews | None = None, fingerprint: str = "") -> None:
        self.head, self._combine, self.fingerprint = head, combine, fingerprint

    def __call__(self, features: "torch.Tensor") -> "torch.Tensor":
        """Score states by features, float32 (B, V, D): float32 (B,)."""
        if self._combine is None:
            return self.head(features)
        import torch

        of_views = self.head(features.flatten(0, 1)[:, None]).reshape(features.shape[:2])
        return torch.from_numpy(self._combine(of_views.cpu().numpy()))

    def of_features(self, features: Features) -> Rewards | None:
        """Return the rewards of features that are rewards of views, without torch; None if a head makes them."""
        if self.head is not only_feature or features.shape[2] != 1:
            return None
        return self._combine(features[..., 0]) if self._combine is not None else only_feature(features)


class ViewsSequenceHead(SequenceHead, ViewsHead):
    """A `ViewsHead` of a head of sequences."""

    def advance(self, features: "torch.Tensor", carry: Any) -> tuple["torch.Tensor", Any]:
        """Score the next states of an episode; with `combine` each view has its own carry."""
        if self._combine is None:
            return self.head.advance(features, carry)
        import torch

        carries = [None] * features.shape[1] if carry is None else carry
        views = [self.head.advance(features[:, v : v + 1], last) for v, last in enumerate(carries)]
        combined = self._combine(torch.stack([rewards for rewards, _ in views], dim=1).cpu().numpy())
        return torch.from_numpy(combined), [after for _, after in views]


def make_head(head: Any, combine: CombineViews | None, fingerprint: str) -> ViewsHead:
    """Make the head of states of the head of a model."""
    kind = ViewsSequenceHead if isinstance(head, SequenceHead) else ViewsHead
    return kind(head, combine, fingerprint)


class CurrentHead:
    """The head that makes the rewards of environments, and its version. A new head replaces the one before it.

    Environments that share this object follow the same head: `evaluation_envs.head = envs.head`.

    Args:
        head: The first one, version 1. None: there is none yet, and rewards are NaN.
        fingerprint: Of the features that these environments have.
    """

    def __init__(self, head: Any = None, fingerprint: str = "") -> None:
        self.fingerprint = fingerprint
        self.version = 0
        """The number of heads so far."""
        self.head: Any = None
        """The newest head: a `Head`, a `SequenceHead`, or None."""
        if head is not None:
            self.replace(head)

    def replace(self, head: Any) -> int:
        """Make rewards with another head from now on. Returns its version. An error says why it cannot be a head."""
        check_head(head, self.fingerprint)
        self.head, self.version = head, self.version + 1
        return self.version

    def __call__(self, features: Features, of: str = "") -> Rewards:
        """Score features, float32 (B, V, D): float32 (B,), NaN without a head. `of` says whose, for messages."""
        return self.advance(features, None, of)[0]

    @property
    def looks_at_sequences(self) -> bool:
        """Whether the reward of a state depends on the states before it."""
        return isinstance(self.head, SequenceHead)

    def advance(self, features: Features, carry: Any, of: str = "") -> tuple[Rewards, Any]:
        """Score the next states of an episode. Returns the rewards and the carry, None for a head of single states."""
        if self.head is None:
            return np.full(len(features), np.nan, dtype=np.float32), None
        return advance_head(self.head, features, carry, f"version {self.version}", of)


def check_head(head: object, fingerprint: str) -> None:
    """Raise an error unless a value is a head, of features with this fingerprint."""
    if isinstance(head, RewardModel):
        raise TypeError(f"`head` must be the head of a reward model: pass its `.head`. Received {short_repr(head)}.")
    if not callable(head):
        raise TypeError(
            f"`head` must be a callable from float32 (B, V, D) to (B,), or a SequenceHead. Received {short_repr(head)}."
        )
    other = getattr(head, "fingerprint", "")  # of any callable
    if other and fingerprint and other != fingerprint:
        raise ValueError(f"`head` must be of the features {fingerprint!r}. Received a head of the features {other!r}.")


def apply_head(head: Any, features: Features, version: str = "", of: str = "") -> Rewards:
    """Return the rewards, float32 (B,), that a head makes of features, float32 or float16 (B, V, D).

    The features are those of an episode from its beginning, if it is a `SequenceHead`. A head that raises, returns
    another shape, NaN or infinity, or writes to the features is refused, by a ValueError that says its version and of
    which transitions the features are.
    """
    return advance_head(head, features, None, version, of)[0]


def advance_head(head: Any, features: Features, carry: Any, version: str = "", of: str = "") -> tuple[Rewards, Any]:
    """Return the rewards of the next states of an episode, and the carry; the rest is as of `apply_head`."""
    if isinstance(head, ViewsHead) and (rewards := head.of_features(features)) is not None:
        return rewards.astype(np.float32), None
    import torch

    parts, name = [np.empty(0, dtype=np.float32)], " ".join(filter(None, ["`head`", version]))
    with torch.no_grad():
        for start, rows in _pieces(features, isinstance(head, SequenceHead)):
            rewards, carry = _checked(head, rows, carry, start, name, of)
            parts.append(rewards.copy())  # they can be a view of the rows
    return np.concatenate(parts), carry


def _pieces(features: Features, keep: bool) -> Iterator[tuple[int, "torch.Tensor"]]:
    """Yield copies of the features, as a buffer keeps these, in pieces, and where they start.

    The next piece takes the place of the last, in the processor's cache, unless a head may `keep` it.
    """
    import torch

    count = max(1, PIECE_BYTES // max(1, 4 * features[:1].size))
    rows = torch.empty(min(count, len(features)), *features.shape[1:])
    for start in range(0, len(features), count):
        piece = features[start : start + count]
        rows = torch.empty(piece.shape) if keep else rows[: len(piece)]
        rows.numpy()[...] = piece
        yield start, rows


def _checked(head: Any, rows: "torch.Tensor", carry: Any, start: int, name: str, of: str) -> tuple[Rewards, Any]:
    shape = tuple(rows.shape)
    rule = f"{name} must map features, float32 {shape}, to a finite number for each of {len(rows)} transitions"
    rule += f" of {of}" if of else ""
    version = rows._version  # torch counts what writes to a tensor
    try:
        returned, carry = head.advance(rows, carry) if isinstance(head, SequenceHead) else (head(rows), None)
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
    return narrow, carry
