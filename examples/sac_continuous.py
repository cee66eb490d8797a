"""SAC that learns what a sentence says: mountain car and every humanoid.

    python examples/sac_continuous.py --env-id VLMRM/MountainCarContinuous-v0
    python examples/sac_continuous.py --env-id VLMRM/Humanoid-stand-v0 --num-workers 2
    python examples/sac_continuous.py --resume runs/VLMRM_Humanoid-stand-v0__sac_continuous__1__1700000000

Environments go on while their episodes are scored; transitions wait in the replay buffer for their rewards. The agent
never sees the environment's reward or success: both are only logged. Writes into runs/<run name>: TensorBoard events,
learning_curve.csv, agent.mp4 (the trained agent, with its reward drawn in), result.json, agent.pt (the best by VLM
return, as in the paper), checkpoint.pt (to resume from).

After CleanRL's sac_continuous_action.py (https://docs.cleanrl.dev/rl-algorithms/sac/). On a GPU the losses are
compiled, as in LeanRL.
"""

import csv
import json
import math
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
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
from vlmrm_gym.replay import Batch, ReplayBuffer
from vlmrm_gym.tasks import PAPER_CAMERA, TASKS
from vlmrm_gym.videos import save_video


@dataclass
class Args:
    exp_name: str = "sac_continuous"
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
    runs_folder: Path = Path("runs")
    """where the run's folder is made"""
    resume: Path | None = None
    """a run's folder, to go on from its checkpoint; all else is then read from there"""

    # The reward
    env_id: str = "VLMRM/Humanoid-stand-v0"
    """the id of the environment"""
    prompt: str | None = None
    """all that the agent is told; None: the task's prompt"""
    alpha_baseline: float = 0.0
    """strength of the goal-baseline regularisation"""
    model: str = "tiny"
    """the vision-language model; any of open_clip's, see `vlmrm_gym.CLIPReward`"""
    textured: bool = True
    """photo-like scenes, or Gymnasium's"""
    camera_azimuth: float | None = None
    """where humanoids are seen from, in degrees around them: 180 is the front, as in the paper (None), 90 a side"""
    num_workers: int = 0
    """processes that draw and score; 0: this one"""
    device: str = "auto"
    """where the vision-language model runs, and where the agent learns; auto: on a GPU if there is one"""
    compile: bool = True
    """on a GPU: compile the losses, and replay them as CUDA graphs"""

    # Algorithm specific arguments; for humanoids, see also SETTINGS
    total_timesteps: int = 200_000
    """total timesteps of the experiment, over all environments"""
    num_envs: int = 8
    """the number of parallel environments"""
    buffer_size: int = 1_000_000
    """the replay memory buffer size"""
    gamma: float = 0.95
    """the discount factor gamma"""
    tau: float = 0.005
    """target smoothing coefficient"""
    batch_size: int = 256
    """the batch size of sample from the replay memory"""
    learning_starts: int = 4_800
    """timestep to start learning; random actions until then; at least two episodes of every environment"""
    policy_lr: float = 6e-4
    """the learning rate of the policy network optimizer"""
    q_lr: float = 6e-4
    """the learning rate of the Q networks' optimizer"""
    updates_per_step: float = 0.5
    """gradient steps for each timestep"""
    hidden: int = 256
    """units of each of the two hidden layers"""
    alpha: float | None = None
    """entropy coefficient; None: learned"""
    exploration_hold: int = 1
    """for how many steps a random action is held before learning starts"""
    selection_frequency: int = 5_000
    """every how many timesteps the deterministic agent plays, to see whether it is the best by VLM return"""
    eval_episodes: int = 100
    """episodes of the final evaluation"""
    checkpoint_frequency: int = 20_000
    """timesteps between checkpoints"""


# A car has to swing up before a sentence can tell it that it is near the flag: random pushes have to last.
SETTINGS: dict[str, dict[str, Any]] = {
    "VLMRM/MountainCarContinuous-v0": {"total_timesteps": 40_000, "gamma": 0.99, "hidden": 128, "exploration_hold": 30},
}


def args_for(env_id: str) -> Args:
    return replace(Args(), env_id=env_id, **SETTINGS.get(env_id, {}))


def task_options(args: Args) -> dict[str, Any]:
    options: dict[str, Any] = {
        "alpha": args.alpha_baseline,
        "model": args.model,
        "textured": args.textured,
        "device": args.device,
    }
    if args.prompt is not None:
        options["prompt"] = args.prompt
    if args.camera_azimuth is not None:
        options["camera"] = {**PAPER_CAMERA, "azimuth": args.camera_azimuth}
    return options


def make_envs(args: Args, num_envs: int, overlap: bool) -> gym.vector.VectorEnv:
    return gym.make_vec(
        args.env_id, num_envs=num_envs, num_workers=args.num_workers, overlap=overlap, **task_options(args)
    )


# ALGO LOGIC: initialize agent here:
class SoftQNetwork(nn.Module):
    """Two Q functions at once: (B, 2)."""

    def __init__(self, observation_size: int, action_size: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Linear(observation_size + action_size, hidden),
                nn.ReLU(),
                nn.Linear(hidden, hidden),
                nn.ReLU(),
                nn.Linear(hidden, 1),
            )
            for _ in range(2)
        )

    def forward(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        x = torch.cat((observations, actions), -1)
        return torch.cat([layers(x) for layers in self.layers], -1)


class Actor(nn.Module):
    action_scale: torch.Tensor
    action_bias: torch.Tensor

    def __init__(self, observation_size: int, action_space: gym.spaces.Box, hidden: int) -> None:
        super().__init__()
        action_size = int(np.prod(action_space.shape))
        self.trunk = nn.Sequential(nn.Linear(observation_size, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.mean, self.log_std = nn.Linear(hidden, action_size), nn.Linear(hidden, action_size)
        high, low = torch.from_numpy(action_space.high), torch.from_numpy(action_space.low)
        self.register_buffer("action_scale", (high - low) / 2)
        self.register_buffer("action_bias", (high + low) / 2)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Sampled actions (B, A) with their log probabilities (B,), and the deterministic actions (B, A)."""
        x = self.trunk(observations)
        mean, log_std = self.mean(x), -5 + 3.5 * (torch.tanh(self.log_std(x)) + 1)
        normal = torch.distributions.Normal(mean, log_std.exp())
        u = normal.rsample()
        # log(1 - tanh(u)^2), in a form that does not underflow
        log_slope = 2 * (math.log(2) - u - F.softplus(-2 * u))
        log_probability = (normal.log_prob(u) - log_slope - self.action_scale.log()).sum(-1)
        actions, deterministic = (torch.tanh(v) * self.action_scale + self.action_bias for v in (u, mean))
        return actions, log_probability, deterministic


class Normalizer(nn.Module):
    """Observations to mean 0 and variance 1, by what has been seen while exploring at random."""

    mean: torch.Tensor
    std: torch.Tensor
    fitted: torch.Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("fitted", torch.tensor(False))
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("std", torch.ones(size))

    def fit(self, observations: torch.Tensor) -> None:
        self.mean.copy_(observations.mean(0))
        self.std.copy_(observations.std(0).clamp_min(1e-2))
        self.fitted.fill_(True)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return ((observations - self.mean) / self.std).clamp(-10, 10)


class Agent(nn.Module):
    """All that is trained, and how it is trained on a batch."""

    def __init__(self, envs: gym.vector.VectorEnv, args: Args) -> None:
        super().__init__()
        observation_space, action_space = envs.single_observation_space, envs.single_action_space
        assert isinstance(observation_space, gym.spaces.Box)
        assert isinstance(action_space, gym.spaces.Box), "only continuous action space is supported"
        observation_size, action_size = int(np.prod(observation_space.shape)), int(np.prod(action_space.shape))
        self.args = args
        self.normalizer = Normalizer(observation_size)
        self.actor = Actor(observation_size, action_space, args.hidden)
        self.qf = SoftQNetwork(observation_size, action_size, args.hidden)
        self.qf_target = SoftQNetwork(observation_size, action_size, args.hidden).requires_grad_(False)
        self.qf_target.load_state_dict(self.qf.state_dict())
        self.target_entropy = -action_size
        self.log_alpha = nn.Parameter(torch.tensor(0.0 if args.alpha is None else float(np.log(args.alpha))))

    def make_optimizers(self) -> list[torch.optim.Optimizer]:
        return [
            torch.optim.Adam(self.qf.parameters(), lr=self.args.q_lr),
            torch.optim.Adam(self.actor.parameters(), lr=self.args.policy_lr),
            torch.optim.Adam([self.log_alpha], lr=self.args.q_lr),
        ]

    def losses(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of the Q functions, the actor and the entropy coefficient."""
        observations, next_observations = self.normalizer(batch.observations), self.normalizer(batch.next_observations)
        alpha = self.log_alpha.detach().exp()
        with torch.no_grad():
            next_actions, next_log_probability, _ = self.actor(next_observations)
            next_value = self.qf_target(next_observations, next_actions).amin(-1) - alpha * next_log_probability
            target = batch.rewards + self.args.gamma * (1 - batch.terminations) * next_value
        qf_loss = F.mse_loss(self.qf(observations, batch.actions), target[:, None].expand(-1, 2))
        actions, log_probability, _ = self.actor(observations)
        frozen = {name: parameter.detach() for name, parameter in self.qf.named_parameters()}
        values = torch.func.functional_call(self.qf, frozen, (observations, actions)).amin(-1)
        actor_loss = (alpha * log_probability - values).mean()
        alpha_loss = -self.log_alpha.exp() * (log_probability.detach() + self.target_entropy).mean()
        return qf_loss, actor_loss, alpha_loss

    @torch.no_grad()
    def act(self, observations: np.ndarray, deterministic: bool = False) -> np.ndarray:
        x = torch.as_tensor(observations, dtype=torch.float32, device=self.log_alpha.device)
        actions, _, best = self.actor(self.normalizer(x))
        return (best if deterministic else actions).cpu().numpy()


def play(envs: gym.vector.VectorEnv, agent: Agent, seed: int) -> dict[str, np.ndarray]:
    """One deterministic episode in every environment: returns and success, (num_envs,) each."""
    observations, _ = envs.reset(seed=seed)
    task_returns, successes, steps = np.zeros(envs.num_envs), np.zeros(envs.num_envs), 0
    while True:
        observations, _, _, truncations, infos = envs.step(agent.act(observations, deterministic=True))
        task_returns += infos["task_reward"]
        successes += infos["success"]
        steps += 1
        if truncations.all():
            break
    vlm_returns = np.array([rewards.sum() for rewards in infos["vlm_rewards"]])
    return {"vlm_return": vlm_returns, "task_return": task_returns, "success_share": successes / steps}


def film(env_id: str, agent: Agent, path: Path, args: Args) -> None:
    env = gym.make(env_id, **task_options(args))
    frames, rewards, truncated = [], [], False
    observation, _ = env.reset(seed=args.seed)
    while not truncated:
        observation, reward, _, truncated, _ = env.step(agent.act(observation[None], deterministic=True)[0])
        frames.append(env.render())
        rewards.append(float(reward))
    env.close()
    save_video(path, frames, rewards, title=args.prompt or gym.spec(env_id).kwargs["prompt"])


def main(args: Args) -> Path:
    started = time.monotonic()
    state: dict[str, Any] = {}
    if args.resume is not None:
        if not (args.resume / "checkpoint.pt").exists():
            raise ValueError(
                f"`resume` must be the folder of a run that has reached a checkpoint. Received {args.resume}, "
                "which has no checkpoint.pt."
            )
        state = torch.load(args.resume / "checkpoint.pt", map_location="cpu", weights_only=False)
        args = Args(**{**state["args"], "resume": args.resume})
    least = (
        2 * args.num_envs * gym.spec(args.env_id).kwargs["episode_length"]
    )  # rewards are there when the next episode ends, at the latest
    if args.learning_starts < least:
        raise ValueError(
            f"`learning_starts` must be at least {least}, two episodes of every environment. "
            f"Received {args.learning_starts}. Raise it, or lower `num_envs`."
        )
    run_name = f"{args.env_id.replace('/', '_')}__{args.exp_name}__{args.seed}__{int(time.time())}"
    run_folder = args.resume or args.runs_folder / run_name
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
    auto = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(auto if args.device == "auto" else args.device)

    # env setup
    envs = make_envs(args, args.num_envs, overlap=True)
    selection_envs = make_envs(args, 4, overlap=False)
    envs.action_space.seed(args.seed)

    agent = Agent(envs, args).to(device)
    optimizers = agent.make_optimizers()
    buffer = ReplayBuffer(args.buffer_size, envs, device=device, seed=args.seed)
    losses: Callable[[Batch], tuple[torch.Tensor, ...]] = agent.losses
    if device.type == "cuda" and args.compile:
        losses = torch.compile(agent.losses, mode="reduce-overhead")
    history: list[dict[str, float]] = []
    best_return, global_step = -np.inf, 0
    if state:
        agent.load_state_dict(state["agent"])
        buffer.load_state_dict(state["buffer"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        history, best_return, global_step = state["history"], state["best_return"], state["global_step"]
        torch.set_rng_state(state["torch"])

    def save(name: str, contents: dict[str, Any]) -> None:
        """In one step: a crash leaves the file that was there."""
        torch.save(contents, run_folder / f"{name}.tmp")
        (run_folder / f"{name}.tmp").replace(run_folder / name)

    def checkpoint() -> None:
        contents = {
            "args": asdict(args),
            "agent": agent.state_dict(),
            "buffer": buffer.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in optimizers],
            "torch": torch.get_rng_state(),
        }
        save("checkpoint.pt", {**contents, "history": history, "best_return": best_return, "global_step": global_step})

    def keep_if_best() -> None:
        nonlocal best_return
        played = {name: values.mean() for name, values in play(selection_envs, agent, seed=args.seed).items()}
        for name, value in played.items():
            writer.add_scalar(f"greedy/{name}", value, global_step)
        progress.set_postfix({name: f"{value:.2f}" for name, value in played.items()})
        if played["vlm_return"] >= best_return:
            best_return = float(played["vlm_return"])
            save("agent.pt", agent.state_dict())

    # TRY NOT TO MODIFY: start the game
    observations, infos = envs.reset(seed=args.seed + global_step)
    progress = tqdm(total=args.total_timesteps, initial=global_step, unit="step", smoothing=0.05)
    episodes = np.zeros((3, args.num_envs))  # steps, task return and successes of the episodes that go on
    actions, updates = envs.action_space.sample(), 0.0
    qf_loss = actor_loss = torch.tensor(torch.nan)
    while global_step < args.total_timesteps:
        # ALGO LOGIC: put action logic here
        if global_step >= args.learning_starts:
            actions = agent.act(observations)
        elif global_step // args.num_envs % args.exploration_hold == 0:
            actions = envs.action_space.sample()

        # TRY NOT TO MODIFY: execute the game and log data
        next_observations, rewards, terminations, truncations, infos = envs.step(actions)
        buffer.add(observations, actions, next_observations, rewards, terminations, truncations, infos)
        observations = next_observations
        stepped = infos["_task_reward"]  # where next-step autoreset does not just reset
        new_steps = int(stepped.sum())
        previous_step, global_step = global_step, global_step + new_steps
        progress.update(new_steps)
        episodes += stepped * np.stack(
            [np.ones(args.num_envs), infos["task_reward"], infos.get("success", 0 * rewards)]
        )
        for i in np.flatnonzero(terminations | truncations):
            steps, task_return, successes = episodes[:, i]
            writer.add_scalar("charts/task_return", task_return, global_step)
            writer.add_scalar("charts/success_share", successes / steps, global_step)
            history.append({"step": global_step, "task_return": task_return, "success_share": successes / steps})
            episodes[:, i] = 0
        for i in np.flatnonzero(infos["_vlm_rewards"]):
            writer.add_scalar("charts/vlm_return", infos["vlm_rewards"][i].sum(), global_step)
            history.append({"step": global_step, "vlm_return": float(infos["vlm_rewards"][i].sum())})

        # ALGO LOGIC: training
        if global_step >= args.learning_starts and len(buffer) >= args.batch_size:
            if not agent.normalizer.fitted:
                agent.normalizer.fit(buffer.sample(10_000).observations)
            updates += new_steps * args.updates_per_step
            for _ in range(int(updates)):
                for optimizer in optimizers:
                    optimizer.zero_grad()
                qf_loss, actor_loss, alpha_loss = losses(buffer.sample(args.batch_size))
                (qf_loss + actor_loss + (alpha_loss if args.alpha is None else 0)).backward()
                for optimizer in optimizers:
                    optimizer.step()
                with torch.no_grad():
                    for target, parameter in zip(agent.qf_target.parameters(), agent.qf.parameters(), strict=True):
                        target.lerp_(parameter, args.tau)
            updates -= int(updates)
            if global_step // 1_000 > previous_step // 1_000:
                writer.add_scalar("losses/qf_loss", qf_loss.item(), global_step)
                writer.add_scalar("losses/actor_loss", actor_loss.item(), global_step)
                writer.add_scalar("losses/alpha", agent.log_alpha.exp().item(), global_step)
                writer.add_scalar("charts/SPS", progress.format_dict["rate"] or 0, global_step)
            if global_step // args.selection_frequency > previous_step // args.selection_frequency:
                keep_if_best()
        if global_step // args.checkpoint_frequency > previous_step // args.checkpoint_frequency:
            checkpoint()

    # What came of it
    keep_if_best()
    checkpoint()
    envs.close()
    selection_envs.close()
    agent.load_state_dict(torch.load(run_folder / "agent.pt", map_location=device))
    judged_envs = make_envs(args, args.eval_episodes, overlap=False)
    judged = play(judged_envs, agent, seed=10_000)
    judged_envs.close()
    needed = next(task.success_share for task in TASKS if task.id == args.env_id)
    result = {
        "success": float((judged["success_share"] >= needed).mean()),
        **{name: float(values.mean()) for name, values in judged.items()},
        "eval_episodes": args.eval_episodes,
        "timesteps": global_step,
        "minutes": (time.monotonic() - started) / 60,
        "version": vlmrm_gym.__version__,
        "args": {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()},
    }
    (run_folder / "result.json").write_text(json.dumps(result, indent=2))
    with (run_folder / "learning_curve.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["step", "vlm_return", "task_return", "success_share"])
        table.writeheader()
        table.writerows(history)
    if args.capture_video:
        film(args.env_id, agent, run_folder / "agent.mp4", args)
    writer.close()
    progress.close()
    print(f"\nSuccess in {result['success']:.0%} of {args.eval_episodes} episodes ({run_folder}).")
    return run_folder


if __name__ == "__main__":
    env_id = tyro.cli(Args, description=__doc__).env_id
    main(tyro.cli(Args, description=__doc__, default=args_for(env_id)))
