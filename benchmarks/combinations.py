"""The cost of combined rewards: environment steps per second, in turns, as ratios to a single CLIP.

python benchmarks/combinations.py --turns 3
"""

import statistics
import time
from functools import partial

import gymnasium as gym
import numpy as np
import tyro
from turns import in_turns

from vlmrm_gym import CLIP, Progress, Success

LENGTH = 100
"""Steps of an episode."""
KNEEL, STAND = CLIP(prompt="a humanoid robot kneeling"), CLIP(prompt="a humanoid robot standing up")
REWARDS = {
    "CLIP": KNEEL,
    "0.7 * CLIP + 0.3 * CLIP": 0.7 * KNEEL + 0.3 * STAND,
    "Progress(CLIP)": Progress(KNEEL),
    "CLIP + Progress(CLIP) + Success(CLIP)": KNEEL + Progress(STAND) + Success(KNEEL, threshold=0.5),
}


def measure(id: str, reward: object, num_envs: int, episodes: int) -> float:
    """Steps per second over whole episodes, after one that is not counted."""
    envs = gym.make_vec(id, num_envs, reward=reward, episode_length=LENGTH)
    envs.action_space.seed(0)
    envs.reset(seed=0)
    begun = 0.0
    for step in range((episodes + 1) * (LENGTH + 1)):
        if step == LENGTH + 1:
            begun = time.perf_counter()
        envs.step(envs.action_space.sample())
    seconds = time.perf_counter() - begun
    envs.close()
    return episodes * LENGTH * num_envs / seconds


def main(id: str = "VLMRM/Humanoid-kneel-v0", num_envs: int = 8, episodes: int = 3, turns: int = 3) -> None:
    """Measure every reward in each turn."""
    ways = {name: partial(measure, id, reward, num_envs, episodes) for name, reward in REWARDS.items()}
    found = in_turns(ways, turns)
    base = np.array(found["CLIP"])
    for name, rates in found.items():
        print(f"{name}: {statistics.median(rates):.0f} steps/s, time {statistics.median(base / rates):.3f} of one CLIP")


if __name__ == "__main__":
    tyro.cli(main)
