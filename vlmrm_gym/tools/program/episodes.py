"""`gather` plays and reads the episodes that a program is verified on: random, constant, experts, interpolated."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.errors import InputError, as_input_error
from vlmrm_gym._util.validation import check_integer, check_size, find_time_limit
from vlmrm_gym.data.dataset_folder import check_environment, read_dataset, read_settings
from vlmrm_gym.data.rollouts import Policy, capture_state, check_states, constant_actions, play, random_actions
from vlmrm_gym.data.trajectory import Trajectory
from vlmrm_gym.rewards.model import fixed_size
from vlmrm_gym.states import StateView, is_drawn_from_states
from vlmrm_gym.states.states import States
from vlmrm_gym.tasks.known_states import TaskStates
from vlmrm_gym.tools.environments import NamedEnv

STEPS = 200
"""Steps of an episode, if neither the caller nor the environment says how many."""
WAY = "the way to the goal"
UNTRAINED = {"random": random_actions, "constant": constant_actions}


def is_enough(steps: NDArray[np.bool_], needed: float) -> bool:
    """Tell whether at least one step of bool (T,), and a share `needed` of all, is True."""
    return bool(steps.any()) and float(steps.mean()) >= needed


@dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """The episodes that programs are verified on. Their frames are drawn when they are looked at."""

    episodes: Sequence[Trajectory]
    """Their `source` is "random", "constant", `WAY`, or the name of a run or of a dataset."""
    experts: Sequence[bool]
    """Whether a program must be completed by each of them."""
    draw: Callable[[States], NDArray[np.uint8]]
    """Draws states: uint8 (T, H, W, 3). It works in the context of `gather` only."""
    needed: float = 0.0
    """The share of an episode's steps that must succeed for the episode to be a success. 0: one step is enough."""
    size: tuple[int, int] | None = None
    """Height and width of the frames; None: the environment's own."""
    environment: str = ""
    """The environment's ID, or the path of the function that makes it."""

    def __len__(self) -> int:
        return len(self.episodes)

    def select(self, *, experts: bool) -> list[Trajectory]:
        """Return the episodes that a program must be completed by, or all others."""
        return [one for one, is_expert in zip(self.episodes, self.experts, strict=True) if is_expert == experts]

    def succeeded(self, number: int) -> bool | None:
        """Tell whether an episode is a success; None if that is not known of every step."""
        success = self.episodes[number].known_success
        return None if success is None else is_enough(success, self.needed)

    def thin(self, number: int, count: int) -> NDArray[np.int64]:
        """Every k-th step of an episode: at most `count`, which are a success if the episode is one, and only then.

        If success is not known, the last one is among them: its state may be the goal.
        """
        episode, succeeded = self.episodes[number], self.succeeded(number)
        stride = -(-len(episode) // count)
        if succeeded is None:
            first = (len(episode) - 1) % stride
        else:
            first = (max if succeeded else min)(range(stride), key=lambda step: episode.success[step::stride].mean())
        return np.arange(first, len(episode), stride)


@contextmanager
def gather(
    id: str | None = None,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    camera: Any = None,
    size: tuple[int, int] | None = None,
    policies: Mapping[str, Callable[[gym.Env[Any, Any]], Policy]] = MappingProxyType({}),
    rollouts: Sequence[Path] = (),
    episodes: int = 10,
    steps: int | None = None,
    seed: int = 0,
    progress: Callable[[], object] = lambda: None,
) -> Iterator[Examples]:
    """Play and read the episodes that programs for an environment are verified on: a context manager.

    Experts are the episodes of trained policies and of datasets; where it is known which states succeed, those that are
    successes. Without policies and datasets the way to the goal takes their place, if the task's record knows goals:
    from the state of a reset to a goal state in the first half of an episode, and there for the other half.

    The environment, see `NamedEnv`, is seen by one camera at `size`, `Program.size`. `policies` make the policies of
    experts of an environment, by the names of their episodes; `rollouts` are folders of datasets. Of each behaviour
    that is played there are so many `episodes`, of at most so many `steps` (None: the environment's own time limit, or
    `STEPS`). `progress` is called after each episode. What cannot be used is an InputError.
    """
    with as_input_error():
        size = check_size("size", size)
        for name, value, least in (("episodes", episodes, 1), ("steps", steps, 1), ("seed", seed, 0)):
            if value is not None:
                check_integer(name, value, minimum=least, maximum=2**31 - 1)
    with NamedEnv(id, env_kwargs, camera, steps) as named:
        environment, view, task = named.env, named.view, named.task
        if view.num_views > 1:
            raise InputError(f"`camera` must have one view here. Received {view.num_views}. Pass one of them.")
        renderer = named.enter_context(closing(view.make_renderer(fixed_size(size))))
        steps = steps or find_time_limit(environment) or STEPS
        has_states = task is not None and task.states is not None and is_drawn_from_states(environment)
        states = task.make_states() if task is not None and has_states else None
        threshold = 0.0 if task is None else task.success_threshold
        needed = threshold or 0.0

        def play_all() -> Iterator[tuple[Trajectory, bool | None]]:
            """Yield episodes, and whether a trained policy chose the actions; None: never an expert's."""
            for i in range(episodes):
                for number, (name, policy) in enumerate(UNTRAINED.items()):
                    act = policy(environment.action_space, np.random.default_rng((seed, i, number)))
                    yield play(environment, view, act, seed=seed + i, steps=steps, source=name), None
            for name, make_policy in policies.items():
                act = make_policy(environment)
                for i in range(episodes):
                    yield play(environment, view, act, seed=seed + 10_000 + i, steps=steps, source=name), True
            for folder in rollouts:
                check_environment(folder, str(id), env_kwargs)
                is_trained = read_settings(folder)["policy"] not in UNTRAINED
                recorded = read_dataset(folder)
                check_states(recorded, environment, view)
                yield from ((replace(one, source=folder.name), is_trained) for one in recorded)
            if states is not None and not policies and not rollouts:
                ways = _ways(environment, view, states, episodes, steps, seed)
                yield from ((Trajectory(source=WAY, states=way), True) for way in ways)

        played, experts = list[Trajectory](), list[bool]()
        for episode, is_trained in play_all():
            success = episode.success
            if states is not None and states.has_success_fn:
                success = states.succeeds(episode.states.rows).astype(np.float64)
            elif threshold is None:  # what the environment says is no success
                success = np.full(len(episode), np.nan)
            played.append(replace(episode, success=success))
            known = played[-1].known_success
            experts.append(bool(is_trained is not None and (is_trained if known is None else is_enough(known, needed))))
            progress()
        yield Examples(
            episodes=played,
            experts=experts,
            draw=lambda drawn: drawn.draw(renderer),
            needed=needed,
            size=size,
            environment=str(id),
        )


def _ways(
    env: gym.Env[Any, Any], view: StateView, task: TaskStates, count: int, steps: int, seed: int
) -> Iterator[States]:
    """Yield episodes that lead straight to goal states, and stay there; none if no goal is known."""
    shares = np.linspace(0, 1, steps // 2 + 1)[1:]
    for i, goal in enumerate(task.goals(count, np.random.default_rng(seed))):
        env.reset(seed=seed + 20_000 + i)
        view.reset()
        start, _ = capture_state(view)
        way = task.on_the_way(shares)
        if way is None:
            straight = start + shares[:, None] * (goal - start)
            way = task.perturb(straight, np.zeros((len(straight), task.dimensions)))  # makes them possible
        yield States(np.concatenate([way, np.repeat(goal[None], steps - len(way), axis=0)]))
