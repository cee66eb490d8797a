"""Rollouts of any policy, in an environment that a command line names and that is not scored."""

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from vlmrm_gym._util.errors import InputError, as_input_error
from vlmrm_gym._util.validation import as_task_reward
from vlmrm_gym.data.trajectory import Trajectory
from vlmrm_gym.states import StateView
from vlmrm_gym.states.scene_changes import SceneChange
from vlmrm_gym.states.states import States

Policy = Callable[[Any], Any]
"""From an observation to an action."""


def play(
    env: gym.Env[Any, Any], view: StateView, act: Policy, *, seed: int, steps: int, source: str = ""
) -> Trajectory:
    """Play one episode of at most `steps` steps and capture its states.

    The environment was made with `render_mode="rgb_array"`, and has its own reward; `view` is its view. `act` chooses
    the actions, and `source` is its name. An InputError if the environment changed to a model or an appearance that its
    states cannot describe, its frames are not uint8 (H, W, 3), or its own reward is not one number.
    """
    observation, _ = env.reset(seed=seed)
    view.reset()
    observations, captured = [copy.deepcopy(observation)], [capture_state(view)]
    actions, results = list[Any](), list[tuple[float, bool, bool, float]]()
    for _ in range(steps):
        action = act(observation)
        actions.append(copy.deepcopy(action))
        observation, reward, terminated, truncated, info = env.step(action)
        observations.append(copy.deepcopy(observation))  # the environment may reuse its arrays
        captured.append(capture_state(view))
        success = float(bool(info["success"])) if "success" in info else np.nan
        with as_input_error():
            results.append((as_task_reward(env, reward), bool(terminated), bool(truncated), success))
        if terminated or truncated:
            break
    task_rewards, terminations, truncations, success = (np.array(column) for column in zip(*results, strict=True))
    truncations[-1] |= not terminations[-1]
    rows, changes = zip(*captured, strict=True)
    if any(change is not None and change.frame is not None for change in changes):
        raise InputError(
            "The environment changed to a model or an appearance that its states cannot describe. Pass an environment "
            "that keeps its own."
        )
    states = States.of(np.stack(rows), changes)
    return Trajectory(
        source=source,
        states=states[1:],
        initial=states[:1],
        observations=stack_values(env.observation_space, observations),
        actions=stack_values(env.action_space, actions),
        task_rewards=task_rewards,
        terminated=terminations,
        truncated=truncations,
        success=success,
    )


def check_states(rollouts: Sequence[Trajectory], env: gym.Env[Any, Any], view: StateView, seed: int = 0) -> None:
    """Raise an InputError unless rollouts that were read are of this kind of environment, which is reset."""
    env.reset(seed=seed)
    view.reset()
    theirs, ours = rollouts[0].states.rows.shape[1:], capture_state(view)[0].shape
    if theirs != ours:
        raise InputError(
            f"`rollouts` must have states of the shape {ours}, as this environment has. Theirs have {theirs}. "
            "Make them again: vlmrm-gym dataset"
        )


def capture_state(view: StateView) -> tuple[NDArray[Any], SceneChange | None]:
    """The environment's current state; see `StateView.capture`. An InputError if its frames are not uint8 (H, W, 3)."""
    with as_input_error():
        return view.capture()


def stack_values(space: gym.Space[Any], values: Sequence[Any]) -> Any:
    """Stack N elements of a space: arrays (N, ...) of its dtype, in dicts and tuples as the space; others in a list."""
    if isinstance(space, spaces.Dict):
        return {key: stack_values(inner, [value[key] for value in values]) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(stack_values(inner, [value[i] for value in values]) for i, inner in enumerate(space.spaces))
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return np.stack([np.asarray(value, dtype=space.dtype) for value in values])
    return list(values)


def random_actions(space: gym.Space[Any], rng: np.random.Generator) -> Policy:
    """A policy that draws every action anew, seeded by `rng`. The space itself is not changed."""
    space = _seeded_copy(space, rng)
    return lambda observation: space.sample()


def constant_actions(space: gym.Space[Any], rng: np.random.Generator, hold: int | None = None) -> Policy:
    """A policy that repeats an action for `hold` steps; None: for the whole episode.

    Each coordinate of an action in a `Box` is uniform within its bounds or, as often, at one of them. Actions of other
    spaces are drawn by `space.sample`. The space itself is not changed.
    """
    space = _seeded_copy(space, rng)

    def draw() -> Iterator[Any]:
        while True:
            action = _draw_with_extremes(space, rng)
            yield from repeat(action) if hold is None else repeat(action, hold)

    actions = draw()
    return lambda observation: next(actions)


def _seeded_copy(space: gym.Space[Any], rng: np.random.Generator) -> gym.Space[Any]:
    space = copy.deepcopy(space)
    space.seed(int(rng.integers(2**31)))
    return space


def _draw_with_extremes(space: gym.Space[Any], rng: np.random.Generator) -> Any:
    action = space.sample()
    if not isinstance(space, spaces.Box):
        return action
    bounds = np.where(rng.random(space.shape) < 0.5, space.low, space.high)
    at_bound = (rng.random(space.shape) < 0.5) & np.isfinite(bounds)
    return np.where(at_bound, bounds, action).astype(space.dtype)
