"""Offline learning from a sentence: IQL on Minari datasets whose rewards `vlmrm-gym score` or `dataset` has written.

    vlmrm-gym dataset VLMRM/MountainCarContinuous-v0 --policy random --episodes 90 --out runs/random
    vlmrm-gym dataset VLMRM/MountainCarContinuous-v0 --policy runs/RUN --episodes 10 --seed 90 --out runs/good
    vlmrm-gym score runs/random --prompt "a car at the peak of the mountain, next to the yellow flag" --out runs/a
    vlmrm-gym score runs/good --prompt "a car at the peak of the mountain, next to the yellow flag" --out runs/b
    python examples/iql_minari.py --datasets runs/a runs/b

Implicit Q-learning (Kostrikov et al. 2022, arXiv 2110.06169), for continuous actions. Observations are standardised.
The folder runs/iql__SEED gets agent.pt and result.json. `--beta 0` clones all that the datasets do.
"""

import json
import random
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path

import gymnasium as gym
import minari
import numpy as np
import torch
import torch.nn as nn
import tyro
from tqdm import trange

from vlmrm_gym.data.statistics import play_episodes
from vlmrm_gym.envs.make import find_task, make_vector_env


@dataclass
class Args:
    """Learn from datasets, without an environment; then play."""

    datasets: tuple[Path, ...]
    """folders of `vlmrm-gym score` or `vlmrm-gym dataset`; their rewards are learned from"""
    env_id: str = "VLMRM/MountainCarContinuous-v0"
    """where the agent is evaluated; its time limit ends episodes"""
    steps: int = 30_000
    """gradient steps"""
    batch_size: int = 256
    """transitions in each"""
    learning_rate: float = 3e-4
    """of all networks"""
    gamma: float = 0.99
    """discount factor"""
    tau: float = 0.7
    """expectile of the value (the paper's equation 5)"""
    beta: float = 3.0
    """inverse temperature of the policy's weights (equation 7)"""
    target_rate: float = 0.005
    """at which the target network follows"""
    episodes: int = 100
    """of the evaluation"""
    seed: int = 1
    """of networks, batches and evaluation"""
    runs_folder: Path = Path("runs")
    """parent folder of the run's folder"""


def network(inputs: int, outputs: int) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, outputs))


class TwinQ(nn.Module):
    """Two estimates of the return of an action."""

    def __init__(self, observed: int, acted: int) -> None:
        super().__init__()
        self.both = nn.ModuleList([network(observed + acted, 1) for _ in range(2)])

    def forward(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Both estimates, (2, B)."""
        inputs = torch.cat([observations, actions], dim=1)
        return torch.stack([one(inputs).squeeze(1) for one in self.both])


class Agent(nn.Module):
    """The policy, a Gaussian of fixed width around an action, and how it sees the world."""

    mean: torch.Tensor
    std: torch.Tensor
    center: torch.Tensor
    reach: torch.Tensor

    def __init__(self, mean: torch.Tensor, std: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> None:
        super().__init__()
        for name, value in (("mean", mean), ("std", std), ("center", (low + high) / 2), ("reach", (high - low) / 2)):
            self.register_buffer(name, value)
        self.net = network(len(mean), len(low))
        self.log_std = nn.Parameter(torch.zeros(len(low)))

    def scale(self, observations: torch.Tensor) -> torch.Tensor:
        """Standardise observations."""
        return (observations - self.mean) / self.std

    def forward(self, scaled: torch.Tensor) -> torch.Tensor:
        """Actions within their bounds, of scaled observations."""
        return self.net(scaled).tanh() * self.reach + self.center

    def log_prob(self, scaled: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Log-density of actions, (B,)."""
        return torch.distributions.Normal(self(scaled), self.log_std.clamp(-5, 2).exp()).log_prob(actions).sum(1)

    @torch.no_grad()
    def act(self, observations: np.ndarray) -> np.ndarray:
        """The best action."""
        return self(self.scale(torch.as_tensor(observations, dtype=torch.float32))).numpy()


def read(folders: tuple[Path, ...]) -> dict[str, torch.Tensor]:
    """Read the transitions of datasets. An episode that a time limit cuts goes on: its last value is bootstrapped."""
    columns: dict[str, list[np.ndarray]] = {name: [] for name in ("seen", "acted", "paid", "next", "ended")}
    for folder in folders:
        for episode in minari.MinariDataset(folder / "data"):
            rows = (episode.observations[:-1], episode.actions, episode.rewards, episode.observations[1:])
            for name, column in zip(columns, (*rows, episode.terminations), strict=True):
                columns[name].append(np.asarray(column, dtype=np.float32))
    data = {name: torch.from_numpy(np.concatenate(several)) for name, several in columns.items()}
    data["paid"] = (data["paid"] - data["paid"].mean()) / data["paid"].std().clamp_min(1e-6)
    return data


def learn(args: Args, data: dict[str, torch.Tensor], low: np.ndarray, high: np.ndarray) -> Agent:
    """Implicit Q-learning."""
    std, mean = torch.std_mean(data["seen"], dim=0)
    agent = Agent(mean, std.clamp_min(1e-6), torch.from_numpy(low), torch.from_numpy(high))
    data = {**data, "seen": agent.scale(data["seen"]), "next": agent.scale(data["next"])}
    q, value = TwinQ(len(mean), len(low)), network(len(mean), 1)
    target = deepcopy(q).requires_grad_(False)
    optimizers = [torch.optim.Adam(one.parameters(), lr=args.learning_rate) for one in (q, value, agent)]
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizers[2], args.steps)
    progress = trange(args.steps, unit="step")
    for step in progress:
        rows = torch.randint(len(data["paid"]), (args.batch_size,))
        seen, acted, paid, after, ended = (column[rows] for column in data.values())
        with torch.no_grad():
            estimate = target(seen, acted).min(0).values
            wanted = paid + args.gamma * (1 - ended) * value(after).squeeze(1)
        gain = estimate - value(seen).squeeze(1)
        losses = {
            "q": ((q(seen, acted) - wanted) ** 2).mean(),
            "value": (torch.where(gain > 0, args.tau, 1 - args.tau) * gain**2).mean(),
            "policy": -((args.beta * gain.detach()).exp().clamp_max(100) * agent.log_prob(seen, acted)).mean(),
        }
        for optimizer, loss in zip(optimizers, losses.values(), strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
        with torch.no_grad():
            for old, new in zip(target.parameters(), q.parameters(), strict=True):
                old.lerp_(new, args.target_rate)
        if step % 1_000 == 0:
            progress.set_postfix({name: f"{float(loss.detach()):.3g}" for name, loss in losses.items()})
    return agent


def main(args: Args) -> dict[str, float]:
    """Learn, play, and write the result."""
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    folder = args.runs_folder / f"iql__{args.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    data, task = read(args.datasets), find_task(args.env_id)
    envs = make_vector_env(args.env_id, args.episodes, autoreset_mode="SameStep")
    space = envs.single_action_space
    assert isinstance(space, gym.spaces.Box), "IQL is for continuous actions"
    agent = learn(args, data, space.low, space.high)
    torch.save(agent.state_dict(), folder / "agent.pt")
    result = play_episodes(envs, agent.act, seed=10_000).means((task and task.success_threshold) or 0.5)
    envs.close()
    (folder / "result.json").write_text(json.dumps({**asdict(args), **result}, default=str, indent=2))
    print(f"{folder}: " + ", ".join(f"{name} {value:.2f}" for name, value in result.items()))
    return result


if __name__ == "__main__":
    main(tyro.cli(Args))
