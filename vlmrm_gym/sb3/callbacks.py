"""Callbacks: the figures of scored episodes, and rewards that are learned from comparisons, or refined, meanwhile."""

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from vlmrm_gym._util.validation import check_positive_integer
from vlmrm_gym.data.late import read_late
from vlmrm_gym.data.store import find_featured
from vlmrm_gym.learning.answers import Schedule, plan_rounds
from vlmrm_gym.learning.learner import PreferenceLearner, Round
from vlmrm_gym.learning.pictures import write_round
from vlmrm_gym.learning.refining import RefinedPlaceHead
from vlmrm_gym.rewards.current_head import CurrentHead
from vlmrm_gym.rewards.distance import DistanceNetwork
from vlmrm_gym.rewards.learned import Demonstrations
from vlmrm_gym.sb3.vec_env import VLMVecEnv


class ScoredReturnCallback(BaseCallback):
    """Logs means over the scored episodes.

    `rollout/vlm_return`, `rollout/task_return`, and where success is defined `rollout/success_fraction`: the fraction
    of an episode's steps that were successes. Stable-Baselines3 itself logs `rollout/success_rate`, the fraction of
    successful episodes.

    Raises:
        RuntimeError: The algorithm does not give callbacks the infos of its steps, such as ARS of sb3-contrib.
    """

    def _on_step(self) -> bool:
        if "infos" not in self.locals:
            raise RuntimeError(
                "`callback` must not be a ScoredReturnCallback with an algorithm that gives callbacks no infos. "
                f"Received one with {type(self.model).__name__}. Leave it out: `rollout/ep_rew_mean` is the VLM return."
            )
        for info in self.locals["infos"]:
            if episode := info.get("scored_episode"):
                if not math.isnan(episode["r"]):  # a reward that is learned from comparisons has no head yet
                    self.logger.record_mean("rollout/vlm_return", episode["r"])
                self.logger.record_mean("rollout/task_return", episode["task_return"])
                if "success" in episode:
                    self.logger.record_mean("rollout/success_fraction", episode["success"])
        return True


def _relabel(model: Any, head: CurrentHead) -> None:
    if getattr(model, "replay_buffer", None) is not None:  # on-policy algorithms have none
        model.replay_buffer.relabel(head)


class RefineCallback(BaseCallback):
    """Refines a reward from videos while an unmodified algorithm learns: states of episodes that fail are paid less.

    For SAC, TD3, DQN and TQC with `DeferredReplayBuffer`, and PPO and A2C with `DeferredRolloutBuffer`, on environments
    with a `Demonstrations` reward of the measure "place", and `return_features=True`. A replay buffer is relabelled.
    See examples/metaworld_from_videos.py.

    Args:
        every: Steps, over all environments, from one refinement to the next.
        failed: Tells by `info["scored_episode"]` whether an episode failed. None: if no step of it was a success, or
            where no success is defined, its task return is not above 0.

    Attributes:
        head: The `RefinedPlaceHead` that pays. It is saved neither with the model nor with its buffer.

    Raises:
        ValueError: `every` is not an integer of at least 1, or the environments are others.
    """

    head: RefinedPlaceHead

    def __init__(self, *, every: int = 500, failed: Callable[[Any], bool] | None = None) -> None:
        super().__init__()
        check_positive_integer("every", every)
        self._every, self._next = every, every
        self._failed = failed or (lambda episode: not episode.get("success", episode["task_return"]) > 0)

    def _init_callback(self) -> None:
        base = self.training_env.unwrapped
        envs: Any = find_featured(base.envs) if isinstance(base, VLMVecEnv) else None
        reward = getattr(envs, "reward", None)
        if not isinstance(reward, Demonstrations) or reward.measure != "place":
            raise ValueError(
                '`env` must be a VLMVecEnv with Demonstrations(measure="place") and return_features=True. Received '
                f"{base} with {'rewards alone' if envs is None else reward}."
            )
        self._current = envs.head
        self.head = RefinedPlaceHead(DistanceNetwork.load(reward.head))
        self._paying = envs.head.head.with_head(self.head)
        self._parts: list[list[Any]] = [[] for _ in range(self.training_env.num_envs)]

    def _on_step(self) -> bool:
        infos = self.locals["infos"]
        for late in read_late(infos):
            self._parts[late.env].append(late.features)
            if episode := infos[late.env].get("scored_episode"):
                features, self._parts[late.env] = np.concatenate(self._parts[late.env]), []
                if self._failed(episode):
                    self.head.add(features)
        return True

    def _on_rollout_end(self) -> None:
        if self.num_timesteps < self._next or not self.head.num_failed:
            return
        self._next = (self.num_timesteps // self._every + 1) * self._every
        self.head.fit()
        self._current.replace(self._paying)
        _relabel(self.model, self._current)


class PreferenceCallback(BaseCallback):
    """Asks a labeler, fits heads, and relabels the replay buffer, between the rollouts of an unmodified algorithm.

    For SAC, TD3, DQN and TQC with `DeferredReplayBuffer`, and PPO and A2C with `DeferredRolloutBuffer`, on environments
    with `reward=vlmrm_gym.Preference(prompt=...)`. Learning waits for the first head: off-policy algorithms explore
    until then (their `learning_starts` moves along); for on-policy algorithms the callback itself explores with random
    actions, which count as steps of the training.

    >>> from stable_baselines3 import DQN
    >>> import vlmrm_gym
    >>> from vlmrm_gym.learning import GroundTruthLabeler
    >>> from vlmrm_gym.sb3 import DeferredReplayBuffer, PreferenceCallback, make_vec_env
    >>> reward = vlmrm_gym.Preference(prompt="pole vertically upright on top of the cart")
    >>> envs = make_vec_env("VLMRM/CartPole-v1", n_envs=2, reward=reward, episode_length=50)
    >>> model = DQN("MlpPolicy", envs, replay_buffer_class=DeferredReplayBuffer, learning_starts=200)
    >>> callback = PreferenceCallback(GroundTruthLabeler(), every=100, pairs=20, total=40)
    >>> _ = model.learn(400, callback=callback)
    >>> callback.learner.num_questions
    40
    >>> envs.close()

    Args:
        labeler: Answers pairs: as for `vlmrm_gym.learning.labelers.resolve_labeler`.
        every: Steps, over all environments, from one round to the next.
        pairs: Pairs of a round, on average.
        total: Pairs of all rounds.
        first: Steps before the first round. None: `learning_starts`; for on-policy algorithms `every`. It waits for
            the first episode to end, too.
        schedule: How the pairs are divided over the rounds: "constant", or a function from the part of the rounds
            that is over, 0 to 1, to a relative number; or its "package.module:name".
        folder: Where a picture of each round's pairs, with their answers, is written. None: none is.
        progress: Called with a line about a round after each answer; see `ask`.
        options: Other arguments of `PreferenceLearner`, such as `segment_length`, `sampling`, `fit` and `answers`.

    Attributes:
        learner: The `PreferenceLearner`; its `save` and `load` are for checkpoints. Made by `bind`, or when training
            begins.
        rounds: Those that this has held, oldest first.

    Raises:
        ValueError: A number is not an integer of at least 1, or the schedule is unknown.
    """

    learner: PreferenceLearner

    def __init__(
        self,
        labeler: Any,
        *,
        every: int,
        pairs: int = 50,
        total: int = 500,
        first: int | None = None,
        schedule: Schedule = "constant",
        folder: str | Path | None = None,
        progress: Callable[[str], None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        for name, value in {"every": every, **({} if first is None else {"first": first})}.items():
            check_positive_integer(name, value)
        self._plan = plan_rounds(total, pairs, schedule)
        self._every, self._first, self._folder = every, first, None if folder is None else Path(folder)
        self._labeler, self._options = labeler, options
        self.progress = progress
        self.rounds: list[Round] = []

    def bind(self, envs: VLMVecEnv) -> None:
        """Make the learner, before training begins: to `load` what it knew."""
        self.learner = PreferenceLearner(envs.envs, self._labeler, **self._options)

    def _init_callback(self) -> None:
        base = self.training_env.unwrapped
        if not isinstance(base, VLMVecEnv):
            raise ValueError(f"`env` must be a VLMVecEnv, such as `make_vec_env` returns. Received {base}.")
        if not hasattr(self, "learner"):
            self.bind(base)
        if self.learner.newest.looks_at_sequences and hasattr(self.model, "replay_buffer"):
            raise ValueError(
                "`reward` must look at single states to be learned with a replay buffer, which has no whole episodes. "
                f"Received {type(self.model).__name__} and {find_featured(base.envs).reward}. Use PPO or A2C."
            )
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)

    def _on_training_start(self) -> None:
        if self._first is None:
            self._first = max(1, getattr(self.model, "learning_starts", self._every))
        steps = self.locals["total_timesteps"]
        if self._first + (len(self._plan) - 1) * self._every > steps:
            room = max(0, (steps - self._first) // self._every + 1)
            warnings.warn(
                f"`every` leaves room for {room} of {len(self._plan)} rounds in {steps:,} steps: not all questions "
                "will be asked. Pass a lower `every`, or more `pairs`.",
                stacklevel=2,
            )
        if self.learner.head is not None:  # a training that continues: its buffer may have no head yet
            if not getattr(getattr(self.model, "replay_buffer", None), "is_settled", False):
                _relabel(self.model, self.learner.newest)
        elif isinstance(self.model, OnPolicyAlgorithm):
            self._explore()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self._rollout_start = self.model.num_timesteps

    def _on_rollout_end(self) -> None:
        """Hold a round if it is time. Off-policy algorithms train next."""
        if self._is_due():
            self._hold_round()
        model = self.model
        if not isinstance(model, OffPolicyAlgorithm) or self.learner.head is not None:
            return
        if model.num_timesteps >= model.learning_starts:  # the next rollout is random, too
            model.learning_starts = 2 * model.num_timesteps - self._rollout_start

    def _is_due(self) -> bool:
        done = self.learner.num_rounds
        assert self._first is not None
        is_time = self.model.num_timesteps >= self._first + done * self._every
        return is_time and done < len(self._plan) and len(self.learner.log) > 0

    def _explore(self) -> None:
        """Act at random until there is a head, and then begin new episodes. The steps count."""
        model, envs = self.model, self.training_env
        while self.learner.head is None:
            while not self._is_due():
                envs.step(np.array([model.action_space.sample() for _ in range(envs.num_envs)]))
                model.num_timesteps += envs.num_envs
            self._hold_round()
        model._last_obs = envs.reset()  # pyright: ignore[reportAttributeAccessIssue]
        model._last_episode_starts = np.ones(envs.num_envs, dtype=np.bool_)

    def _hold_round(self) -> None:
        is_first, planned = self.learner.head is None, len(self._plan)
        outcome = self.learner.run_round(self._plan[self.learner.num_rounds], self.progress)
        self.rounds.append(outcome)
        for name, value in outcome.scalars.items():
            self.logger.record(f"preferences/{name}", value)
        self.logger.log(f"Round {outcome.number} of {planned}: {outcome.verdict.reason}")
        if self._folder is not None:
            write_round(outcome.pairs, outcome.answers, self._folder / f"round_{outcome.number:03}.png")
        if self.learner.head is None and outcome.number >= planned:
            asked, total = self.learner.num_questions, sum(self._plan)
            part = f"All {asked}" if asked >= total else f"Only {asked} of {total}"
            raise RuntimeError(
                f"{part} questions have been asked, and there is no head to learn with. {outcome.verdict.reason}"
            )
        if outcome.verdict.accepted:
            _relabel(self.model, self.learner.newest)
            if is_first and self.model.ep_info_buffer:  # episodes before the first head have no return
                known = [episode for episode in self.model.ep_info_buffer if np.isfinite(episode["r"])]
                self.model.ep_info_buffer.clear()
                self.model.ep_info_buffer.extend(known)
