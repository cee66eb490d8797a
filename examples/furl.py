r"""FuRL: SAC on a sparse task reward, beside which the score of a prompt is paid that is tuned to the successes.

    python examples/furl.py
    python examples/furl.py --no-tune            # CLIP's score as it is
    python examples/furl.py --vlm-weight 0       # the sparse reward alone
    python examples/furl.py --env-id my_module:MyTask-v0 --model ViT-B-32/laion2b_s34b_b79k

The environment pays 1 at every step whose info["success"] is true, else 0. Added is `vlm_weight` times the cosine
similarity of frame and prompt, under two small networks on the features of a frozen CLIP: one on the image's, one on
the prompt's. They begin as the identity, so that CLIP's score is paid until the first success. From then on two
ranking losses are minimised between episodes: states of successful episodes, up to the success, above states of others;
and above the states `gap` steps before them. Then all stored rewards are made anew. Writes into runs/<run name>:
TensorBoard events, agent.pt, head.pt, result.json (success after each fifth of the training).

After FuRL (arXiv 2406.00645), with its code's constants, but 200 gradient steps a tuning for 1,000. Its networks begin
at random and end in 64 numbers, its task reward is 0 and -1; its second agent, and its images of the goal, are left
out. The agent is after CleanRL's sac_continuous_action.py (https://docs.cleanrl.dev/rl-algorithms/sac/).
"""

import copy
import json
import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import tyro
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

import vlmrm_gym
from vlmrm_gym import ReplayBuffer
from vlmrm_gym.data.replay import Batch
from vlmrm_gym.data.statistics import EpisodeStatistics, finished_episodes, play_episodes
from vlmrm_gym.envs.make import find_task, make_base_env


@dataclass
class Args:
    env_id: str = "VLMRM/MountainCarContinuous-v0"
    """the id of the environment: a task of this package, or of `vlmrm_gym.tasks.register`"""
    seed: int = 1
    """seed of the experiment"""
    runs_folder: Path = Path("runs")
    """parent folder of the run's folder"""

    # The reward
    prompt: str | None = None
    """the goal; None: the task's prompt"""
    model: str = "tiny"
    """the vision-language model: any open_clip model, see `vlmrm_gym.CLIPReward`"""
    vlm_weight: float = 0.05
    """of the cosine similarity (rho); that of the sparse reward is 1"""
    tune: bool = True
    """whether the networks are tuned"""
    tune_frequency: int = 1_000
    """timesteps from one tuning to the next"""
    gradient_steps: int = 200
    """of a tuning"""
    gap: int = 10
    """steps from the earlier to the later state of a success"""
    margin: float = 0.1
    """by how much the cosine similarity of the better state should be higher"""
    capacity: int = 20_000
    """states that are kept of successes, and of failures: the newest"""

    # Algorithm specific arguments: those of mountain car, without the persistent exploration that finds the flag
    total_timesteps: int = 40_000
    """total timesteps of the experiment, over all environments"""
    num_envs: int = 8
    """the number of parallel environments"""
    gamma: float = 0.99
    """the discount factor gamma"""
    batch_size: int = 256
    """the batch size of samples from the replay memory; also of successes, and of failures, in a tuning"""
    learning_starts: int = 4_800
    """timestep to start learning; actions are random until then"""
    learning_rate: float = 6e-4
    """the learning rate of the optimizer"""
    updates_per_step: float = 0.5
    """gradient steps per timestep"""
    hidden: int = 128
    """units of each of the two hidden layers"""
    eval_episodes: int = 100
    """episodes of each of the five evaluations"""


# THE ENVIRONMENT
class SparseReward(gym.Wrapper):
    """Pays 1 at every step that succeeds, and nothing else."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = self.env.step(action)
        return observation, float(info["success"]), terminated, truncated, info


# THE REWARD
class Residual(nn.Sequential):
    """Adds to its input what a network with one hidden layer makes of it: nothing at first."""

    def __init__(self, size: int) -> None:
        super().__init__(nn.Linear(size, 256), nn.ReLU(), nn.Linear(256, size))
        for parameter in self[2].parameters():
            nn.init.zeros_(parameter)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return input + super().forward(input)


class Head(nn.Module):
    """Rewards of features: `weight` times the cosine similarity of states and prompt, the lowest of a state's views."""

    def __init__(self, text: torch.Tensor, args: Args) -> None:
        super().__init__()
        self.text, self.weight = nn.Buffer(text), args.vlm_weight
        self.image_network, self.text_network = (Residual(len(text)) for _ in range(2))

    def cosine(self, features: torch.Tensor) -> torch.Tensor:
        """Cosine similarities (...,) of features (..., V, D)."""
        images, text = self.image_network(features), self.text_network(self.text)
        return (F.normalize(images, dim=-1) @ F.normalize(text, dim=-1)).amin(-1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.weight * self.cosine(features)


def count_success_steps(success: np.ndarray, threshold: float) -> int:
    """The steps of an episode, bool (T,), up to the first success and on while they succeed; 0 if it is none."""
    if not success.any() or success.mean() < threshold:
        return 0
    first = int(success.argmax())
    return first + int((~success[first:]).argmax()) if not success[first:].all() else len(success)


class Tuner:
    """Keeps features of successes and failures, and tunes a head to them."""

    def __init__(self, head: Head, args: Args) -> None:
        self.head, self.args, self.num_successes = head, args, 0
        self.optimizer = torch.optim.Adam(head.parameters(), lr=1e-4)
        self.pairs: list[torch.Tensor] = []  # of successes: features of a later and an earlier state, (2, V, D) each
        self.failures: list[torch.Tensor] = []  # features of states of other episodes, (V, D) each

    def add(self, features: np.ndarray, success: np.ndarray, threshold: float) -> None:
        """Add an episode: features (T, V, D) and successes (T,)."""
        rows, count, gap = torch.from_numpy(features), count_success_steps(success, threshold), self.args.gap
        if count:
            self.num_successes += 1
            new = torch.stack((rows[gap:count], rows[: max(0, count - gap)]), 1)
            self.pairs = [*self.pairs, *new][-self.args.capacity :]
        else:
            self.failures = [*self.failures, *rows][-self.args.capacity :]

    def tune(self) -> dict[str, float]:
        """Take the gradient steps. Returns what is worth logging: nothing without successes or failures."""
        if not (self.pairs and self.failures):
            return {}
        pairs, failures, losses = torch.stack(self.pairs), torch.stack(self.failures), []
        for _ in range(self.args.gradient_steps):
            later, earlier = self.head.cosine(pairs[torch.randint(len(pairs), (self.args.batch_size,))]).unbind(1)
            other = self.head.cosine(failures[torch.randint(len(failures), (self.args.batch_size,))])
            loss = F.relu(self.args.margin - later + torch.stack((earlier, other))).mean(1).sum()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            success, failure = (self.head.cosine(rows).mean().item() for rows in (pairs[:, 0], failures))
        return {"loss": float(np.mean(losses)), "success_cosine": success, "failure_cosine": failure}


# ALGO LOGIC: initialize agent here:
def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    first, second = (nn.Linear(inputs, hidden), nn.ReLU()), (nn.Linear(hidden, hidden), nn.ReLU())
    return nn.Sequential(*first, *second, nn.Linear(hidden, outputs))


class Agent(nn.Module):
    """Networks, entropy coefficient, mean and standard deviation of observations while exploring; and the losses."""

    def __init__(self, envs: gym.vector.VectorEnv, args: Args) -> None:
        super().__init__()
        observation_space, action_space = envs.single_observation_space, envs.single_action_space
        assert isinstance(observation_space, gym.spaces.Box)
        assert isinstance(action_space, gym.spaces.Box), "only continuous action space is supported"
        observation_size, action_size = int(np.prod(observation_space.shape)), int(np.prod(action_space.shape))
        high, low = torch.from_numpy(action_space.high), torch.from_numpy(action_space.low)
        self.action_scale, self.action_bias = nn.Buffer((high - low) / 2), nn.Buffer((high + low) / 2)
        self.mean, self.std = nn.Buffer(torch.zeros(observation_size)), nn.Buffer(torch.ones(observation_size))
        self.actor = mlp(observation_size, args.hidden, 2 * action_size)
        self.qf = nn.ModuleList(mlp(observation_size + action_size, args.hidden, 1) for _ in range(2))
        self.qf_target = copy.deepcopy(self.qf).requires_grad_(False)
        self.log_ent_coef = nn.Parameter(torch.tensor(0.0))
        self.gamma, self.target_entropy = args.gamma, -action_size

    def normalize(self, observations: torch.Tensor) -> torch.Tensor:
        return ((observations - self.mean) / self.std).clamp(-10, 10)

    def sample(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Actions (..., A) for normalized observations, their log probabilities (...,), and the mean actions."""
        mean, log_std = self.actor(observations).chunk(2, -1)
        log_std = log_std.clamp(-20, 2)  # of Stable-Baselines3: it explores more at first than CleanRL's
        distribution = torch.distributions.Normal(mean, log_std.exp())
        u = distribution.rsample()
        # log(1 - tanh(u)^2), in a form that does not underflow
        log_slope = 2 * (math.log(2) - u - F.softplus(-2 * u))
        log_probability = (distribution.log_prob(u) - log_slope - self.action_scale.log()).sum(-1)
        actions, mean_actions = (torch.tanh(x) * self.action_scale + self.action_bias for x in (u, mean))
        return actions, log_probability, mean_actions

    def losses(self, batch: Batch) -> torch.Tensor:
        """Losses of the Q functions, the actor and the entropy coefficient: (3,)."""
        observations, next_observations = self.normalize(batch.observations), self.normalize(batch.next_observations)
        ent_coef = self.log_ent_coef.detach().exp()
        with torch.no_grad():
            next_actions, next_log_probability, _ = self.sample(next_observations)
            inputs = torch.cat((next_observations, next_actions), -1)
            next_value = torch.cat([qf(inputs) for qf in self.qf_target], -1).amin(-1)
            next_value -= ent_coef * next_log_probability
            target = batch.rewards + self.gamma * (1 - batch.terminations) * next_value
        inputs = torch.cat((observations, batch.actions), -1)
        qf_loss = F.mse_loss(torch.cat([qf(inputs) for qf in self.qf], -1), target[:, None].expand(-1, 2))
        actions, log_probability, _ = self.sample(observations)
        self.qf.requires_grad_(False)  # the actor's loss reaches the actor through the Q functions only
        inputs = torch.cat((observations, actions), -1)
        values = torch.cat([qf(inputs) for qf in self.qf], -1).amin(-1)
        self.qf.requires_grad_(True)
        actor_loss = (ent_coef * log_probability - values).mean()
        ent_coef_loss = -self.log_ent_coef.exp() * (log_probability.detach() + self.target_entropy).mean()
        return torch.stack([qf_loss, actor_loss, ent_coef_loss])

    @torch.no_grad()
    def act(self, observations: np.ndarray, deterministic: bool = False) -> np.ndarray:
        """Actions (..., A) for observations (..., D)."""
        x = torch.as_tensor(observations, dtype=torch.float32, device=self.log_ent_coef.device)
        actions, _, mean_actions = self.sample(self.normalize(x))
        return (mean_actions if deterministic else actions).cpu().numpy()


def main(args: Args) -> Path:
    started, task = time.monotonic(), find_task(args.env_id)
    if task is None or task.prompt is None or task.success_threshold is None:
        raise ValueError(f"`env_id` must be a task with a prompt and a success. Received {args.env_id!r}.")
    prompt, threshold = args.prompt or task.prompt, task.success_threshold
    run_name = f"{args.env_id.replace('/', '_').replace(':', '_')}__furl__{args.seed}__{int(time.time())}"
    run_folder = args.runs_folder / run_name
    writer = SummaryWriter(str(run_folder))

    # TRY NOT TO MODIFY: seeding
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    # env setup: from the first step on our head makes the rewards; the sparse reward is added
    def make() -> gym.Env:
        return SparseReward(make_base_env(task, task.episode_length))

    options: dict[str, Any] = {"prompt": prompt, "model": args.model, "camera": task.camera}
    options |= {"return_features": True, "task_reward_weight": 1.0}
    envs = EpisodeStatistics(vlmrm_gym.VLMRewardVectorEnv([make] * args.num_envs, **options))
    text = vlmrm_gym.CLIPReward(args.model, prompt=prompt).head.goal
    tuner = Tuner(Head(text.cpu().float(), args), args)
    envs.head.replace(copy.deepcopy(tuner.head))
    evaluation_envs = gym.vector.SyncVectorEnv([make] * args.eval_episodes)

    buffer = ReplayBuffer(args.total_timesteps, envs, device=device, seed=args.seed)
    agent = Agent(envs, args).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate)
    curve: list[float] = []
    waiting: list[list[bool]] = [[] for _ in range(args.num_envs)]  # successes of steps without features yet
    global_step = updates = 0

    # TRY NOT TO MODIFY: start the game
    observations, _ = envs.reset(seed=args.seed)
    envs.action_space.seed(args.seed)
    progress = tqdm(total=args.total_timesteps, unit="step", smoothing=0.05)
    while global_step < args.total_timesteps:
        # ALGO LOGIC: put action logic here
        actions = agent.act(observations) if updates else envs.action_space.sample()

        # TRY NOT TO MODIFY: execute the game and log data
        next_observations, rewards, terminations, truncations, infos = envs.step(actions)
        buffer.add(observations, actions, next_observations, rewards, terminations, truncations, infos)
        observations = next_observations
        stepped = infos["_task_reward"]  # false where an environment was only reset
        previous_step, global_step = global_step, global_step + int(stepped.sum())
        progress.update(global_step - previous_step)
        for row in finished_episodes(infos):
            for name, value in row.items():
                writer.add_scalar(f"charts/{name}", value, global_step)

        # TUNE, RELABEL
        for i in np.flatnonzero(stepped):
            waiting[i].append(bool(infos["success"][i]))
        for late in vlmrm_gym.read_late(infos):
            assert late.features is not None  # of environments with return_features=True
            count = len(late.features)
            tuner.add(late.features, np.array(waiting[late.env][:count]), threshold)
            waiting[late.env] = waiting[late.env][count:]
        is_due = global_step // args.tune_frequency > previous_step // args.tune_frequency
        if args.tune and is_due and (scalars := tuner.tune()):
            for name, value in scalars.items():
                writer.add_scalar(f"tuning/{name}", value, global_step)
            envs.head.replace(copy.deepcopy(tuner.head))
            buffer.relabel(envs.head)  # all rewards, old and new ones, are of the newest head

        # LEARN
        learning = global_step >= args.learning_starts and len(buffer) >= args.batch_size
        if learning and not updates:
            explored = buffer.sample(10_000).observations
            agent.mean.copy_(explored.mean(0))
            agent.std.copy_(explored.std(0).clamp_min(1e-2))
        while learning and updates < (global_step - args.learning_starts) * args.updates_per_step:
            losses = agent.losses(buffer.sample(args.batch_size))
            optimizer.zero_grad()
            losses.sum().backward()
            optimizer.step()
            with torch.no_grad():
                for target, parameter in zip(agent.qf_target.parameters(), agent.qf.parameters(), strict=True):
                    target.lerp_(parameter, 0.005)
            updates += 1

        # Evaluate the deterministic agent, by the simulator's state, after each fifth of the training
        if global_step >= (len(curve) + 1) * args.total_timesteps / 5:
            played = play_episodes(evaluation_envs, partial(agent.act, deterministic=True), seed=10_000)
            curve.append(played.means(threshold)["success"])
            writer.add_scalar("greedy/success", curve[-1], global_step)
            progress.write(f"{global_step:,} steps, {tuner.num_successes} successful episodes: success {curve[-1]:.0%}")
    progress.close()
    envs.close()
    evaluation_envs.close()

    for name, module in (("agent", agent), ("head", tuner.head)):
        torch.save(module.state_dict(), run_folder / f"{name}.pt")
    result = {"success": curve, "training_successes": tuner.num_successes, "timesteps": global_step}
    result |= {"minutes": (time.monotonic() - started) / 60, "version": vlmrm_gym.__version__, "args": vars(args)}
    (run_folder / "result.json").write_text(json.dumps(result, indent=2, default=str))
    writer.close()
    print(f"\n{run_folder}: success {curve[-1]:.2f} after {tuner.num_successes} successful training episodes")
    return run_folder


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
