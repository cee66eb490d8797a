"""DQN that balances a pole because a sentence says so.

    python examples/dqn_cartpole.py
    python examples/dqn_cartpole.py --prompt "the stick stands straight up" --seed 3

The agent never sees the environment's reward or success: both are only logged. Writes into runs/<run name>:
TensorBoard events, learning_curve.png, agent.mp4 (the trained agent, with its reward drawn in), result.json, agent.pt.

The default model, "tiny", is bundled: it was trained on this scene, and is no evidence of zero-shot ability. With a GPU
and a network, take a large one: --model ViT-L-14/laion2b_s32b_b82k

After CleanRL's dqn.py (https://docs.cleanrl.dev/rl-algorithms/dqn/), with changes that make short runs reliable: double
Q-learning, a target network that follows slowly at every update, and, as in the paper, the agent that is kept is the
best by VLM return.
"""

import json
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import tyro
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

import vlmrm_gym
from vlmrm_gym.envs import CartPole
from vlmrm_gym.videos import save_video


@dataclass
class Args:
    exp_name: str = "dqn_cartpole"
    """the name of this experiment"""
    seed: int = 1
    """seed of the experiment"""
    torch_deterministic: bool = True
    """if toggled, `torch.backends.cudnn.deterministic=True`"""
    torch_threads: int | None = None
    """CPU threads of torch; all of them if left out"""
    track: bool = False
    """if toggled, this experiment will be tracked with Weights and Biases (`pip install wandb`)"""
    wandb_project_name: str = "vlmrm_gym"
    """the wandb's project name"""
    wandb_entity: str | None = None
    """the entity (team) of wandb's project"""
    capture_video: bool = True
    """whether to write a video of the trained agent"""
    video_name: str = "agent.mp4"
    """file name of the video; .mp4 or .gif"""
    runs_folder: Path = Path("runs")
    """where the run's folder is made"""

    # The reward
    env_id: str = "VLMRM/CartPole-v1"
    """the id of the environment"""
    prompt: str = "pole vertically upright on top of the cart"
    """all that the agent is told"""
    baseline: str = "pole and cart"
    """the scene without the goal; used when alpha is above 0"""
    alpha: float = 0.0
    """strength of the goal-baseline regularisation"""
    model: str = "tiny"
    """the vision-language model; any of open_clip's, see `vlmrm_gym.CLIPReward`"""
    device: str = "auto"
    """where the vision-language model runs"""
    episode_length: int = 200
    """steps of an episode"""

    # Algorithm specific arguments
    total_timesteps: int = 15_000
    """total timesteps of the experiment"""
    learning_rate: float = 5e-4
    """the learning rate of the optimizer; falls to zero linearly"""
    buffer_size: int = 100_000
    """the replay memory buffer size"""
    gamma: float = 0.98
    """the discount factor gamma"""
    tau: float = 0.005
    """how far the target network moves towards the Q network at each update"""
    batch_size: int = 128
    """the batch size of sample from the replay memory"""
    start_e: float = 1.0
    """the starting epsilon for exploration"""
    end_e: float = 0.05
    """the ending epsilon for exploration"""
    exploration_fraction: float = 0.4
    """the fraction of `total_timesteps` it takes from start_e to end_e"""
    learning_starts: int = 1_000
    """timestep to start learning"""
    train_frequency: int = 1
    """the frequency of training"""
    selection_frequency: int = 10
    """every how many episodes the greedy agent plays one, to see whether it is the best by VLM return"""
    eval_episodes: int = 100
    """episodes of the final evaluation"""


def make_env(args: Args) -> Callable[[], gym.Env]:
    def thunk() -> gym.Env:
        env = gym.make(
            args.env_id,
            prompt=args.prompt,
            baseline=args.baseline,
            alpha=args.alpha,
            model=args.model,
            device=args.device,
            episode_length=args.episode_length,
        )
        return gym.wrappers.RecordEpisodeStatistics(env)

    return thunk


# ALGO LOGIC: initialize agent here:
class QNetwork(nn.Module):
    def __init__(self, env: gym.Env) -> None:
        super().__init__()
        assert isinstance(env.observation_space, gym.spaces.Box)
        assert isinstance(env.action_space, gym.spaces.Discrete)
        self.network = nn.Sequential(
            nn.Linear(env.observation_space.shape[0], 128),
            nn.ReLU(),
            nn.Linear(128, 128),
            nn.ReLU(),
            nn.Linear(128, int(env.action_space.n)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)

    def greedy(self, observations: np.ndarray) -> np.ndarray:
        """The best actions, int64 (...), for observations float32 (..., D)."""
        with torch.no_grad():
            return self(torch.from_numpy(observations)).argmax(-1).numpy()


class ReplayBuffer:
    """The last `size` transitions."""

    def __init__(self, size: int, observation_size: int) -> None:
        self.observations = torch.zeros(size, observation_size)
        self.next_observations = torch.zeros(size, observation_size)
        self.actions = torch.zeros(size, 1, dtype=torch.int64)
        self.rewards = torch.zeros(size)
        self.terminations = torch.zeros(size)
        self.size, self.added = size, 0

    def add(
        self, observation: np.ndarray, next_observation: np.ndarray, action: int, reward: float, termination: bool
    ) -> None:
        i = self.added % self.size
        self.observations[i] = torch.from_numpy(observation)
        self.next_observations[i] = torch.from_numpy(next_observation)
        self.actions[i, 0] = action
        self.rewards[i] = reward
        self.terminations[i] = float(termination)
        self.added += 1

    def sample(self, batch_size: int) -> tuple[torch.Tensor, ...]:
        i = torch.randint(min(self.added, self.size), (batch_size,))
        return self.observations[i], self.next_observations[i], self.actions[i], self.rewards[i], self.terminations[i]


def linear_schedule(start: float, end: float, duration: float, t: int) -> float:
    return max(start + (end - start) * t / duration, end)


def play(env: gym.Env, agent: QNetwork, seed: int) -> tuple[list[np.ndarray], list[float]]:
    """One greedy episode: the frames that were scored, and their rewards."""
    frames, rewards = [], []
    observation, _ = env.reset(seed=seed)
    done = False
    while not done:
        observation, reward, terminated, truncated, _ = env.step(agent.greedy(observation).item())
        rewards.append(float(reward))
        frames.append(env.render())
        done = terminated or truncated
    return frames, rewards


def success_rate(agent: QNetwork, episodes: int, episode_length: int, seed: int) -> tuple[float, float]:
    """Judge the agent on the bare world, with the task's own success.

    Returns:
        The share of episodes with the pole up and the cart on its track at every step, and the mean task return.
    """
    worlds = [CartPole() for _ in range(episodes)]
    observations = np.stack([world.reset(seed=seed + i)[0] for i, world in enumerate(worlds)])
    succeeded, returns = np.ones(episodes, dtype=bool), np.zeros(episodes)
    for _ in range(episode_length):
        steps = [world.step(action) for world, action in zip(worlds, agent.greedy(observations), strict=True)]
        observations = np.stack([step[0] for step in steps])
        returns += [step[1] for step in steps]
        succeeded &= [step[4]["success"] for step in steps]
    return float(succeeded.mean()), float(returns.mean())


def plot_learning_curve(history: list[dict[str, float]], args: Args, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
    steps = [row["step"] for row in history]
    titles = {
        "vlm_return": "VLM return",
        "task_return": "Task return (not shown to the agent)",
        "success": "Success (share of steps)",
    }
    for axis, (key, title) in zip(axes, titles.items(), strict=True):
        values = np.array([row[key] for row in history])
        smooth = [values[max(0, i - 9) : i + 1].mean() for i in range(len(values))]
        axis.plot(steps, values, alpha=0.3, linewidth=1)
        axis.plot(steps, smooth, color="C0", label="mean of 10 episodes")
        axis.set(title=title, xlabel="steps")
    axes[0].legend()
    figure.suptitle(f'"{args.prompt}", {args.model}, seed {args.seed}')
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(args: Args) -> Path:
    started = time.monotonic()
    run_name = f"{args.env_id.replace('/', '_')}__{args.exp_name}__{args.seed}__{int(time.time())}"
    run_folder = args.runs_folder / run_name
    if args.track:
        import wandb  # pyright: ignore[reportMissingImports]

        wandb.init(
            project=args.wandb_project_name,
            entity=args.wandb_entity,
            sync_tensorboard=True,
            config=vars(args),
            name=run_name,
            save_code=True,
        )
    writer = SummaryWriter(str(run_folder))
    hyperparameters = "\n".join(f"|{key}|{value}|" for key, value in vars(args).items())
    writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{hyperparameters}")

    # TRY NOT TO MODIFY: seeding
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.backends.cudnn.deterministic = args.torch_deterministic
    if args.torch_threads is not None:
        torch.set_num_threads(args.torch_threads)

    # env setup
    env = make_env(args)()
    selection_env = make_env(args)()
    env.action_space.seed(args.seed)

    q_network, target_network, best_network = QNetwork(env), QNetwork(env), QNetwork(env)
    target_network.load_state_dict(q_network.state_dict())
    optimizer = torch.optim.Adam(q_network.parameters(), lr=args.learning_rate)
    buffer = ReplayBuffer(args.buffer_size, env.observation_space.shape[0])  # pyright: ignore[reportOptionalSubscript]

    history: list[dict[str, float]] = []
    recent_success: deque[float] = deque(maxlen=10)
    best_return = -np.inf
    episode: list[tuple[bool, float]] = []  # success and task reward of each step: only logged

    def keep_if_best(step: int) -> None:
        nonlocal best_return
        greedy_return = sum(play(selection_env, q_network, seed=args.seed)[1])
        writer.add_scalar("charts/greedy_vlm_return", greedy_return, step)
        if greedy_return >= best_return:
            best_return = greedy_return
            best_network.load_state_dict(q_network.state_dict())
            torch.save(best_network.state_dict(), run_folder / "agent.pt")  # survives an interrupted run

    # TRY NOT TO MODIFY: start the game
    observation, _ = env.reset(seed=args.seed)
    progress = tqdm(range(args.total_timesteps), unit="step", smoothing=0.05)
    for global_step in progress:
        # ALGO LOGIC: put action logic here
        epsilon = linear_schedule(
            args.start_e, args.end_e, args.exploration_fraction * args.total_timesteps, global_step
        )
        action = env.action_space.sample() if random.random() < epsilon else q_network.greedy(observation).item()

        # TRY NOT TO MODIFY: execute the game and log data
        next_observation, reward, termination, truncation, info = env.step(action)
        buffer.add(observation, next_observation, action, float(reward), termination)
        episode.append((info["success"], info["task_reward"]))
        observation = next_observation

        if termination or truncation:
            success, task_return = np.mean([s for s, _ in episode]), np.sum([r for _, r in episode])
            row = {
                "step": global_step + 1,
                "vlm_return": float(info["episode"]["r"]),
                "task_return": float(task_return),
                "success": float(success),
            }
            for key in ("vlm_return", "task_return", "success"):
                writer.add_scalar(f"charts/{key}", row[key], global_step)
            history.append(row)
            recent_success.append(row["success"])
            progress.set_postfix(vlm_return=f"{row['vlm_return']:.1f}", success=f"{np.mean(recent_success):.0%}")
            episode = []
            observation, _ = env.reset()
            if len(history) % args.selection_frequency == 0:
                keep_if_best(global_step)

        # ALGO LOGIC: training
        if global_step >= args.learning_starts and global_step % args.train_frequency == 0:
            optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - global_step / args.total_timesteps)
            observations, next_observations, actions, rewards, terminations = buffer.sample(args.batch_size)
            with torch.no_grad():
                next_actions = q_network(next_observations).argmax(1, keepdim=True)  # double DQN
                target_max = target_network(next_observations).gather(1, next_actions).squeeze(1)
                td_target = rewards + args.gamma * target_max * (1 - terminations)
            old_val = q_network(observations).gather(1, actions).squeeze(1)
            loss = F.smooth_l1_loss(old_val, td_target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for target, parameter in zip(target_network.parameters(), q_network.parameters(), strict=True):
                    target.lerp_(parameter, args.tau)
            if global_step % 100 == 0:
                writer.add_scalar("losses/td_loss", loss.item(), global_step)
                writer.add_scalar("losses/q_values", old_val.mean().item(), global_step)
                writer.add_scalar("charts/SPS", progress.format_dict["rate"] or 0, global_step)

    # What came of it
    keep_if_best(args.total_timesteps)
    success, task_return = success_rate(best_network, args.eval_episodes, args.episode_length, seed=10_000)
    plot_learning_curve(history, args, run_folder / "learning_curve.png")
    if args.capture_video:
        frames, rewards = play(selection_env, best_network, seed=args.seed)
        save_video(run_folder / args.video_name, frames, rewards, title=args.prompt)
    result = {
        "success": success,
        "task_return": task_return,
        "best_greedy_vlm_return": best_return,
        "eval_episodes": args.eval_episodes,
        "minutes": (time.monotonic() - started) / 60,
        "version": vlmrm_gym.__version__,
        "args": {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()},
    }
    (run_folder / "result.json").write_text(json.dumps(result, indent=2))
    env.close()
    selection_env.close()
    writer.close()
    print(f"\nSuccess in {success:.0%} of {args.eval_episodes} episodes, after {result['minutes']:.1f} minutes.")
    print(f"Learning curve: {run_folder / 'learning_curve.png'}")
    if args.capture_video:
        print(f"Video of the trained agent: {run_folder / args.video_name}")
    return run_folder


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
