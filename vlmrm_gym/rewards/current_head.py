"""The head of environments, which may change, and how heads are applied to features. Imports torch only then."""

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vlmrm_gym._util.validation import as_array, as_float32, short_repr
from vlmrm_gym.rewards.combined_model import Expression, is_missing
from vlmrm_gym.rewards.heads import Reports, SequenceHead, advance, looks_back
from vlmrm_gym.rewards.model import Features, RewardModel, Rewards

if TYPE_CHECKING:
    import torch

PIECE_BYTES = 2**22
"""Size of the features, as float32, that a head scores in one call."""


class Paid(NamedTuple):
    """The rewards of T states, made by a head, and what it reports of them."""

    rewards: Rewards
    """float32 (T,)."""
    carry: Any = None
    reports: Reports = MappingProxyType({})
    """See `Reports`."""

    def part(self, rows: slice) -> "Paid":
        """Select some states, without the carry."""
        return Paid(self.rewards[rows], None, {key: one[rows] for key, one in self.reports.items()})


class CurrentHead:
    """The head that makes the rewards of environments, and its version. A new head replaces the one before it.

    Environments that share this object follow the same head: `evaluation_envs.head = envs.head`. The first one is
    version 1; before it, rewards are NaN: where the head is None, or has a part that is yet to be learned. The
    fingerprint is of the features that these environments have.
    """

    def __init__(self, head: Any = None, fingerprint: str = "") -> None:
        self._around: Expression | None = head if is_missing(head) else None
        """The rest of a head of which a part is learned."""
        self.fingerprint = fingerprint if self._around is None else self._around.fingerprint
        self.version = 0
        """The number of heads so far."""
        self.head: Any = None
        """The newest head: a `Head`, a `SequenceHead`, or None."""
        self.part: Any = None
        """The newest head as it was passed: of a sum, the part that is learned."""
        if not is_missing(head):
            self.replace(head)

    def replace(self, head: Any) -> int:
        """Make rewards with another head from now on; in a sum of which a part is learned it is that part's.

        Returns its version. An error says why it cannot be a head.
        """
        check_head(head, self.fingerprint)
        self.restore(head, self.version + 1)
        return self.version

    def restore(self, head: Any, version: int) -> None:
        """Continue with the head of a version; None: there is none yet."""
        self.part, self.version = head, version
        self.head = head if self._around is None or head is None else self._around.with_head(head)

    def part_features(self, features: Features) -> Features:
        """Of the features of states, float32 (..., V, D), those that a part that is learned sees."""
        return features if self._around is None else self._around.learned_features(features)

    def __call__(self, features: Features, of: str = "") -> Rewards:
        """Score features, float32 (B, V, D): float32 (B,), NaN without a head. `of` says whose, for messages."""
        return self.pay(features, None, of).rewards

    @property
    def looks_at_sequences(self) -> bool:
        """Whether the reward of a state depends on the states before it; also of a head that is yet to be learned."""
        return looks_back(self._around) or looks_back(self.head)

    def begin(self, first: Features) -> Any:
        """Make the carry of an episode that begins in a state with these features, float32 (1, V, D)."""
        if not (isinstance(self.head, SequenceHead) and self.head.sees_first):
            return None
        import torch

        return self.head.begin(torch.from_numpy(first))

    def pay(self, features: Features, carry: Any, of: str = "") -> Paid:
        """Score the next states of an episode, see `SequenceHead`."""
        if self.head is None:
            return Paid(np.full(len(features), np.nan, dtype=np.float32))
        return pay(self.head, features, carry, f"version {self.version}", of)


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
    return pay(head, features, None, version, of).rewards


def pay(head: Any, features: Features, carry: Any, version: str = "", of: str = "") -> Paid:
    """Make the rewards of the next states of an episode; the rest is as of `apply_head`."""
    if isinstance(head, Expression) and (rewards := head.of_features(features)) is not None:
        return Paid(rewards.astype(np.float32))
    import torch

    parts, name = [Paid(np.empty(0, dtype=np.float32), carry)], " ".join(filter(None, ["`head`", version]))
    with torch.no_grad():
        count = max(1, PIECE_BYTES // max(1, 4 * features[:1].size))
        for start in range(0, len(features), count):
            rows = torch.from_numpy(features[start : start + count].astype(np.float32))  # a copy: a head may keep it
            parts.append(_checked(head, rows, parts[-1].carry, start, name, of))
    rewards = np.concatenate([part.rewards for part in parts])
    reports = {key: np.concatenate([part.reports[key] for part in parts[1:]]) for key in parts[-1].reports}
    return Paid(rewards, parts[-1].carry, reports)


def _checked(head: Any, rows: "torch.Tensor", carry: Any, start: int, name: str, of: str) -> Paid:
    shape = tuple(rows.shape)
    rule = f"{name} must map features, float32 {shape}, to a finite number for each of {len(rows)} transitions"
    rule += f" of {of}" if of else ""
    version = rows._version  # torch counts what writes to a tensor
    try:
        reports: Reports = {}
        if isinstance(head, Expression):
            returned, carry, reports = head.pay(rows, carry)
        else:
            returned, carry = advance(head, rows, carry)
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
    return Paid(narrow, carry, {key: one.numpy().copy() for key, one in reports.items()})  # not views of rows
