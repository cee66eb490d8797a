"""Stored rewards that can be made anew: features, task rewards, and the head that rewards are of.

`RewardColumns` is the part of both replay buffers that knows of heads. Needs no RL library.
"""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
from gymnasium.vector import VectorWrapper
from numpy.typing import NDArray

from vlmrm_gym.memory import available_memory
from vlmrm_gym.rewards.heads import Head, NewestHead, apply_head, check_fingerprint
from vlmrm_gym.validation import check_choice

FeaturesDtype = Literal["float32", "float16"]

_NEEDS_RELABEL = -1
"""Saved in place of a version where the stored rewards are of no version that new environments can have."""


class RewardColumns:
    """The columns of a replay buffer that arrive late: rewards, and what they are made of.

    The rule: stored rewards are all of one head, that of the last `relabel`, which makes what is stored and what
    arrives; before the first, they are as they arrive. Rewards that arrive from a newer version of the environments'
    head stay as they are. Then the buffer is not settled, and `check_settled` raises an error until the next `relabel`.
    Nor is it where rewards are NaN, as there is no head yet, or where it was loaded after a `relabel`: the head is kept
    in memory only, no pickle and no `state` has it.

    Args:
        capacity: Maximum number of transitions.
        name: The parameter that is the capacity, for messages.
        dtype: How features are kept: "float32" or "float16".
        fingerprint: Of the features, see `RewardModel`; empty if it is not known yet.
        expected: Whether there will be features; None if it is not known yet.

    Raises:
        ValueError: `dtype` is another.
    """

    def __init__(
        self,
        capacity: int,
        name: str,
        dtype: FeaturesDtype = "float32",
        *,
        fingerprint: str = "",
        expected: bool | None = None,
    ) -> None:
        check_choice("features_dtype", dtype, get_args(FeaturesDtype))
        self._capacity, self._name = capacity, name
        self.dtype: FeaturesDtype = dtype
        """How features are kept."""
        self.fingerprint = fingerprint
        """Of the features."""
        self.expected = expected
        """Whether there are features; None if it is not known yet."""
        self._head: Head | None = None
        self._version: int | None = None
        """Of the environments' head, when the stored rewards were made; None: that of the next rewards to arrive."""
        self.is_settled = True
        """Whether all stored rewards are of one head."""
        self.columns: dict[str, NDArray[Any]] = {}
        """`features`, float32 or float16 (capacity, V, D), and weighted `task_rewards`, float32 (capacity,), in the
        order of `arrive`. Empty without features. The system gives the memory as they fill."""

    def allocate(self, shape: tuple[int, ...]) -> None:
        """Allocate the columns of features, unless they are.

        Args:
            shape: Of a transition's features, (V, D).

        Raises:
            ValueError: They are of another shape, or the memory does not suffice for all transitions.
        """
        if self.columns:
            if (own := self.columns["features"].shape[1:]) != shape:
                raise ValueError(
                    f"`vlm_features` must have the shape of those stored, {own}. Received {shape}. Make another buffer."
                )
            return
        self.expected = True
        needed = self._capacity * int(np.prod(shape)) * np.dtype(self.dtype).itemsize
        available = available_memory()
        if available is not None and needed > available:
            remedy = f"a lower `{self._name}`"
            if self.dtype == "float32":
                remedy = f'features_dtype="float16" ({needed / 2e9:.3g} GB), or {remedy}'
            raise ValueError(
                f"`{self._name}` is too high for the memory: {self._capacity:,} transitions with features of shape "
                f"{shape} in {self.dtype} take {needed / 1e9:.3g} GB. {available / 1e9:.3g} GB are available. "
                f"Pass {remedy}."
            )
        self.columns = {
            "features": np.empty((self._capacity, *shape), dtype=self.dtype),
            "task_rewards": np.empty(self._capacity, dtype=np.float32),
        }

    def arrive(self, late: Mapping[str, NDArray[Any]], of: str, *, stored: int) -> tuple[NDArray[Any], ...]:
        """The late columns of transitions of an environment: rewards; with features, also these and task rewards.

        Args:
            late: What has arrived of it, see `late_fields`.
            of: Which environment, for messages.
            stored: Number of transitions that the buffer has.

        Raises:
            RuntimeError: Rewards without features are not finite, or come after a `relabel`.
            ValueError: The features are of another shape than those stored, are too large for their dtype, or come
                after transitions without. Or the head cannot make rewards of them.
        """
        rewards = late["vlm_rewards"]
        has_features = "vlm_features" in late
        if stored and has_features != bool(self.columns):
            raise ValueError("`infos` must all have `vlm_features`, or none. Make another buffer for other ones.")
        if not has_features:
            if not np.isfinite(rewards).all():
                raise RuntimeError(f"Rewards of {of} are not finite: {rewards}.")
            if self._head is not None:
                raise _no_features()
            self.expected = False
            return (rewards,)
        self.allocate(late["vlm_features"].shape[1:])
        with np.errstate(over="ignore"):
            features, task_rewards = late["vlm_features"].astype(self.dtype, copy=False), late["vlm_task_rewards"]
        if not np.isfinite(features).all():
            raise ValueError(
                f"`vlm_features` of {of} must be finite in {self.dtype}. Received "
                f"{np.abs(late['vlm_features']).max()} among them."
            )
        if not len(rewards):
            return rewards, features, task_rewards
        versions = late["vlm_reward_version"]
        newest = int(versions.max())
        if self._version is None:
            self._version = newest
        if newest > self._version or (self._head is None and versions.min() < self._version):
            self.is_settled = False
        elif self._head is not None:
            rewards = apply_head(self._head, features, of=of) + task_rewards
        self.is_settled &= bool(np.isfinite(rewards).all())
        return rewards, features, task_rewards

    def check_fingerprint(self, fingerprint: str) -> None:
        """Raise a ValueError if features that come in are others than these. Empty: it is not known which they are."""
        if fingerprint and self.fingerprint and fingerprint != self.fingerprint:
            raise ValueError(
                f"Features must be as those of this buffer, {self.fingerprint!r}. Received {fingerprint!r}. Make "
                "another buffer for them."
            )
        self.fingerprint = fingerprint or self.fingerprint

    def relabel(self, head: Head, stored: int) -> NDArray[np.float32]:
        """Make rewards with this head from now on.

        Args:
            head: See `ReplayBuffer.relabel`.
            stored: Number of transitions that the buffer has.

        Returns:
            Those of the stored transitions, float32 (stored,).

        Raises:
            RuntimeError: There are no features, or `head` is a `NewestHead` without any.
            ValueError: The head is of other features, or cannot make rewards of them.
            TypeError: It cannot be called.
        """
        if self.expected is False or (stored and not self.columns):
            raise _no_features()
        check_fingerprint(head, self.fingerprint)
        version = None
        if isinstance(head, NewestHead):
            if head.head is None:
                raise RuntimeError("`head` must have a first version: call head.replace(...) before. It has none yet.")
            head, version = head.head, head.version
        rewards = np.empty(0, dtype=np.float32)
        if self.columns:
            features, task_rewards = (column[:stored] for column in self.columns.values())
            name = "" if version is None else f"version {version}"
            rewards = apply_head(head, features, name, "this buffer") + task_rewards
        self._head, self._version, self.is_settled = head, version, True
        return rewards

    def resume(self, head: NewestHead, rewards: NDArray[np.float32]) -> None:
        """Make rewards with this head from now on; it made those that are stored.

        Args:
            head: With a first version.
            rewards: What is stored.

        Raises:
            ValueError: The head is of other features, or a stored reward is not finite.
        """
        check_fingerprint(head, self.fingerprint)
        if not np.isfinite(rewards).all():
            raise ValueError("The stored rewards must be of the head, and finite. Call `relabel`.")
        self._head, self._version, self.is_settled = head.head, head.version, True

    def check_settled(self) -> None:
        """Raise a RuntimeError unless all stored rewards are of one head."""
        if not self.is_settled:
            raise RuntimeError(
                "The stored rewards are not all of the newest head: there was none yet, another one has come, or the "
                "buffer was loaded from a file, which has no head. Call `relabel` with the newest head first."
            )

    @property
    def state(self) -> dict[str, Any]:
        """What a file needs to know of the rewards: a version, and what the features are of. Empty without any."""
        if not self.columns and self._head is None:
            return {}
        is_of_environments = self.is_settled and self._head is None
        version = (self._version or 0) if is_of_environments else _NEEDS_RELABEL
        return {"reward_version": version, "fingerprint": self.fingerprint}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with a `state` that was saved. The columns are restored by the buffer.

        Raises:
            ValueError: It is of other features.
        """
        self.check_fingerprint(str(state["fingerprint"]) if "fingerprint" in state else "")
        version = int(state["reward_version"]) if "reward_version" in state else 0
        self._head = None
        self._version, self.is_settled = max(0, version) or None, version != _NEEDS_RELABEL


def find_featured(envs: Any) -> Any:
    """Of vector environments and those that they wrap, the ones with a head, which return features; None without."""
    if isinstance(envs, VectorWrapper) and (inner := find_featured(envs.env)) is not None:
        return inner  # wrappers may pass its head on
    return envs if isinstance(getattr(envs, "head", None), NewestHead) else None


def _no_features() -> RuntimeError:
    return RuntimeError(
        "`relabel` needs the features that rewards are made of, and these have none. Make the environments with "
        "return_features=True, and a reward with `encode` and `head`, such as vlmrm_gym.CLIP."
    )
