"""Learns a reward from comparisons while an algorithm of Stable-Baselines3 learns from the reward."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from vlmrm_gym.preferences.exploration import StateEntropy
from vlmrm_gym.preferences.learner import PreferenceLearner, Session
from vlmrm_gym.preferences.schedules import Schedule, plan_sessions
from vlmrm_gym.preferences.session_picture import write_session
from vlmrm_gym.sb3.vec_env import VLMVecEnv
from vlmrm_gym.validation import check_choice, check_positive_integer

Exploration = Literal["random", "state_entropy"]


class PreferenceCallback(BaseCallback):
    """Asks a labeler, fits heads, and relabels the replay buffer, between the rollouts of an unmodified algorithm.

    For SAC, TD3, DQN and TQC with `DeferredReplayBuffer`, and PPO and A2C with `DeferredRolloutBuffer`, on environments
    with `reward=vlmrm_gym.Preference(prompt=...)`. Learning waits for the first head: off-policy algorithms explore
    until then (their `learning_starts` moves along); for on-policy algorithms the callback itself explores with random
    actions, which count as steps of the training. A labeler with wait=False answers while training goes on; before the
    first head only until the next session, which waits for the answers.

    >>> from stable_baselines3 import DQN
    >>> import vlmrm_gym
    >>> from vlmrm_gym.preferences.ground_truth import GroundTruthLabeler
    >>> from vlmrm_gym.sb3 import DeferredReplayBuffer, PreferenceCallback, make_vec_env
    >>> reward = vlmrm_gym.Preference(prompt="pole vertically upright on top of the cart")
    >>> envs = make_vec_env("VLMRM/CartPole-v1", num_envs=2, reward=reward, episode_length=50)
    >>> model = DQN("MlpPolicy", envs, replay_buffer_class=DeferredReplayBuffer, learning_starts=200)
    >>> callback = PreferenceCallback(GroundTruthLabeler(), every=100, pairs=20, total=40)
    >>> _ = model.learn(400, callback=callback)
    >>> callback.learner.num_questions
    40
    >>> envs.close()

    Args:
        labeler: Answers pairs: as for `vlmrm_gym.preferences.labelers.resolve_labeler`.
        every: Steps, over all environments, from one session to the next.
        pairs: Pairs of a session, on average.
        total: Pairs of all sessions.
        first: Steps before the first session. None: `learning_starts`; for on-policy algorithms `every`. It waits for
            the first episode to end, too.
        schedule: How the pairs are divided over the sessions: "constant", "hyperbolic", "inverse_quadratic", or a
            function from the part of the sessions that is over, 0 to 1, to a relative number.
        folder: Where a picture of each session's pairs, with their answers, is written. None: none is.
        progress: Called with a line about a session after each answer; see `ask`.
        exploration: What off-policy algorithms do before the first head. "random": act at random. "state_entropy":
            learn from `StateEntropy` (PEBBLE, RL-VLM-F) between `learning_starts` and `first`.
        options: Other arguments of `PreferenceLearner`, such as `segment_length`, `sampling`, `fit` and `answers`.

    Attributes:
        learner: The `PreferenceLearner`; its `save` and `load` are for checkpoints. Made by `bind`, or when training
            begins.
        sessions: Those that this has held, oldest first.

    Raises:
        ValueError: A number is not an integer of at least 1, the schedule or the exploration is unknown, or the latter
            has no time.
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
        exploration: Exploration = "random",
        **options: Any,
    ) -> None:
        super().__init__()
        check_positive_integer("every", every)
        if first is not None:
            check_positive_integer("first", first)
        check_choice("exploration", exploration, get_args(Exploration))
        self._exploration: Exploration = exploration
        self._next_entropy = 0
        """Step at which the visited states of `StateEntropy` are drawn anew."""
        self._plan = plan_sessions(total, pairs, schedule)
        self._next_look = 0
        """Step at which it is seen whether late answers have come, once all questions have been asked."""
        self._every, self._first, self._folder = every, first, None if folder is None else Path(folder)
        self._labeler, self._options = labeler, options
        self.progress = progress
        self.sessions: list[Session] = []

    def bind(self, envs: VLMVecEnv) -> None:
        """Make the learner, before training begins: to `load` what it knew.

        Raises:
            ValueError, TypeError: As `PreferenceLearner`.
        """
        self.learner = PreferenceLearner(envs.envs, self._labeler, **self._options)

    def relabel(self) -> None:
        """Make the stored rewards anew, if there is a replay buffer: on-policy algorithms have none."""
        buffer: Any = getattr(self.model, "replay_buffer", None)
        if buffer is not None:
            buffer.relabel(self.learner.newest)

    def renew_exploration(self) -> None:
        """Draw the visited states of `StateEntropy` anew after the next rollout, as a training that is resumed does."""
        self._next_entropy = 0

    def _init_callback(self) -> None:
        base = self.training_env.unwrapped
        if not isinstance(base, VLMVecEnv):
            raise ValueError(f"`env` must be a VLMVecEnv, such as `make_vec_env` returns. Received {base}.")
        if not hasattr(self, "learner"):
            self.bind(base)
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)

    def _on_training_start(self) -> None:
        starts = getattr(self.model, "learning_starts", None)
        explores = self._exploration == "state_entropy" and self.learner.head is None
        if explores and (starts is None or starts >= (self._first or 0)):
            raise ValueError(
                '`first` must be above `learning_starts` of an off-policy algorithm with exploration="state_entropy", '
                f"which takes place between the two. Received {self._first} and {starts}."
            )
        if self._first is None:
            self._first = max(1, getattr(self.model, "learning_starts", self._every))
        steps = self.locals["total_timesteps"]
        if self._first + (len(self._plan) - 1) * self._every > steps:
            room = max(0, (steps - self._first) // self._every + 1)
            warnings.warn(
                f"`every` leaves room for {room} of {len(self._plan)} sessions in {steps:,} steps: not all questions "
                "will be asked. Pass a lower `every`, or more `pairs`.",
                stacklevel=2,
            )
        if self.learner.head is not None:  # a training that continues: its buffer may have no head yet
            if not getattr(getattr(self.model, "replay_buffer", None), "is_settled", False):
                self.relabel()
        elif isinstance(self.model, OnPolicyAlgorithm):
            self._explore()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self._rollout_start = self.model.num_timesteps

    def _on_rollout_end(self) -> None:
        """Hold a session if it is time. Off-policy algorithms train next."""
        if self._is_due():
            self._hold_session()
        model = self.model
        if not isinstance(model, OffPolicyAlgorithm) or self.learner.head is not None or self._pay_entropy():
            return
        if model.num_timesteps >= model.learning_starts:  # the next rollout is random, too
            model.learning_starts = 2 * model.num_timesteps - self._rollout_start

    def _pay_entropy(self) -> bool:
        """Pay stored transitions by the entropy of states, if that is how the agent explores and there are any."""
        buffer: Any = getattr(self.model, "replay_buffer", None)
        if self._exploration == "random" or not len(buffer.features):
            return False
        if self.model.num_timesteps >= self._next_entropy:
            buffer.relabel(StateEntropy(buffer.features))
            self._next_entropy = int(1.1 * self.model.num_timesteps)
        return True

    def _is_due(self) -> bool:
        done, steps = self.learner.num_sessions, self.model.num_timesteps
        assert self._first is not None
        if not len(self.learner.log) or steps < max(self._first + done * self._every, self._next_look):
            return False
        if done < len(self._plan):
            return True
        self._next_look = steps + self._every
        return self.learner.num_waiting > 0 and (self.learner.head is None or self.learner.has_news)

    def _explore(self) -> None:
        """Act at random until there is a head, and then begin new episodes. The steps count."""
        model, envs = self.model, self.training_env
        while self.learner.head is None:
            while not self._is_due():
                envs.step(np.array([model.action_space.sample() for _ in range(envs.num_envs)]))
                model.num_timesteps += envs.num_envs
            self._hold_session()
        model._last_obs = envs.reset()  # pyright: ignore[reportAttributeAccessIssue]
        model._last_episode_starts = np.ones(envs.num_envs, dtype=np.bool_)

    def _hold_session(self) -> None:
        is_first, planned = self.learner.head is None, len(self._plan)
        if is_first:
            self.learner.wait()  # there is nothing else to go on with
        count = (*self._plan, 0)[min(self.learner.num_sessions, planned)]
        session = self.learner.session(count, self.progress)
        self.sessions.append(session)
        for name, value in session.scalars.items():
            self.logger.record(f"preferences/{name}", value)
        self.logger.log(f"Session {session.number} of {max(session.number, planned)}: {session.verdict.reason}")
        if self._folder is not None:
            write_session(session, self._folder / f"session_{session.number:03}.png")
        if self.learner.head is None and session.number >= planned + (self.learner.num_waiting > 0):
            asked, total = self.learner.num_questions, sum(self._plan)
            part = f"All {asked}" if asked >= total else f"Only {asked} of {total}"
            raise RuntimeError(
                f"{part} questions have been asked, and there is no head to learn with. {session.verdict.reason}"
            )
        if session.verdict.accepted:
            self.relabel()
            if is_first and self.model.ep_info_buffer:  # episodes before the first head have no return
                known = [episode for episode in self.model.ep_info_buffer if np.isfinite(episode["r"])]
                self.model.ep_info_buffer.clear()
                self.model.ep_info_buffer.extend(known)
