"""A VecEnv of Stable-Baselines3 around a scored vector environment, and what makes one of an ID."""

import time
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv

from vlmrm_gym._util.errors import close_on_error
from vlmrm_gym._util.steps import Step, VectorSteps
from vlmrm_gym._util.validation import check_integer, check_observation_space, check_reward_wrappers, short_repr
from vlmrm_gym.data.late import Late, join_late, read_late
from vlmrm_gym.data.statistics import Episode, EpisodeTotals
from vlmrm_gym.data.store import find_featured
from vlmrm_gym.envs.make import find_task, make_vector_env
from vlmrm_gym.sb3.checks import check_callers, is_evaluated


class VLMVecEnv(VecEnv):
    """Makes a `VLMRewardVectorEnv` a VecEnv of Stable-Baselines3.

    Rewards are NaN until they arrive in the infos; `DeferredReplayBuffer` and `DeferredRolloutBuffer` take them from
    there. The module `vlmrm_gym.infos` lists all entries of the infos.

    Once all rewards of a finished episode have arrived, `info["episode"]` has its return, as with `Monitor`. So
    `EvalCallback`, `evaluate_policy` and algorithms that learn from its returns, such as ARS, get VLM returns. With
    `overlap` steps of `evaluate_policy` wait for the rewards of episodes that end. A `VecMonitor` sums up rewards
    before they arrive: an evaluation refuses it, otherwise a warning says that its returns are NaN.

    Args:
        envs: A `VLMRewardVectorEnv` with same-step autoreset, or wrappers around one.
        success_threshold: Fraction of an episode's steps that must be successes for `is_success`.
        autoreset_mode: "SameStep": needed if the metadata of `envs` do not say when they reset.

    Raises:
        ValueError: `envs` is not a vector environment, has another autoreset mode or does not say which, or has a
            wrapper that changes rewards; or its observation space is not a box or discrete space, or a flat Dict of
            such spaces.
    """

    def __init__(
        self,
        envs: gym.vector.VectorEnv[Any, Any, Any],
        *,
        success_threshold: float = 0.5,
        autoreset_mode: AutoresetMode | str | None = None,
    ) -> None:
        self._steps = VectorSteps("envs", envs, autoreset_mode)
        if self._steps.mode != AutoresetMode.SAME_STEP:
            raise ValueError(
                "`envs` must reset in the same step, as Stable-Baselines3 does. Received "
                f'{self._steps.mode.value!r}. Make them with autoreset_mode="SameStep".'
            )
        check_reward_wrappers(envs)
        check_observation_space("envs.single_observation_space", envs.single_observation_space)
        self.envs: Any = envs
        self.success_threshold = success_threshold
        self._start_time = time.monotonic()
        self._actions: Any = None
        self._books = EpisodeTotals(envs.num_envs)
        self._arrived: list[list[Late]] = [[] for _ in range(envs.num_envs)]
        """What has arrived of each environment since the last `_pop_late`: contiguous."""
        self._env_uid = uuid.uuid4().hex
        self._newest_rewards: list[deque[float]] = [deque(maxlen=0) for _ in range(envs.num_envs)]
        """The newest rewards of each environment, as many as a rollout has."""
        self._rollout_length = self._rollout_steps = 0
        """Steps of the current rollout, in which rewards are 0; and those that have been made since it began."""
        self._warned = False
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self) -> Any:
        """Start new episodes. Rewards of unfinished ones arrive with the next step."""
        seeds = None if self._seeds[0] is None else self._seeds
        if any(options != self._options[0] for options in self._options):
            raise ValueError(f"`options` must be the same for all environments. Received {self._options}.")
        self._rollout_length = 0
        observations, infos, _ = self._steps.reset(seeds, self._options[0] or None)
        self._reset_seeds()
        self._reset_options()
        self._add_rewards(infos)
        self._books.end(np.full(self.num_envs, True), is_lost=True)
        return observations

    def step_async(self, actions: NDArray[Any]) -> None:
        """Store the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Step the environments. Rewards, float32 (num_envs,), are NaN where they arrive later.

        They are 0 during a rollout of a `DeferredRolloutBuffer`, which fills them in. Raises what `check_callers` does.
        """
        step = self._steps.step(self._actions)
        self._rollout_steps += 1
        if "_vlm_rewards" not in step.infos:
            raise RuntimeError(f"`envs` must be a VLMRewardVectorEnv. Received {self.envs}.")
        rewards = step.rewards.astype(np.float32)
        if check_callers(self, deferred=bool(np.isnan(rewards).any())):
            self._warn_of_missing_returns()
        evaluated = is_evaluated(self)
        episodes = self._books.step(step)
        self._add_rewards(step.infos)
        if evaluated and self.overlaps and step.ends.any():
            self._add_rewards(self.envs.flush())
        late = [self._pop_late(i, newest=evaluated) for i in range(self.num_envs)]
        infos = [self._info(step, i, episode) | late[i] for i, episode in enumerate(episodes)]
        if self._rollout_steps <= self._rollout_length:
            rewards = np.zeros_like(rewards)
        return step.observations, rewards, step.ends, infos

    def rollout_rewards(self, count: int) -> NDArray[np.float32]:
        """Score all pending states, and return the newest rewards of each environment: float32 (count, num_envs)."""
        if self._rollout_steps != count:
            raise RuntimeError(
                f"The environments of an algorithm must make no other steps during its rollout of {count}. They made "
                f"{self._rollout_steps}. Give EvalCallback and other callbacks environments of their own."
            )
        self._add_rewards(self.envs.flush())
        rewards = np.array([list(newest)[-count:] for newest in self._newest_rewards], dtype=np.float32).T
        if not np.isfinite(rewards).all():
            raise RuntimeError(
                "The rewards of the rollout are not finite: the task's own are not, or the reward has no head "
                "yet, or had none in a part of it. Set the first one, `envs.envs.head.replace(head)`, before training."
            )
        return rewards

    def flush(self) -> list[list[dict[str, Any]]]:
        """Score all pending states. Returns infos with what has arrived, as of several steps."""
        self._add_rewards(self.envs.flush())
        arrived = []
        while any(infos := [self._pop_late(i) for i in range(self.num_envs)]):
            arrived.append(infos)
        return arrived

    def begin_rollout(self, count: int) -> None:
        """Return rewards of 0, not NaN, for the next `count` steps: the caller fills them in."""
        self._rollout_length, self._rollout_steps = count, 0
        self._newest_rewards = [deque(maxlen=count) for _ in range(self.num_envs)]

    def close(self) -> None:
        """Stop scoring, and close the environments."""
        self.envs.close()

    def get_images(self) -> Sequence[NDArray[np.uint8]]:
        """The frames as the model sees them, but at the environments' own size: uint8 (H, W, 3) each."""
        return self.envs.render()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """An attribute of the vector environment, once for each index."""
        value = getattr(self.envs, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Raise a NotImplementedError: the environments are one object."""
        raise NotImplementedError("VLMVecEnv steps all environments together: single ones have no attributes to set.")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Raise a NotImplementedError: the environments are one object."""
        raise NotImplementedError("VLMVecEnv steps all environments together: single ones have no methods to call.")

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: Any = None) -> list[bool]:
        """True for `Monitor`, since this fills in `info["episode"]` itself; False for all other wrappers.

        With `overlap` true in `evaluate_policy` only: others would read `episode` before it is there.
        """
        monitored = issubclass(wrapper_class, Monitor)
        if monitored and self.overlaps and not is_evaluated(self):
            self._warn_of_missing_returns()
            monitored = False
        return [monitored for _ in self._get_indices(indices)]

    @property
    def is_between_episodes(self) -> bool:
        """Whether the next step begins an episode in every environment."""
        return self._books.is_between_episodes

    @property
    def overlaps(self) -> bool:
        """Whether the rewards of an episode can arrive after the step that ends it."""
        return getattr(self.envs, "overlap", False)

    def _add_rewards(self, infos: dict[str, Any]) -> None:
        for late in read_late(infos):
            self._books.receive(late)
            parts = self._arrived[late.env]
            if parts and parts[-1].stop != late.start:
                parts.clear()  # the rewards in between were lost
            parts.append(late)
            self._newest_rewards[late.env].extend(late.rewards.tolist())

    def _info(self, step: Step, i: int, episode: Episode) -> dict[str, Any]:
        """The info of an environment's step, without the entries about rewards."""
        info = _select_env(step.infos, i)
        info["TimeLimit.truncated"] = bool(step.truncations[i] and not step.terminations[i])
        if step.ends[i]:
            info["terminal_observation"] = info.pop("final_obs")
            info.update(info.pop("final_info", {}))
            if "success" in info:
                info["is_success"] = episode.summary["success_fraction"] >= self.success_threshold
        return info | {"vlm_step_index": int(step.infos["vlm_step_index"][i]), "vlm_env_uid": self._env_uid}

    def _pop_late(self, i: int, *, newest: bool = False) -> dict[str, Any]:
        """The entries about rewards that have arrived of an environment since the last call; see `vlmrm_gym.infos`.

        At most one episode is reported in each call: the newest, or the oldest and the others in the next calls.
        """
        info: dict[str, Any] = {}
        if parts := self._arrived[i]:
            info, self._arrived[i] = {**join_late(parts).as_info(), "vlm_env_uid": self._env_uid}, []
        if "vlm_features" in info:
            info["vlm_fingerprint"] = find_featured(self.envs).head.fingerprint
        if (episode := self._books.pop(i, newest=newest)) is not None:
            summary = {**episode.summary, "t": time.monotonic() - self._start_time}
            fraction = summary.pop("success_fraction")
            info["episode"] = info["scored_episode"] = summary | ({} if np.isnan(fraction) else {"success": fraction})
        return info

    def _warn_of_missing_returns(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                "Rewards arrive after the step: VecMonitor, and with overlap=True evaluations other than "
                "evaluate_policy and EvalCallback, will report NaN or 0. Leave VecMonitor out: VLMVecEnv itself fills "
                'in infos["episode"]. Evaluate with evaluate_policy, or with overlap=False.',
                stacklevel=3,
            )


def _select_env(infos: dict[str, Any], i: int) -> dict[str, Any]:
    """The info of one environment, without the entries about rewards. An entry without a mask is of all of them."""
    return {
        name: _select_env(value, i) if isinstance(value, dict) else value[i]
        for name, value in infos.items()
        if not name.startswith(("_", "vlm_"))
        and name not in ("episode", "scored_episode")  # of a wrapper around the environment
        and (f"_{name}" not in infos or infos[f"_{name}"][i])
    }


def make_vec_env(
    env_id: str | Callable[..., gym.Env[Any, Any]],
    n_envs: int = 1,
    seed: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> VLMVecEnv:
    """Make scored environments, for Stable-Baselines3, whose own `make_vec_env` has the same first arguments.

    Args:
        env_id: A registered ID, such as "VLMRM/Humanoid-kneel-v0", or "Ant-v5", which needs a `prompt` or a `reward`
            ("module:ID" imports the module first); or a class, or a function, that makes an environment which renders.
        n_envs: Number of environments; Gymnasium's word for it, `num_envs`, is taken, too.
        seed: Seed of the first environment. The others have the following numbers.
        env_kwargs: Keyword arguments of each environment.
        kwargs: Keyword arguments of `VLMRewardVectorEnv`: `prompt`, `reward`, `num_workers`, `overlap`, ...; also
            `episode_length`, the steps after which episodes are truncated, instead of the environment's own time limit;
            and, for an ID of this package, `env_kwargs` by their names, such as `textured`.

    Raises:
        gymnasium.error.Error: The ID is unknown.
        TypeError: `env_id` is neither a text nor callable.
        ValueError: The seed is not an integer of at least 0, `autoreset_mode` is passed, or `VLMRewardVectorEnv`
            rejects a parameter.
    """
    if seed is not None:
        check_integer("seed", seed, minimum=0)
    if "autoreset_mode" in kwargs:
        rule = "`autoreset_mode` cannot be chosen: Stable-Baselines3 needs same-step."
        raise ValueError(f"{rule} Received {short_repr(kwargs['autoreset_mode'])}. Leave it out.")
    if not isinstance(env_id, str) and not callable(env_id):
        raise TypeError(f"`env_id` must be an ID, a class or a function. Received {short_repr(env_id)}.")
    n_envs = kwargs.pop("num_envs", n_envs)
    task = find_task(env_id) if isinstance(env_id, str) else None
    if task is not None:
        kwargs, env_kwargs = {**(env_kwargs or {}), **kwargs}, None
    envs = make_vector_env(env_id, n_envs, autoreset_mode="SameStep", env_kwargs=env_kwargs, **kwargs)
    with close_on_error([envs]):
        threshold = (task and task.success_threshold) or 0.5
        vec_env = VLMVecEnv(envs, success_threshold=threshold)
        if seed is not None:
            vec_env.seed(seed)
    return vec_env
