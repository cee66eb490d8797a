"""DQN on cart-pole with rewards from a prompt.

    python examples/dqn_cartpole.py
    python examples/dqn_cartpole.py --prompt "the stick stands straight up" --seed 3

Episodes are scored when they end; transitions wait in the replay buffer for their rewards. The environment's
reward and success are logged, not learned from. Writes into runs/<run name>: TensorBoard events, learning_curve.png,
agent.mp4 (the trained agent, with its reward drawn in), result.json, agent.pt.

The default model, "tiny", is bundled and was trained on this scene: it is no evidence of zero-shot ability. With a GPU
and a network, use a large model: --model ViT-L-14/laion2b_s32b_b82k

After CleanRL's dqn.py (https://docs.cleanrl.dev/rl-algorithms/dqn/), with changes that make short runs reliable: double
Q-learning, soft target updates and, as in the paper, keeping the agent with the best VLM return.
"""

import json
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import tyro
from gymnasium.wrappers import TimeLimit
from matplotlib.figure import Figure
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

import vlmrm_gym
from vlmrm_gym.data.statistics import EpisodeStatistics, finished_episodes, play_episodes
from vlmrm_gym.data.videos import record_video


@dataclass
class Args:
    exp_name: str = "dqn_cartpole"
    """the name of this experiment"""
    env_id: str = "VLMRM/CartPole-v1"
    """the id of the environment"""
    seed: int = 1
    """seed of the experiment"""
    track: bool = False
    """if toggled, this experiment will be tracked with Weights and Biases (`pip install "vlmrm-gym[track]"`)"""
    capture_video: bool = True
    """whether to write a video of the trained agent"""
    runs_folder: Path = Path("runs")
    """parent folder of the run's folder"""

    # The reward
    prompt: str = "pole vertically upright on top of the cart"
    """the goal, and the agent's only reward"""
    baseline: str = "pole and cart"
    """the scene without the goal; used when alpha is above 0"""
    alpha: float = 0.0
    """strength of the goal-baseline regularisation"""
    model: str = "tiny"
    """the vision-language model: any open_clip model, see `vlmrm_gym.CLIPReward`"""
    device: str = "auto"
    """device of the vision-language model"""
    episode_length: int = 200
    """steps of an episode"""
    score_every: int = 1
    """draw and encode every so manyth state, and interpolate the rewards of the others"""
    num_workers: int = 0
    """worker processes that render and score; 0: the main process"""

    # Algorithm specific arguments
    total_timesteps: int = 15_000
    """total timesteps of the experiment, over all environments"""
    num_envs: int = 4
    """the number of parallel environments"""
    learning_rate: float = 5e-4
    """the learning rate of the optimizer; falls to zero linearly"""
    buffer_size: int = 100_000
    """the replay memory buffer size"""
    gamma: float = 0.98
    """the discount factor gamma"""
    tau: float = 0.005
    """the target network update rate"""
    batch_size: int = 128
    """the batch size of samples from the replay memory"""
    start_e: float = 1.0
    """the starting epsilon for exploration"""
    end_e: float = 0.05
    """the ending epsilon for exploration"""
    exploration_fraction: float = 0.4
    """the fraction of `total_timesteps` it takes from start_e to end_e"""
    learning_starts: int = 1_000
    """timestep to start learning, if episodes have been scored by then"""
    updates_per_step: float = 1.0
    """gradient steps per timestep"""
    selection_frequency: int = 2_000
    """timesteps between evaluations of the greedy agent; the one with the best VLM return is kept"""
    selection_episodes: int = 4
    """episodes per evaluation, played in parallel"""
    eval_episodes: int = 100
    """episodes of the final evaluation"""


def task_options(args: Args) -> dict[str, Any]:
    names = ("prompt", "baseline", "alpha", "model", "device", "episode_length")
    return {name: getattr(args, name) for name in names}


def make_envs(args: Args, num_envs: int) -> gym.vector.VectorEnv:
    options = {name: getattr(args, name) for name in ("num_workers", "score_every")}
    return gym.make_vec(args.env_id, num_envs, **task_options(args), **options)


# ALGO LOGIC: initialize agent here:
class QNetwork(nn.Module):
    def __init__(self, envs: gym.vector.VectorEnv) -> None:
        super().__init__()
        assert isinstance(envs.single_observation_space, gym.spaces.Box)
        assert isinstance(envs.single_action_space, gym.spaces.Discrete)
        self.network = nn.Sequential(
            nn.Linear(envs.single_observation_space.shape[0], 128),
            nn.ReLU(),
            nn.Linear(128, 128),
            nn.ReLU(),
            nn.Linear(128, int(envs.single_action_space.n)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)

    def greedy(self, observations: np.ndarray) -> np.ndarray:
        """The best actions, int64 (...), for observations float32 (..., D)."""
        with torch.no_grad():
            return self(torch.from_numpy(observations)).argmax(-1).numpy()


def linear_schedule(start: float, end: float, duration: float, t: int) -> float:
    return max(start + (end - start) * t / duration, end)


def evaluate(agent: QNetwork, args: Args) -> dict[str, float]:
    """Returns and success of the greedy agent in the bare environment: nothing has to be drawn and scored."""

    def make_bare() -> gym.Env:
        return TimeLimit(gym.make(args.env_id, **task_options(args)).unwrapped, args.episode_length)

    envs = gym.vector.SyncVectorEnv([make_bare] * args.eval_episodes)
    means = play_episodes(envs, agent.greedy, seed=10_000).means(success_threshold=1.0)
    envs.close()
    return means


def plot(curve: list[dict[str, float]], path: Path, title: str) -> None:
    """Draw returns and success of the training's episodes against steps."""
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    for axis, name in zip(figure.subplots(1, 3), ("vlm_return", "task_return", "success_fraction"), strict=True):
        rows = [row for row in curve if name in row]
        axis.plot([row["step"] for row in rows], [row[name] for row in rows], ".-", alpha=0.5, linewidth=1)
        axis.set(title=name, xlabel="steps")
    figure.suptitle(title)
    figure.savefig(path, dpi=120)


def main(args: Args) -> Path:
    started = time.monotonic()
    run_name = f"{args.env_id.replace('/', '_').replace(':', '_')}__{args.exp_name}__{args.seed}__{int(time.time())}"
    run_folder = args.runs_folder / run_name
    if args.track:
        import wandb

        wandb.init(project="vlmrm_gym", sync_tensorboard=True, config=vars(args), name=run_name, save_code=True)
    writer = SummaryWriter(str(run_folder))
    settings = {name: value for name, value in vars(args).items() if name != "runs_folder"}
    table = "\n".join(f"|{name}|{value}|" for name, value in settings.items())
    writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{table}")

    # TRY NOT TO MODIFY: seeding
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    # env setup
    envs = EpisodeStatistics(make_envs(args, args.num_envs))
    selection_envs = make_envs(args, args.selection_episodes)
    envs.action_space.seed(args.seed)

    q_network, target_network = QNetwork(envs), QNetwork(envs)
    target_network.load_state_dict(q_network.state_dict())
    optimizer = torch.optim.Adam(q_network.parameters(), lr=args.learning_rate)
    buffer = vlmrm_gym.ReplayBuffer(args.buffer_size, envs, seed=args.seed)

    curve: list[dict[str, float]] = []
    global_step, updates, best_return = 0, 0, -np.inf

    # TRY NOT TO MODIFY: start the game
    observations, _ = envs.reset(seed=args.seed)
    progress = tqdm(total=args.total_timesteps, unit="step", smoothing=0.05)
    while global_step < args.total_timesteps:
        # ALGO LOGIC: put action logic here
        epsilon = linear_schedule(
            args.start_e, args.end_e, args.exploration_fraction * args.total_timesteps, global_step
        )
        explores = np.random.random(args.num_envs) < epsilon
        actions = np.where(explores, envs.action_space.sample(), q_network.greedy(observations))

        # TRY NOT TO MODIFY: execute the game and log data
        next_observations, rewards, terminations, truncations, infos = envs.step(actions)
        buffer.add(observations, actions, next_observations, rewards, terminations, truncations, infos)
        observations = next_observations
        previous_step, global_step = global_step, global_step + int(infos["_task_reward"].sum())  # without autoresets
        progress.update(global_step - previous_step)
        for row in finished_episodes(infos):
            curve.append({"step": global_step, **row})
            for name, value in row.items():
                writer.add_scalar(f"charts/{name}", value, global_step)

        # ALGO LOGIC: training
        optimizer.param_groups[0]["lr"] = linear_schedule(args.learning_rate, 0, args.total_timesteps, global_step)
        while len(buffer) and updates < (global_step - args.learning_starts) * args.updates_per_step:
            batch = buffer.sample(args.batch_size)
            with torch.no_grad():
                next_actions = q_network(batch.next_observations).argmax(1, keepdim=True)  # double DQN
                target_max = target_network(batch.next_observations).gather(1, next_actions).squeeze(1)
                td_target = batch.rewards + args.gamma * target_max * (1 - batch.terminations)
            old_val = q_network(batch.observations).gather(1, batch.actions[:, None]).squeeze(1)
            loss = F.smooth_l1_loss(old_val, td_target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for target, parameter in zip(target_network.parameters(), q_network.parameters(), strict=True):
                    target.lerp_(parameter, args.tau)
            updates += 1
            if updates % 100 == 0:
                writer.add_scalar("losses/td_loss", loss.item(), global_step)
                writer.add_scalar("losses/q_values", old_val.mean().item(), global_step)
                writer.add_scalar("charts/SPS", progress.format_dict["rate"] or 0, global_step)

        # Keep the agent if it is the best so far
        due = global_step // args.selection_frequency > previous_step // args.selection_frequency
        if due or global_step >= args.total_timesteps:
            greedy_return = float(play_episodes(selection_envs, q_network.greedy, seed=args.seed).vlm_returns.mean())
            writer.add_scalar("charts/greedy_vlm_return", greedy_return, global_step)
            progress.set_postfix(greedy_vlm_return=f"{greedy_return:.1f}")
            if greedy_return >= best_return:
                best_return = greedy_return
                torch.save(q_network.state_dict(), run_folder / "agent.pt")
    progress.close()
    envs.close()
    selection_envs.close()

    # Evaluate the best agent
    q_network.load_state_dict(torch.load(run_folder / "agent.pt"))
    means = evaluate(q_network, args)
    result = {"success": means["success"], "task_return": means["task_return"], "best_greedy_vlm_return": best_return}
    result |= {"minutes": (time.monotonic() - started) / 60, "version": vlmrm_gym.__version__, "args": settings}
    (run_folder / "result.json").write_text(json.dumps(result, indent=2))
    plot(curve, run_folder / "learning_curve.png", title=f'"{args.prompt}", {args.model}, seed {args.seed}')
    if args.capture_video:
        env = gym.make(args.env_id, **task_options(args))
        record_video(env, q_network.greedy, run_folder / "agent.mp4", seed=args.seed, title=args.prompt)
        env.close()
    writer.close()
    print(f"\nSuccess in {means['success']:.0%} of {args.eval_episodes} episodes ({run_folder}).")
    return run_folder


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
