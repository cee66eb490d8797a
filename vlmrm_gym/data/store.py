"""The transitions of a replay buffer: those that wait for their rewards, and those that have them.

Stored rewards can be made anew of features, by another head. Needs no RL library.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Literal, get_args

import numpy as np
import torch
from gymnasium.vector import VectorWrapper
from numpy.typing import NDArray

from vlmrm_gym._util.system import available_memory
from vlmrm_gym._util.validation import check_choice, short_repr
from vlmrm_gym.data.late import Late
from vlmrm_gym.rewards.current_head import CurrentHead, apply_head, check_head
from vlmrm_gym.rewards.heads import looks_back
from vlmrm_gym.rewards.model import Head

FeaturesDtype = Literal["float32", "float16"]
Transition = tuple[Any, ...]
"""The fields of a transition: arrays without a batch dimension, and numbers."""
_NEEDS_RELABEL = -1
"""Saved in place of a version where the stored rewards are of no version that new environments can have."""


class TransitionStore:
    """The newest transitions that have rewards, and those of each environment that wait for theirs.

    The rule: stored rewards are all of one head, that of the last `relabel`, which makes what is stored and what
    arrives; before the first, they are as they arrive. Rewards that arrive from a newer version of the environments'
    head stay as they are. Then the store is not settled, and `check_sample` raises an error until the next `relabel`.
    Nor is it where rewards are NaN, as there is no head yet, or where it was loaded after a `relabel`: the head is kept
    in memory only, no pickle and no `state` has it.

    `name` is the parameter that is the capacity, for messages. `fields` are arrays or tensors (capacity, ...) by name,
    in the order of the fields of transitions, with `rewards` last. `may_have_features` is false if none can arrive.
    """

    def __init__(
        self,
        capacity: int,
        name: str,
        dtype: FeaturesDtype = "float32",
        *,
        fields: Mapping[str, Any] | None = None,
        num_envs: int = 1,
        fingerprint: str = "",
        may_have_features: bool = True,
    ) -> None:
        check_choice("features_dtype", dtype, get_args(FeaturesDtype))
        self.capacity, self._name = capacity, name
        self.dtype: FeaturesDtype = dtype
        self.columns: dict[str, Any] = dict(fields or {})
        """The fields; after them `features`, float32 or float16 (capacity, V, D), and weighted `task_rewards`, float32
        (capacity,), if there are features. The system gives the memory of those two as they fill."""
        self.waiting_fields = tuple(name for name in self.columns if name != "rewards")
        self.num_stored = 0
        """How many transitions have been stored so far; the newest `capacity` of them are there."""
        self.fingerprint, self._may_have_features = fingerprint, may_have_features
        self._head: Head | None = None
        self._version: int | None = None
        """Of the environments' head, when the stored rewards were made; None: that of the next rewards to arrive."""
        self.is_settled = True
        """Whether all stored rewards are of one head."""
        self.drop_pending(num_envs)

    def __len__(self) -> int:
        """Number of transitions with rewards."""
        return min(self.num_stored, self.capacity)

    def drop_pending(self, num_envs: int) -> None:
        """Drop what waits; from now on there are so many environments."""
        self._pending: list[deque[tuple[int, Transition]]] = [deque() for _ in range(num_envs)]

    @property
    def num_envs(self) -> int:
        """Number of environments."""
        return len(self._pending)

    @property
    def num_pending(self) -> int:
        """Number of transitions that wait for their rewards."""
        return sum(map(len, self._pending))

    def pending(self) -> dict[str, NDArray[Any]]:
        """Columns of what waits, environment by environment, oldest first: its environment, step index and fields."""
        rows = [(i, index, *fields) for i, waiting in enumerate(self._pending) for index, fields in waiting]
        names = ("env_index", "step_index", *self.waiting_fields)
        return {name: np.array([row[k] for row in rows]) for k, name in enumerate(names)}

    def add(self, env_index: int, step_index: int, transition: Transition) -> None:
        """Add a transition that waits. Its `vlm_step_index` is higher than those before it. Kept, not copied."""
        self._pending[env_index].append((step_index, transition))

    def receive(self, late: Late) -> None:
        """Store the transitions of an environment whose rewards have arrived.

        Transitions before them are dropped: their rewards will not come any more. Rewards of transitions that were
        never added are ignored.
        """
        arrived = self.arrive(late)
        waiting, rewarded = self._pending[late.env], list[Transition]()
        while waiting and waiting[0][0] < late.stop:
            step_index, transition = waiting.popleft()
            if step_index >= late.start:
                rewarded.append((*transition, *(rows[step_index - late.start] for rows in arrived)))
        count = len(rewarded)
        newest = slice(max(0, count - self.capacity), None)
        rows = (self.num_stored + np.arange(count)[newest]) % self.capacity
        for column, values in zip(self.columns.values(), zip(*rewarded[newest], strict=True), strict=bool(count)):
            _write(column, rows, np.array(values).reshape(len(rows), *column.shape[1:]))
        self.num_stored += count

    @property
    def has_features(self) -> bool:
        """Whether there are columns of features."""
        return "features" in self.columns

    def allocate(self, shape: tuple[int, ...]) -> None:
        """Allocate the columns of features of this shape, (V, D), unless they are, or raise a ValueError: they are of
        another shape, or the memory does not suffice for all transitions.
        """
        if self.has_features:
            if (stored := self.columns["features"].shape[1:]) != shape:
                rule = f"`vlm_features` must have the shape of those stored, {stored}."
                raise ValueError(f"{rule} Received {shape}. Make another buffer.")
            return
        needed = self.capacity * int(np.prod(shape)) * np.dtype(self.dtype).itemsize
        available = available_memory()
        if available is not None and needed > available:
            remedy = f"a lower `{self._name}`"
            if self.dtype == "float32":
                remedy = f'features_dtype="float16" ({needed / 2e9:.3g} GB), or {remedy}'
            raise ValueError(
                f"`{self._name}` is too high for the memory: {self.capacity:,} transitions with features of shape "
                f"{shape} in {self.dtype} take {needed / 1e9:.3g} GB. {available / 1e9:.3g} GB are available. "
                f"Pass {remedy}."
            )
        self.columns["features"] = np.empty((self.capacity, *shape), dtype=self.dtype)
        self.columns["task_rewards"] = np.empty(self.capacity, dtype=np.float32)

    def arrive(self, late: Late) -> tuple[NDArray[Any], ...]:
        """Make the columns that are stored of late rewards: rewards, and with features also these and task rewards.

        A RuntimeError says that rewards without features are not finite, or come after a `relabel`; a ValueError that
        features are unlike those stored, or that the head cannot make rewards of them.
        """
        rewards, features, of = late.rewards, late.features, f"environment {late.env}"
        if len(self) and (features is not None) != self.has_features:
            raise ValueError("`infos` must all have `vlm_features`, or none. Make another buffer for other ones.")
        if features is None or late.task_rewards is None or late.versions is None:
            if not np.isfinite(rewards).all():
                raise RuntimeError(f"Rewards of {of} are not finite: {rewards}.")
            if self._head is not None:
                raise _no_features()
            return (rewards,)
        self.allocate(features.shape[1:])
        with np.errstate(over="ignore"):
            kept = features.astype(self.dtype, copy=False)
        if not np.isfinite(kept).all():
            raise ValueError(
                f"`vlm_features` of {of} must be finite in {self.dtype}. Received {np.abs(features).max()} among them."
            )
        if not len(rewards):
            return rewards, kept, late.task_rewards
        newest = int(late.versions.max())
        if self._version is None:
            self._version = newest
        if newest > self._version or (self._head is None and late.versions.min() < self._version):
            self.is_settled = False
        elif self._head is not None:
            rewards = apply_head(self._head, kept, of=of) + late.task_rewards
        self.is_settled &= bool(np.isfinite(rewards).all())
        return rewards, kept, late.task_rewards

    def check_fingerprint(self, fingerprint: str) -> None:
        """Raise a ValueError if features that come in are others than these. Empty: it is not known which they are."""
        if fingerprint and self.fingerprint and fingerprint != self.fingerprint:
            raise ValueError(
                f"Features must be as those of this buffer, {self.fingerprint!r}. Received {fingerprint!r}. Make "
                "another buffer for them."
            )
        self.fingerprint = fingerprint or self.fingerprint

    def relabel(self, head: Head) -> None:
        """Make all rewards with this head, also those that arrive. Raises as `ReplayBuffer.relabel`."""
        if not self._may_have_features or (len(self) and not self.has_features):
            raise _no_features()
        head, version = head_of_states(head, self.fingerprint)
        if len(self):
            used, name = slice(len(self)), "" if version is None else f"version {version}"
            rewards = apply_head(head, self.columns["features"][used], name, "this buffer")
            _write(self.columns["rewards"], used, rewards + self.columns["task_rewards"][used])
        self._head, self._version, self.is_settled = head, version, True

    def resume(self, head: CurrentHead) -> None:
        """Make rewards with this head from now on; it made those that are stored."""
        check_head(head, self.fingerprint)
        if not np.isfinite(self.columns["rewards"][: len(self)]).all():
            raise ValueError("The stored rewards must be of the head, and finite. Call `relabel`.")
        self._head, self._version, self.is_settled = head.head, head.version, True

    def check_sample(self) -> None:
        """Raise a RuntimeError unless there are stored rewards, all of one head."""
        if not self.is_settled:
            raise RuntimeError(
                "The stored rewards are not all of the newest head: there was none yet, another one has come, or the "
                "buffer was loaded from a file, which has no head. Call `relabel` with the newest head first."
            )
        if not self.num_stored:
            raise RuntimeError(
                f"There is nothing to sample: {self.num_pending} transitions wait for their rewards, which come when "
                "an episode ends. Start learning (`learning_starts`) after at least one episode of every environment."
            )

    @property
    def state(self) -> dict[str, Any]:
        """The version of the rewards and the features' fingerprint, for a file. Empty without features."""
        if not self.has_features and self._head is None:
            return {}
        is_of_environments = self.is_settled and self._head is None
        version = (self._version or 0) if is_of_environments else _NEEDS_RELABEL
        return {"reward_version": version, "fingerprint": self.fingerprint}

    def load(self, state: Mapping[str, Any], num_stored: int, pieces: Callable[[str], Iterable[Any]]) -> None:
        """Replace everything by what was saved: a `state`, and the rows of each column, in pieces (N, ...) by its name.

        Raises a ValueError if features are others, or a column has other rows: this is empty then.
        """
        self.check_fingerprint(str(state["fingerprint"]) if "fingerprint" in state else "")
        self.num_stored, self._head = 0, None
        self.drop_pending(self.num_envs)
        version = int(state["reward_version"]) if "reward_version" in state else 0
        self._version, self.is_settled = max(0, version) or None, version != _NEEDS_RELABEL
        for piece in islice(pieces("features"), 1):
            self.allocate(tuple(piece.shape[1:]))
        rows = min(num_stored, self.capacity)
        for name, column in self.columns.items():
            count = 0
            for piece in pieces(name):
                if _kind(piece) != _kind(column) or count + len(piece) > rows:
                    raise ValueError(
                        f"`state` must have {rows} rows of {name}, {_kind(column)}. Received {count + len(piece)} of "
                        f"{_kind(piece)}."
                    )
                _write(column, slice(count, count := count + len(piece)), piece)
            if count != rows:
                raise ValueError(f"`state` must have {rows} rows of {name}. Received {count}.")
        self.num_stored = num_stored


def head_of_states(head: Head, fingerprint: str) -> tuple[Head, int | None]:
    """Return a head that makes rewards of the features of single states, and its version, if it has one.

    A RuntimeError for a `CurrentHead` without a first version; a TypeError for what is no head, or looks at sequences;
    a ValueError for a head of other features.
    """
    check_head(head, fingerprint)
    version = None
    if isinstance(head, CurrentHead):
        if head.head is None:
            raise RuntimeError("`head` must have a first version: call head.replace(...) before. It has none yet.")
        head, version = head.head, head.version
    if looks_back(head):
        raise TypeError(
            "`head` must look at one state: a buffer has no whole episodes, of which a SequenceHead makes rewards. "
            f"Received {short_repr(head)}."
        )
    return head, version


def find_featured(envs: Any) -> Any:
    """Of vector environments and those that they wrap, the ones with a head, which return features; None without."""
    if isinstance(envs, VectorWrapper) and (inner := find_featured(envs.env)) is not None:
        return inner  # wrappers may pass its head on
    return envs if isinstance(getattr(envs, "head", None), CurrentHead) else None


def flatten_field(name: str, value: Any) -> dict[str, Any]:
    """`{name: value}`; for a dictionary, one entry "name.key" for each key."""
    return {f"{name}.{key}": entry for key, entry in value.items()} if isinstance(value, Mapping) else {name: value}


def unflatten_field(name: str, flat: Mapping[str, Any]) -> Any:
    """The reverse of `flatten_field`: the value of a field, from the flat entries of several fields."""
    if name in flat:
        return flat[name]
    prefix = f"{name}."
    return {key.removeprefix(prefix): value for key, value in flat.items() if key.startswith(prefix)}


def _write(column: Any, rows: Any, values: NDArray[Any]) -> None:
    """Write rows of an array, or of a tensor on any device."""
    column[rows] = values if isinstance(column, np.ndarray) else torch.as_tensor(values).to(column)


def _kind(column: Any) -> str:
    """The dtype and shape of a row, of an array or a tensor alike: "float32 (3, 4)"."""
    return f"{column.dtype} {tuple(column.shape[1:])}".removeprefix("torch.")


def _no_features() -> RuntimeError:
    return RuntimeError(
        "`relabel` needs the features that rewards are made of, and these have none. Make the environments with "
        "return_features=True, and a reward with `encode` and `head`, such as vlmrm_gym.CLIP."
    )
