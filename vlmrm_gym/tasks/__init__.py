"""The registered tasks: records, the worlds that they name, and what is known of their states. Independent of rewards.

`register` adds a task of yours.
"""

from vlmrm_gym.tasks.records import (
    CART_POLE_TRAINING,
    HUMANOID_PROMPTS,
    HUMANOID_TRAINING,
    MOUNTAIN_CAR_TRAINING,
    PAPER_CAMERA,
    REGISTERED,
    TASKS,
    Task,
    register,
    register_hints,
)

__all__ = [
    "CART_POLE_TRAINING",
    "HUMANOID_PROMPTS",
    "HUMANOID_TRAINING",
    "MOUNTAIN_CAR_TRAINING",
    "PAPER_CAMERA",
    "REGISTERED",
    "TASKS",
    "Task",
    "register",
    "register_hints",
]
