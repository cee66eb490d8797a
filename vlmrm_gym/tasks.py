"""The task table, data only: what is registered with Gymnasium. Prompts and baselines are the paper's."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Task:
    """One registered ID."""

    id: str
    """The ID for `gymnasium.make`."""
    world: str
    """The class of `vlmrm_gym.envs` with the dynamics."""
    prompt: str
    """The goal prompt."""
    baseline: str
    """The baseline prompt, used when alpha is above 0."""
    episode_length: int
    """Steps after which an episode is truncated."""


TASKS: tuple[Task, ...] = (
    Task(
        id="VLMRM/CartPole-v1",
        world="CartPole",
        prompt="pole vertically upright on top of the cart",
        baseline="pole and cart",
        episode_length=200,
    ),
)
