"""Tunes a CLIP reward to successes while an algorithm of Stable-Baselines3 learns from the reward."""

from typing import Any

from vlmrm_gym.sb3.learning import LearnerCallback
from vlmrm_gym.tuning import HeadTuner
from vlmrm_gym.validation import check_positive_integer


class TuningCallback(LearnerCallback):
    """Tunes the head, and relabels the replay buffer, between the rollouts of an unmodified algorithm (FuRL).

    For SAC, TD3, DQN and TQC with `DeferredReplayBuffer`, and PPO and A2C with `DeferredRolloutBuffer`, on environments
    with `reward=vlmrm_gym.TunedCLIP(prompt=...)` and `info["success"]`. Until the first success the reward is CLIP's.

    >>> from stable_baselines3 import DQN
    >>> import vlmrm_gym
    >>> from vlmrm_gym.sb3 import DeferredReplayBuffer, TuningCallback, make_vec_env
    >>> reward = vlmrm_gym.TunedCLIP(prompt="pole vertically upright on top of the cart")
    >>> envs = make_vec_env("VLMRM/CartPole-v1", 2, reward=reward, task_reward_weight=1, episode_length=15, seed=0)
    >>> model = DQN("MlpPolicy", envs, replay_buffer_class=DeferredReplayBuffer, learning_starts=60)
    >>> callback = TuningCallback(every=100, gradient_steps=10)
    >>> _ = model.learn(240, callback=callback)
    >>> callback.learner.newest.version
    3
    >>> envs.close()

    Args:
        every: Steps, over all environments, from one time to the next.
        draws: See `HeadTuner.tune`.
        gradient_steps: Of each time. None: as many as `every`, as in FuRL.
        options: Other arguments of `HeadTuner`: `success_threshold`, `options`, `seed`.

    Attributes:
        learner: The `HeadTuner`; its `save` and `load` are for checkpoints. Made by `bind`, or when training begins.

    Raises:
        ValueError: A number is not an integer of at least 1.
    """

    learner: HeadTuner

    def __init__(
        self, *, every: int = 1_000, draws: int = 100, gradient_steps: int | None = None, **options: Any
    ) -> None:
        super().__init__()
        self._gradient_steps = every if gradient_steps is None else gradient_steps
        for name, value in (("every", every), ("draws", draws), ("gradient_steps", self._gradient_steps)):
            check_positive_integer(name, value)
        self._every, self._draws, self._options = every, draws, options

    def make_learner(self, envs: Any) -> HeadTuner:
        """See `LearnerCallback`."""
        return HeadTuner(envs, **self._options)

    def _on_training_start(self) -> None:
        self._num_times = self.model.num_timesteps // self._every
        self.relabel_unsettled()

    def _on_rollout_end(self) -> None:
        """Tune if it is time. Off-policy algorithms train next."""
        if self.model.num_timesteps // self._every == self._num_times:
            return
        self._num_times = self.model.num_timesteps // self._every
        before = self.learner.newest.version
        for name, value in self.learner.tune(self._gradient_steps, self._draws).items():
            self.logger.record(f"tuning/{name}", value)
        if self.learner.newest.version > before:
            self.relabel()
