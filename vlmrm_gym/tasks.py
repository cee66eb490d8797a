"""The registered tasks, data only. Prompts, baselines and camera are the paper's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PAPER_CAMERA: Mapping[str, Any] = {"distance": 3.5, "lookat": [0.0, 0.0, 1.0], "elevation": -10.0, "azimuth": 180.0}
"""A fixed camera in front of the humanoid; distances in metres, angles in degrees."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One registered ID."""

    id: str
    """The ID for `gymnasium.make`."""
    env_cls: str
    """Name of the environment class in `vlmrm_gym.envs`."""
    prompt: str | None
    """The goal prompt; None: the caller must pass one."""
    baseline: str
    """The baseline prompt, used if alpha is above 0."""
    episode_length: int
    """Steps after which an episode is truncated."""
    success_threshold: float
    """Minimum fraction of an episode's steps that must succeed for the episode to be a success."""
    kwargs: Mapping[str, Any]
    """Further keyword arguments of `make_task` for this environment, with their defaults."""


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

TASKS: tuple[Task, ...] = (
    Task(
        id="VLMRM/CartPole-v1",
        env_cls="CartPole",
        prompt="pole vertically upright on top of the cart",
        baseline="pole and cart",
        episode_length=200,
        success_threshold=1.0,
        kwargs={},
    ),
    Task(
        id="VLMRM/MountainCarContinuous-v0",
        env_cls="MountainCar",
        prompt="a car at the peak of the mountain, next to the yellow flag",
        baseline="a car in the mountain",
        episode_length=200,
        success_threshold=1e-6,  # one step at the goal is enough
        kwargs={"textured": True},
    ),
    *(
        Task(
            id=f"VLMRM/Humanoid-{name}-v0" if name else "VLMRM/Humanoid-v0",
            env_cls="Humanoid",
            prompt=prompt,
            baseline="a humanoid robot",
            episode_length=100,
            success_threshold=0.5,  # the paper's Table 2
            kwargs={"task": name, "textured": True, "camera": dict(PAPER_CAMERA)},
        )
        for name, prompt in {**HUMANOID_PROMPTS, None: None}.items()
    ),
)
