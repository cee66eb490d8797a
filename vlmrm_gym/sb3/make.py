"""Makes scored environments for Stable-Baselines3."""

from typing import Any

from vlmrm_gym.closing import close_on_error
from vlmrm_gym.registration import find_task, make_vector_env
from vlmrm_gym.sb3.vec_env import VLMVecEnv
from vlmrm_gym.validation import check_integer, short_repr


def make_vec_env(id: str, num_envs: int = 1, *, seed: int | None = None, **kwargs: Any) -> VLMVecEnv:
    """Make scored environments of any registered ID that renders, for Stable-Baselines3.

    Args:
        id: Such as "VLMRM/Humanoid-kneel-v0", or "Ant-v5", which needs a `prompt` or a `reward`. "module:ID" imports
            the module first.
        num_envs: Number of environments.
        seed: Seed of the first environment. The others have the following numbers.
        kwargs: Keyword arguments of `VLMRewardVectorEnv`: `prompt`, `reward`, `num_workers`, `overlap`, ...; also
            `episode_length`, the steps after which episodes are truncated, instead of the ID's own time limit. For an
            ID of this package the keyword arguments of its environment class, such as `textured`; for any other ID
            `env_kwargs`, a mapping of keyword arguments of its environment.

    Raises:
        gymnasium.error.Error: The ID is unknown.
        ValueError: The seed is not an integer of at least 0, `autoreset_mode` is passed, or `VLMRewardVectorEnv`
            rejects a parameter.
    """
    if seed is not None:
        check_integer("seed", seed, minimum=0)
    if "autoreset_mode" in kwargs:
        raise ValueError(
            "`autoreset_mode` cannot be chosen: Stable-Baselines3 needs same-step. "
            f"Received {short_repr(kwargs['autoreset_mode'])}. Leave it out."
        )
    task, envs = find_task(id), make_vector_env(id, num_envs, autoreset_mode="SameStep", **kwargs)
    with close_on_error([envs]):
        threshold = None if task is None else task.success_threshold
        vec_env = VLMVecEnv(envs) if threshold is None else VLMVecEnv(envs, success_threshold=threshold)
        if seed is not None:
            vec_env.seed(seed)
    return vec_env
