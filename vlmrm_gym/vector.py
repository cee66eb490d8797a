"""Many environments, scored when their episodes end, or in one batch at every step."""

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from vlmrm_gym.checks import check_autoreset_mode, check_choice, check_flag, check_positive_integer, check_weight
from vlmrm_gym.rendering import Quality, VectorScene
from vlmrm_gym.rewards import CLIPReward
from vlmrm_gym.rewards.clip import Text
from vlmrm_gym.rewards.models import Precision
from vlmrm_gym.rewards.preprocessing import ResizeMode
from vlmrm_gym.scoring import Backlog, Request, start_scoring
from vlmrm_gym.scoring.interrupts import interrupts_later
from vlmrm_gym.wrappers import make_world, said, take_worldly

ScoringMode = Literal["episode", "step"]


class VLMRewardVectorEnv(VectorWrapper[Any, Any, Any, Any, Any]):
    """Replaces the rewards of many environments by how well what they render matches a sentence (VLM-RM).

    With `scoring="episode"` rewards are NaN until an episode ends; then all of its states are drawn and scored, and its
    rewards arrive at once:

    - `infos["vlm_rewards"]`: object array (num_envs,), float32 (T,) where an episode has been scored, else None. These
      are the rewards of that environment's oldest transitions that have not been told theirs: every NaN gets one, in
      order.
    - `infos["_vlm_rewards"]`: bool (num_envs,), where.
    - `infos["vlm_episode"]`: int64 (num_envs,), the number of that episode in its environment, from 0.
    - `infos["vlm_first"]`: int64 (num_envs,), the number of the transition that the first of these rewards belongs to.
    - `infos["vlm_transition"]`: int64 (num_envs,), the number of this step's transition in its environment, from 0.

    With `overlap=True` an environment goes on while its episode is scored: the rewards arrive in the infos of a later
    step, at the latest when the next episode ends, which waits for them; `flush` waits for all. With `scoring="step"`
    rewards are ordinary ones, and a step whose scoring fails is not scored again. How rewards are scored never changes
    their value.

    `infos["task_reward"]` has the environments' own rewards. Where a step only resets (next-step autoreset), there is
    no transition: the reward is 0, as in Gymnasium, and there will be no other.

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
            that make such environments. A `SyncVectorEnv`'s are read as they are; those of one with processes of its
            own put into `vlmrm_gym.rendering.CaptureState`, so that states, not frames, come out of the processes. Of
            any other vector environment the rendered frames are stored, which needs next-step autoreset or none.
        prompt: What the agent should bring about: a text or a list of texts.
        baseline: The scene without the goal, a text or a list of texts; needed for `alpha` above 0.
        alpha: Strength of the goal-baseline regularisation, from 0 (cosine similarity) to 1.
        model: The vision-language model; `CLIPReward` lists the forms.
        device: "auto" (all GPUs for workers, one without; the CPU if there is none), "cpu", "cuda", "cuda:1", "mps".
        precision: "auto", "fp32", "bf16" or "fp16".
        batch_size: The most frames that are encoded at once; None chooses. It never changes a reward.
        resize_mode: "squash" (None), "shortest" (crop) or "longest" (pad).
        camera: MuJoCo environments only; see `VLMReward`.
        quality: MuJoCo environments only; see `VLMReward`.
        task_reward_weight: Rewards are the model's plus this many times the environments' own.
        scoring: "episode" or "step".
        num_workers: Processes that draw and score; 0 does it in this one.
        devices: Where the workers score, such as `["cuda:0", "cuda:1"]`, taken in turn. None: see `device`.
        overlap: Score in the background; episodes only.
        max_pending_bytes: The most memory for states that wait to be scored. Where it is used up, long episodes are
            scored in pieces, and `step` waits.
        autoreset_mode: For a list of functions: when an environment that has ended is reset. None is next-step.

    Raises:
        ValueError: A parameter out of its range, or environments that cannot be scored; the message names it.
        TypeError: A prompt that is no text.
        DependencyNotInstalled, FileNotFoundError, RuntimeError: As in `VLMReward`.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any] | Sequence[Callable[[], gym.Env[Any, Any]]],
        prompt: Text,
        *,
        baseline: Text | None = None,
        alpha: float = 0.0,
        model: str = "tiny",
        device: str = "auto",
        precision: Precision = "auto",
        batch_size: int | None = None,
        resize_mode: ResizeMode | None = None,
        camera: Any = None,
        quality: Quality = "fast",
        task_reward_weight: float = 0.0,
        scoring: ScoringMode = "episode",
        num_workers: int = 0,
        devices: Sequence[str] | None = None,
        overlap: bool = False,
        max_pending_bytes: int = 2**30,
        autoreset_mode: AutoresetMode | str | None = None,
    ) -> None:
        check_weight(task_reward_weight)
        check_choice("scoring", scoring, get_args(ScoringMode))
        check_flag("overlap", overlap)
        if overlap and scoring == "step":
            raise ValueError(
                '`overlap` needs scoring="episode": the reward of a step cannot come later. Received "step".'
            )
        check_positive_integer("max_pending_bytes", max_pending_bytes)
        super().__init__(_vectorized(env, autoreset_mode))
        self.overlap = overlap
        self._by_step, self._weight = scoring == "step", float(task_reward_weight)
        self._transitions, self._rewarded = np.zeros((2, self.num_envs), dtype=np.int64)
        # The episodes of an environment that nothing waits for: the one that has just ended, and the one that goes on.
        self._lag = 2 if overlap else 0
        self._failure: Exception | None = None
        self._scene = VectorScene(self.env, camera, quality)
        make_reward = partial(
            CLIPReward,
            model,
            prompt=prompt,
            baseline=baseline,
            alpha=alpha,
            precision=precision,
            batch_size=batch_size,
            resize_mode=resize_mode,
        )
        self._queue = start_scoring(
            make_reward,
            self._scene.make_renderer,
            num_workers=num_workers,
            devices=devices,
            device=device,
            max_pending_bytes=max_pending_bytes // 2,
        )
        # Also runs when the program ends, or when nobody has closed this and nobody uses it any more.
        self._stop_scoring = weakref.finalize(self, self._queue.close)
        # What waits in the environments' backlogs is as much as waits in the queue, at the most.
        share = max(1, max_pending_bytes // 2 // self.num_envs)
        self._backlogs = [
            Backlog(self._queue, share, self._queue.batch_size if overlap else None) for _ in range(self.num_envs)
        ]

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or with `options={"reset_mask": ...}` some.

        What has been begun is scored all the same: its rewards arrive as at the end of an episode.
        """
        self._check()
        mask = (options or {}).get("reset_mask")
        observations, infos = self.env.reset(seed=seed, options=options)
        self._scene.reset(mask)
        if self._by_step:
            return observations, infos
        with interrupts_later():
            for number, backlog in enumerate(self._backlogs):
                if mask is None or mask[number]:
                    backlog.end_episode()
        return observations, self._deliver(infos)

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step the environments.

        Returns:
            Observations; rewards float64 (num_envs,), NaN where they come later; terminations and truncations, bool
            (num_envs,); infos, see the class.

        Raises:
            WorkerDied: Three workers died over the same states.
            Exception: What an environment or scoring raised. What scoring by episodes raised comes with the next call,
                before that does anything: no result is lost. The states are kept, and scored again.
        """
        self._check()
        observations, task_rewards, terminations, truncations, infos = self.env.step(actions)
        ends = terminations | truncations
        states, stepped, infos = self._scene.capture(ends, infos)
        task_rewards = np.asarray(task_rewards, dtype=np.float64)
        infos = {**infos, "task_reward": task_rewards, "_task_reward": stepped}
        if self._by_step:
            rewards = np.zeros(self.num_envs)
            if stepped.any():
                added = (self._weight * task_rewards[stepped]).astype(np.float32)
                rewards[stepped] = self._score(states[stepped]) + added
            return observations, rewards, terminations, truncations, infos
        infos |= {"vlm_transition": self._transitions.copy(), "_vlm_transition": stepped.copy()}
        with interrupts_later():
            self._transitions += stepped
            for number in np.flatnonzero(stepped):
                self._backlogs[number].append(states[number], self._weight * task_rewards[number])
            for number in np.flatnonzero(stepped & ends):
                self._backlogs[number].end_episode()
        return observations, np.where(stepped, np.nan, 0.0), terminations, truncations, self._deliver(infos)

    def flush(self) -> dict[str, Any]:
        """Score all that is pending, unfinished episodes too, and wait for it.

        For learners that need rewards in the middle of an episode, and for the end of training. What is still to come
        of an episode comes when it ends.

        Returns:
            Infos as of a step. Where several episodes of one environment were pending, `vlm_rewards` has their rewards
            one after the other, and `vlm_episode` the number of the first.

        Raises:
            Exception: As `step`; what has been scored is kept for the next call.
        """
        self._check()
        with interrupts_later():
            for backlog in self._backlogs:
                backlog.cut()
        self._settle(lag=0)
        self._raise_failure()
        return self._told({}, Backlog.everything)

    def render(self) -> Any:
        """The frames as the model sees them, at the environments' own size: a tuple of uint8 (H, W, 3)."""
        self._check()
        return self._scene.render()

    @property
    def pending_bytes(self) -> int:
        """Memory of all states that are not scored yet, in bytes."""
        return self._queue.pending_bytes + sum(backlog.nbytes for backlog in self._backlogs)

    def close(self, **kwargs: Any) -> None:
        """Stop scoring, and close the environments. Rewards that have not been delivered are dropped: `flush` first."""
        self._stop_scoring()
        self._scene.close()
        super().close(**kwargs)

    def _score(self, states: NDArray[Any]) -> NDArray[np.float32]:
        request = Request(states)
        self._queue.submit(request)
        if error := request.error():
            raise error
        return request.rewards

    def _deliver(self, infos: dict[str, Any]) -> dict[str, Any]:
        """Infos with the episodes that are scored. What goes wrong is raised by the next call."""
        self._settle(lag=self._lag)
        return self._told(infos, Backlog.next_episode)

    def _settle(self, *, lag: int) -> None:
        with self._queue.together():
            for backlog in self._backlogs:
                backlog.submit()
        for backlog in self._backlogs:
            try:
                backlog.settle(lag=lag)
            except Exception as error:
                self._failure = error

    def _told(
        self, infos: dict[str, Any], take: Callable[[Backlog], tuple[int, NDArray[np.float32]] | None]
    ) -> dict[str, Any]:
        """Infos with what can be taken from the backlogs."""
        scored, rewards = np.zeros(self.num_envs, dtype=np.bool_), np.full(self.num_envs, None, dtype=object)
        episodes, first = np.zeros(self.num_envs, dtype=np.int64), self._rewarded.copy()
        with interrupts_later():
            for number, backlog in enumerate(self._backlogs):
                if taken := take(backlog):
                    scored[number], (episodes[number], rewards[number]) = True, taken
                    self._rewarded[number] += len(rewards[number])
        return {
            **infos,
            "vlm_rewards": rewards,
            "_vlm_rewards": scored,
            "vlm_episode": episodes,
            "_vlm_episode": scored.copy(),
            "vlm_first": first,
            "_vlm_first": scored.copy(),
        }

    def _check(self) -> None:
        """Raise if this is closed, or what went wrong in the last call."""
        if self.closed:
            raise ClosedEnvironmentError("This VLMRewardVectorEnv has been closed. Make another.")
        self._raise_failure()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


def make_vector_task(
    *,
    num_envs: int,
    world: str,
    episode_length: int,
    prompt: Text | None = None,
    autoreset_mode: AutoresetMode | str | None = None,
    render_mode: str | None = None,
    **options: Any,
) -> VLMRewardVectorEnv:
    """The vector entry point of every registered ID: many worlds with a time limit, and their rewards.

    Args:
        num_envs: How many.
        world: The class of `vlmrm_gym.envs` with the dynamics.
        episode_length: Steps after which an episode is truncated.
        prompt: What the agent should bring about; None is an error, for the tasks that have no prompt of their own.
        autoreset_mode: When an environment that has ended is reset: an `AutoresetMode` or its value.
        render_mode: "rgb_array", which is needed for scoring (None is the same).
        options: The keyword arguments of `VLMRewardVectorEnv`, and those of the world (`textured`, `task`).

    Raises:
        ValueError: A parameter out of its range; and all that `VLMRewardVectorEnv` raises.
        TypeError: No prompt.
    """
    check_positive_integer("num_envs", num_envs)
    if render_mode not in (None, "rgb_array"):
        raise ValueError(f'`render_mode` must be "rgb_array", which is needed for scoring. Received {render_mode!r}.')
    vector = make_vector_world(
        world, num_envs, episode_length=episode_length, autoreset_mode=autoreset_mode, **take_worldly(world, options)
    )
    return VLMRewardVectorEnv(vector, said(prompt), **options)


def make_vector_world(
    world: str,
    num_envs: int,
    *,
    episode_length: int,
    autoreset_mode: AutoresetMode | str | None = None,
    **worldly: Any,
) -> VectorEnv[Any, Any, Any]:
    """Many worlds with a time limit, without a reward of ours.

    Args:
        world: The class of `vlmrm_gym.envs` with the dynamics.
        num_envs: How many.
        episode_length: Steps after which an episode is truncated.
        autoreset_mode: When an environment that has ended is reset: an `AutoresetMode` or its value; None: next-step.
        worldly: Keyword arguments of the world.

    Raises:
        ValueError: A parameter out of its range.
    """
    mode = AutoresetMode.NEXT_STEP if autoreset_mode is None else check_autoreset_mode(autoreset_mode)
    if world == "Humanoid":
        from vlmrm_gym.envs.humanoid_vector import HumanoidVectorEnv

        return HumanoidVectorEnv(num_envs, episode_length=episode_length, autoreset_mode=mode, **worldly)
    return SyncVectorEnv(
        [partial(make_world, world, episode_length, "rgb_array", worldly)] * num_envs, autoreset_mode=mode
    )


def _vectorized(
    env: VectorEnv[Any, Any, Any] | Sequence[Callable[[], gym.Env[Any, Any]]],
    autoreset_mode: AutoresetMode | str | None,
) -> VectorEnv[Any, Any, Any]:
    """The vector environment, made of a list of functions if it has to be."""
    mode = None if autoreset_mode is None else check_autoreset_mode(autoreset_mode)
    if not isinstance(env, VectorEnv):
        if isinstance(env, str) or not isinstance(env, Sequence) or not env or not all(map(callable, env)):
            raise ValueError(
                "`env` must be a vector environment, or a list of functions that make environments, at least one. "
                f"Received {env!r}."
            )
        for one in (made := [make() for make in env]):
            if not isinstance(one, gym.Env):
                raise ValueError(f"`env` must be a list of functions that make environments. One made {one!r}.")
        return SyncVectorEnv([lambda one=one: one for one in made], autoreset_mode=mode or AutoresetMode.NEXT_STEP)
    if mode is not None and mode != AutoresetMode(env.metadata.get("autoreset_mode", mode)):
        raise ValueError(
            f"`autoreset_mode` is a vector environment's own. Received {mode.value!r}, but {env} has "
            f"{env.metadata['autoreset_mode']!r}. Leave it out, or pass a list of functions."
        )
    return env
