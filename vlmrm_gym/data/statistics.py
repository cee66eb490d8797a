"""Episodes of vector environments: their statistics while training, and playing them to evaluate a policy."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from vlmrm_gym._util.steps import Step, VectorSteps, find_autoreset_mode
from vlmrm_gym.data.late import Late, read_late
from vlmrm_gym.infos import read_success


@dataclass
class Episode:
    """The figures of one episode so far."""

    start: int = -1
    """The `vlm_step_index` of its first step; -1 as long as it is not known."""
    steps: int = 0
    scored: int = 0
    """How many of the steps have their rewards, or have lost them."""
    scored_return: float = 0.0
    task_return: float = 0.0
    successes: float = 0.0
    """How many of the steps were successes; NaN where one did not say."""
    is_over: bool = False
    is_lost: bool = False
    """Whether a reset ended it, or some of its steps or rewards were lost."""

    @property
    def stop(self) -> int:
        """The `vlm_step_index` after its last step."""
        return self.start + self.steps

    @property
    def is_scored(self) -> bool:
        """Whether all steps have their rewards."""
        return self.scored == self.steps

    @property
    def summary(self) -> dict[str, float]:
        """`r`, `l`, `task_return` and `success_fraction`; see `EpisodeStatistics`."""
        return {
            "r": self.scored_return if self.is_scored else np.nan,
            "l": self.steps,
            "task_return": self.task_return,
            "success_fraction": self.successes / max(self.steps, 1),
        }


class EpisodeTotals:
    """Sums up the episodes of vector environments, whose rewards may arrive after an episode has ended.

    Rewards find their transitions by `vlm_step_index`. Those of transitions before the first `step` are ignored. Where
    nothing is scored, an environment's own reward is that of its step.
    """

    def __init__(self, num_envs: int) -> None:
        self._episodes = [deque([Episode()]) for _ in range(num_envs)]
        """Of each environment: those that wait for rewards, and at last the one in progress."""

    @property
    def is_between_episodes(self) -> bool:
        """Whether the next step begins an episode in every environment."""
        return not any(episodes[-1].steps for episodes in self._episodes)

    def step(self, step: Step) -> list[Episode]:
        """Add the transitions of a step, without late rewards. Returns the episode of each environment it is in."""
        success = read_success(step.infos, len(self._episodes)).tolist()
        task_rewards, indices = step.infos.get("task_reward", step.rewards), step.infos.get("vlm_step_index")
        current = [episodes[-1] for episodes in self._episodes]
        for i in np.flatnonzero(step.stepped).tolist():
            episode = current[i]
            if indices is not None:
                episode.start = int(indices[i]) if episode.start < 0 else episode.start
                if indices[i] > episode.stop:  # the calls that made the steps before it raised an exception
                    episode.steps, episode.is_lost = int(indices[i]) - episode.start, True
            episode.steps += 1
            episode.task_return += float(task_rewards[i])
            episode.successes += success[i]
            if "_vlm_rewards" not in step.infos:
                episode.scored += 1
                episode.scored_return += float(step.rewards[i])
        self.end(step.ends)
        return current

    def end(self, mask: NDArray[np.bool_], *, is_lost: bool = False) -> None:
        """Begin other episodes of some environments. `is_lost`: a reset has ended those in progress."""
        for i in np.flatnonzero(mask).tolist():
            if (episode := self._episodes[i][-1]).steps:
                episode.is_over, episode.is_lost = True, episode.is_lost or is_lost
                self._episodes[i].append(Episode(episode.stop))
            if is_lost:  # steps whose calls raised an exception may be between them
                self._episodes[i][-1].start = -1

    def receive(self, late: Late) -> None:
        """Add the rewards of transitions. Those of earlier ones that have none will not come any more."""
        for episode in self._episodes[late.env]:
            first, stop = episode.start + episode.scored, min(episode.stop, late.stop)
            if first < stop:
                arrived = late.rewards[max(0, first - late.start) : max(0, stop - late.start)]
                episode.scored_return += float(arrived.sum())
                episode.scored = stop - episode.start
                episode.is_lost |= first < late.start

    def pop(self, i: int, *, newest: bool = False) -> Episode | None:
        """Take an episode of an environment that is over and has all of its rewards: the oldest, or the newest.

        Those that are lost are not returned, and with the newest the ones before it are dropped.
        """
        taken, episodes = None, self._episodes[i]
        while episodes[0].is_over and episodes[0].is_scored and (newest or taken is None):
            episode = episodes.popleft()
            taken = taken if episode.is_lost else episode
        return taken


class EpisodeStatistics(VectorWrapper):
    """Like Gymnasium's `RecordEpisodeStatistics`, but also sums task rewards and counts successes.

    Where episodes end, `infos["_episode"]`, bool (num_envs,), is true, and `infos["episode"]` has arrays (num_envs,).
    Where all rewards of an episode that has ended have arrived, `infos["_scored_episode"]` is true, and
    `infos["scored_episode"]` has the same arrays; not where a reset ended it.

    - `r`: float64, the sum of the rewards; NaN where some have not arrived.
    - `l`: int64, the number of steps.
    - `task_return`: float64, the sum of the environment's own rewards.
    - `success_fraction`: float64, the fraction of the steps with success; NaN where the environment reports none.

    >>> import gymnasium as gym, vlmrm_gym
    >>> from vlmrm_gym.data.statistics import EpisodeStatistics, finished_episodes
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
        self._books = EpisodeTotals(self.num_envs)

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
        self._receive(infos)
        self._books.end(mask, is_lost=True)
        return observations, infos

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step; see the class for the infos."""
        step = self._steps.step(actions)
        episodes = self._books.step(step)
        self._receive(step.infos)
        ended = [episode if ends else None for episode, ends in zip(episodes, step.ends, strict=True)]
        scored = [self._books.pop(i) for i in range(self.num_envs)]
        infos = {**step.infos, **_as_infos("episode", ended), **_as_infos("scored_episode", scored)}
        return step.observations, step.rewards, step.terminations, step.truncations, infos

    def flush(self) -> dict[str, Any]:
        """See `VLMRewardVectorEnv.flush`."""
        infos: dict[str, Any] = self.env.flush()  # pyright: ignore[reportAttributeAccessIssue]
        self._receive(infos)
        return infos

    def _receive(self, infos: Mapping[str, Any]) -> None:
        for late in read_late(infos):
            self._books.receive(late)


def _as_infos(name: str, episodes: Sequence[Episode | None]) -> dict[str, Any]:
    rows = [(episode or Episode()).summary for episode in episodes]
    columns = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    return {name: columns, f"_{name}": np.array([episode is not None for episode in episodes])}


def finished_episodes(infos: Mapping[str, Any]) -> list[dict[str, float]]:
    """Rows for a log, from the infos of a step of `EpisodeStatistics`.

    Returns:
        `task_return`, and `success_fraction` where it is known, of each episode that has ended; `vlm_return` of each
        that has been scored, which can be later.
    """
    rows: list[dict[str, float]] = []
    for i in np.flatnonzero(infos["_episode"]):
        row = {name: float(infos["episode"][name][i]) for name in ("task_return", "success_fraction")}
        rows.append({name: value for name, value in row.items() if not np.isnan(value)})
    if "_vlm_rewards" in infos:
        rows += [{"vlm_return": float(r)} for r in infos["scored_episode"]["r"][infos["_scored_episode"]]]
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
    """Play one episode in every environment, with a policy that maps observations of all environments to their actions.

    The environments are without `overlap`, so that rewards are known when an episode ends, and reset themselves, as
    `autoreset_mode` says where their metadata do not; else a ValueError. `seed` is of the first; the others' follow.
    """
    if find_autoreset_mode("envs", envs, autoreset_mode) == AutoresetMode.DISABLED:
        raise ValueError("`envs` must reset themselves: episodes end at different steps. Received disabled autoreset.")
    envs = EpisodeStatistics(envs, autoreset_mode=autoreset_mode)
    observations, _ = envs.reset(seed=seed)
    results, running = np.zeros((3, envs.num_envs)), np.full(envs.num_envs, True)
    while running.any():
        observations, _, _, _, infos = envs.step(policy(observations))
        if (running & infos["_episode"] & ~infos["_scored_episode"]).any():
            envs.render()  # any call raises what scoring has raised
            raise ValueError("`envs` must have an episode's rewards when it ends. Received none. Use overlap=False.")
        for i in np.flatnonzero(running & infos["_scored_episode"]):
            results[:, i] = [infos["scored_episode"][name][i] for name in ("r", "task_return", "success_fraction")]
        running &= ~infos["_episode"]
    return Episodes(*results)
