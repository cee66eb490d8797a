"""SAC for many agents at once, as Stable-Baselines3 has it for one: their networks are one batch, for one GPU.

The agents share the number of their steps, nothing else. Episodes may be cut, and do not end. See metaworld_agents.py.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

BATCH, WIDTH = 256, 256


class Networks(torch.nn.Module):
    """Perceptrons of N agents with two hidden layers: float32 (..., N, B, inputs) to (..., N, B, outputs)."""

    def __init__(self, *batch: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layers = torch.nn.ParameterList()
        for fan, width in ((inputs, WIDTH), (WIDTH, WIDTH), (WIDTH, outputs)):
            bound = 1 / math.sqrt(fan)
            self.layers.append(torch.empty(*batch, fan, width).uniform_(-bound, bound))
            self.layers.append(torch.empty(*batch, 1, width).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Apply each agent's network to its batch."""
        weights = list(self.layers)
        for weight, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
            x = torch.relu(x @ weight + bias)
        return x @ weights[-2] + weights[-1]


class Learner:
    """The networks of N agents, and their replay buffers.

    Args:
        count: Number of agents, N.
        capacity: Steps that a buffer has room for.
        sizes: Of an observation and of an action.
        gamma: The discount.
        rate: Learning rate of Adam.
        alpha: The entropy coefficient at first.
        device: Of all.
    """

    def __init__(
        self,
        count: int,
        capacity: int,
        sizes: tuple[int, int],
        *,
        gamma: float,
        rate: float,
        alpha: float,
        device: torch.device,
    ) -> None:
        self._count, self._gamma, self._device, self._graph = count, gamma, device, None
        observation, self._action = sizes
        self._actor = Networks(count, inputs=observation, outputs=2 * self._action).to(device)
        self._critics = Networks(2, count, inputs=sum(sizes), outputs=1).to(device)
        self._targets = Networks(2, count, inputs=sum(sizes), outputs=1).to(device)
        self._targets.load_state_dict(self._critics.state_dict())
        self._targets.requires_grad_(False)
        self._log_alpha = torch.full((count,), math.log(alpha), device=device, requires_grad=True)
        self._groups = [[self._log_alpha], list(self._critics.parameters()), list(self._actor.parameters())]
        self._optimizers = [torch.optim.Adam(group, rate, capturable=device.type == "cuda") for group in self._groups]
        self._mean = torch.zeros(count, 1, observation, device=device)
        self._var = torch.ones_like(self._mean)
        self._updates, self._size = torch.zeros((), device=device), torch.zeros((), device=device)
        self._steps = [torch.zeros(count, capacity, size, device=device) for size in (*sizes, observation)]
        self._rewards = torch.zeros(count, capacity, device=device)
        self._rows = torch.arange(count, device=device)[:, None]

    def store(self, parts: Sequence[np.ndarray], rewards: np.ndarray) -> None:
        """Add steps, (observations, actions, next observations), float32 (N, T, D). `rewards`, (N, all), are of all."""
        stop = rewards.shape[1]
        for memory, part in zip(self._steps, parts, strict=True):
            memory[:, stop - part.shape[1] : stop] = torch.as_tensor(part).to(self._device)
        self._rewards[:, :stop] = torch.as_tensor(rewards).to(self._device)
        self._size.fill_(stop)

    @torch.no_grad()
    def choose(self, observations: np.ndarray, deterministic: bool = False) -> np.ndarray:
        """The actions of the agents in their states, float32 (N, D)."""
        return self._act(torch.as_tensor(observations).to(self._device)[:, None], deterministic)[0][:, 0].cpu().numpy()

    def update(self) -> None:
        """Take a gradient step. On a GPU its kernels are recorded once, and replayed; it does not wait for them."""
        if self._device.type != "cuda":
            self._update()
        elif self._graph is not None:
            self._graph.replay()
        else:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):  # as torch.cuda.graph asks for
                    self._update()
            torch.cuda.current_stream().wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._update()

    def _update(self) -> None:
        index = (torch.rand(self._count, BATCH, device=self._device) * self._size).long()
        before, actions, after = (memory[self._rows, index] for memory in self._steps)
        self._updates += 1
        weight = 1 / self._updates.clamp_max(100)
        self._mean.lerp_(before.mean(1, keepdim=True), weight)
        self._var.lerp_(before.var(1, keepdim=True), weight)
        new, density = self._act(before)
        alpha = self._log_alpha.detach().exp()[:, None]
        self._descend(0, -(self._log_alpha[:, None] * (density.detach() - self._action)).mean(1).sum())
        with torch.no_grad():
            following, following_density = self._act(after)
            future = self._value(self._targets, after, following).amin(0) - alpha * following_density
            goal = self._rewards[self._rows, index] + self._gamma * future
        self._descend(1, 0.5 * (self._value(self._critics, before, actions) - goal).square().mean(-1).sum())
        self._descend(2, (alpha * density - self._value(self._critics, before, new).amin(0)).mean(-1).sum())
        for target, critic in zip(self._targets.parameters(), self._critics.parameters(), strict=True):
            target.lerp_(critic.detach(), 0.005)

    def _normal(self, observations: Tensor) -> Tensor:
        return ((observations - self._mean) / self._var.sqrt().clamp_min(1e-3)).clamp(-10, 10)

    def _act(self, observations: Tensor, deterministic: bool = False) -> tuple[Tensor, Tensor]:
        mean, log_std = self._actor(self._normal(observations)).chunk(2, -1)
        if deterministic:
            return mean.tanh(), mean
        log_std = log_std.clamp(-20, 2)
        noise = torch.randn_like(mean)
        actions = (mean + log_std.exp() * noise).tanh()
        density = (-0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
        return actions, density - (1 - actions.square() + 1e-6).log().sum(-1)

    def _value(self, critics: Networks, observations: Tensor, actions: Tensor) -> Tensor:
        return critics(torch.cat([self._normal(observations), actions], -1))[..., 0]

    def _descend(self, group: int, loss: Tensor) -> None:
        gradients = torch.autograd.grad(loss, self._groups[group])
        for parameter, gradient in zip(self._groups[group], gradients, strict=True):
            parameter.grad = gradient
        self._optimizers[group].step()
