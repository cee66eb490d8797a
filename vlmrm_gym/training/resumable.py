"""All that a training is at one moment, so that another process goes on as if nothing had happened."""

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

from vlmrm_gym.sb3 import VLMVecEnv
from vlmrm_gym.vector import VLMRewardVectorEnv


class ResumableVecEnv(VLMVecEnv):
    """A `VLMVecEnv` that can be brought to where another one was.

    It remembers from which random states the present episodes began and what has been done since; loading begins them
    again, and does it again. So environments need no door to their states, but have to begin and end their episodes
    together, and to draw random numbers at resets only: as those of all registered tasks.
    """

    def __init__(self, envs: Any, *, success_share: float) -> None:
        super().__init__(envs, success_share=success_share)
        self._began: list[Mapping[str, Any]] = []
        self._now: list[Mapping[str, Any]] = []
        self._since: list[NDArray[Any]] = []

    def reset(self) -> NDArray[Any]:
        """Start episodes."""
        seeds = self._seeds
        self._began = [
            self._states()[i] if seed is None else np_random(seed)[0].bit_generator.state
            for i, seed in enumerate(seeds)
        ]
        observations = super().reset()
        self._now, self._since = self._states(), []
        return observations

    def step_wait(self) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Step."""
        self._since.append(np.array(self._actions))
        stepped = super().step_wait()
        dones = stepped[2]
        assert dones.all() == dones.any(), "environments must end their episodes together"
        if dones.all():
            self._began, self._now, self._since = self._now, self._states(), []
        return stepped

    def state_dict(self) -> dict[str, Any]:
        """Where the environments are, and what is known of their rewards."""
        if isinstance(self.envs, VLMRewardVectorEnv) and self.envs.overlap:
            self._take(self.envs.flush())  # what is scored in the background is not begun again
        ledgers = copy.deepcopy(self._ledgers)
        return {"began": self._began, "since": self._since, "ledgers": ledgers, "source": self._source}

    def load_state_dict(self, state: dict[str, Any]) -> NDArray[Any]:
        """Go to where the others were; returns the observations there."""
        for generator, saved in zip(self.envs.np_random, state["began"], strict=True):  # pyright: ignore[reportArgumentType]
            generator.bit_generator.state = saved
        observations, _ = self.envs.reset()
        self._began, self._now, self._since = state["began"], self._states(), list(state["since"])
        for actions in self._since:
            observations = self.envs.step(actions)[0]
        self._ledgers, self._source = copy.deepcopy(state["ledgers"]), state["source"]
        if isinstance(self.envs, VLMRewardVectorEnv) and all(ledger.all_told for ledger in self._ledgers):
            self.envs.flush()
        return observations

    def _states(self) -> list[Mapping[str, Any]]:
        generators: Any = self.envs.np_random
        return [copy.deepcopy(generator.bit_generator.state) for generator in generators]


def training_state(model: BaseAlgorithm, envs: ResumableVecEnv) -> dict[str, Any]:
    """What `model.save` leaves out, and what loading or `learn` would begin anew. Between rollouts only."""
    return {
        "envs": envs.state_dict(),
        "episode_starts": model._last_episode_starts,
        "random": _random_states(),
        "actions": model.action_space.np_random.bit_generator.state,
        "action_noise": _dictionary(getattr(model, "action_noise", None)),
        "exploration": [
            {name: value for name, value in vars(distribution).items() if name.startswith("exploration_mat")}
            for distribution in _distributions(model)
        ],
    }


def restore_environments(model: BaseAlgorithm, envs: ResumableVecEnv, state: dict[str, Any]) -> None:
    """Before `learn`: bring the environments to where they were, and have `learn` not reset them."""
    model._last_obs = envs.load_state_dict(state["envs"])
    model._last_episode_starts = state["episode_starts"]


def restore_random_states(model: BaseAlgorithm, state: dict[str, Any]) -> None:
    """When the first rollout begins: after all that `learn` draws, and resets, before it."""
    _set_random_states(state["random"])
    model.action_space.np_random.bit_generator.state = state["actions"]
    if (noise := getattr(model, "action_noise", None)) is not None:
        vars(noise).update(copy.deepcopy(state["action_noise"]))
    for distribution, saved in zip(_distributions(model), state["exploration"], strict=True):
        vars(distribution).update(saved)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Random states are afterwards as they were before; loading a model draws random numbers, for one."""
    states = _random_states()
    try:
        yield
    finally:
        _set_random_states(states)


def _random_states() -> dict[str, Any]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state(), "cuda": cuda}


def _set_random_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if states["cuda"] and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states["cuda"])


def _dictionary(noise: Any) -> dict[str, Any]:
    return {} if noise is None else copy.deepcopy(vars(noise))


def _distributions(model: BaseAlgorithm) -> list[Any]:
    """Those that state-dependent exploration draws from."""
    owners = [model.policy, *model.policy.children()]
    return [owner.action_dist for owner in owners if hasattr(owner, "action_dist")]
