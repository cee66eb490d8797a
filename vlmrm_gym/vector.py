"""Vector environments scored at the end of episodes, or at every step."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Unpack, get_args

import gymnasium as gym
import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from vlmrm_gym._util.closing import close_on_error
from vlmrm_gym._util.validation import (
    SCORED_KEY,
    check_autoreset_mode,
    check_choice,
    check_flag,
    check_positive_integer,
    check_task_reward_weight,
    check_unscored,
    short_repr,
    weigh_task_rewards,
)
from vlmrm_gym.episode_log import EpisodeLog
from vlmrm_gym.rewards.clip import CLIPOptions, Prompt
from vlmrm_gym.rewards.default_model import default_model
from vlmrm_gym.rewards.heads import CombineViews, CurrentHead
from vlmrm_gym.rewards.learned import NO_HEAD
from vlmrm_gym.rewards.specification import resolve_reward
from vlmrm_gym.scoring import Timeouts, check_backend, make_scoring_queue
from vlmrm_gym.scoring.delivery import RewardDelivery
from vlmrm_gym.scoring.select import SparseScoring, check_clip_fits
from vlmrm_gym.scoring.state_encoder import build_encoder
from vlmrm_gym.states import Quality, VectorCapture
from vlmrm_gym.states.vector import as_vector_env
from vlmrm_gym.steps import VectorSteps

ScoringMode = Literal["episode", "step"]


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
        reward: Another reward; see `VLMReward`.
        reward_kwargs: Keyword arguments of a reward that is a callable or a class.
        device: "auto" (with workers all GPUs, otherwise one; the CPU if there is none), "cpu", "cuda", "cuda:1", "mps".
        camera: MuJoCo environments only: one camera or several; see `VLMReward`.
        combine_views: How the rewards of several cameras make one; see `VLMReward`.
        quality: MuJoCo environments only; see `VLMReward`.
        task_reward_weight: Weight of the environments' own rewards, which are added to the model's.
        scoring: "episode" or "step".
        score_every: Score the first, every so manyth and the last state of an episode (or of each part that is scored
            for itself), and interpolate the rewards of the others. Needs `scoring="episode"`.
        num_workers: Number of workers that draw and score. 0: this process.
        backend: Where workers run: "process" on this machine, "ray" on a Ray cluster (that of `RAY_ADDRESS`, or the one
            that `ray.init` has connected to, or else a local one that ends with this environment).
        ray_options: Options of the Ray actors, such as `{"num_gpus": 0.25, "runtime_env": {...}}`.
        devices: Devices of the worker processes, assigned in turn, such as `["cuda:0", "cuda:1"]`. None: see `device`.
            Not with Ray, which assigns GPUs by `num_gpus`.
        overlap: Score in the background while the environments continue; needs `scoring="episode"`.
        return_features: Return the features that the rewards are made of, so that replay buffers can make all rewards
            anew with another head; see `head`. For a reward with `encode` and `head`, such as `CLIP`. Always so for a
            `Preference` that is yet to be learned.
        episode_log: Remembers the newest episodes, whose states can be drawn and scored again: an `EpisodeLog`. For a
            `Preference` that is yet to be learned None is one of 1 GiB.
        max_pending_bytes: Limit on the memory for states that wait to be scored. When it is reached, unfinished
            episodes are scored in parts, and `step` waits.
        worker_timeouts: Seconds without progress after which a worker is replaced, as if it had died. The defaults are
            `{"load": 3600, "draw": 300, "encode": 900}`; None is no limit. Progress is the loaded model, 64 drawn
            frames, or the frames that the model encodes at once. With Ray also `"schedule": 600`: how long the first
            worker may wait for a place.
        autoreset_mode: When an environment that has ended is reset: "NextStep", "SameStep" or "Disabled". None: as the
            metadata of a vector environment say, which need it if they do not; for a list of functions next-step.
        options: The other fields of `CLIP`, short for `reward=CLIP(...)`; see `VLMReward`.

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
        reward: Any = None,
        reward_kwargs: Mapping[str, Any] | None = None,
        device: str = "auto",
        camera: Any = None,
        combine_views: Any = None,
        quality: Quality = "fast",
        task_reward_weight: float = 0.0,
        scoring: ScoringMode = "episode",
        score_every: int = 1,
        num_workers: int = 0,
        backend: str = "process",
        ray_options: Mapping[str, Any] | None = None,
        devices: Sequence[str] | None = None,
        overlap: bool = False,
        return_features: bool = False,
        episode_log: EpisodeLog | None = None,
        max_pending_bytes: int = 2**30,
        worker_timeouts: Mapping[str, float | None] | None = None,
        autoreset_mode: AutoresetMode | str | None = None,
        **options: Unpack[CLIPOptions],
    ) -> None:
        check_task_reward_weight(task_reward_weight)
        check_choice("scoring", scoring, get_args(ScoringMode))
        check_flag("overlap", overlap)
        check_flag("return_features", return_features)
        if not isinstance(episode_log, EpisodeLog | None):
            raise TypeError(f"`episode_log` must be an EpisodeLog. Received {short_repr(episode_log)}.")
        sparse = SparseScoring(score_every)
        if scoring == "step" and (overlap or sparse.every > 1):
            name = "overlap" if overlap else "score_every"
            raise ValueError(f'`{name}` needs scoring="episode": a step has its reward at once. Received "step".')
        check_positive_integer("max_pending_bytes", max_pending_bytes)
        timeouts = Timeouts.of(worker_timeouts)
        check_backend(backend, ray_options)
        keywords = VLMRewardVectorEnv.__init__.__kwdefaults__ or ()
        specification = resolve_reward(reward, reward_kwargs, prompt, options, keywords)
        if specification.learns:
            return_features, episode_log = True, EpisodeLog(2**30) if episode_log is None else episode_log
        mode = None if autoreset_mode is None else check_autoreset_mode(autoreset_mode)
        super().__init__(as_vector_env(env, mode))
        with close_on_error([] if self.env is env else [self.env]):  # never what the caller passed in
            check_unscored(self.env)
            specification = specification.with_model(default_model(self.env))
            self._steps = VectorSteps("env", self.env, mode)
            self.metadata = {
                **self.env.metadata,
                "autoreset_mode": self._steps.mode,
                SCORED_KEY: "VLMRewardVectorEnv",
            }
            self.reward, self.episode_log = specification, episode_log
            """What the environments are scored by, and what remembers their episodes, if anything does."""
            self.views = f"camera={camera!r}, quality={quality!r}"
            """Describes the cameras."""
            self.overlap = overlap
            self.defers_rewards = scoring == "episode"
            """Whether rewards arrive later than the step, in the infos."""
            self._needs_reset = False
            """Whether an exception has left `step`, or a reset of all environments."""
            self._weight = float(task_reward_weight)
            self._capture = VectorCapture(self.env, self._steps.mode, camera, quality)
            num_views = self._capture.num_views
            combine = None if combine_views is None else CombineViews(combine_views, num_views)
            share = max_pending_bytes // 2  # for the queue, and for states that have not been submitted
            queue = self.scorer = make_scoring_queue(
                partial(build_encoder, specification.build, num_views),
                self._capture.make_renderer,
                combine=combine,
                num_workers=num_workers,
                backend=backend,
                ray_options=ray_options,
                devices=devices,
                device=device,
                max_pending_bytes=share,
                timeouts=timeouts,
                in_workers=specification.in_workers,
            )
            """Scores and draws any states of these environments, in the same workers."""
            # Stops workers also at the end of the program, and when this object is garbage-collected without `close`.
            weakref.finalize(self, queue.close)
            with close_on_error([queue]):
                check_clip_fits(queue.info.clip, self._capture.time_limit)
                sparse.check(queue.info)
                if queue.head is None and not return_features:
                    raise ValueError(NO_HEAD)
            self.feature_shape = queue.info.feature_shape if return_features else None
            """Shape of a state's features, (V, D); None if it is not known before the first reward, or without them."""
            self._delivery = RewardDelivery(
                queue,
                queue.head,
                self.num_envs,
                max_bytes=share,
                at_once=scoring == "step",
                overlap=overlap,
                keep_features=return_features,
                log=episode_log,
                sparse=sparse,
            )
            self._capture.attach()  # last: an exception above leaves the environments unchanged

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
        self._needs_reset = True
        self._capture.begin_step()
        step = self._steps.step(actions)
        states, infos = self._capture.capture(step.stepped, step.infos)
        infos = {**infos, "task_reward": step.rewards, "_task_reward": step.stepped}
        offsets = weigh_task_rewards(self._weight, step.rewards)
        own = self._delivery.append(states, step.stepped, step.ends, offsets, infos)
        rewards = np.where(step.stepped, np.nan, 0.0)
        if not self.defers_rewards:
            rewards[step.stepped] = [late[-1] for late in own["vlm_rewards"][step.stepped]]
        self._needs_reset = False
        return step.observations, rewards, step.terminations, step.truncations, infos | own

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
