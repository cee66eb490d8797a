"""Vector environments scored at the end of episodes, or at every step."""

import sys
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from numpy.typing import NDArray

from vlmrm_gym._util.errors import close_on_error
from vlmrm_gym._util.steps import VectorSteps
from vlmrm_gym._util.validation import (
    REWARD_WRAPPERS,
    SCORED_KEY,
    check_autoreset_mode,
    check_unscored,
    weigh_task_rewards,
)
from vlmrm_gym.infos import read_success
from vlmrm_gym.rewards.clip import Prompt
from vlmrm_gym.rewards.combination import short_reward
from vlmrm_gym.rewards.current_head import CurrentHead
from vlmrm_gym.rewards.heads import CombineViews
from vlmrm_gym.rewards.sources import default_model
from vlmrm_gym.scoring import make_scoring_queue
from vlmrm_gym.scoring.delivery import RewardDelivery
from vlmrm_gym.scoring.options import ScoringOptions, takes_options
from vlmrm_gym.scoring.state_encoder import build_encoder
from vlmrm_gym.states import VectorCapture
from vlmrm_gym.states.vector import as_vector_env


@takes_options(vector=True)
class VLMRewardVectorEnv(VectorWrapper):
    """Replaces the rewards of a vector environment: how well what it renders matches a sentence (VLM-RM).

    With `scoring="episode"` rewards are NaN until an episode ends. Then all of its states are drawn and scored, and
    `infos["vlm_rewards"]` has an array (T,) of its rewards: those of the environment's oldest unscored transitions, in
    order. Each NaN is filled once. The module `vlmrm_gym.infos` lists all entries of the infos.

    With `overlap=True` an environment continues while its episode is scored. The rewards arrive in the infos of a later
    step, at the latest when the next episode ends: that step waits for them. `flush` waits for all rewards.

    With `scoring="step"` rewards are ordinary ones. When or where rewards are scored never changes them. Where a step
    only resets an environment (next-step autoreset) there is no transition: its reward is 0, as in Gymnasium.

    If the constructor raises, the environments are as they were before. After an exception has left `step`, `reset` is
    needed, and rewards that had not arrived may be lost: the next `vlm_reward_start` is then behind them.

    >>> import gymnasium as gym, numpy as np, vlmrm_gym
    >>> envs = gym.make_vec("VLMRM/CartPole-v1", num_envs=2, episode_length=3)
    >>> observations, infos = envs.reset(seed=0)
    >>> for _ in range(3):
    ...     observations, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())
    >>> np.isnan(rewards).all(), [scored.shape for scored in infos["vlm_rewards"]]
    (np.True_, [(3,), (3,)])
    >>> envs.close()

    Args:
        env: A vector environment whose environments were made with `render_mode="rgb_array"`, or a list of functions
            that make such environments. Those of a `SyncVectorEnv` are wrapped in `CaptureState`. Wrap those of an
            `AsyncVectorEnv` in it yourself, so that states, and not frames, leave its processes. The frames of any
            other vector environment are stored, which needs next-step autoreset or none.
        prompt: The goal prompt: a text or a list of texts. Short for `reward=CLIP(prompt=...)`.
        autoreset_mode: When an environment that has ended is reset: "NextStep", "SameStep" or "Disabled". None: as the
            metadata of a vector environment say, which need it if they do not; for a list of functions next-step.
        keywords: The fields of `ScoringOptions`, and those of `CLIP`, which are short for `reward=CLIP(...)`.

    Raises:
        ValueError: A parameter is out of range, or the environments cannot be scored. The message names the parameter.
        TypeError: A prompt is not a text, or both a prompt and a reward were passed.
        DependencyNotInstalled, FileNotFoundError, RuntimeError: As in `VLMReward`, or Ray is missing or has no room.
        ConnectionError: The Ray cluster at `RAY_ADDRESS` cannot be reached.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any] | Sequence[Callable[[], gym.Env[Any, Any]]],
        prompt: Prompt | None = None,
        *,
        autoreset_mode: AutoresetMode | str | None = None,
        **keywords: Any,
    ) -> None:
        options = ScoringOptions.of({"prompt": prompt, **keywords}, vector=True)
        mode = None if autoreset_mode is None else check_autoreset_mode(autoreset_mode)
        super().__init__(as_vector_env(env, mode))
        with close_on_error([] if self.env is env else [self.env]):  # never what the caller passed in
            check_unscored(self.env)
            specification = options.reward.with_model(default_model(self.env))
            self._steps = VectorSteps("env", self.env, mode)
            self.metadata = {**self.env.metadata, "autoreset_mode": self._steps.mode, SCORED_KEY: "VLMRewardVectorEnv"}
            self.reward, self.episode_log = specification, options.episode_log
            """What the environments are scored by, and what remembers their episodes, if anything does."""
            self.views = f"camera={options.camera!r}, quality={options.quality!r}"
            """Describes the cameras."""
            self.overlap = options.overlap
            self.defers_rewards = options.scoring == "episode"
            """Whether rewards arrive later than the step, in the infos."""
            self._knows_wrappers = not self.defers_rewards
            """Whether the wrappers around these environments do nothing with rewards that have not arrived."""
            self._needs_reset = False
            """Whether an exception has left `step`, or a reset of all environments."""
            self._weight = options.task_reward_weight
            self._capture = VectorCapture(self.env, self._steps.mode, options.camera, options.quality)
            resets_some = self._steps.mode == AutoresetMode.DISABLED or self._capture.resets_some
            if specification.terminates and not resets_some:
                raise ValueError(
                    "`terminate` of a success needs environments of which some can be reset: a SyncVectorEnv, an "
                    f'AsyncVectorEnv, or autoreset_mode="Disabled". Received {self.env.unwrapped}.'
                )
            num_views = self._capture.num_views
            combine = None if options.combine_views is None else CombineViews(options.combine_views, num_views)
            encode = partial(build_encoder, specification.build, num_views)
            queue = self.scorer = make_scoring_queue(encode, self._capture.make_renderer, options, combine)
            """Scores and draws any states of these environments, in the same workers."""
            # Stops workers also at the end of the program, and when this object is garbage-collected without `close`.
            weakref.finalize(self, queue.close)
            with close_on_error([queue]):
                queue.info.check_fits(self._capture.time_limit, options.score_every)
            self.feature_shape = queue.info.feature_shape if options.return_features else None
            """Shape of a state's features, (V, D); None if it is not known before the first reward, or without them."""
            self._delivery = RewardDelivery(queue, queue.head, self.num_envs, options)
            self._capture.attach()  # last: an exception above leaves them unwrapped

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or with `options={"reset_mask": ...}` some.

        Unfinished episodes are scored: their rewards arrive as at the end of an episode.
        """
        of_some = (options or {}).get("reset_mask") is not None
        self._begin_call(self._delivery.is_interrupted and of_some)
        needs_reset, self._needs_reset = self._needs_reset and of_some, True
        observations, infos, mask = self._steps.reset(seed, options)
        self._capture.reset(mask)
        self._delivery.reset(mask)
        self._begin_episodes(mask)
        infos = {**infos, **self._delivery.finished_episodes()}
        self._needs_reset = needs_reset
        return observations, infos

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step the environments.

        Returns:
            Observations; rewards float64 (num_envs,), NaN where they arrive later; terminations and truncations, bool
            (num_envs,); infos, see `vlmrm_gym.infos`.

        Raises:
            WorkerDied: Three workers died, or did not respond, over the same states.
            RuntimeError: An exception has left `step` before. Call `reset` for all environments.
            Exception: An environment or scoring raised it. With `scoring="episode"` an exception of scoring is raised
                by the next call, before that call does anything: no result is lost, and no reset is needed. The states
                are kept, and are scored again.
        """
        self._begin_call(self._delivery.is_interrupted or self._needs_reset)
        if not self._knows_wrappers:
            _check_outer_wrappers(self)
            self._knows_wrappers = True
        self._needs_reset = True
        step = self._steps.step(actions)
        states, infos = self._capture.capture(step.stepped, step.infos)
        infos = {**infos, "task_reward": step.rewards, "_task_reward": step.stepped}
        if "success" in infos.get("final_info", {}):  # of episodes that ended in a step that reset
            success = read_success(infos, self.num_envs)
            infos |= {"success": success == 1, "_success": ~np.isnan(success)}
        offsets = weigh_task_rewards(self._weight, step.rewards)
        late = self._delivery.append(states, step.stepped, step.ends, offsets, infos)
        step, begun = step._replace(infos=infos), ~step.stepped
        rewards = np.where(step.stepped, np.nan, 0.0)
        if not self.defers_rewards:
            scored = self._delivery.score_now()
            rewards[list(scored)] = [of_env.rewards[-1] for of_env in scored.values()]
            late |= self._delivery.as_infos(scored)
            ends = np.zeros(self.num_envs, dtype=np.bool_)
            ends[list(scored)] = [of_env.terminates for of_env in scored.values()]
            self._delivery.end_episodes(ends & ~step.ends)
            step = self._steps.end(step, ends)
            own = {f"{mask}{name}" for name in ("task_reward", "success") for mask in ("", "_")} & infos.keys()
            step = step._replace(infos={**step.infos, **{name: infos[name] for name in own}})
        if self._steps.mode == AutoresetMode.SAME_STEP:
            begun = step.ends
        self._begin_episodes(begun)
        if self.defers_rewards:
            late |= self._delivery.finished_episodes()
        self._needs_reset = False
        return step.observations, rewards, step.terminations, step.truncations, step.infos | late

    def _begin_episodes(self, mask: NDArray[np.bool_]) -> None:
        """Take the states of environments in a mask, which have been reset, if they are needed."""
        if self._delivery.sees_first and mask.any():
            self._delivery.begin(self._capture.first_states(mask), mask)

    def flush(self) -> dict[str, Any]:
        """Score all pending states, those of unfinished episodes too, and wait: as learners on parts of episodes need.

        Returns:
            Infos; see `vlmrm_gym.infos`. Where several episodes of an environment were pending, `vlm_rewards` has
            their rewards one after the other, and `vlm_episode_index` is that of the first.

        Raises:
            Exception: As in `step`. Rewards that have arrived are kept for the next call.
        """
        self._begin_call(self._delivery.is_interrupted)
        return self._delivery.flush()

    def render(self) -> Any:
        """The frames as the model sees them, but at the environments' own size: a tuple of uint8 (H, W, 3).

        The views of several cameras are side by side: (H, V * W, 3).
        """
        self._begin_call(False)
        return self._capture.render()

    @property
    def head(self) -> CurrentHead | None:
        """Makes the rewards of the features; `head.replace(other)` changes them from now on. None without features.

        Set it to that of other environments to follow theirs.
        """
        return self._delivery.head if self._delivery.keeps_features else None

    @head.setter
    def head(self, head: CurrentHead) -> None:
        self._delivery.follow(head)

    @property
    def pending_bytes(self) -> int:
        """Memory of all states without rewards, in bytes."""
        return self._delivery.nbytes

    def close(self, **kwargs: Any) -> None:
        """Stop scoring, and close the environments. Pending rewards are dropped: call `flush` first to get them."""
        self.scorer.close()  # first: also if Ctrl-C has ended an earlier `close`
        self._capture.close()
        super().close(**kwargs)

    def __repr__(self) -> str:
        return f"<VLMRewardVectorEnv by {short_reward(self.reward)} of {self.env}>"

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "VLMRewardVectorEnv cannot be copied or pickled: it has threads, worker processes and pending episodes. "
            "Make another one with the same arguments, or pass on a function that makes it."
        )

    def _begin_call(self, must_reset: bool) -> None:
        """Raise if this is closed, has to be reset, or if scoring has failed since the last call."""
        if self.closed:
            raise ClosedEnvironmentError("This VLMRewardVectorEnv has been closed. Make another.")
        if must_reset:
            raise RuntimeError("An exception has left an earlier call. Call `reset`, for all environments.")
        self._delivery.raise_failure()


def _check_outer_wrappers(envs: VectorEnv[Any, Any, Any]) -> None:
    """Look at the wrappers through which `envs.step` is called: Gymnasium tells a wrapper nothing of those around it.

    A ValueError if one changes rewards, which are NaN until an episode has been scored; a UserWarning if one sums them
    up.
    """
    frame = sys._getframe(1)
    while frame is not None:
        outer = frame.f_locals.get("self") if frame.f_code.co_name == "step" else None
        if isinstance(outer, VectorWrapper) and outer is not envs and outer.unwrapped is envs.unwrapped:
            name = type(outer).__name__
            if isinstance(outer, REWARD_WRAPPERS):
                raise ValueError(
                    f"`env` must not be wrapped in {name}: rewards are NaN until an episode is scored, and arrive "
                    'in infos["vlm_rewards"]. Change those, or pass scoring="step".'
                )
            if isinstance(outer, RecordEpisodeStatistics):
                warnings.warn(
                    f"{name} sums up rewards before they arrive: its returns are NaN. In its place use "
                    'vlmrm_gym.data.statistics.EpisodeStatistics, whose infos["scored_episode"] has them; or pass '
                    'scoring="step". Inside, around the environments themselves, it sums up their own rewards.',
                    stacklevel=4,
                )
        frame = frame.f_back
