"""Steps/s of many humanoids, observations and success included: Gymnasium's two ways, and ours.

    python benchmarks/physics.py

They take turns in one process (the processes of `AsyncVectorEnv` apart); figures are medians over the rounds. All three
give the same observations, to the bit (`tests/test_humanoid_vector.py`).
"""

import statistics
import time

import tyro
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit

from vlmrm_gym.envs import Humanoid
from vlmrm_gym.envs.humanoid_vector import HumanoidVectorEnv


def make_one() -> TimeLimit:
    return TimeLimit(Humanoid(render_mode="rgb_array", task="stand"), 100)


def main(num_envs: int = 16, rounds: int = 5) -> None:
    """Compare the ways to step humanoids.

    Args:
        num_envs: How many are stepped together.
        rounds: Of an episode each.
    """
    ways: dict[str, VectorEnv] = {
        "SyncVectorEnv": SyncVectorEnv([make_one] * num_envs),
        "AsyncVectorEnv": AsyncVectorEnv([make_one] * num_envs, context="spawn"),
        "HumanoidVectorEnv (mujoco.batch)": HumanoidVectorEnv(num_envs, task="stand"),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for envs in ways.values():
        envs.action_space.seed(0)
        envs.reset(seed=0)
    for _ in range(rounds):
        for name, envs in ways.items():
            actions = [envs.action_space.sample() for _ in range(101)]
            start = time.perf_counter()
            for action in actions:
                envs.step(action)
            rates[name].append(num_envs * 100 / (time.perf_counter() - start))
    for name, envs in ways.items():
        print(f"{name:34}{statistics.median(rates[name]):8,.0f} steps/s")
        envs.close()


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
