"""Logs the figures of scored episodes."""

import math

from stable_baselines3.common.callbacks import BaseCallback


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
