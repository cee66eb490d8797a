"""One environment, scored at every step."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.core import ActType, ObsType
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import RecordConstructorArgs
from gymnasium.wrappers import TimeLimit

from vlmrm_gym import envs
from vlmrm_gym.checks import check_positive_integer, is_number
from vlmrm_gym.rewards import CLIPReward
from vlmrm_gym.rewards.clip import Text
from vlmrm_gym.rewards.models import Precision
from vlmrm_gym.rewards.preprocessing import ResizeMode


class VLMReward(gym.Wrapper[ObsType, ActType, ObsType, ActType], RecordConstructorArgs):
    """Replaces an environment's reward by how well what it renders matches a sentence (VLM-RM, arXiv 2310.12921).

    The reward of a step scores the frame of the state that the step led to, an episode's last frame included. The
    environment's own reward goes into `info["task_reward"]` (float). Observations, dynamics, seeding, terminations and
    truncations stay the environment's.

    >>> import gymnasium as gym, vlmrm_gym
    >>> env = vlmrm_gym.VLMReward(gym.make("CartPole-v1", render_mode="rgb_array"), prompt="an upright pole")
    >>> observation, info = env.reset(seed=0)
    >>> observation, reward, terminated, truncated, info = env.step(0)
    >>> info["task_reward"]
    1.0

    Args:
        env: Any environment made with `render_mode="rgb_array"`.
        prompt: What the agent should bring about: a text or a list of texts.
        baseline: The scene without the goal, a text or a list of texts; needed for `alpha` above 0.
        alpha: Strength of the goal-baseline regularisation, from 0 (cosine similarity) to 1.
        model: The vision-language model; `CLIPReward` lists the forms. The default is small, bundled, and knows only
            the scenes of this package.
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1", "mps".
        precision: "auto", "fp32", "bf16" or "fp16".
        resize_mode: "squash" (None), "shortest" (crop) or "longest" (pad).
        task_reward_weight: The reward is the model's plus this many times the environment's own.

    Raises:
        ValueError: An environment that does not render arrays, or a parameter out of its range; the message names it.
        TypeError: A prompt that is no text.
        FileNotFoundError: A checkpoint that does not exist.
        RuntimeError: Weights that cannot be downloaded.
    """

    def __init__(
        self,
        env: gym.Env[ObsType, ActType],
        prompt: Text,
        *,
        baseline: Text | None = None,
        alpha: float = 0.0,
        model: str = "tiny",
        device: str = "auto",
        precision: Precision = "auto",
        resize_mode: ResizeMode | None = None,
        task_reward_weight: float = 0.0,
    ) -> None:
        if env.render_mode != "rgb_array":
            raise ValueError(
                '`env` must be made with render_mode="rgb_array", so that its frames can be scored. '
                f'Received render_mode={env.render_mode!r}. Write gym.make(..., render_mode="rgb_array").'
            )
        if not is_number(task_reward_weight) or not np.isfinite(task_reward_weight):
            raise ValueError(f"`task_reward_weight` must be a finite number. Received {task_reward_weight!r}.")
        scoring: dict[str, Any] = {
            "prompt": prompt,
            "baseline": baseline,
            "alpha": alpha,
            "model": model,
            "device": device,
            "precision": precision,
            "resize_mode": resize_mode,
        }
        RecordConstructorArgs.__init__(self, **scoring, task_reward_weight=task_reward_weight)
        gym.Wrapper.__init__(self, env)
        self.metadata = {**env.metadata, "render_modes": ["rgb_array"]}
        self._task_reward_weight = float(task_reward_weight)
        self._score = CLIPReward(**scoring)

    def step(self, action: ActType) -> tuple[ObsType, float, bool, bool, dict[str, Any]]:
        """Step the environment, then score the frame of the state it is in now."""
        observation, task_reward, terminated, truncated, info = self.env.step(action)
        reward = float(self._score(np.asarray(self.env.render())[None])[0])
        reward += self._task_reward_weight * float(task_reward)
        return observation, reward, terminated, truncated, {**info, "task_reward": float(task_reward)}


class _RegisteredTask(VLMReward[ObsType, ActType]):
    """A world with its reward, whose spec is the entry point's parameters.

    Listing the inner wrappers in the spec as well would apply them twice, and stop
    `gym.make(env.spec, episode_length=...)` and `gym.make(env.spec, prompt=...)` from working.
    """

    @property
    def spec(self) -> EnvSpec | None:
        return self.unwrapped.spec


def make_task(*, world: str, episode_length: int, render_mode: str | None = None, **reward: Any) -> gym.Env[Any, Any]:
    """The entry point of every registered ID: a world, its time limit, and its reward.

    Args:
        world: The class of `vlmrm_gym.envs` with the dynamics.
        episode_length: Steps after which an episode is truncated.
        render_mode: "rgb_array", which is needed for scoring (None is the same); Gymnasium builds other modes on it.
        reward: The keyword arguments of `VLMReward`.

    Raises:
        ValueError: `episode_length` is not an integer of at least 1; and all that `VLMReward` raises.
    """
    check_positive_integer("episode_length", episode_length)
    env = getattr(envs, world)(render_mode=render_mode or "rgb_array")
    return _RegisteredTask(TimeLimit(env, int(episode_length)), **reward)


# Gymnasium reads this from an entry point: it then offers "human" and "rgb_array_list" through wrappers of its own.
make_task.metadata = {"render_modes": ["rgb_array"]}  # pyright: ignore[reportFunctionMemberAccess]
