"""How far interpolated rewards are off, against the share of the states that are scored.

    python benchmarks/sparse.py
    python benchmarks/sparse.py --tasks VLMRM/Humanoid-kneel-v0 --runs runs/Humanoid-kneel-v0__SAC__0__1700000000

For each task, episodes of random actions, of one action for a whole episode ("constant") and of trained runs are played
once, and all of their states are scored. Each setting of `score_every` then chooses among these states: its
error is that of all rewards, interpolated or not. Writes tables in Markdown.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import tyro
from numpy.typing import NDArray
from tqdm import tqdm

import vlmrm_gym  # noqa: F401 (registers the IDs)
from vlmrm_gym import Trajectory
from vlmrm_gym.data.rollouts import Policy, constant_actions, play, random_actions
from vlmrm_gym.scoring.select import choose_every, interpolate
from vlmrm_gym.states import StateView
from vlmrm_gym.tasks import TASKS
from vlmrm_gym.tools.environments import make_unscored_env
from vlmrm_gym.tools.train.evaluation import run_actions

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import sac_continuous

SETTINGS = {f"every {every}": every for every in (2, 4, 8)}


@dataclass(frozen=True)
class Args:
    tasks: tuple[str, ...] = tuple(task.id for task in TASKS if task.prompt)
    """registered IDs"""
    episodes: int = 6
    """episodes of each task and behaviour"""
    runs: tuple[Path, ...] = ()
    """folders of `vlmrm-gym train` or of examples/sac_continuous.py, each of one of the tasks"""
    camera: str | None = None
    """humanoids: a named set of cameras, such as front-side; None: the paper's camera"""
    model: str = "tiny"
    """as in CLIPReward"""
    seed: int = 0
    """of the first episode"""


def behaviours(
    args: Args, task_id: str, env: gym.Env[Any, Any], envs: gym.vector.VectorEnv
) -> Iterator[tuple[str, Callable[[int], Policy]]]:
    """Names of behaviours, and what makes the policy of an episode from its seed."""
    space = env.action_space
    yield "random", lambda seed: random_actions(space, np.random.default_rng(seed))
    yield "constant", lambda seed: constant_actions(space, np.random.default_rng(seed))
    for folder in args.runs:
        if task_id.removeprefix("VLMRM/") in folder.name:
            if (folder / "agent.pt").exists():
                agent = sac_continuous.load_agent(folder, envs)
                policy = lambda observation, agent=agent: agent.act(observation[None], deterministic=True)[0]  # noqa: E731
            else:
                policy = run_actions(folder, env, task_id)
            yield "trained", lambda seed, policy=policy: policy


def choose(every: int, rollout: Trajectory, rewards: NDArray[np.float32]) -> tuple[NDArray[Any], int]:
    """The rewards of a setting, and how many states it has scored."""
    chosen = choose_every(len(rollout), every)
    return interpolate(chosen, rewards[chosen]), len(chosen)


def measure(args: Args) -> Iterator[tuple[str, list[tuple[float, float, float]]]]:
    """For each task and behaviour: its name with the rewards' deviation, and the figures of each setting."""
    camera = {} if args.camera is None else {"camera": args.camera}
    for task_id in tqdm(args.tasks, unit="task"):
        options: dict[str, Any] = {
            "model": args.model,
            "return_features": True,
            **(camera if "Humanoid" in task_id else {}),
        }
        envs: Any = gym.make_vec(task_id, 1, **options)
        with closing(make_unscored_env(task_id, None)) as env, closing(envs):
            view = StateView(env, options.get("camera"))
            for name, policy in behaviours(args, task_id, env, envs):
                played = []
                for seed in range(args.seed, args.seed + args.episodes):
                    rollout = play(env, view, policy(seed), seed=seed, steps=1_000)
                    played.append((rollout, envs.head(envs.scorer.features(rollout.states))))
                always = np.concatenate([rewards for _, rewards in played])
                figures = []
                for every in SETTINGS.values():
                    chosen, counts = zip(*(choose(every, *own) for own in played), strict=True)
                    error = np.abs(np.concatenate(chosen) - always)
                    figures.append((float(error.mean()), float(np.quantile(error, 0.99)), sum(counts) / len(always)))
                yield f"| {task_id.removeprefix('VLMRM/')} | {name} | {always.std():.2f} |", figures


def main(args: Args) -> None:
    """Measure, and print a table for each figure."""
    rows = list(measure(args))
    for number, (title, form) in enumerate(
        [("Mean absolute error", ".3f"), ("99th percentile of the error", ".3f"), ("Share of the states scored", ".0%")]
    ):
        print(f"\n{title}:\n\n| task | behaviour | std | {' | '.join(SETTINGS)} |\n|{'---|' * (3 + len(SETTINGS))}")
        for name, figures in rows:
            print(name, " | ".join(format(own[number], form) for own in figures), "|")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
