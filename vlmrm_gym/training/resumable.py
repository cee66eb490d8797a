"""The complete state of a training run, so that another process continues it exactly."""

import copy
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium.utils.seeding import np_random
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm

from vlmrm_gym.relabeling import find_featured
from vlmrm_gym.sb3 import VLMVecEnv
from vlmrm_gym.sb3.episodes import EpisodeTracker
from vlmrm_gym.training.state_checks import check_actions, check_form, check_tensor
from vlmrm_gym.validation import short_repr
from vlmrm_gym.vector import VLMRewardVectorEnv


class ResumableVecEnv(VLMVecEnv):
    """A `VLMVecEnv` whose state can be saved and loaded.

    It records the random states at the start of the current episodes and all actions since; loading replays them.
    Environments need not expose their state, but their episodes must start and end together, and they may draw random
    numbers at resets only. All registered tasks comply.

    For other environments, saving aborts the current episodes and loading starts new ones: no reward is lost, but the
    training differs from an uninterrupted one.

    Args:
        envs: See `VLMVecEnv`.
        success_threshold: See `VLMVecEnv`.
        lockstep: Whether environments start and end their episodes together, and draw random numbers at resets only.
    """

    def __init__(self, envs: Any, *, success_threshold: float, lockstep: bool = True) -> None:
        super().__init__(envs, success_threshold=success_threshold)
        self.lockstep = lockstep
        self._start_states: list[Mapping[str, Any]] = []
        self._next_states: list[Mapping[str, Any]] = []
        self._actions_since: list[NDArray[Any]] = []

    def reset(self) -> NDArray[Any]:
        """Start episodes."""
        seeds = self._seeds
        self._start_states = [
            self._states()[i] if seed is None else np_random(seed)[0].bit_generator.state
            for i, seed in enumerate(seeds)
        ]
        observations = super().reset()
        self._next_states, self._actions_since = self._states(), []
        return observations

    def step_wait(self) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Step."""
        if not self.lockstep:
            return super().step_wait()
        self._actions_since.append(np.array(self._actions))
        stepped = super().step_wait()
        dones = stepped[2]
        assert dones.all() == dones.any(), "environments must end their episodes together"
        if dones.all():
            self._start_states, self._next_states, self._actions_since = self._next_states, self._states(), []
        return stepped

    def state_dict(self) -> dict[str, Any]:
        """State of the environments and their rewards."""
        if isinstance(self.envs, VLMRewardVectorEnv) and (self.envs.overlap or not self.lockstep):
            self._add_rewards(self.envs.flush())  # pending rewards, including those of aborted episodes
        return {
            "began": self._start_states if self.lockstep else self._states(),
            "since": [torch.tensor(actions) for actions in self._actions_since],
            "trackers": [tracker.state_dict() for tracker in self._trackers],
            "env_uid": self._env_uid,
        }

    def load_state_dict(self, state: dict[str, Any]) -> NDArray[Any]:
        """Restore a state; returns its observations."""
        for generator, saved in zip(self.envs.np_random, state["began"], strict=True):  # pyright: ignore[reportArgumentType]
            generator.bit_generator.state = saved
        observations, _ = self.envs.reset()
        self._reset_seeds()  # a new algorithm has seeded the next reset
        self._start_states, self._next_states = state["began"], self._states()
        self._actions_since = [actions.numpy() for actions in state["since"]]
        for actions in self._actions_since:
            observations = self.envs.step(actions)[0]
        for tracker, saved in zip(self._trackers, state["trackers"], strict=True):
            tracker.load_state_dict(saved)
            if not self.lockstep:
                tracker.end_episode(aborted=True)
        self._env_uid = state["env_uid"]
        if isinstance(self.envs, VLMRewardVectorEnv) and all(tracker.fully_scored for tracker in self._trackers):
            self.envs.flush()
        return observations

    def _states(self) -> list[Mapping[str, Any]]:
        generators: Any = self.envs.np_random
        return [copy.deepcopy(generator.bit_generator.state) for generator in generators]


_COUNTERS = (
    "num_timesteps",
    "_n_updates",
    "_n_calls",
    "_episode_num",
    "exploration_rate",
    "_current_progress_remaining",
)
"""Counters of algorithms, and values computed from them; each algorithm has a subset."""


def training_state(model: BaseAlgorithm, envs: ResumableVecEnv) -> dict[str, Any]:
    """State of a training run without networks, optimisers and replay buffer. Call between rollouts only.

    Returns:
        Tensors, numbers and strings, and lists, tuples and mappings of them, so it loads without pickled code.
    """
    return {
        "envs": envs.state_dict(),
        "counters": _counters(model),
        "episode_starts": torch.tensor(model._last_episode_starts),
        "random": _random_states(),
        "actions": model.action_space.np_random.bit_generator.state,
        "action_noise": [_noise_state(noise) for noise in _noises(model)],
        "exploration": [
            {name: value.detach() for name, value in vars(distribution).items() if name.startswith("exploration_mat")}
            for distribution in _distributions(model)
        ],
    }


def _counters(model: BaseAlgorithm) -> dict[str, Any]:
    return {name: getattr(model, name) for name in _COUNTERS if hasattr(model, name)}


def check_training_state(model: BaseAlgorithm, envs: ResumableVecEnv, state: Any, episode_length: int) -> None:
    """Raise unless a `training_state` can be one of this algorithm, before `learn`, and of these environments."""
    own, num_envs = state["envs"], envs.num_envs
    check_form("counters", state["counters"], _counters(model))
    check_tensor("episode_starts", state["episode_starts"], torch.bool, (num_envs,))
    check_form("action_noise", state["action_noise"], [_noise_state(noise) for noise in _noises(model)] or [None])
    for distribution, saved in zip(_distributions(model), state["exploration"], strict=True):
        for name, value in saved.items():
            like = getattr(distribution, name)
            check_tensor(name, value, like.dtype, (like.shape[0] if like.ndim == 2 else None, *like.shape[1:]))
    position = state["random"]["numpy"]["state"]["pos"]
    if not 0 <= position <= 624:  # NumPy does not check it, and reads beyond its array
        raise ValueError(f"the position of NumPy's generator must be from 0 to 624. Received {short_repr(position)}.")
    _set_generators(model, state)  # they check the rest; they are set again when training begins
    check_form("env_uid", own["env_uid"], "")
    if len(own["since"]) >= (episode_length if envs.lockstep else 1):
        raise ValueError(f"since must be of one episode. Received {len(own['since'])} steps.")
    for actions in own["since"]:
        check_tensor("since", actions, actions.dtype, (num_envs, *(envs.action_space.shape or ())))
        check_actions("since", actions, envs.action_space)
    for tracker in own["trackers"]:
        check_form("trackers", {**tracker, "new_rewards": []}, EpisodeTracker().state_dict())
        for late in tracker["new_rewards"]:
            _check_late(late, find_featured(envs.envs))
        if not tracker["episodes"] or any(episode["scored"] > episode["steps"] for episode in tracker["episodes"]):
            raise ValueError(f"trackers must have episodes. Received {short_repr(tracker['episodes'])}.")


def _check_late(late: dict[str, torch.Tensor], featured: Any) -> None:
    """Raise unless what has arrived of an environment is as its environments send it; `featured`: see `find_featured`.

    Before the first head rewards are NaN.
    """
    forms = {"vlm_rewards": (torch.float32, ()), "vlm_scored": (torch.bool, ())}
    if featured is not None:
        forms |= {"vlm_features": (torch.float32, featured.feature_shape), "vlm_task_rewards": (torch.float32, ())}
        forms |= {"vlm_reward_version": (torch.int64, ())}
    if not forms.keys() - {"vlm_scored"} <= late.keys() <= forms.keys():
        raise ValueError(f"new_rewards must be rewards. Received {short_repr(late)}.")
    no_head, count = featured is not None and featured.head.head is None, len(late["vlm_rewards"])
    for name, value in late.items():
        value = torch.nan_to_num(value) if no_head and name == "vlm_rewards" else value
        check_tensor(f"new_rewards.{name}", value, forms[name][0], (count, *forms[name][1]))


def restore_environments(model: BaseAlgorithm, envs: ResumableVecEnv, state: dict[str, Any]) -> None:
    """Restore the environments before `learn`, which then does not reset them."""
    model._last_obs = envs.load_state_dict(state["envs"])
    starts = state["episode_starts"].numpy()
    model._last_episode_starts = starts if envs.lockstep else np.ones_like(starts)
    vars(model).update(state["counters"])


def restore_random_states(model: BaseAlgorithm, state: dict[str, Any]) -> None:
    """Restore random states at the start of the first rollout, after `learn` has reset and drawn from them."""
    _set_generators(model, state)
    for noise, saved in zip(_noises(model), state["action_noise"], strict=True):
        for name in _noise_state(noise):
            value = saved[name]
            setattr(noise, name, value.numpy() if isinstance(value, torch.Tensor) else value)
    for distribution, saved in zip(_distributions(model), state["exploration"], strict=True):
        for name in saved:
            if name.startswith("exploration_mat"):
                setattr(distribution, name, saved[name].to(model.device))


def _set_generators(model: BaseAlgorithm, state: dict[str, Any]) -> None:
    _set_random_states(state["random"])
    model.action_space.np_random.bit_generator.state = state["actions"]


@contextmanager
def preserve_rng() -> Iterator[None]:
    """Restore all random states after this block. For example, loading a model draws random numbers."""
    states = _random_states()
    try:
        yield
    finally:
        _set_random_states(states)


def _random_states() -> dict[str, Any]:
    # Reading the state of an unused GPU would allocate hundreds of MB on it.
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    numpy: Any = np.random.get_state(legacy=False)
    numpy["state"]["key"] = numpy["state"]["key"].tolist()
    return {"python": random.getstate(), "numpy": numpy, "torch": torch.get_rng_state(), "cuda": cuda}


def _set_random_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if states["cuda"] and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states["cuda"])


def _noises(model: BaseAlgorithm) -> list[Any]:
    """The action noise of every environment, if there is any."""
    noise = getattr(model, "action_noise", None)
    return getattr(noise, "noises", [] if noise is None else [noise])


def _noise_state(noise: Any) -> dict[str, Any]:
    """State of an action noise: its numbers and arrays."""
    return {
        name: torch.tensor(value) if isinstance(value, np.ndarray) else value
        for name, value in vars(noise).items()
        if isinstance(value, np.ndarray | int | float)
    }


def _distributions(model: BaseAlgorithm) -> list[Any]:
    """The distributions that state-dependent exploration draws from."""
    owners = [model.policy, *model.policy.children()]
    return [owner.action_dist for owner in owners if hasattr(owner, "action_dist")]
