"""What is known of the states of a task: which succeed, which conditions they fail, and how they can be changed."""

from vlmrm_gym.check.task_states.base import NEAR_MISS, StatePath, TaskStates, fails_clearly, mutate

__all__ = ["NEAR_MISS", "StatePath", "TaskStates", "fails_clearly", "mutate"]
