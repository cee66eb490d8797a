"""A vector of humanoids that are stepped on a thread pool. Independent of reward models."""

from typing import Any

import gymnasium as gym
import mujoco
import mujoco.batch
import numpy as np
from gymnasium.envs.mujoco.humanoid_v5 import mass_center
from gymnasium.error import ResetNeeded
from gymnasium.spaces import flatdim
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike, NDArray

from vlmrm_gym._util.system import usable_cores
from vlmrm_gym._util.validation import check_autoreset_mode, check_positive_integer, check_that
from vlmrm_gym.infos import STATE_KEY
from vlmrm_gym.tasks.humanoid import Humanoid
from vlmrm_gym.tasks.humanoid_success import succeeds

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_DERIVED = ("xipos", "cinert", "cvel", "qfrc_actuator", "ten_length", "ten_velocity")
"""Derived quantities that observations and infos need; the batch computes only those that are bound."""


class HumanoidVectorEnv(VectorEnv[Floats, Any, NDArray[Any]]):
    """N humanoids with a time limit: bitwise the same as in a `SyncVectorEnv`, and faster.

    Observations, rewards, infos, seeding and autoresets are those of
    `SyncVectorEnv([lambda: TimeLimit(Humanoid(...), episode_length)] * num_envs, autoreset_mode=autoreset_mode)`. Infos
    of steps also have what `CaptureState` adds: the states after the actions.
    """

    render_mode = "rgb_array"

    def __init__(
        self,
        num_envs: int,
        *,
        task: str | None = None,
        textured: bool = True,
        start_near_goal: float = 0.0,
        episode_length: int = 100,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ) -> None:
        check_positive_integer("episode_length", episode_length)
        self.num_envs, self.episode_length = num_envs, int(episode_length)
        self.autoreset_mode = check_autoreset_mode(autoreset_mode)
        self.single_env = Humanoid(
            render_mode=self.render_mode, task=task, textured=textured, start_near_goal=start_near_goal
        )
        """Has the model, spaces and reward settings of all humanoids; its own data are scratch space."""
        self.metadata = {**self.single_env.metadata, STATE_KEY: True, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space = self.single_env.observation_space
        self.single_action_space = self.single_env.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

        # Persistent: each simulation keeps its MjData, from which _contact_forces reads.
        model = self.single_env.model
        self._batch = mujoco.batch.Batch(model, num_envs, min(usable_cores(), num_envs), persistent=True)
        for name in _DERIVED:
            self._batch.bind(name)
        self._generators = [gym.Env[Any, Any]() for _ in range(self.num_envs)]  # only for seeding
        self._observations: Floats = np.zeros((self.num_envs, flatdim(self.single_observation_space)))
        self._centres: Floats = np.zeros((self.num_envs, 2))  # of mass, x and y in metres
        self._elapsed = np.full(self.num_envs, -1)  # steps of the episode; -1: never reset
        self._ended: Flags = np.zeros(self.num_envs, dtype=np.bool_)  # episode ended, not reset yet

    @property
    def np_random(self) -> tuple[np.random.Generator, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The random number generators of the humanoids."""
        return tuple(env.np_random for env in self._generators)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The seeds of the humanoids."""
        return tuple(env.np_random_seed for env in self._generators)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """Start episodes in all humanoids, or in those of `options["reset_mask"]`, bool (N,).

        Observations, float64 (N, 348), are unchanged for humanoids that are not reset; infos are of those that are.
        """
        mask = (options or {}).get("reset_mask")
        mask = np.ones(self.num_envs, dtype=np.bool_) if mask is None else mask
        if seed is None or isinstance(seed, int):
            seed = [None if seed is None else seed + i for i in range(self.num_envs)]
        check_that(len(seed) == self.num_envs, "seed", f"an integer or a list of {self.num_envs}", seed)
        infos = self._reset(mask, {}, seed)
        return self._observations.copy(), infos

    def step(self, actions: ArrayLike) -> tuple[Floats, Floats, Flags, Flags, dict[str, Any]]:
        """Apply torques, float (N, 17), for 0.015 s, or reset humanoids whose episode ended in the step before."""
        torques = np.asarray(actions, dtype=np.float64)
        if torques.shape != self.action_space.shape:
            raise ValueError(f"`actions` must be of shape {self.action_space.shape}. Received shape {torques.shape}.")
        disabled = self.autoreset_mode == AutoresetMode.DISABLED
        if (waiting := (self._elapsed < 0) | (disabled & self._ended)).any():
            raise ResetNeeded(f"`reset` must be called before `step` for environments {np.flatnonzero(waiting)}.")

        stepped, resetting = ~self._ended, self._ended
        rewards, values = self._simulate(torques, stepped)
        self._elapsed += stepped
        truncations = stepped & (self._elapsed >= self.episode_length)
        self._ended = truncations.copy()
        infos: dict[str, Any] = {}
        if self.autoreset_mode == AutoresetMode.SAME_STEP and truncations.any():
            last = np.fromiter(self._observations.copy(), dtype=object)
            infos = _masked({"final_obs": last, "final_info": _masked(values, truncations)}, truncations)
            stepped, resetting = ~truncations, truncations
        infos = self._reset(resetting, infos | _masked(values, stepped))
        return self._observations.copy(), rewards, np.zeros_like(truncations), truncations, infos

    def render(self) -> tuple[NDArray[np.uint8], ...]:
        """Render the frames of Gymnasium's own renderer: N of them, uint8 (480, 480, 3)."""
        env, frames = self.single_env, []
        for i in range(self.num_envs):
            self._batch.get_data(i, env.data)
            mujoco.mj_forward(env.model, env.data)
            if env.mujoco_renderer.viewer is not None:  # Gymnasium renders in whichever OpenGL context is current
                env.mujoco_renderer.viewer.make_context_current()
            frames.append(np.asarray(env.render(), dtype=np.uint8))
        return tuple(frames)

    @property
    def states(self) -> Floats:
        """The states that determine the current frames: `qpos`, float64 (N, 24), a copy."""
        return self._batch.qpos.copy()

    def close_extras(self, **kwargs: Any) -> None:
        """Free threads and renderer."""
        self.single_env.close()
        del self._batch

    def _reset(self, mask: Flags, infos: dict[str, Any], seeds: list[int | None] | None = None) -> dict[str, Any]:
        """Start episodes in the masked humanoids. Returns `infos` with their infos added."""
        env = self.single_env
        for i in np.flatnonzero(mask).tolist():
            self._generators[i].reset(seed=seeds[i] if seeds else None)
            env.np_random = self._generators[i].np_random
            self._observations[i], info = env.reset()
            mujoco.mj_getState(env.model, env.data, self._batch.state[i], mujoco.mjtState.mjSTATE_INTEGRATION)
            self._centres[i] = mass_center(env.model, env.data)
            self._elapsed[i], self._ended[i] = 0, False
            infos = self._add_info(infos, info, i)
        return infos

    def _simulate(self, torques: Floats, stepped: Flags) -> tuple[Floats, dict[str, NDArray[Any]]]:
        """Step the masked humanoids. Returns rewards and info values, (N, ...) each, undefined for the others.

        Observations are updated in place. The order of operations is Gymnasium's, so results are bitwise the same.
        """
        env, batch = self.single_env, self._batch
        batch.ctrl = torques
        batch.step(stepped, nstep=env.frame_skip)
        qpos: Floats = batch.qpos.copy()
        forces = self._contact_forces(stepped)
        cinert, cvel, cfrc = (part[:, 1:].reshape(self.num_envs, -1) for part in (batch.cinert, batch.cvel, forces))
        parts = (qpos[:, 2:], batch.qvel, cinert, cvel, batch.qfrc_actuator[:, 6:], cfrc)
        np.concatenate(parts, axis=1, out=self._observations)

        mass = env.model.body_mass
        centres = (np.einsum("b,nbj->nj", mass, batch.xipos) / mass.sum())[:, :2]
        velocity = (centres - self._centres) / env.dt
        self._centres = centres
        lowest, highest = env._healthy_z_range
        survive = ((lowest < qpos[:, 2]) & (qpos[:, 2] < highest)) * env._healthy_reward
        forward = env._forward_reward_weight * velocity[:, 0]
        control = env._ctrl_cost_weight * np.square(batch.ctrl).sum(axis=1)
        contact = env._contact_cost_weight * np.square(forces).reshape(self.num_envs, -1).sum(axis=1)
        contact = np.clip(contact, *env._contact_cost_range)
        rewards = forward + survive - (control + contact)
        rewards[~stepped] = 0.0
        flat = qpos[:, :2]
        return rewards, {
            "x_position": qpos[:, 0].copy(),
            "y_position": qpos[:, 1].copy(),
            "tendon_length": batch.ten_length.copy(),
            "tendon_velocity": batch.ten_velocity.copy(),
            # The dot product that np.linalg.norm uses; a sum of squares may round differently.
            "distance_from_origin": np.sqrt((flat[:, None] @ flat[:, :, None]).ravel()),
            "x_velocity": velocity[:, 0].copy(),
            "y_velocity": velocity[:, 1].copy(),
            "reward_survive": survive,
            "reward_forward": forward,
            "reward_ctrl": -control,
            "reward_contact": -contact,
            "success": np.zeros(self.num_envs, dtype=np.bool_) if env.task is None else succeeds(env.task, qpos),
            STATE_KEY: qpos,
        }

    def _contact_forces(self, stepped: Flags) -> Floats:
        """`cfrc_ext` as in Gymnasium, float64 (N, bodies, 6): computed after the step.

        A sensor would have the step compute it in the first stage of the Runge-Kutta integrator; the rest of an
        observation, and Gymnasium's call after the step, are of the last stage. It takes 7 microseconds per humanoid, a
        step 300.
        """
        model, data = self.single_env.model, self.single_env.data
        forces = np.zeros((self.num_envs, model.nbody, 6))
        for i in np.flatnonzero(stepped).tolist():
            self._batch.get_data(i, data)
            mujoco.mj_rnePostConstraint(model, data)
            forces[i] = data.cfrc_ext
        return forces


def _masked(values: dict[str, Any], mask: Flags) -> dict[str, Any]:
    """Vector infos with their masks, for the environments of a mask; empty if there are none."""
    infos: dict[str, Any] = {}
    for key, value in values.items() if mask.any() else ():
        if isinstance(value, np.ndarray) and not mask.all():
            value = value.copy()
            value[~mask] = None if value.dtype == object else 0
        infos[key], infos[f"_{key}"] = value, mask.copy()
    return infos
