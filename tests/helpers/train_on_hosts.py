"""A short training of cart-pole that `test_ray_hosts.py` runs on a host: python train_on_hosts.py FOLDER 'OPTIONS'.

OPTIONS are keyword arguments of `gym.make_vec` as JSON. It trains until there is a file FOLDER/stop, prints how many
transitions have been made and scored, and writes FOLDER/record.npz: `actions`, int64 (T, num_envs), and for each
environment its rewards in the order of their transitions.
"""

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F

import vlmrm_gym  # noqa: F401  (registers the IDs)
from vlmrm_gym.data.replay import ReplayBuffer

ENVIRONMENTS = {"id": "VLMRM/CartPole-v1", "num_envs": 4, "episode_length": 50}
SEED = 7


class Rewards:
    """The rewards of every environment in the order of their transitions; each has to come exactly once."""

    def __init__(self, num_envs: int) -> None:
        self.of_env: list[list[float]] = [[] for _ in range(num_envs)]
        self.due = 0
        """Transitions that have been made."""

    def take(self, infos: dict[str, Any]) -> None:
        self.due += int(np.sum(infos.get("_vlm_step_index", 0)))
        for i in np.flatnonzero(infos["_vlm_rewards"]):
            start, own = int(infos["vlm_reward_start"][i]), self.of_env[i]
            assert start == len(own), f"environment {i} got the reward of transition {start} after {len(own)} rewards"
            own.extend(infos["vlm_rewards"][i])

    def __len__(self) -> int:
        return sum(map(len, self.of_env))


def train(folder: Path, options: dict[str, Any]) -> None:
    """One step of Q-learning after each step of the environments, on rewards that have arrived."""
    envs = gym.make_vec(**ENVIRONMENTS, **options)
    chance = np.random.default_rng(SEED)
    torch.manual_seed(SEED)
    network = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    buffer, rewards, actions = ReplayBuffer(100_000, envs), Rewards(envs.num_envs), []
    observations, _ = envs.reset(seed=SEED)
    while not (folder / "stop").exists():
        with torch.no_grad():
            greedy = network(torch.from_numpy(observations)).argmax(-1).numpy()
        actions.append(np.where(chance.random(envs.num_envs) < 0.3, chance.integers(0, 2, envs.num_envs), greedy))
        next_observations, *results = envs.step(actions[-1])
        buffer.add(observations, actions[-1], next_observations, *results)
        rewards.take(results[-1])
        observations = next_observations
        if len(buffer):
            batch = buffer.sample(64)
            target = batch.rewards + 0.95 * (1 - batch.terminations) * network(batch.next_observations).amax(-1)
            values = network(batch.observations).gather(-1, batch.actions.long().reshape(-1, 1))[:, 0]
            optimizer.zero_grad()
            F.mse_loss(values, target.detach()).backward()
            optimizer.step()
        print(json.dumps({"made": rewards.due, "scored": len(rewards)}), flush=True)
    rewards.take(envs.flush())
    envs.close()
    assert len(rewards) == rewards.due
    np.savez(folder / "record.npz", *rewards.of_env, actions=np.stack(actions))


if __name__ == "__main__":
    train(Path(sys.argv[1]), json.loads(sys.argv[2]))
