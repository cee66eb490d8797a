r"""PPO with rewards from a prompt: any ID with continuous actions that renders.

    python examples/ppo_continuous.py --env-id VLMRM/MountainCarContinuous-v0
    python examples/ppo_continuous.py --env-id Ant-v5 --prompt "an ant robot on its back" \
        --model ViT-B-32/laion2b_s34b_b79k

After CleanRL's ppo_continuous_action.py (https://docs.cleanrl.dev/rl-algorithms/ppo/). Lines that differ from a script
with ordinary rewards are marked `# vlmrm_gym`: rewards arrive when an episode has been scored; at the end of a rollout
`flush` has those of unfinished episodes. Exploration noise is held for some steps, as a car that has to swing up needs.

Writes into runs/<run name>: TensorBoard events, agent.pt (the best by VLM return), result.json.
"""

import json
import math
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import tyro
from torch.distributions.normal import Normal
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

import vlmrm_gym
from vlmrm_gym.data.statistics import EpisodeStatistics, finished_episodes, play_episodes
from vlmrm_gym.envs.make import find_task, make_vector_env


@dataclass
class Args:
    exp_name: str = "ppo_continuous"
    """the name of this experiment"""
    env_id: str = "VLMRM/MountainCarContinuous-v0"
    """the id of the environment"""
    seed: int = 1
    """seed of the experiment"""
    runs_folder: Path = Path("runs")
    """parent folder of the run's folder"""

    # The reward
    prompt: str | None = None
    """the goal; None: the task's prompt"""
    model: str | None = None
    """the vision-language model: tiny or any open_clip model, see `vlmrm_gym.CLIP` (None: by the environment)"""
    reward: str | None = None
    """instead of a prompt: package.module:attribute, or the folder of a saved reward"""
    num_workers: int = 0
    """worker processes that render and score; 0: the main process"""

    # Algorithm specific arguments
    total_timesteps: int = 160_000
    """total timesteps of the experiment, over all environments"""
    num_envs: int = 8
    """the number of parallel environments"""
    num_steps: int = 256
    """the number of steps of each environment per rollout; episodes need not end with it"""
    learning_rate: float = 3e-4
    """the learning rate of the optimizer, which is annealed to 0"""
    gamma: float = 0.99
    """the discount factor gamma"""
    gae_lambda: float = 0.95
    """the lambda for the general advantage estimation"""
    num_minibatches: int = 8
    """the number of mini-batches"""
    update_epochs: int = 10
    """the K epochs to update the policy"""
    clip_coef: float = 0.2
    """the surrogate clipping coefficient"""
    ent_coef: float = 0.0
    """coefficient of the entropy"""
    vf_coef: float = 0.5
    """coefficient of the value function"""
    max_grad_norm: float = 0.5
    """the maximum norm for the gradient clipping"""
    noise_hold: int = 10
    """steps for which an environment keeps the noise of its actions"""
    selection_frequency: int = 10
    """rollouts between evaluations of the deterministic agent; the one with the best VLM return is kept"""
    eval_episodes: int = 100
    """episodes of the final evaluation"""


def make_envs(args: Args, num_envs: int, **options: Any) -> gym.vector.VectorEnv:
    options |= {"prompt": args.prompt, "model": args.model, "reward": args.reward, "num_workers": args.num_workers}
    given = {name: value for name, value in options.items() if value is not None}
    return make_vector_env(args.env_id, num_envs, autoreset_mode="SameStep", **given)  # vlmrm_gym


def layer_init(layer: nn.Linear, std: float = math.sqrt(2)) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, std)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    """Actor and critic, and the mean and standard deviation of observations and rewards so far."""

    def __init__(self, envs: gym.vector.VectorEnv) -> None:
        super().__init__()
        space = envs.single_action_space
        assert isinstance(space, gym.spaces.Box), "only continuous action space is supported"
        inputs, outputs = math.prod(envs.single_observation_space.shape or ()), math.prod(space.shape)

        def mlp(size: int, std: float) -> nn.Sequential:
            hidden = [layer_init(nn.Linear(inputs, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh()]
            return nn.Sequential(*hidden, layer_init(nn.Linear(64, size), std))

        self.critic, self.actor_mean = mlp(1, 1.0), mlp(outputs, 0.01)
        self.actor_logstd = nn.Parameter(torch.zeros(outputs))
        self.count, self.mean = nn.Buffer(torch.full((1,), 1e-4)), nn.Buffer(torch.zeros(inputs))
        self.var = nn.Buffer(torch.ones(inputs))
        high, low = torch.from_numpy(space.high), torch.from_numpy(space.low)
        self.scale, self.bias = nn.Buffer((high - low) / 2), nn.Buffer((high + low) / 2)

    def update_statistics(self, observations: torch.Tensor) -> None:
        """Merge the mean and the variance of new observations, (B, D), with those so far."""
        merged = merge([self.count, self.mean, self.var], observations)
        for own, new in zip((self.count, self.mean, self.var), merged, strict=True):
            own.copy_(new)

    def normalize(self, observations: torch.Tensor) -> torch.Tensor:
        return ((observations - self.mean) / (self.var + 1e-8).sqrt()).clamp(-10, 10)

    def value(self, observations: torch.Tensor) -> torch.Tensor:
        return self.critic(self.normalize(observations)).squeeze(-1)

    def distribution(self, observations: torch.Tensor) -> Normal:
        mean = self.actor_mean(self.normalize(observations))
        return Normal(mean, self.actor_logstd.exp().expand_as(mean))

    def to_env(self, actions: torch.Tensor) -> np.ndarray:
        """Actions from -1 to 1, and beyond, as the environments take them."""
        return (actions.clamp(-1, 1) * self.scale + self.bias).numpy()

    @torch.no_grad()
    def greedy(self, observations: np.ndarray) -> np.ndarray:
        return self.to_env(self.distribution(torch.as_tensor(observations, dtype=torch.float32)).mean)


def main(args: Args) -> Path:
    started = time.monotonic()
    run_folder = args.runs_folder / f"{args.env_id.replace('/', '_')}__{args.exp_name}__{args.seed}__{int(time.time())}"
    writer = SummaryWriter(str(run_folder))

    # TRY NOT TO MODIFY: seeding
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    # env setup
    task = find_task(args.env_id)
    envs = EpisodeStatistics(make_envs(args, args.num_envs))  # vlmrm_gym
    selection_envs = make_envs(args, 4)
    agent = Agent(envs)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)

    # ALGO Logic: storage setup
    shape = (args.num_steps, args.num_envs)
    size, num_actions = math.prod(envs.single_observation_space.shape or ()), len(agent.actor_logstd)
    obs, actions = torch.zeros(*shape, size), torch.zeros(*shape, num_actions)
    logprobs, values, next_values, dones = (torch.zeros(shape) for _ in range(4))
    returns_so_far, return_stats = np.zeros(args.num_envs), [1e-4, 0.0, 1.0]
    noise, v_loss, pg_loss = torch.zeros(args.num_envs, num_actions), torch.zeros(()), torch.zeros(())
    best_return, batch_size = -math.inf, args.num_steps * args.num_envs
    num_iterations = max(1, args.total_timesteps // batch_size)

    # TRY NOT TO MODIFY: start the game
    next_obs = torch.as_tensor(envs.reset(seed=args.seed)[0], dtype=torch.float32)
    for iteration in tqdm(range(1, num_iterations + 1), unit="rollout"):
        optimizer.param_groups[0]["lr"] = (1 - (iteration - 1) / num_iterations) * args.learning_rate
        rewards = np.full(shape, np.nan, dtype=np.float32)  # vlmrm_gym
        first_step: Any = None
        for step in range(args.num_steps):
            obs[step] = next_obs
            agent.update_statistics(next_obs)

            # ALGO LOGIC: action logic
            if step % args.noise_hold == 0:
                noise = torch.randn_like(noise)
            with torch.no_grad():
                chosen = agent.distribution(next_obs)
                actions[step] = chosen.mean + chosen.stddev * noise
                logprobs[step] = chosen.log_prob(actions[step]).sum(-1)
                values[step] = agent.value(next_obs)

            # TRY NOT TO MODIFY: execute the game and log data.
            observed, _, terminations, truncations, infos = envs.step(agent.to_env(actions[step]))
            first_step = infos["vlm_step_index"].copy() if step == 0 else first_step  # vlmrm_gym
            keep(rewards, first_step, infos)  # vlmrm_gym
            ends = terminations | truncations
            last = np.array(observed)
            for i in np.flatnonzero(ends):
                last[i] = infos["final_obs"][i]
            with torch.no_grad():  # a time limit is no end of the task: the value of the true last state counts
                seen = agent.value(torch.as_tensor(last, dtype=torch.float32))
            next_values[step] = seen * torch.from_numpy(~terminations)
            dones[step] = torch.from_numpy(ends)
            next_obs = torch.as_tensor(observed, dtype=torch.float32)
            for row in finished_episodes(infos):
                for name, value in row.items():
                    writer.add_scalar(f"charts/{name}", value, iteration * batch_size)
        keep(rewards, first_step, envs.flush())  # vlmrm_gym: the rewards of episodes that are not finished
        assert np.isfinite(rewards).all()

        # Rewards are divided by the standard deviation of discounted returns, as Gymnasium's NormalizeReward does
        for step in range(args.num_steps):
            returns_so_far = returns_so_far * args.gamma + rewards[step]
            return_stats = merge(return_stats, returns_so_far)
            returns_so_far *= 1 - dones[step].numpy()
        scaled = torch.from_numpy(rewards) / math.sqrt(return_stats[2] + 1e-8)

        # bootstrap value if not done
        advantages, lastgaelam = torch.zeros(shape), torch.zeros(args.num_envs)
        for t in reversed(range(args.num_steps)):
            delta = scaled[t] + args.gamma * next_values[t] - values[t]
            lastgaelam = delta + args.gamma * args.gae_lambda * (1 - dones[t]) * lastgaelam
            advantages[t] = lastgaelam
        returns = advantages + values

        # flatten the batch
        b_obs, b_actions = obs.flatten(0, 1), actions.flatten(0, 1)
        b_logprobs, b_advantages, b_returns = logprobs.flatten(), advantages.flatten(), returns.flatten()

        # Optimizing the policy and value network
        for _ in range(args.update_epochs):
            for rows in torch.randperm(batch_size).chunk(args.num_minibatches):
                distribution = agent.distribution(b_obs[rows])
                ratio = (distribution.log_prob(b_actions[rows]).sum(-1) - b_logprobs[rows]).exp()
                own = b_advantages[rows]
                own = (own - own.mean()) / (own.std() + 1e-8)
                clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
                pg_loss = torch.max(-own * ratio, -own * clipped).mean()
                v_loss = 0.5 * (agent.value(b_obs[rows]) - b_returns[rows]).square().mean()
                entropy_loss = distribution.entropy().sum(-1).mean()
                loss = pg_loss - args.ent_coef * entropy_loss + args.vf_coef * v_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()
        writer.add_scalar("losses/value_loss", v_loss.item(), iteration * batch_size)
        writer.add_scalar("losses/policy_loss", pg_loss.item(), iteration * batch_size)

        # Keep the agent if it is the best so far
        if iteration % args.selection_frequency == 0 or iteration == num_iterations:
            played = play_episodes(selection_envs, agent.greedy, seed=args.seed).means()
            for name, value in played.items():
                writer.add_scalar(f"greedy/{name}", value, iteration * batch_size)
            if played["vlm_return"] >= best_return:
                best_return = played["vlm_return"]
                torch.save(agent.state_dict(), run_folder / "agent.pt")
    envs.close()
    selection_envs.close()

    # Evaluate the best agent
    agent.load_state_dict(torch.load(run_folder / "agent.pt"))
    evaluation_envs = make_envs(args, args.eval_episodes)
    means = play_episodes(evaluation_envs, agent.greedy, seed=10_000).means((task and task.success_threshold) or 0.5)
    evaluation_envs.close()
    minutes = (time.monotonic() - started) / 60
    settings = {name: value for name, value in vars(args).items() if name != "runs_folder"}
    result = {**means, "minutes": minutes, "version": vlmrm_gym.__version__, "args": settings}
    (run_folder / "result.json").write_text(json.dumps(result, indent=2))
    writer.close()
    print(f"\n{run_folder}: " + ", ".join(f"{name} {value:.2f}" for name, value in means.items()))
    return run_folder


def keep(rewards: np.ndarray, first_step: np.ndarray, infos: Any) -> None:  # vlmrm_gym
    """Put the rewards that have arrived where their transitions are in the rollout, (num_steps, num_envs)."""
    for late in vlmrm_gym.read_late(infos):
        start = late.start - int(first_step[late.env])
        rewards[start : start + len(late.rewards), late.env] = late.rewards


def merge(stats: Any, values: Any) -> list[Any]:
    """The count, mean and variance of numbers, with new ones, (B, ...): of arrays, or of tensors."""
    (count, mean, var), new, own = stats, len(values), values.mean(0)
    total, delta = count + new, own - mean
    merged = var * count + ((values - own) ** 2).sum(0) + delta**2 * count * new / total
    return [total, mean + delta * new / total, merged / total]


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
