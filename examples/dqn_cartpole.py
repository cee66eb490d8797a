"""DQN that balances a pole because a sentence says so.

    python examples/dqn_cartpole.py
    python examples/dqn_cartpole.py --prompt "the stick stands straight up" --seed 3

Episodes are scored when they end; transitions wait in the replay buffer for their rewards. The agent never sees the
environment's reward or success: both are only logged. Writes into runs/<run name>:
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
from collections import defaultdict
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
from vlmrm_gym.replay import ReplayBuffer
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
    """if toggled, this experiment will be tracked with Weights and Biases (`pip install "vlmrm-gym[track]"`)"""
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
    num_workers: int = 0
    """processes that draw and score; 0: this one"""
    overlap: bool = False
    """whether environments go on while their episodes are scored"""

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
    """timestep to start learning; at least an episode of every environment, two with overlap"""
    updates_per_step: float = 1.0
    """gradient steps for each timestep"""
    selection_frequency: int = 2_000
    """every how many timesteps, and at the end, the greedy agent plays, to see whether it is the best by VLM return"""
    selection_episodes: int = 4
    """how many episodes it then plays, all at once"""
    eval_episodes: int = 100
    """episodes of the final evaluation"""


def make_envs(args: Args, num_envs: int, overlap: bool = False) -> gym.vector.VectorEnv:
    return gym.make_vec(
        args.env_id,
        num_envs=num_envs,
        prompt=args.prompt,
        baseline=args.baseline,
        alpha=args.alpha,
        model=args.model,
        device=args.device,
        episode_length=args.episode_length,
        num_workers=args.num_workers,
        overlap=overlap,
    )


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


def play(
    envs: gym.vector.VectorEnv, agent: QNetwork, seed: int, film: bool = False
) -> tuple[np.ndarray, list[np.ndarray]]:
    """One greedy episode in every environment: rewards float32 (num_envs, T), and, to be filmed, the first's frames."""
    frames, truncations, infos = [], np.zeros(envs.num_envs, dtype=bool), {}
    observations, _ = envs.reset(seed=seed)
    while not truncations.all():
        observations, _, _, truncations, infos = envs.step(agent.greedy(observations))
        if film:
            frames.append(envs.render()[0])  # pyright: ignore[reportOptionalSubscript]
    return np.stack(infos["vlm_rewards"]), frames


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


def plot_learning_curve(history: dict[str, list[tuple[int, float]]], args: Args, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
    titles = {
        "vlm_return": "VLM return",
        "task_return": "Task return (not shown to the agent)",
        "success": "Success (share of steps)",
    }
    for axis, (key, title) in zip(axes, titles.items(), strict=True):
        steps, values = np.reshape(history[key], (-1, 2)).T
        ends = np.unique(steps)
        axis.plot(steps / 1_000, values, ".", alpha=0.4, label="an episode")
        axis.plot(ends / 1_000, [values[steps == end].mean() for end in ends], color="C0", label="mean")
        axis.set(title=title, xlabel="thousand steps")
    axes[0].legend()
    figure.suptitle(f'"{args.prompt}", {args.model}, seed {args.seed}')
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(args: Args) -> Path:
    started = time.monotonic()
    needed = (2 if args.overlap else 1) * args.num_envs * args.episode_length
    if args.learning_starts < needed:
        raise ValueError(
            f"`learning_starts` must be at least {needed}, when every environment's first episode has its rewards. "
            f"Received {args.learning_starts}. Raise it, or lower `num_envs` or `episode_length`."
        )
    run_name = f"{args.env_id.replace('/', '_')}__{args.exp_name}__{args.seed}__{int(time.time())}"
    run_folder = args.runs_folder / run_name
    if args.track:
        import wandb

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
    envs = make_envs(args, args.num_envs, args.overlap)
    selection_envs = make_envs(args, args.selection_episodes)
    envs.action_space.seed(args.seed)

    q_network, target_network = QNetwork(envs), QNetwork(envs)
    target_network.load_state_dict(q_network.state_dict())
    optimizer = torch.optim.Adam(q_network.parameters(), lr=args.learning_rate)
    buffer = ReplayBuffer(args.buffer_size, envs, seed=args.seed)

    history: dict[str, list[tuple[int, float]]] = defaultdict(list)  # step and value, by name
    global_step, updates, best_return = 0, 0, -np.inf
    task_returns, successes = np.zeros(args.num_envs), np.zeros(args.num_envs)  # of the episodes that go on

    def log(name: str, value: float) -> None:
        history[name].append((global_step, value))
        writer.add_scalar(f"charts/{name}", value, global_step)

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
        stepped = infos["_task_reward"]  # where next-step autoreset does not just reset
        previous_step, global_step = global_step, global_step + int(stepped.sum())
        progress.update(global_step - previous_step)
        task_returns += infos["task_reward"]
        successes += infos.get("success", stepped)
        for i in np.flatnonzero(terminations | truncations):
            log("task_return", task_returns[i])
            log("success", successes[i] / args.episode_length)
            task_returns[i] = successes[i] = 0
        for i in np.flatnonzero(infos["_vlm_rewards"]):
            log("vlm_return", infos["vlm_rewards"][i].sum())

        # ALGO LOGIC: training
        optimizer.param_groups[0]["lr"] = linear_schedule(args.learning_rate, 0, args.total_timesteps, global_step)
        while updates < (global_step - args.learning_starts) * args.updates_per_step:
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

        # Keep the agent if it is the best
        due = global_step // args.selection_frequency > previous_step // args.selection_frequency
        if due or global_step >= args.total_timesteps:
            greedy_return = float(play(selection_envs, q_network, seed=args.seed)[0].sum(1).mean())
            log("greedy_vlm_return", greedy_return)
            progress.set_postfix(greedy_vlm_return=f"{greedy_return:.1f}")
            if greedy_return >= best_return:
                best_return = greedy_return
                torch.save(q_network.state_dict(), run_folder / "agent.pt.tmp")
                (run_folder / "agent.pt.tmp").replace(run_folder / "agent.pt")  # in one step: never half a file

    # What came of it
    q_network.load_state_dict(torch.load(run_folder / "agent.pt"))
    success, task_return = success_rate(q_network, args.eval_episodes, args.episode_length, seed=10_000)
    plot_learning_curve(history, args, run_folder / "learning_curve.png")
    if args.capture_video:
        rewards, frames = play(selection_envs, q_network, seed=args.seed, film=True)
        save_video(run_folder / args.video_name, frames, rewards[0], title=args.prompt)
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
    envs.close()
    selection_envs.close()
    writer.close()
    progress.close()
    print(f"\nSuccess in {success:.0%} of {args.eval_episodes} episodes, after {result['minutes']:.1f} minutes.")
    print(f"Learning curve: {run_folder / 'learning_curve.png'}")
    if args.capture_video:
        print(f"Video of the trained agent: {run_folder / args.video_name}")
    return run_folder


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
