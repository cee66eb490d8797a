"""Many humanoids, stepped together on a thread pool. Knows nothing of reward models."""

from functools import cached_property
from typing import Any

import gymnasium as gym
import mujoco
import mujoco.batch
import numpy as np
from gymnasium.envs.mujoco.humanoid_v5 import mass_center
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.spaces import flatdim
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike, NDArray

from vlmrm_gym.checks import check_autoreset_mode, check_positive_integer
from vlmrm_gym.cores import usable_cores
from vlmrm_gym.envs.humanoid import Humanoid
from vlmrm_gym.envs.humanoid_judges import succeeds
from vlmrm_gym.rendering import Renderer, make_renderer
from vlmrm_gym.rendering.scene import STATE_KEY

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_DERIVED = ("xipos", "cinert", "cvel", "qfrc_actuator", "ten_length", "ten_velocity")
"""What observations and infos need besides the state; the batch computes only what it has been asked for."""


class HumanoidVectorEnv(VectorEnv[Floats, Any, NDArray[Any]]):
    """N humanoids with a time limit: what `SyncVectorEnv` makes of them, to the bit, and faster.

    Observations, rewards, infos, seeding and autoresets are those of
    `SyncVectorEnv([lambda: TimeLimit(Humanoid(...), episode_length)] * num_envs, autoreset_mode=autoreset_mode)`. Infos
    of steps also have what `CaptureState` would put there: the states that the actions led to.

    Args:
        num_envs: How many humanoids.
        task: See `Humanoid`.
        textured: See `Humanoid`.
        episode_length: Steps after which an episode is truncated.
        autoreset_mode: When an episode follows the one that has ended: an `AutoresetMode` or its value.
        threads: How many to simulate on. None: as many as there are CPUs that this process may use.

    Raises:
        ValueError: A parameter out of its range; the message names it.
    """

    render_mode = "rgb_array"

    def __init__(
        self,
        num_envs: int,
        *,
        task: str | None = None,
        textured: bool = True,
        episode_length: int = 100,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        threads: int | None = None,
    ) -> None:
        check_positive_integer("num_envs", num_envs)
        check_positive_integer("episode_length", episode_length)
        if threads is None:
            threads = usable_cores()
        check_positive_integer("threads", threads)
        self.num_envs, self.episode_length = int(num_envs), int(episode_length)
        self.autoreset_mode = check_autoreset_mode(autoreset_mode)

        self.single_env = Humanoid(render_mode=self.render_mode, task=task, textured=textured)
        """Has the model, the spaces and the rules of all; its own state is what resets are worked out in."""
        self.metadata = {**self.single_env.metadata, STATE_KEY: True, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space = self.single_env.observation_space
        self.single_action_space = self.single_env.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

        # Each simulation keeps its MjData: contact forces are read from it, see _contact_forces.
        model = self.single_env.model
        self._batch = mujoco.batch.Batch(model, self.num_envs, min(int(threads), self.num_envs), persistent=True)
        for name in _DERIVED:
            self._batch.bind(name)
        self._generators = [gym.Env[Any, Any]() for _ in range(self.num_envs)]  # bare: for their seeding alone
        self._observations: Floats = np.zeros((self.num_envs, flatdim(self.single_observation_space)))
        self._centres: Floats = np.zeros((self.num_envs, 2))  # of mass, x and y in metres
        self._elapsed = np.full(self.num_envs, -1)  # steps of the episode; -1: never reset
        self._ended: Flags = np.zeros(self.num_envs, dtype=np.bool_)  # and not reset yet

    @property
    def np_random(self) -> tuple[np.random.Generator, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The random number generators of the humanoids."""
        return tuple(env.np_random for env in self._generators)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """What the humanoids were seeded with."""
        return tuple(env.np_random_seed for env in self._generators)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """Start episodes in all humanoids, or in those of a mask.

        Args:
            seed: One for each, or that of the first, from which the others count on; None: no new seeds.
            options: "reset_mask", bool (N,), tells which to reset.

        Returns:
            Observations, float64 (N, 348), those of humanoids that are not reset as they were; infos of the reset ones.

        Raises:
            ValueError: A wrong number of seeds, or a mask of another shape or dtype or without a True.
            ClosedEnvironmentError: After `close`.
        """
        self._check_open()
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, dtype=np.bool_))
        if getattr(mask, "dtype", None) != np.bool_ or mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(
                f'`options["reset_mask"]` must be a NumPy array of dtype bool and shape ({self.num_envs},), somewhere '
                f"True. Received {mask!r}."
            )
        if seed is None or isinstance(seed, int):
            seed = [None if seed is None else seed + i for i in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"`seed` must be an integer or a list of {self.num_envs}. Received {seed}.")
        infos = self._reset(mask, {}, seed)
        return self._observations.copy(), infos

    def step(self, actions: ArrayLike) -> tuple[Floats, Floats, Flags, Flags, dict[str, Any]]:
        """Apply torques for 0.015 s, or reset humanoids whose episode ended in the step before (NEXT_STEP).

        Args:
            actions: float (N, 17).

        Returns:
            Observations float64 (N, 348), rewards float64 (N,), terminations and truncations bool (N,), infos.

        Raises:
            ValueError: Actions of another shape.
            ResetNeeded: No episode has begun, or, in the mode DISABLED, one has ended.
            ClosedEnvironmentError: After `close`.
        """
        self._check_open()
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
            final = {"final_obs": _objects(self._observations), "final_info": _masked(values, truncations)}
            infos = _masked(final, truncations)
            stepped, resetting = ~truncations, truncations
        infos = self._reset(resetting, infos | _masked(values, stepped))
        return self._observations.copy(), rewards, np.zeros_like(truncations), truncations, infos

    def render(self) -> tuple[NDArray[np.uint8], ...]:
        """The states as Gymnasium's humanoid shows them: N frames, uint8 (480, 480, 3)."""
        self._check_open()
        return tuple(self._view.render(self.states))

    @property
    def states(self) -> Floats:
        """What determines the frames that are shown now: `qpos`, float64 (N, 24), a copy."""
        return self._batch.qpos.copy()

    def close_extras(self, **kwargs: Any) -> None:
        """Let go of the threads and of what draws."""
        if "_view" in self.__dict__:
            self._view.close()
        self.single_env.close()
        del self._batch

    @cached_property
    def _view(self) -> Renderer:
        return make_renderer(self.single_env, quality="faithful")

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError(f"{self} has been closed; make another.")

    def _reset(self, mask: Flags, infos: dict[str, Any], seeds: list[int | None] | None = None) -> dict[str, Any]:
        """Start episodes in some humanoids: `infos` with theirs."""
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
        """Step some humanoids: rewards and the values of infos, each (N, ...), without meaning for the others.

        Observations are written to where they are kept. All in Gymnasium's order of operations, hence to the bit.
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
            # By the dot product that np.linalg.norm takes: it may round differently than a sum of squares.
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
        """`cfrc_ext` as Gymnasium has it, float64 (N, bodies, 6): computed after a step, not by it.

        A sensor that makes the step compute it would see the first stage of the Runge-Kutta integrator; all else in an
        observation, and Gymnasium's call after the step, see the last one. It takes 7 microseconds a humanoid; a step
        takes 300.
        """
        model, data = self.single_env.model, self.single_env.data
        forces = np.zeros((self.num_envs, model.nbody, 6))
        for i in np.flatnonzero(stepped).tolist():
            self._batch.get_data(i, data)
            mujoco.mj_rnePostConstraint(model, data)
            forces[i] = data.cfrc_ext
        return forces


def _objects(rows: Floats) -> NDArray[np.object_]:
    """Copies of the rows, each an object."""
    objects = np.empty(len(rows), dtype=object)
    for i, row in enumerate(rows):
        objects[i] = row.copy()
    return objects


def _masked(values: dict[str, Any], mask: Flags) -> dict[str, Any]:
    """Infos of a vector environment where some environments have values, nothing if none has."""
    infos: dict[str, Any] = {}
    for key, value in values.items() if mask.any() else ():
        if isinstance(value, np.ndarray) and not mask.all():
            value = value.copy()
            value[~mask] = None if value.dtype == object else 0
        infos[key], infos[f"_{key}"] = value, mask.copy()
    return infos
