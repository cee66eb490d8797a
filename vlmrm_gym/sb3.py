"""Stable-Baselines3, unmodified: a VecEnv, buffers that wait for rewards, and a callback that logs (extra "sb3").

    from stable_baselines3 import SAC
    from vlmrm_gym.sb3 import DeferredReplayBuffer, make_vec_env

    envs = make_vec_env("VLMRM/Humanoid-stand-v0", num_envs=8, num_workers=2)
    SAC("MlpPolicy", envs, replay_buffer_class=DeferredReplayBuffer, learning_starts=800).learn(100_000)

Off-policy algorithms (SAC, TD3, DDPG, DQN; TQC, CrossQ and QR-DQN of sb3-contrib) take `DeferredReplayBuffer`, PPO and
A2C `DeferredRolloutBuffer`. Without them they get NaN rewards, instead of learning from zeros.
"""

import time
import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, unwrap_vec_normalize

from vlmrm_gym.checks import check_integer, check_positive_integer, check_vector, is_number
from vlmrm_gym.replay import take_rewarded
from vlmrm_gym.tasks import TASKS


def make_vec_env(id: str, num_envs: int = 1, *, seed: int | None = None, **kwargs: Any) -> "VLMVecEnv":
    """Environments of a registered ID, for Stable-Baselines3.

    Args:
        id: Such as "VLMRM/Humanoid-kneel-v0".
        num_envs: How many.
        seed: Of the first environment; the others' count on from it.
        kwargs: What `gym.make_vec` takes for the ID: `model`, `num_workers`, `overlap`, ...

    Raises:
        ValueError: An ID that is not ours, a negative seed, an `autoreset_mode`, which is Stable-Baselines3's own; and
            all that `VLMRewardVectorEnv` raises.
    """
    if seed is not None:
        check_integer("seed", seed, least=0)
    if "autoreset_mode" in kwargs:
        raise ValueError(
            "`autoreset_mode` cannot be chosen: Stable-Baselines3 needs same-step. "
            f"Received {kwargs['autoreset_mode']!r}. Leave it out."
        )
    spec = gym.spec(id.removeprefix("vlmrm_gym:"))
    task = next((task for task in TASKS if task.id == spec.id), None)
    if task is None:
        raise ValueError(
            f"`id` must be a registered ID of this package, such as {TASKS[0].id!r}. Received {id!r}. Of other "
            'environments make a VLMVecEnv(VLMRewardVectorEnv(functions, prompt=..., autoreset_mode="SameStep")).'
        )
    envs = gym.make_vec(spec, num_envs, autoreset_mode="SameStep", **kwargs)
    adapted = VLMVecEnv(envs, success_share=task.success_share)
    if seed is not None:
        adapted.seed(seed)
    return adapted


class VLMVecEnv(VecEnv):
    """A `VLMRewardVectorEnv`, or another that tells its `infos["task_reward"]`, as Stable-Baselines3 wants it.

    Infos always have `vlm_transition`, the number of the transition, counted in each environment from 0, and
    `vlm_source`, which tells the transitions of these environments from others'. Where rewards have arrived,
    `vlm_rewards` are they (float32 (T,)), and `vlm_first` the number of the transition that the first of them belongs
    to. When the rewards of an episode that has run to its end are complete, `episode` sums it up, as `Monitor` would:
    `r` (scored return), `l` (steps), `t` (seconds), and also `task_return` and `success` (the share of its steps that
    succeeded); `scored_episode` is the same, for callbacks below a wrapper that writes its own `episode`.

    So `EvalCallback` and `evaluate_policy` see scored returns, unless `overlap` has them come too late.

    Args:
        envs: With same-step autoreset.
        success_share: Of an episode's steps that must succeed for `is_success`.

    Raises:
        ValueError: Environments that are no vector, or of another autoreset mode.
    """

    def __init__(self, envs: gym.vector.VectorEnv[Any, Any, Any], *, success_share: float = 0.5) -> None:
        check_vector(envs)
        mode = AutoresetMode(envs.metadata["autoreset_mode"])
        if mode != AutoresetMode.SAME_STEP:
            raise ValueError(
                f"`envs` must reset in the same step, as Stable-Baselines3 does. Received {mode.value!r}. "
                'Make them with autoreset_mode="SameStep".'
            )
        self.envs: Any = envs
        self.success_share = success_share
        self._started = time.monotonic()
        self._actions: Any = None
        self._ledgers = [_Ledger() for _ in range(envs.num_envs)]
        self._source = uuid.uuid4().hex
        self._recent: list[deque[float]] = [deque(maxlen=0) for _ in range(envs.num_envs)]
        """The newest rewards of each environment, as many as a rollout buffer wants."""
        self._placeholders = 0
        """For how many steps more a rollout buffer fills in the rewards."""
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self) -> NDArray[Any]:
        """Start episodes. Rewards of those that this cuts off arrive with the next step."""
        seeds = None if self._seeds[0] is None else self._seeds
        observations, infos = self.envs.reset(seed=seeds, options=next(filter(None, self._options), None))
        self._reset_seeds()
        self._reset_options()
        for ledger in self._ledgers:
            ledger.end_episode(cut_off=True)
        self._take(infos)
        return observations

    def step_async(self, actions: NDArray[Any]) -> None:
        """Remember the actions."""
        self._actions = actions

    def step_wait(self) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Step.

        Returns:
            Observations; rewards float32 (num_envs,), NaN where they come later (0 while a `DeferredRolloutBuffer`
            fills them in); ends of episodes, bool (num_envs,); infos.

        Raises:
            RuntimeError: The environments do not tell a task reward.
        """
        observations, rewards, terminations, truncations, infos = self.envs.step(self._actions)
        if "task_reward" not in infos:
            raise RuntimeError(
                f"`envs` must be a VLMRewardVectorEnv, whose infos tell `task_reward`. Those of {self.envs} do not."
            )
        dones = terminations | truncations
        told = [_of_environment(infos, i) for i in range(self.num_envs)]
        for i, (info, ledger) in enumerate(zip(told, self._ledgers, strict=True)):
            info["TimeLimit.truncated"] = bool(truncations[i] and not terminations[i])
            if dones[i]:
                info["terminal_observation"] = info.pop("final_obs")
                info.update(info.pop("final_info"))
            info |= {"vlm_transition": ledger.transitions, "vlm_source": self._source}
            share = ledger.step(info["task_reward"], info.get("success", False))
            if dones[i]:
                ledger.end_episode()
                if "success" in info:
                    info["is_success"] = share >= self.success_share
        if "vlm_rewards" not in infos:  # scored at every step
            infos = {"vlm_rewards": rewards[:, None].astype(np.float32), "_vlm_rewards": np.full(self.num_envs, True)}
        self._take(infos)
        for info, ledger in zip(told, self._ledgers, strict=True):
            info.update(ledger.news(time.monotonic() - self._started))
        if self._placeholders:
            self._placeholders -= 1
            rewards = np.zeros(self.num_envs)
        return observations, rewards.astype(np.float32), dones, told

    def last_rewards(self, count: int) -> NDArray[np.float32]:
        """Have all that is pending scored: the newest rewards of each environment, float32 (count, num_envs)."""
        self._take(self.envs.flush())
        return np.array([list(recent)[-count:] for recent in self._recent], dtype=np.float32).T

    def keep_rewards(self, count: int) -> None:
        """Promise that those of the next steps are filled in from `last_rewards`: until then, they are 0, not NaN."""
        self._placeholders = count
        self._recent = [deque(maxlen=count) for _ in range(self.num_envs)]

    def close(self) -> None:
        """Stop scoring, and close the environments."""
        self.envs.close()

    def get_images(self) -> Sequence[NDArray[np.uint8]]:
        """The frames as the model sees them: uint8 (H, W, 3) each."""
        return self.envs.render()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """An attribute that all environments share."""
        value = getattr(self.envs, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Not possible: the environments are one object.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("VLMVecEnv steps all environments together: single ones have no attributes to set.")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Not possible: the environments are one object.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("VLMVecEnv steps all environments together: single ones have no methods to call.")

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: Any = None) -> list[bool]:
        """Whether a wrapper of Gymnasium's is around single environments: `Monitor`, as its part is played here."""
        # Whoever asks for Monitor reads `episode` when an episode ends, which is too early with overlap.
        played = issubclass(wrapper_class, Monitor) and not getattr(self.envs, "overlap", False)
        return [played for _ in self._get_indices(indices)]

    def _take(self, infos: dict[str, Any]) -> None:
        """Take in the rewards of infos."""
        for i in np.flatnonzero(infos.get("_vlm_rewards", ())).tolist():
            self._ledgers[i].tell(infos["vlm_rewards"][i])
            self._recent[i].extend(infos["vlm_rewards"][i].tolist())


def _of_environment(infos: dict[str, Any], i: int) -> dict[str, Any]:
    """The info of one environment, without rewards."""
    return {
        name: _of_environment(value, i) if isinstance(value, dict) else value[i]
        for name, value in infos.items()
        if not name.startswith(("_", "vlm_")) and infos[f"_{name}"][i]
    }


@dataclass
class _Episode:
    steps: int = 0
    scored: int = 0
    vlm_return: float = 0.0
    task_return: float = 0.0
    successes: int = 0
    ended: bool = False
    cut_off: bool = False
    """By a reset, before its end."""


class _Ledger:
    """What has happened in one environment, and what is known of its rewards."""

    def __init__(self) -> None:
        self.transitions = 0
        self._scored = 0
        self._episodes = deque([_Episode()])
        self._news: list[NDArray[np.float32]] = []

    @property
    def all_told(self) -> bool:
        """Whether every transition has its reward."""
        return self._scored + sum(map(len, self._news)) == self.transitions

    def step(self, task_reward: float, success: bool) -> float:
        """One more transition; returns the share of the episode's steps that have succeeded."""
        self.transitions += 1
        episode = self._episodes[-1]
        episode.steps += 1
        episode.task_return += float(task_reward)
        episode.successes += bool(success)
        return episode.successes / episode.steps

    def end_episode(self, *, cut_off: bool = False) -> None:
        if self._episodes[-1].steps:
            self._episodes[-1].ended, self._episodes[-1].cut_off = True, cut_off
            self._episodes.append(_Episode())

    def tell(self, rewards: NDArray[np.float32]) -> None:
        """Rewards of the oldest transitions that have none."""
        self._news.append(rewards)
        for episode in self._episodes:
            own, rewards = np.split(rewards, [episode.steps - episode.scored])
            episode.vlm_return += float(own.sum())
            episode.scored += len(own)

    def news(self, seconds: float) -> dict[str, Any]:
        """What an info says of the rewards that have come since the last one."""
        info: dict[str, Any] = {}
        if self._news:
            info = {"vlm_rewards": np.concatenate(self._news), "vlm_first": self._scored}
            self._scored += len(info["vlm_rewards"])
            self._news.clear()
        while (oldest := self._episodes[0]).ended and oldest.scored == oldest.steps and "episode" not in info:
            self._episodes.popleft()
            if oldest.cut_off:
                continue
            info["episode"] = info["scored_episode"] = {
                "r": oldest.vlm_return,
                "l": oldest.steps,
                "t": seconds,
                "task_return": oldest.task_return,
                "success": oldest.successes / oldest.steps,
            }
        return info


class DeferredReplayBuffer(ReplayBuffer):
    """A replay buffer whose transitions wait for their rewards; only those that have one are sampled.

    For `replay_buffer_class` of Stable-Baselines3's off-policy algorithms, on a `VLMVecEnv`. Set `learning_starts` to
    at least one episode of every environment.

    Where environments take the place of others, after `set_env` or `load`, what was held back of the others is dropped:
    its rewards will never come.

    Raises:
        ValueError: `optimize_memory_usage`, which needs transitions in the order in which they happen; or observations
            that are not one array.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: gym.spaces.Space[Any],
        action_space: gym.spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
    ) -> None:
        if optimize_memory_usage:
            raise ValueError(
                "`optimize_memory_usage` must be False with DeferredReplayBuffer: transitions are stored when their "
                "rewards arrive, not one after the other. Received True."
            )
        _check_observations(observation_space)
        # One row of storage: rewards of different environments arrive at different times.
        super().__init__(buffer_size, observation_space, action_space, device, 1, False, handle_timeout_termination)
        self._held: list[deque[_Held]] = [deque() for _ in range(n_envs)]
        self._source = ""

    @property
    def held(self) -> int:
        """How many transitions wait for their rewards."""
        return sum(map(len, self._held))

    def add(
        self,
        obs: NDArray[Any],
        next_obs: NDArray[Any],
        action: NDArray[Any],
        reward: NDArray[Any],
        done: NDArray[Any],
        infos: list[dict[str, Any]],
    ) -> None:
        """Hold transitions back, and store those whose rewards the infos bring.

        Raises:
            RuntimeError: The infos are not a `VLMVecEnv`'s.
        """
        if not all("vlm_source" in info for info in infos):
            raise RuntimeError("DeferredReplayBuffer needs the infos of a VLMVecEnv; see `make_vec_env`.")
        if infos[0]["vlm_source"] != self._source:
            self._source, self._held = infos[0]["vlm_source"], [deque() for _ in infos]
        for i, info in enumerate(infos):
            timeout = info.get("TimeLimit.truncated", False)
            row = (np.array(obs[i]), np.array(next_obs[i]), np.array(action[i]), float(done[i]), float(timeout))
            self._held[i].append((info["vlm_transition"], row))
            if "vlm_rewards" in info:
                self._store(self._held[i], info["vlm_first"], info["vlm_rewards"])

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> ReplayBufferSamples:
        """Sample from the transitions that have their rewards.

        Raises:
            ValueError: Rewards are to be normalised.
            RuntimeError: No transition has its reward.
        """
        _check_normalization(env)
        if not self.size():
            raise RuntimeError(
                f"There is nothing to sample: {self.held} transitions wait for their rewards, which come when an "
                "episode ends. Set `learning_starts` to at least one episode of every environment."
            )
        return super().sample(batch_size, env)

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: of the storage only what is in use."""
        used = self.size()
        return {**vars(self), **{name: getattr(self, name)[:used] for name in _STORAGE}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        for name in _STORAGE:
            used = state[name]
            room = np.zeros((self.buffer_size, *used.shape[1:]), dtype=used.dtype)
            room[: len(used)] = used
            setattr(self, name, room)

    def _store(self, held: "deque[_Held]", first: int, rewards: NDArray[np.float32]) -> None:
        # A transition may be missing: a callback that ends the training keeps the last one from being added.
        told = take_rewarded(held, first, rewards)
        if not told:
            return
        told = told[-self.buffer_size :]
        at = (self.pos + np.arange(len(told))) % self.buffer_size
        for name, values in zip(_STORAGE, zip(*told, strict=True), strict=True):
            room = getattr(self, name)
            room[at, 0] = np.array(values).reshape(len(told), *room.shape[2:])
        self.full = self.full or self.pos + len(told) >= self.buffer_size
        self.pos = (self.pos + len(told)) % self.buffer_size


_STORAGE = ("observations", "next_observations", "actions", "dones", "timeouts", "rewards")
"""What makes up a stored transition, in the order of a held one's parts, then its reward."""

_Held = tuple[int, tuple[NDArray[Any], NDArray[Any], NDArray[Any], float, float]]
"""The number of a transition; its observation, next observation, action, end and time limit."""


def _check_observations(space: gym.spaces.Space[Any]) -> None:
    if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        raise ValueError(f"`observation_space` must be of one array; flatten observations first. Received {space}.")


def _check_normalization(envs: VecNormalize | None) -> None:
    if envs is not None and envs.norm_reward:
        raise ValueError(
            "`norm_reward` of VecNormalize must be False: it would normalise by rewards that have not come yet. "
            "Received True."
        )


class RewardSource:
    """Where a `DeferredRolloutBuffer` gets its rewards: `rollout_buffer_kwargs={"rewards": RewardSource(envs)}`.

    It is pickled with a model, but without the environments; pass another one to `load`. Environments that take the
    place of these by `set_env` need a new one, too, and so a new buffer.

    Args:
        envs: That the algorithm trains on: a `VLMVecEnv`, or wrappers around one.

    Raises:
        ValueError: Other environments, or a `VecNormalize` that normalises rewards.
    """

    def __init__(self, envs: VecEnv) -> None:
        base = envs.unwrapped if isinstance(envs, VecEnv) else envs
        if not isinstance(base, VLMVecEnv):
            raise ValueError(f"`envs` must be a VLMVecEnv, such as `make_vec_env` makes. Received {envs!r}.")
        _check_normalization(unwrap_vec_normalize(envs))
        self.envs: VLMVecEnv | None = base

    def __getstate__(self) -> dict[str, Any]:
        return {"envs": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> "RewardSource":
        return self


class DeferredRolloutBuffer(RolloutBuffer):
    """A rollout buffer that fills in the rewards before advantages are computed, of unfinished episodes too.

    For `rollout_buffer_class` of PPO and A2C, on a `VLMVecEnv`.

    Args:
        rewards: Of the environments that the algorithm trains on.

    Raises:
        ValueError: `rewards` is missing, or observations are not one array.
    """

    def __init__(self, *args: Any, rewards: RewardSource | None = None, **kwargs: Any) -> None:
        if not isinstance(rewards, RewardSource):
            raise ValueError(
                '`rewards` must be a RewardSource: pass rollout_buffer_kwargs={"rewards": RewardSource(envs)}. '
                f"Received {rewards!r}."
            )
        self._source = rewards.envs
        super().__init__(*args, **kwargs)
        _check_observations(self.observation_space)

    def reset(self) -> None:
        """Begin a rollout."""
        super().reset()
        if self._source is not None:
            self._source.keep_rewards(self.buffer_size)

    def add(
        self,
        obs: NDArray[Any],
        action: NDArray[Any],
        reward: NDArray[Any],
        episode_start: NDArray[Any],
        value: torch.Tensor,
        log_prob: torch.Tensor,
    ) -> None:
        """Take in a step.

        Raises:
            ValueError: The source of rewards has no environments: it was loaded from a file; or it has others.
        """
        if self._source is None:
            raise ValueError(
                "`rewards` must be a RewardSource with its environments. Received one that was loaded from a file: "
                'pass rollout_buffer_kwargs={"rewards": RewardSource(envs)} to `load`.'
            )
        if not np.isfinite(reward).all():
            raise ValueError(
                "`rewards` must be a RewardSource of the environments that the algorithm trains on. Received one of "
                "others: after `set_env`, make the algorithm anew, or `load` it with another RewardSource."
            )
        super().add(obs, action, reward, episode_start, value, log_prob)

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: NDArray[Any]) -> None:
        """Wait for the rewards of the rollout, then compute advantages from them."""
        assert self._source is not None
        # What is there are values at time limits, which the algorithm has added to the placeholders.
        self.rewards += self._source.last_rewards(self.buffer_size)
        super().compute_returns_and_advantage(last_values, dones)


class HeldActionNoise(ActionNoise):
    """Noise that stays the same for some steps, and ends: exploration that lasts, before there is something to learn.

    Where a scene looks no better until many steps in one direction have been taken, white noise finds nothing: a car
    in a valley has to swing up. For `action_noise` of off-policy algorithms.

    Args:
        size: Of an action.
        sigma: Noise is uniform from -sigma to sigma; actions, scaled to within 1, are clipped after it is added.
        hold: For how many steps it stays the same.
        steps: Of one environment, until it ends.

    Raises:
        ValueError: A number out of its range.
    """

    def __init__(self, size: int, *, sigma: float = 2.0, hold: int = 30, steps: int = 1_000) -> None:
        check_positive_integer("size", size)
        if not is_number(sigma) or not 0 < sigma < float("inf"):
            raise ValueError(f"`sigma` must be a finite number above 0. Received {sigma!r}.")
        check_positive_integer("hold", hold)
        check_integer("steps", steps, least=0)
        super().__init__()
        self._size, self._sigma, self._hold, self._left = size, sigma, hold, steps
        self.reset()

    def __call__(self) -> NDArray[np.float32]:
        """The noise of a step: float32 (size,)."""
        if self._left <= 0:
            return np.zeros(self._size, dtype=np.float32)
        self._left -= 1
        if self._held == self._hold:
            self.reset()
        self._held += 1
        return self._noise

    def reset(self) -> None:
        """Draw other noise."""
        self._held = 0
        self._noise = np.random.uniform(-self._sigma, self._sigma, self._size).astype(np.float32)


class NormalizedObservations(BaseFeaturesExtractor):
    """Observations, flat, less their mean and over their standard deviation in the batches that were learned from.

    Those of mountain car and of the humanoid differ a thousandfold in scale. As a part of the policy this is saved with
    it, and knows nothing of rewards that have not come: `policy_kwargs={"features_extractor_class": ...}`.

    Args:
        observation_space: A box.
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor  # by these names algorithms copy them to target networks
    running_count: torch.Tensor

    def __init__(self, observation_space: gym.spaces.Space[Any]) -> None:
        size = gym.spaces.flatdim(observation_space)
        super().__init__(observation_space, size)
        self.register_buffer("running_mean", torch.zeros(size))
        self.register_buffer("running_var", torch.ones(size))
        self.register_buffer("running_count", torch.zeros(()))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """float32 (B, ...) to float32 (B, D), within 10 of 0."""
        flat = observations.flatten(1)
        if self.training and len(flat) > 1:
            with torch.no_grad():
                self.running_count += 1
                # A batch counts as much as each of the last hundred; at first, as each of all so far.
                weight = 1 / self.running_count.clamp_max(100)
                self.running_mean.lerp_(flat.mean(0), weight)
                self.running_var.lerp_(flat.var(0), weight)
        return ((flat - self.running_mean) / self.running_var.sqrt().clamp_min(1e-3)).clamp(-10, 10)


class LogReturns(BaseCallback):
    """Logs what `rollout/ep_rew_mean` does not say: task return, and the share of steps and episodes that succeed.

    As `rollout/task_return`, `rollout/success_share`; Stable-Baselines3 itself logs `rollout/success_rate`.
    """

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if episode := info.get("scored_episode"):
                self.logger.record_mean("rollout/vlm_return", episode["r"])
                self.logger.record_mean("rollout/task_return", episode["task_return"])
                self.logger.record_mean("rollout/success_share", episode["success"])
        return True
