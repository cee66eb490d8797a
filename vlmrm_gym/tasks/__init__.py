"""The registered tasks: a record for each ID, data only. Prompts, baselines and camera are the paper's.

A record names code as "package.module:attribute", which is imported when it is first used. `register` adds a task of
yours.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pkgutil import resolve_name
from typing import Any

import gymnasium as gym


@dataclass(frozen=True, kw_only=True)
class Task:
    """The record of one registered ID."""

    id: str
    """The ID for `gymnasium.make`."""
    env: str
    """The environment class. It is called with `render_mode` and `kwargs`; `info["success"]` (bool) says at every step
    whether the new state succeeds."""
    vector_env: str | None = None
    """A vector environment class, called with `num_envs`, `episode_length`, `autoreset_mode` and `kwargs`; it behaves
    as a `SyncVectorEnv` of `env` with a time limit, which is used for None."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment class that users may choose, with their defaults."""
    camera: Any = None
    """One camera or several, see `VLMReward`; None: the environment's own."""
    prompt: str | None = None
    """The goal prompt; None: the caller must pass one."""
    baseline: str | None = None
    """The baseline prompt, used if alpha is above 0."""
    episode_length: int
    """Steps after which an episode is truncated."""
    success_threshold: float | None = None
    """Minimum fraction of an episode's steps that must succeed for the episode to be a success; None: the task does not
    define success."""
    states: str | None = None
    """A class of `vlmrm_gym.tasks.known_states.TaskStates`: success, grade, goals, samples, the way to the goal. None:
    nothing is known of the states."""
    states_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of `states`."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Default settings of `vlmrm-gym train`: keys of `rl` in a configuration. Empty: those for its kind of actions."""

    def make_states(self) -> Any:
        """Make the task's `vlmrm_gym.tasks.known_states.TaskStates`; None if it has none."""
        return None if self.states is None else resolve_name(self.states)(**self.states_kwargs)


REGISTERED: dict[str, Task] = {}
"""The record of every ID: those of this package, and those that `register` has added."""


def register(task: Task) -> None:
    """Register a task with Gymnasium: `gymnasium.make(task.id)` and all of this package's commands know it then.

    Call it where the environment class is defined, or in a package that is imported with it, so that other processes
    know the task as well. "module:ID" imports the module first.

    Args:
        task: The record. An earlier one with the same ID is replaced.
    """
    views = {} if task.camera is None else {"camera": task.camera}
    gym.register(
        id=task.id,
        entry_point="vlmrm_gym.envs.make:make_task",
        vector_entry_point="vlmrm_gym.envs.make:make_vector_task",
        kwargs={
            "task_id": f"{task.env.partition(':')[0]}:{task.id}",
            "prompt": task.prompt,
            "baseline": task.baseline,
            "episode_length": task.episode_length,
            **task.kwargs,
            **views,
        },
    )
    REGISTERED[task.id] = task


def register_hints() -> None:
    """Register "VLMRM/Ant-v5" and its like, of Gymnasium's own environments without a record: they say how to score it.

    Gymnasium itself would only say that there is no such name.
    """
    ours = {spec.name for spec in gym.registry.values() if spec.namespace == "VLMRM"}
    newest = {spec.name: spec.id for spec in gym.registry.values() if spec.namespace is None and spec.name not in ours}
    for id in newest.values():
        hint = "vlmrm_gym.envs.make:refuse_unregistered"
        gym.register(f"VLMRM/{id}", entry_point=hint, vector_entry_point=hint, kwargs={"base_id": id})


HUMANOID_PROMPTS: Mapping[str, str | None] = {
    "kneel": "a humanoid robot kneeling",
    "lotus": "a humanoid robot seated down, meditating in the lotus position",
    "stand": "a humanoid robot standing up",
    "arms-raised": "a humanoid robot standing up, with both arms raised",
    "splits": "a humanoid robot practicing gymnastics, doing the side splits",
    "hands-on-hips": "a humanoid robot standing up with hands on hips",
    "arms-crossed": "a humanoid robot standing up, with its arms crossed",
    "one-leg": "a humanoid robot standing up on one leg",
}
"""By the name of the success criterion."""

CART_POLE_TRAINING: Mapping[str, Any] = {
    "algorithm": "DQN",
    "n_steps": 20_000,
    "n_envs_per_worker": 4,
    "learning_starts": 1_600,
    "train_freq": 1,
    "gradient_steps": 4,
    "batch_size": 128,
    "learning_rate": 5e-4,
    "gamma": 0.98,
    "tau": 0.02,
    "target_update_interval": 4,
    "exploration_fraction": 0.4,
    "exploration_final_eps": 0.05,
    "policy_kwargs": {"net_arch": [128, 128]},
}
_SAC: Mapping[str, Any] = {
    "algorithm": "SAC",
    "n_envs_per_worker": 8,
    "train_freq": 1,
    "gradient_steps": 4,
    "batch_size": 256,
    "learning_rate": 6e-4,
    "normalize_observations": True,
}
MOUNTAIN_CAR_TRAINING: Mapping[str, Any] = {
    **_SAC,
    "n_steps": 40_000,
    "learning_starts": 4_800,
    "gamma": 0.99,
    # The car has to swing up before the reward guides it to the flag, so exploration has to be persistent.
    "action_noise": {"name": "ActionRepeatNoise", "sigma": 2.0, "hold": 30},
    "policy_kwargs": {"net_arch": [128, 128]},
}
HUMANOID_TRAINING: Mapping[str, Any] = {
    **_SAC,
    "n_steps": 200_000,
    "learning_starts": 4_000,
    "gamma": 0.95,
    "policy_kwargs": {"net_arch": [256, 256]},
}
"""Defaults of trainings; benchmarks/RESULTS.md has their results."""

_HUMANOIDS = "vlmrm_gym.tasks.humanoid_vector:HumanoidVectorEnv" if int(version("mujoco").split(".")[0]) >= 4 else None
"""It needs MuJoCo 4; with an older one humanoids are stepped one after another, in a `SyncVectorEnv`."""

TASKS: tuple[Task, ...] = (
    Task(
        id="VLMRM/CartPole-v1",
        env="vlmrm_gym.tasks.cartpole:CartPole",
        prompt="pole vertically upright on top of the cart",
        baseline="pole and cart",
        episode_length=200,
        success_threshold=1.0,
        states="vlmrm_gym.tasks.cartpole:CartPoleStates",
        training=CART_POLE_TRAINING,
    ),
    Task(
        id="VLMRM/MountainCarContinuous-v0",
        env="vlmrm_gym.tasks.mountain_car:MountainCar",
        kwargs={"textured": True},
        prompt="a car at the peak of the mountain, next to the yellow flag",
        baseline="a car in the mountain",
        episode_length=200,
        success_threshold=1e-6,  # one step at the goal is enough
        states="vlmrm_gym.tasks.mountain_car:MountainCarStates",
        training=MOUNTAIN_CAR_TRAINING,
    ),
    *(
        Task(
            id=f"VLMRM/Humanoid-{name}-v0" if name else "VLMRM/Humanoid-v0",
            env="vlmrm_gym.tasks.humanoid:Humanoid",
            vector_env=_HUMANOIDS,
            kwargs={"task": name, "textured": True, "start_near_goal": 0.0},
            camera="paper",
            prompt=prompt,
            baseline="a humanoid robot",
            episode_length=100,
            success_threshold=0.5 if name else None,  # the paper's Table 2
            states="vlmrm_gym.tasks.humanoid_poses:HumanoidStates",
            states_kwargs={"task": name},
            training=HUMANOID_TRAINING,
        )
        for name, prompt in {**HUMANOID_PROMPTS, None: None}.items()
    ),
)
"""The tasks of this package."""
