"""A single environment, scored at every step."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.core import ActType, ObsType
from gymnasium.utils import RecordConstructorArgs

from vlmrm_gym._util.errors import close_on_error
from vlmrm_gym._util.validation import (
    SCORED_KEY,
    as_task_reward,
    check_env,
    check_no_autoreset,
    check_unscored,
    find_time_limit,
    weigh_task_rewards,
)
from vlmrm_gym.rewards.clip import Prompt
from vlmrm_gym.rewards.combination import short_reward
from vlmrm_gym.rewards.heads import CombineViews
from vlmrm_gym.rewards.saved import PICTURES
from vlmrm_gym.rewards.sources import default_model
from vlmrm_gym.rewards.specification import recorded
from vlmrm_gym.scoring.delivery import RewardDelivery
from vlmrm_gym.scoring.local import DirectScorer
from vlmrm_gym.scoring.options import ScoringOptions, takes_options
from vlmrm_gym.scoring.state_encoder import build_encoder
from vlmrm_gym.states import States, StateView

_ALL = np.array([True])
"""The mask of the one environment."""


@takes_options(vector=False)
class VLMReward(gym.Wrapper[ObsType, ActType, ObsType, ActType], RecordConstructorArgs):
    """Replaces an environment's reward: how well what it renders matches a sentence (VLM-RM, arXiv 2310.12921).

    The reward of a step scores the frame of the state that the step led to, including the last frame of an episode.
    `info["task_reward"]` (float) is the environment's own reward. Observations, dynamics, seeding, terminations and
    truncations are not changed.

    Gymnasium's MuJoCo environments, cart-pole and continuous mountain car are drawn from their states, at the size that
    the model uses. Any other environment is scored by the frames that it renders.

    If the constructor raises, the environment is as it was before.

    >>> import gymnasium as gym, vlmrm_gym
    >>> env = vlmrm_gym.VLMReward(gym.make("CartPole-v1", render_mode="rgb_array"), prompt="an upright pole")
    >>> observation, info = env.reset(seed=0)
    >>> observation, reward, terminated, truncated, info = env.step(0)
    >>> info["task_reward"]
    1.0

    Args:
        env: Any environment made with `render_mode="rgb_array"`.
        prompt: The goal prompt: a text or a list of texts. Short for `reward=CLIP(prompt=...)`.
        keywords: The fields of `ScoringOptions`, and those of `CLIP`, which are short for `reward=CLIP(...)`.

    Raises:
        ValueError: The environment does not render arrays, is scored already or resets itself (`Autoreset`), or a
            parameter is out of range. The message names it.
        DependencyNotInstalled: MuJoCo cannot draw without OpenGL. The message names the package to install.
        TypeError: `env` is not an environment, a prompt is not a text, or both a prompt and a reward were passed.
        FileNotFoundError: The checkpoint does not exist.
        RuntimeError: The weights cannot be downloaded.
    """

    def __init__(self, env: gym.Env[ObsType, ActType], prompt: Prompt | None = None, **keywords: Any) -> None:
        from vlmrm_gym.rewards.devices import resolve_device  # deferred: importing the package loads no torch

        check_env(env)
        check_no_autoreset(env)
        check_unscored(env)
        options = ScoringOptions.of({"prompt": prompt, **keywords}, vector=False)
        specification = options.reward.with_model(default_model(env))
        view = StateView(env, options.camera, options.quality)
        combine = None if options.combine_views is None else CombineViews(options.combine_views, view.num_views)
        encoder = build_encoder(specification.build, view.num_views, str(resolve_device(options.device)))
        with close_on_error([encoder]):
            head = encoder.info.make_head(combine)
            encoder.info.check_fits(find_time_limit(env))
            scorer = DirectScorer(encoder, view.make_renderer(encoder.info.render_size))
        if not isinstance(keywords.get("reward"), str | None):
            keywords |= {"reward": recorded(specification), "reward_kwargs": None}
        keywords |= {name: vars(specification)[name] for name in PICTURES if keywords.get(name) is not None}
        if callable(options.combine_views):
            keywords["combine_views"] = combine
        RecordConstructorArgs.__init__(self, prompt=prompt, **keywords)
        gym.Wrapper.__init__(self, env)
        self.metadata = {**env.metadata, "render_modes": ["rgb_array"], SCORED_KEY: "VLMReward"}
        self._task_reward_weight, self._reward = options.task_reward_weight, specification
        self._view, self._scorer = view, scorer
        self._delivery, self._needs_reset = RewardDelivery(scorer, head, 1, options), False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Reset the environment."""
        self._needs_reset = True
        observation, info = self.env.reset(seed=seed, options=options)
        self._view.reset()
        self._delivery.reset(_ALL)
        if self._delivery.sees_first:
            state, change = self._view.capture()
            self._delivery.begin(States(state[None], [change]), _ALL)
        self._needs_reset = False
        return observation, info

    def step(self, action: ActType) -> tuple[ObsType, float, bool, bool, dict[str, Any]]:
        """Step the environment, then score the frame of its new state.

        Raises:
            ValueError: The environment's own reward is not one number.
            RuntimeError: An exception has left `step` before. Call `reset`.
        """
        if self._needs_reset:
            raise RuntimeError("An exception has left an earlier call. Call `reset`.")
        self._needs_reset = True
        observation, own_reward, terminated, truncated, info = self.env.step(action)
        task_reward = as_task_reward(self.env, own_reward)
        state, change = self._view.capture()
        ends = np.array([bool(terminated or truncated)])
        offsets = weigh_task_rewards(self._task_reward_weight, np.array([task_reward]))
        self._delivery.append(States(state[None], [change]), _ALL, ends, offsets, {})
        scored = self._delivery.score_now()[0]
        info = {**info, "task_reward": task_reward}
        for key, value in scored.reported(self._task_reward_weight).items():
            is_terms = isinstance(value, dict)
            info[key] = {name: float(one[-1]) for name, one in value.items()} if is_terms else bool(value[-1])
        if scored.terminates and not terminated:
            terminated = True
            self._delivery.end_episodes(_ALL)
        self._needs_reset = False
        return observation, float(scored.rewards[-1]), terminated, truncated, info

    def __str__(self) -> str:
        return f"<VLMReward by {short_reward(self._reward)} of {self.env}>"

    def compute_reward(self, *args: Any, **kwargs: Any) -> float:
        """Refuse to compute rewards from goals, as hindsight experience replay asks environments with goals to.

        Raises:
            NotImplementedError: Always. The method of the environment would return its own reward.
        """
        raise NotImplementedError("A VLM reward is of frames, and cannot be computed from goals: leave out hindsight.")

    def render(self) -> Any:
        """The current frame, drawn as the model sees it but at the environment's own size: uint8 (H, W, 3).

        The views of several cameras are side by side: (H, V * W, 3).
        """
        return self._view.render()

    def close(self) -> None:
        """Close the environment, and free the graphics resources."""
        self._view.close()
        self._scorer.close()
        super().close()
