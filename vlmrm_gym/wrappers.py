"""One environment, scored at every step."""

import inspect
from typing import Any

import gymnasium as gym
from gymnasium.core import ActType, ObsType
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import RecordConstructorArgs
from gymnasium.wrappers import TimeLimit

from vlmrm_gym import envs
from vlmrm_gym.checks import check_positive_integer, check_weight
from vlmrm_gym.rendering import Quality, Scene
from vlmrm_gym.rewards import CLIPReward
from vlmrm_gym.rewards.clip import Text
from vlmrm_gym.rewards.models import Precision
from vlmrm_gym.rewards.preprocessing import ResizeMode


class VLMReward(gym.Wrapper[ObsType, ActType, ObsType, ActType], RecordConstructorArgs):
    """Replaces an environment's reward by how well what it renders matches a sentence (VLM-RM, arXiv 2310.12921).

    The reward of a step scores the frame of the state that the step led to, an episode's last frame included. The
    environment's own reward goes into `info["task_reward"]` (float). Observations, dynamics, seeding, terminations and
    truncations stay the environment's.

    Gymnasium's MuJoCo environments, cart-pole and mountain car are drawn from their states, at the size that the model
    looks at; of any other environment the frames that it renders are scored.

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
        camera: MuJoCo environments only: a mapping of MuJoCo's camera settings (`distance`, `azimuth`, `elevation`,
            `lookat`, `trackbodyid`, `fixedcamid`, `type`, `orthographic`), or the name or number of one of the model's
            cameras. None: the environment's own camera.
        quality: MuJoCo environments only: "fast" draws no shadows, reflections and antialiasing; "faithful" does.
        task_reward_weight: The reward is the model's plus this many times the environment's own.

    Raises:
        ValueError: An environment that does not render arrays, or a parameter out of its range; the message names it.
        DependencyNotInstalled: MuJoCo cannot draw for lack of OpenGL; says which package to install.
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
        camera: Any = None,
        quality: Quality = "fast",
        task_reward_weight: float = 0.0,
    ) -> None:
        check_weight(task_reward_weight)
        scene = Scene(env, camera, quality)
        scoring: dict[str, Any] = {
            "prompt": prompt,
            "baseline": baseline,
            "alpha": alpha,
            "model": model,
            "device": device,
            "precision": precision,
            "resize_mode": resize_mode,
        }
        RecordConstructorArgs.__init__(
            self, **scoring, camera=camera, quality=quality, task_reward_weight=task_reward_weight
        )
        gym.Wrapper.__init__(self, env)
        self.metadata = {**env.metadata, "render_modes": ["rgb_array"]}
        self._task_reward_weight = float(task_reward_weight)
        self._score = CLIPReward(**scoring)
        self._scene = scene
        self._renderer = scene.make_renderer(self._score.size_to_draw)

    def step(self, action: ActType) -> tuple[ObsType, float, bool, bool, dict[str, Any]]:
        """Step the environment, then score the frame of the state it is in now."""
        observation, task_reward, terminated, truncated, info = self.env.step(action)
        reward = float(self._score(self._renderer.render(self._scene.capture()[None]))[0])
        reward += self._task_reward_weight * float(task_reward)
        return observation, reward, terminated, truncated, {**info, "task_reward": float(task_reward)}

    def render(self) -> Any:
        """The frame as the model sees it, at the environment's own size: uint8 (H, W, 3)."""
        return self._scene.render()

    def close(self) -> None:
        """Let go of the environment and of what draws it."""
        self._scene.close()
        self._renderer.close()
        super().close()


class _RegisteredTask(VLMReward[ObsType, ActType]):
    """A world with its reward, whose spec is the entry point's parameters.

    Listing the inner wrappers in the spec as well would apply them twice, and stop
    `gym.make(env.spec, episode_length=...)` and `gym.make(env.spec, prompt=...)` from working.
    """

    @property
    def spec(self) -> EnvSpec | None:
        return self.unwrapped.spec


def make_task(
    *, world: str, episode_length: int, prompt: Text | None = None, render_mode: str | None = None, **options: Any
) -> gym.Env[Any, Any]:
    """The entry point of every registered ID: a world, its time limit, and its reward.

    Args:
        world: The class of `vlmrm_gym.envs` with the dynamics.
        episode_length: Steps after which an episode is truncated.
        prompt: What the agent should bring about; None is an error, for the tasks that have no prompt of their own.
        render_mode: "rgb_array", which is needed for scoring (None is the same); Gymnasium builds other modes on it.
        options: The keyword arguments of `VLMReward`, and those of the world (`textured`, `task`).

    Raises:
        ValueError: `episode_length` is not an integer of at least 1, or an option is not for this world; and all that
            `VLMReward` raises.
        TypeError: No prompt.
    """
    env = make_world(world, episode_length, render_mode, take_worldly(world, options))
    return _RegisteredTask(env, said(prompt), **options)


def said(prompt: Text | None) -> Text:
    """The prompt; a TypeError if a task that has none of its own is not given one."""
    if prompt is None:
        raise TypeError("`prompt` must be a text or a list of texts. Received None. Say what the agent should do.")
    return prompt


def take_worldly(world: str, options: dict[str, Any]) -> dict[str, Any]:
    """Take the parameters of a world out of a task's.

    Raises:
        ValueError: One is not for this world.
    """
    worldly = {name: options.pop(name) for name in ("textured", "task") if name in options}
    for name in worldly:
        if name not in inspect.signature(getattr(envs, world)).parameters:
            raise ValueError(f"`{name}` is not for {world}, which has no such choice. Leave it out.")
    return worldly


def make_world(world: str, episode_length: int, render_mode: str | None, worldly: dict[str, Any]) -> gym.Env[Any, Any]:
    """A world with its time limit, without a reward of ours.

    Raises:
        ValueError: `episode_length` is not an integer of at least 1.
    """
    check_positive_integer("episode_length", episode_length)
    return TimeLimit(getattr(envs, world)(render_mode=render_mode or "rgb_array", **worldly), int(episode_length))


# Gymnasium reads this from an entry point: it then offers "human" and "rgb_array_list" through wrappers of its own.
make_task.metadata = {"render_modes": ["rgb_array"]}  # pyright: ignore[reportFunctionMemberAccess]
