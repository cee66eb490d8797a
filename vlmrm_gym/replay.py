"""A replay buffer whose transitions wait for their rewards. Needs no RL library; for single-file scripts."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from vlmrm_gym.checks import check_positive_integer, check_vector


@dataclass(frozen=True)
class Batch:
    """Transitions to learn from; tensors on the buffer's device, B of each."""

    observations: torch.Tensor
    actions: torch.Tensor
    next_observations: torch.Tensor
    """Of the state that the action led to, an episode's last one included."""
    rewards: torch.Tensor
    """float32 (B,)."""
    terminations: torch.Tensor
    """float32 (B,), 1 where the task ended there; a time limit does not end it."""


class ReplayBuffer:
    """The newest transitions of a `VLMRewardVectorEnv`, each with the reward that it was told; never one without.

    A transition is held back, with its environment's others, until `infos["vlm_rewards"]` brings its reward. Where a
    step only resets an environment, there is none. With `scoring="step"` nothing has to wait. What never gets its
    reward, as the infos of a `reset` or `flush` were not passed to `release`, is dropped when later ones get theirs.

    >>> import gymnasium as gym, vlmrm_gym
    >>> from vlmrm_gym.replay import ReplayBuffer
    >>> envs = gym.make_vec("VLMRM/CartPole-v1", num_envs=2, episode_length=10)
    >>> buffer = ReplayBuffer(1_000, envs)
    >>> observations, infos = envs.reset(seed=0)
    >>> for _ in range(10):
    ...     actions = envs.action_space.sample()
    ...     next_observations, rewards, terminations, truncations, infos = envs.step(actions)
    ...     buffer.add(observations, actions, next_observations, rewards, terminations, truncations, infos)
    ...     observations = next_observations
    >>> len(buffer), buffer.sample(4).rewards.shape
    (20, torch.Size([4]))

    Args:
        capacity: The most transitions; the oldest make room for the newest.
        envs: The environments; both spaces must be boxes or discrete.
        device: Where samples are wanted.
        seed: Of the choice of samples.

    Raises:
        ValueError: A capacity below 1, one environment that is no vector, or spaces of another kind.
    """

    def __init__(
        self, capacity: int, envs: VectorEnv[Any, Any, Any], *, device: torch.device | str = "cpu", seed: int = 0
    ) -> None:
        check_positive_integer("capacity", capacity)
        check_vector(envs)
        self.capacity, self.device = int(capacity), torch.device(device)
        self._same_step = AutoresetMode(envs.metadata["autoreset_mode"]) == AutoresetMode.SAME_STEP
        self._observations = self._room("observation", envs.single_observation_space)
        self._next_observations = torch.empty_like(self._observations)
        self._actions = self._room("action", envs.single_action_space)
        self._rewards = torch.empty(self.capacity, device=self.device)
        self._terminations = torch.empty(self.capacity, device=self.device)
        self._stored = 0
        self._held: list[deque[_Held]] = [deque() for _ in range(envs.num_envs)]
        self._generator = torch.Generator(self.device).manual_seed(seed)

    def __len__(self) -> int:
        """How many transitions can be sampled."""
        return min(self._stored, self.capacity)

    @property
    def held(self) -> int:
        """How many transitions wait for their rewards."""
        return sum(map(len, self._held))

    def add(
        self,
        observations: NDArray[Any],
        actions: NDArray[Any],
        next_observations: NDArray[Any],
        rewards: NDArray[np.float64],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        infos: Mapping[str, Any],
    ) -> None:
        """Take in a step: what the policy saw, what it did, and what `envs.step` returned, unchanged.

        Observations of the next step may be written into the same arrays: they are copied.

        Raises:
            ValueError: The infos are not a `VLMRewardVectorEnv`'s.
            RuntimeError: A reward is not finite.
        """
        if "_task_reward" not in infos:
            raise ValueError(f"`infos` must be what a VLMRewardVectorEnv returned. Received one of {list(infos)}.")
        next_observations = np.array(next_observations)
        if self._same_step:  # what was returned for an environment that has ended is the next episode's first
            for i in np.flatnonzero(terminations | truncations):
                next_observations[i] = infos["final_obs"][i]
        observations, actions = np.array(observations), np.array(actions)
        stepped = np.flatnonzero(infos["_task_reward"])
        numbers = infos.get("vlm_transition", np.zeros(len(self._held), dtype=np.int64))
        for i in stepped:
            row = (observations[i], actions[i], next_observations[i], bool(terminations[i]))
            self._held[i].append((int(numbers[i]), row))
        if "vlm_rewards" in infos:
            self.release(infos)
        else:
            for i in stepped.tolist():
                self._store(i, 0, rewards[i : i + 1])

    def release(self, infos: Mapping[str, Any]) -> None:
        """Take in rewards that came otherwise than by a step: the infos of `envs.flush()` or `envs.reset()`.

        Raises:
            RuntimeError: A reward is not finite.
        """
        for i in np.flatnonzero(infos.get("_vlm_rewards", ())).tolist():
            self._store(i, int(infos["vlm_first"][i]), infos["vlm_rewards"][i])

    def sample(self, batch_size: int) -> Batch:
        """Choose transitions at random, each as likely as the others, with replacement.

        Raises:
            ValueError: A batch size below 1.
            RuntimeError: None has its reward yet.
        """
        check_positive_integer("batch_size", batch_size)
        if not self._stored:
            raise RuntimeError(
                f"There is nothing to sample: {self.held} transitions wait for their rewards, which come when an "
                "episode ends. Start to learn after at least one episode of every environment."
            )
        i = torch.randint(len(self), (batch_size,), generator=self._generator, device=self.device)
        return Batch(
            self._observations[i], self._actions[i], self._next_observations[i], self._rewards[i], self._terminations[i]
        )

    def state_dict(self) -> dict[str, Any]:
        """A copy of what is stored, to be saved; without what is held back, as no other environment has its rewards."""
        # torch.save writes the whole storage of a view: room for what has not come yet would be saved, too.
        stored = {name: getattr(self, f"_{name}")[: len(self)].clone() for name in _ROOMS}
        generator = self._generator.get_state()
        return {**stored, "stored": self._stored, "capacity": self.capacity, "generator": generator}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` gave, of a buffer with the same capacity and spaces.

        Raises:
            ValueError: It was another capacity, or other spaces.
        """
        for name, now, saved in (
            ("capacity", self.capacity, state["capacity"]),
            *((name, _kind(getattr(self, f"_{name}")), _kind(state[name])) for name in _ROOMS),
        ):
            if now != saved:
                raise ValueError(
                    f"`state` must be of a buffer like this one, whose {name} is {now}. Received one with {saved}."
                )
        for name in _ROOMS:
            getattr(self, f"_{name}")[: len(state[name])] = state[name].to(self.device)
        self._stored = state["stored"]
        self._generator.set_state(state["generator"])
        for held in self._held:
            held.clear()

    def _store(self, environment: int, first: int, rewards: NDArray[Any]) -> None:
        """Give an environment's held transitions, from that number on, their rewards."""
        if not np.isfinite(rewards).all():
            raise RuntimeError(f"Rewards of environment {environment} are not finite: {rewards}.")
        told = take_rewarded(self._held[environment], first, rewards)
        if not told:
            return
        newest = slice(max(0, len(told) - self.capacity), None)
        i = (self._stored + torch.arange(len(told))[newest]).to(self.device) % self.capacity
        for name, values in zip(_ROOMS, zip(*told[newest], strict=True), strict=True):
            room = getattr(self, f"_{name}")
            room[i] = torch.as_tensor(np.array(values)).to(room)
        self._stored += len(told)

    def _room(self, what: str, space: gym.Space[Any]) -> torch.Tensor:
        if not isinstance(
            space, gym.spaces.Box | gym.spaces.Discrete | gym.spaces.MultiDiscrete | gym.spaces.MultiBinary
        ):
            raise ValueError(f"`envs` must have a box or discrete {what} space. Received {space}.")
        assert space.dtype is not None
        assert space.shape is not None
        dtype = torch.float32 if space.dtype.kind == "f" else torch.as_tensor(np.empty(0, space.dtype)).dtype
        return torch.empty((self.capacity, *space.shape), dtype=dtype, device=self.device)


_ROOMS = ("observations", "actions", "next_observations", "terminations", "rewards")
"""What makes up a stored transition, in the order of a held one's parts, then its reward."""

_Held = tuple[int, tuple[NDArray[Any], NDArray[Any], NDArray[Any], bool]]
"""The number of a transition; its observation, action, next observation and termination."""


def take_rewarded(held: deque[tuple[int, Any]], first: int, rewards: NDArray[Any]) -> list[tuple[Any, ...]]:
    """Take out held transitions, oldest first, and put a reward behind each.

    Args:
        held: Of one environment, each with its number. Those before `first` will get no reward, and are dropped; of
            those whose rewards come, some may never have been held.
        first: The number of the transition that the first reward belongs to.
        rewards: Any float dtype (T,).
    """
    told = []
    while held and held[0][0] < first + len(rewards):
        number, row = held.popleft()
        if number >= first:
            told.append((*row, rewards[number - first]))
    return told


def _kind(stored: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...]]:
    return stored.dtype, tuple(stored.shape[1:])
