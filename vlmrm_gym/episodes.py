"""Episodes of vector environments: their statistics while training, and playing them to evaluate a policy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from vlmrm_gym.infos import read_success
from vlmrm_gym.steps import VectorSteps, find_autoreset_mode


class EpisodeStatistics(VectorWrapper):
    """Like Gymnasium's `RecordEpisodeStatistics`, but also sums task rewards and counts successes.

    Where episodes end, `infos["_episode"]`, bool (num_envs,), is true, and `infos["episode"]` has arrays (num_envs,):

    - `r`: float64, the sum of the rewards; NaN where they arrive later.
    - `l`: int64, the number of steps.
    - `task_return`: float64, the sum of the environment's own rewards.
    - `success_fraction`: float64, the fraction of the steps with success; NaN where the environment reports none.

    >>> import gymnasium as gym, vlmrm_gym
    >>> from vlmrm_gym.episodes import EpisodeStatistics, finished_episodes
    >>> envs = EpisodeStatistics(gym.make_vec("VLMRM/CartPole-v1", num_envs=2, episode_length=3))
    >>> observations, infos = envs.reset(seed=0)
    >>> for _ in range(3):
    ...     observations, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())
    >>> [sorted(row) for row in finished_episodes(infos)]
    [['success_fraction', 'task_return'], ['success_fraction', 'task_return'], ['vlm_return'], ['vlm_return']]
    >>> envs.close()

    Args:
        env: A `VLMRewardVectorEnv`, or any other vector environment, whose own reward is then the task reward.
        autoreset_mode: When an environment that has ended is reset: needed if the metadata of `env` do not say.

    Raises:
        ValueError: Nothing says when environments are reset.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], *, autoreset_mode: AutoresetMode | str | None = None) -> None:
        super().__init__(env)
        self._steps = VectorSteps("env", env, autoreset_mode)
        self.metadata = {**env.metadata, "autoreset_mode": self._steps.mode}
        self._sums = np.zeros((4, self.num_envs))
        """Rewards, steps, task rewards and successes of the current episodes."""

    @property
    def head(self) -> Any:
        """That of the environments; see `VLMRewardVectorEnv.head`."""
        return getattr(self.env, "head", None)

    @head.setter
    def head(self, head: Any) -> None:
        self.env.head = head  # pyright: ignore[reportAttributeAccessIssue]

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of `options={"reset_mask": ...}`; their statistics begin anew."""
        observations, infos, mask = self._steps.reset(seed, options)
        self._sums[:, mask] = 0
        return observations, infos

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step; see the class for the infos."""
        step = self._steps.step(actions)
        success = read_success(step.infos, self.num_envs)
        task_rewards = step.infos.get("task_reward", step.rewards)
        self._sums += np.where(step.stepped, [step.rewards, np.ones(self.num_envs), task_rewards, success], 0)
        returns, steps, task_returns, successes = np.where(step.ends, self._sums, 0)
        self._sums[:, step.ends] = 0
        episode = {
            "r": returns,
            "l": steps.astype(np.int64),
            "task_return": task_returns,
            "success_fraction": successes / np.maximum(steps, 1),
        }
        infos = {**step.infos, "episode": episode, "_episode": step.ends}
        return step.observations, step.rewards, step.terminations, step.truncations, infos


def finished_episodes(infos: Mapping[str, Any]) -> list[dict[str, float]]:
    """Rows for a log, from the infos of a step of `EpisodeStatistics`.

    Returns:
        `task_return`, and `success_fraction` where it is known, of each episode that has ended; `vlm_return` of each
        that has been scored, which can be later.
    """
    rows: list[dict[str, float]] = []
    scored_every_step = "task_reward" in infos and "vlm_rewards" not in infos
    for i in np.flatnonzero(infos["_episode"]):
        row = {name: float(infos["episode"][name][i]) for name in ("task_return", "success_fraction")}
        if np.isnan(row["success_fraction"]):
            del row["success_fraction"]
        if scored_every_step:
            row["vlm_return"] = float(infos["episode"]["r"][i])
        rows.append(row)
    for i in np.flatnonzero(infos.get("_vlm_rewards", ())):
        rows.append({"vlm_return": float(infos["vlm_rewards"][i].sum())})
    return rows


@dataclass(frozen=True, eq=False)
class Episodes:
    """Results of episodes: float64 (episodes,) each."""

    vlm_returns: NDArray[np.float64]
    """Sums of the rewards that the agent maximises."""
    task_returns: NDArray[np.float64]
    """Sums of the environment's own rewards."""
    success_fractions: NDArray[np.float64]
    """The fraction of each episode's steps with success; NaN where success is not known."""

    def means(self, success_threshold: float | None = None) -> dict[str, float]:
        """Means over the episodes: `vlm_return`, `task_return` and, where it is known, `success_fraction`.

        Args:
            success_threshold: Adds `success`, the fraction of the episodes with success in at least this fraction of
                their steps.
        """
        means = {"vlm_return": float(self.vlm_returns.mean()), "task_return": float(self.task_returns.mean())}
        if np.isnan(self.success_fractions).any():
            return means
        if success_threshold is not None:
            means["success"] = float((self.success_fractions >= success_threshold).mean())
        return {**means, "success_fraction": float(self.success_fractions.mean())}


def play_episodes(
    envs: VectorEnv[Any, Any, Any],
    policy: Callable[[Any], Any],
    *,
    seed: int,
    autoreset_mode: AutoresetMode | str | None = None,
) -> Episodes:
    """Play one episode in every environment.

    Args:
        envs: Without `overlap`, so that rewards are known when an episode ends, and with automatic resets.
        policy: Maps observations of all environments to their actions.
        seed: Of the first environment; the others' follow.
        autoreset_mode: When an environment that has ended is reset: needed if the metadata of `envs` do not say.

    Raises:
        ValueError: The environments have `overlap`, or no automatic resets.
        Exception: An environment or scoring raised it.
    """
    if find_autoreset_mode("envs", envs, autoreset_mode) == AutoresetMode.DISABLED:
        raise ValueError("`envs` must reset themselves: episodes end at different steps. Received disabled autoreset.")
    envs = EpisodeStatistics(envs, autoreset_mode=autoreset_mode)
    observations, _ = envs.reset(seed=seed)
    results, running = np.zeros((3, envs.num_envs)), np.full(envs.num_envs, True)
    while running.any():
        observations, _, _, _, infos = envs.step(policy(observations))
        episode = infos["episode"]
        if (running & infos["_episode"] & ~infos.get("_vlm_rewards", running)).any():
            envs.render()  # any call raises what scoring has raised
            raise ValueError("`envs` must have an episode's rewards when it ends. Received none. Use overlap=False.")
        for i in np.flatnonzero(running & infos["_episode"]):
            vlm_return = infos["vlm_rewards"][i].sum() if "vlm_rewards" in infos else episode["r"][i]
            results[:, i] = vlm_return, episode["task_return"][i], episode["success_fraction"][i]
        running &= ~infos["_episode"]
    return Episodes(*results)
