"""Steps/s of vectorised humanoids, including observations and success: Gymnasium's Sync and Async, and ours.

    python benchmarks/physics.py

The three alternate in one process (apart from the workers of `AsyncVectorEnv`); figures are medians over the rounds.
Their observations are bitwise equal (`tests/tasks/test_humanoid_vector.py`). The last row is the CPU overhead of
detecting changes of the MuJoCo model while capturing states, measured with and without it in alternation.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial

import tyro
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit
from turns import in_turns

from vlmrm_gym.states import StateView
from vlmrm_gym.tasks.humanoid import Humanoid
from vlmrm_gym.tasks.humanoid_vector import HumanoidVectorEnv


def make_one() -> TimeLimit:
    return TimeLimit(Humanoid(render_mode="rgb_array", task="stand"), 100)


def main(num_envs: int = 16, rounds: int = 5) -> None:
    """Compare vector environments of humanoids.

    Args:
        num_envs: Number of environments.
        rounds: Number of rounds, one episode each.
    """
    ways: dict[str, VectorEnv] = {
        "SyncVectorEnv": SyncVectorEnv([make_one] * num_envs),
        "AsyncVectorEnv": AsyncVectorEnv([make_one] * num_envs, context="spawn"),
        "HumanoidVectorEnv (mujoco.batch)": HumanoidVectorEnv(num_envs, task="stand"),
    }
    for envs in ways.values():
        envs.action_space.seed(0)
        envs.reset(seed=0)
    rates = in_turns({name: partial(steps_per_second, envs) for name, envs in ways.items()}, rounds)
    for name, envs in ways.items():
        print(f"{name:34}{statistics.median(rates[name]):8,.0f} steps/s")
        envs.close()
    print(f"{'watching the model':34}{watching(rounds):8.1%} of the CPU time of stepping and capturing")


def steps_per_second(envs: VectorEnv) -> float:
    """Play an episode."""
    actions = [envs.action_space.sample() for _ in range(101)]
    start = time.perf_counter()
    for action in actions:
        envs.step(action)
    return envs.num_envs * 100 / (time.perf_counter() - start)


def watching(rounds: int) -> float:
    """Median relative CPU overhead of detecting model changes in stepping and capturing."""
    env = make_one()
    env.action_space.seed(0)
    scene = StateView(env)
    renderer = scene.make_renderer(lambda height, width: (height, width))

    def cpu_seconds(capture: Callable[[], object]) -> float:
        env.reset(seed=0)
        scene.reset()
        actions = [env.action_space.sample() for _ in range(100)]
        start = time.process_time()
        for action in actions:
            env.step(action)
            capture()
        return time.process_time() - start

    ways = (scene.capture, lambda: renderer.capture(env))  # pyright: ignore[reportArgumentType]
    pairs = [[cpu_seconds(way) for way in ways] for _ in range(10 * rounds)]
    return statistics.median(watched / bare for watched, bare in pairs) - 1


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
