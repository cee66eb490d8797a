"""Trainings whose reward is learned from preferences: rounds, checkpoints, and the reward as it is so far."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm

from vlmrm_gym._util.files import atomic_write
from vlmrm_gym.data.episode_log import EpisodeLog
from vlmrm_gym.data.store import find_featured
from vlmrm_gym.learning.fitting import FitOptions
from vlmrm_gym.learning.pictures import write_round
from vlmrm_gym.sb3 import PreferenceCallback, VLMVecEnv
from vlmrm_gym.tools.train.algorithms import first_round
from vlmrm_gym.tools.train.checks import find_specification
from vlmrm_gym.tools.train.config import Config, RewardConfig
from vlmrm_gym.tools.train.config_file import constructing
from vlmrm_gym.tools.train.run_folder import BEST, RunFolder


def frozen(reward: RewardConfig, folder: RunFolder) -> RewardConfig:
    """A reward that is learned, as its newest head makes it; it learns no more."""
    kwargs = _with_head({**(reward.kwargs or {}), "kind": reward.name}, str(folder.head.resolve()))
    return replace(reward, labeler=None, kwargs={name: value for name, value in kwargs.items() if name != "kind"})


def _with_head(values: Any, head: str) -> Any:
    """The mapping form of a reward in which the part that is learned has this head."""
    if isinstance(values, Mapping):
        own = {name: _with_head(value, head) for name, value in values.items()}
        return {**own, "head": own.get("head") or head} if own.get("kind") == "preference" else own
    return [_with_head(one, head) for one in values] if isinstance(values, list | tuple) else values


class RewardLearning(PreferenceCallback):
    """Learns the reward of a run. What comes of it is kept in the run's folder."""

    def __init__(self, config: Config, folder: RunFolder, envs: VLMVecEnv) -> None:
        options: dict[str, Any] = {**vars(config.preferences), "seed": config.seed}
        # The model's own `learning_starts` moves along while there is no head, also in a checkpoint.
        options["first"] = first_round(config)
        options["answers"] = options["answers"] or folder.path / "answers.db"
        options["fit"] = FitOptions(**(options["fit"] or {}))
        with constructing(config, "preferences.answers"):
            super().__init__(config.reward.labeler, **options)
            self.bind(envs)
        self._config, self._run, self._envs = config, folder, find_featured(envs.envs)
        self._num_logged = self._kept_version = 0

    @property
    def version(self) -> int:
        """The version of the newest head; 0: there is none."""
        return self.learner.newest.version

    @property
    def reward(self) -> RewardConfig | None:
        """The reward as the newest head makes it; None: there is no head."""
        return frozen(self._config.reward, self._run) if self._run.head.exists() else None

    def restore(self, path: Path, model: BaseAlgorithm) -> None:
        """Continue from a checkpoint, before the environments step. The replay buffer has been loaded."""
        self.learner.load(path)
        self._kept_version = self.version
        if self.version and (buffer := getattr(model, "replay_buffer", None)) is not None:
            buffer.resume(self.learner.newest)

    def keep_head(self) -> None:
        """Write a new head, and the specification of its reward."""
        if self.version != self._kept_version:
            assert self.learner.head is not None
            self.learner.head.save(self._run.head)
            reward = find_specification(replace(self._config, reward=frozen(self._config.reward, self._run)))
            assert reward is not None
            reward.save(self._run.path)
            self._kept_version = self.version

    def log_rounds(self, say: Callable[[str], None]) -> bool:
        """Say what came of the rounds since the last call, and draw them. Returns whether there were any."""
        new = self.rounds[self._num_logged :]
        self._num_logged += len(new)
        for outcome in new:
            say(f"Round {outcome.number} of {self._config.preferences.num_rounds}: {outcome.verdict.reason}")
            (folder := self._run.path / "rounds").mkdir(exist_ok=True)
            write_round(outcome.pairs, outcome.answers, folder / f"{outcome.number:03}.png")
        return bool(new)

    def keep_episodes(self, count: int) -> None:
        """Write the newest episodes, by which the policy is the best: `mean_return` judges them again."""
        episodes = EpisodeLog.of(self.learner.log.episodes[-count:])
        atomic_write(self._run.path / BEST[2], episodes.save)

    def mean_return(self) -> float | None:
        """Compute the mean return of the episodes of the best policy by the newest head; None if there are none yet."""
        if not (path := self._run.path / BEST[2]).exists():
            return None
        kept = EpisodeLog.of([])
        kept.load(path)
        rewards = [self._envs.head(self._envs.scorer.features(one.states)) for one in kept.episodes]
        weight = self._config.reward.task_reward_weight + self._envs.reward.task_reward_weight
        task_rewards = sum(one.task_rewards.sum() for one in kept.episodes) * weight
        return float((np.concatenate(rewards).sum(dtype=np.float64) + task_rewards) / len(kept.episodes))
