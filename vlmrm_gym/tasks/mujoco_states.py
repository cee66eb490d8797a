"""States of any MuJoCo environment: known from rollouts, changed within the limits of the joints."""

from collections.abc import Callable

import mujoco
import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.tasks.known_states import Numbers, Rows, TaskStates

SETTLE_SECONDS = 0.045
"""How long a changed state is simulated, without torques: overlapping parts separate, and hardly anything falls."""

DEEPEST = 0.05
"""How far parts may be inside one another or inside the floor, in metres: contacts are soft."""
BEYOND = 0.1
"""How far a joint may be beyond its limits, in radians or metres: limits are soft, too."""

_SCALARS = (int(mujoco.mjtJoint.mjJNT_SLIDE), int(mujoco.mjtJoint.mjJNT_HINGE))
"""Joints whose position is one number."""


class MuJoCoStates(TaskStates):
    """`qpos`, then what else a captured state has: float64 (N, S).

    Args:
        model: The model; it is copied.
        seen: States of rollouts, float64 (R, S), from which states are sampled.
        success_fn: Maps states, float64 (N, S), to whether they succeed, bool (N,); None: success is unknown.
    """

    def __init__(
        self, model: mujoco.MjModel, seen: Rows, success_fn: Callable[[Rows], NDArray[np.bool_]] | None = None
    ) -> None:
        self._model = model.__copy__()
        self._data = mujoco.MjData(self._model)
        self._seen, self._success_fn, self.has_success_fn = seen, success_fn, success_fn is not None
        self.dimensions = int(model.nv)
        self._scale = _scale(self._model)
        joints = np.flatnonzero(model.jnt_limited.astype(bool) & np.isin(model.jnt_type, _SCALARS))
        self._limited, self._limits = model.jnt_qposadr[joints], model.jnt_range[joints].T

    def succeeds(self, states: Rows) -> NDArray[np.bool_]:
        """See `TaskStates`."""
        assert self._success_fn is not None
        return np.asarray(self._success_fn(states), dtype=bool)

    def sample(self, count: int, rng: np.random.Generator) -> Rows:
        """Sample states of the rollouts, with replacement."""
        return self._seen[rng.integers(len(self._seen), size=count)]

    def goals(self, count: int, rng: np.random.Generator) -> Rows:
        """Sample successful states of the rollouts, with replacement."""
        successes = self._seen[self.succeeds(self._seen)] if self.has_success_fn else self._seen[:0]
        return successes[rng.integers(len(successes), size=count)] if len(successes) else successes

    def perturb(self, states: Rows, offsets: NDArray[np.float64]) -> Rows:
        """See `TaskStates`. A change that leads to an impossible state is not made."""
        changed, nq = states.copy(), self._model.nq
        for state, offset in zip(changed, offsets * self._scale, strict=True):
            mujoco.mj_integratePos(self._model, state[:nq], offset, 1.0)
        changed[:, self._limited] = np.clip(changed[:, self._limited], *self._limits)
        changed = self.place(changed)
        for before, after in zip(states, changed, strict=True):
            settled = self._settle(after[:nq])
            after[:nq] = before[:nq] if settled is None else settled
        return changed

    def place(self, states: Rows) -> Rows:
        """Move states to where they may be, before they settle; here: leave them."""
        return states

    def _settle(self, qpos: Numbers) -> Numbers | None:
        """Simulate `SETTLE_SECONDS` from rest: the state after them, float64 (nq,); None if that is impossible."""
        model, data = self._model, self._data
        mujoco.mj_resetData(model, data)
        data.qpos[:] = qpos
        for _ in range(round(SETTLE_SECONDS / model.opt.timestep)):
            mujoco.mj_step(model, data)
        mujoco.mj_fwdPosition(model, data)
        if data.warning.number.any() or not np.isfinite(data.qpos).all():
            return None  # it diverged
        low, high = self._limits
        values = data.qpos[self._limited]
        if (values < low - BEYOND).any() or (values > high + BEYOND).any():
            return None
        return None if (data.contact.dist < -DEEPEST).any() else data.qpos.copy()


def _scale(model: mujoco.MjModel) -> NDArray[np.float64]:
    """Measure a typical change of each degree of freedom, float64 (nv,): metres and radians."""
    scale = np.full(model.nv, 0.1)
    for joint in range(model.njnt):
        start = model.jnt_dofadr[joint]
        kind = model.jnt_type[joint]
        if kind == mujoco.mjtJoint.mjJNT_FREE:
            scale[start : start + 3], scale[start + 3 : start + 6] = 0.05, 0.15
        elif kind == mujoco.mjtJoint.mjJNT_BALL:
            scale[start : start + 3] = 0.15
        elif model.jnt_limited[joint]:
            scale[start] = min(0.15, 0.1 * np.ptp(model.jnt_range[joint]))
    return scale
