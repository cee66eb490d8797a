"""What the callbacks that learn a reward have in common."""

from abc import abstractmethod
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from vlmrm_gym.sb3.vec_env import VLMVecEnv


class LearnerCallback(BaseCallback):
    """Has a learner of the reward, and relabels the replay buffer.

    Attributes:
        learner: Its `save` and `load` are for checkpoints. Made by `bind`, or when training begins.
    """

    learner: Any

    @abstractmethod
    def make_learner(self, envs: Any) -> Any:
        """The learner of vector environments."""

    def bind(self, envs: VLMVecEnv) -> None:
        """Make the learner, before training begins: to `load` what it knew.

        Raises:
            ValueError, TypeError: As the learner.
        """
        self.learner = self.make_learner(envs.envs)

    def relabel(self) -> None:
        """Make the stored rewards anew, if there is a replay buffer: on-policy algorithms have none."""
        buffer = getattr(self.model, "replay_buffer", None)
        if buffer is not None:
            buffer.relabel(self.learner.newest)

    def relabel_unsettled(self) -> None:
        """Relabel a buffer that was loaded, and may have no head."""
        if not getattr(getattr(self.model, "replay_buffer", None), "is_settled", False):
            self.relabel()

    def _init_callback(self) -> None:
        base = self.training_env.unwrapped
        if not isinstance(base, VLMVecEnv):
            raise ValueError(f"`env` must be a VLMVecEnv, such as `make_vec_env` returns. Received {base}.")
        if not hasattr(self, "learner"):
            self.bind(base)

    def _on_step(self) -> bool:
        return True
