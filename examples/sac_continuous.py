r"""SAC with rewards from a prompt: mountain car, humanoids, and any ID with continuous actions that renders.

    python examples/sac_continuous.py --env-id VLMRM/MountainCarContinuous-v0
    python examples/sac_continuous.py --env-id VLMRM/Humanoid-stand-v0 --num-workers 2
    python examples/sac_continuous.py --env-id Ant-v5 --prompt "an ant robot on its back" --learning-starts 16_000 \
        --model ViT-B-32/laion2b_s34b_b79k
    python examples/sac_continuous.py --env-id VLMRM/MountainCarContinuous-v0 \
        --reward '{"kind": "program", "path": "examples/programs/mountain_car.py"}'
    python examples/sac_continuous.py --resume runs/VLMRM_Humanoid-stand-v0__sac_continuous__1__1700000000

Environments step on while their episodes are scored; transitions wait in the replay buffer for their rewards. The
environment's reward and success (if defined) are logged, not learned from. Writes into runs/<run name>: TensorBoard
events, learning_curve.csv, agent.mp4 (the trained agent, with its reward drawn in), result.json, agent.pt (the best by
VLM return, as in the paper), checkpoint.pt (to resume from).

After CleanRL's sac_continuous_action.py (https://docs.cleanrl.dev/rl-algorithms/sac/), but delayed updates of the actor
are not repeated to make up for the delay. On a GPU the losses are compiled, as in LeanRL. On CPUs with bfloat16
instructions the hidden layers multiply in bfloat16.
"""

import csv
import json
import math
import os
import random
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import tyro
import yaml
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

import vlmrm_gym
from vlmrm_gym import ReplayBuffer
from vlmrm_gym.data.replay import Batch
from vlmrm_gym.data.statistics import EpisodeStatistics, finished_episodes, play_episodes
from vlmrm_gym.data.videos import record_video
from vlmrm_gym.envs.make import find_task, make_env, make_vector_env


def has_bfloat16() -> bool:
    """Whether the CPU multiplies in bfloat16 (AVX-512 BF16 or AMX). False where PyTorch cannot tell."""
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


@dataclass
class Args:
    exp_name: str = "sac_continuous"
    """the name of this experiment"""
    env_id: str = "VLMRM/Humanoid-stand-v0"
    """the id of the environment"""
    seed: int = 1
    """seed of the experiment"""
    track: bool = False
    """if toggled, this experiment will be tracked with Weights and Biases (`pip install "vlmrm-gym[track]"`)"""
    capture_video: bool = True
    """whether to write a video of the trained agent"""
    runs_folder: Path = Path("runs")
    """parent folder of the run's folder"""
    resume: Path | None = None
    """folder of a run to resume from its checkpoint, with its saved settings; a larger total_timesteps lengthens it"""

    # The reward
    prompt: str | None = None
    """the goal; None: the task's prompt"""
    reward: str | None = None
    """instead of a prompt: a callable or class of your own, package.module:attribute; or a specification as JSON"""
    reward_kwargs: str | None = None
    """keyword arguments of a class of your own, as JSON"""
    alpha: float = 0.0
    """strength of the goal-baseline regularisation"""
    model: str | None = None
    """the vision-language model: tiny or any open_clip model, see `vlmrm_gym.CLIP` (None: by the environment)"""
    episode_length: int | None = None
    """steps until an episode is truncated; None: the environment's own"""
    textured: bool = True
    """photo-like scenes instead of Gymnasium's"""
    camera: str | None = None
    """MuJoCo: paper, side, front-side, around, a camera of the model, or JSON as for `camera=`; None: the default"""
    combine_views: str | None = None
    """how the rewards of several cameras make one: min (None), mean, or package.module:attribute"""
    score_every: int = 1
    """draw and encode every so manyth state, and interpolate the rewards of the others"""
    num_workers: int = 0
    """worker processes that render and score; 0: the main process"""
    device: str = "auto"
    """device of the vision-language model and the agent; auto: a GPU if there is one"""
    compile: bool = True
    """on a GPU: compile the losses and replay them as CUDA graphs"""
    bfloat16: bool = field(default_factory=has_bfloat16)
    """on a CPU: multiply the agent's hidden layers in bfloat16; by default if the CPU has instructions for it"""

    # Algorithm specific arguments, for humanoids; `MOUNTAIN_CAR` has those of mountain car
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
    """the batch size of samples from the replay memory"""
    learning_starts: int = 4_800
    """timestep to start learning, if episodes have been scored by then; actions are random until it starts"""
    learning_rate: float = 6e-4
    """the learning rate of the optimizer"""
    updates_per_step: float = 0.5
    """gradient steps per timestep"""
    policy_frequency: int = 2
    """updates of the Q functions and the entropy coefficient for each update of the actor"""
    hidden: int = 256
    """units of each of the two hidden layers"""
    exploration_hold: int = 1
    """number of steps for which a random action is repeated before learning starts"""
    start_near_goal: float = 0.0
    """humanoids: probability that a training episode starts on the way to the task's pose: a curriculum"""
    selection_frequency: int = 5_000
    """timesteps between evaluations of the deterministic agent; the one with the best VLM return is kept"""
    checkpoint_frequency: int = 20_000
    """timesteps between checkpoints"""
    eval_episodes: int = 100
    """episodes of the final evaluation"""


MOUNTAIN_CAR = {"total_timesteps": 40_000, "gamma": 0.99, "hidden": 128, "exploration_hold": 30}
"""The car has to swing up before the reward guides it to the flag, so exploration has to be persistent."""
MAY_CHANGE = ("checkpoint_frequency", "eval_episodes", "capture_video", "device", "num_workers", "track")
"""Settings that may be others when a run is resumed; `total_timesteps` may be higher."""


def default_args(env_id: str) -> Args:
    return Args(env_id=env_id, **(MOUNTAIN_CAR if "MountainCarContinuous" in env_id else {}))


def task_options(args: Args) -> dict[str, Any]:
    """Keywords of the environments. Defaults are left out: beside a reward of your own some would be refused."""
    options = {
        "prompt": args.prompt,
        "reward": None if args.reward is None else yaml.safe_load(args.reward),  # as it is, or JSON
        "reward_kwargs": None if args.reward_kwargs is None else json.loads(args.reward_kwargs),
        "alpha": args.alpha or None,
        "model": args.model,
        "device": args.device,
        "episode_length": args.episode_length,
        "camera": None if args.camera is None else yaml.safe_load(args.camera),  # a name, a number or JSON
        "combine_views": args.combine_views,
        "textured": None if args.textured else False,
    }
    return {name: value for name, value in options.items() if value is not None}


def make_envs(args: Args, num_envs: int, **options: Any) -> gym.vector.VectorEnv:
    """Environments whose rewards arrive when an episode has been scored."""
    options |= {"num_workers": args.num_workers, "score_every": args.score_every, **task_options(args)}
    return make_vector_env(args.env_id, num_envs, **options)


# ALGO LOGIC: initialize agent here:
class Hidden(nn.Sequential):
    """Two hidden layers. Their products are in bfloat16 where that is faster; parameters and outputs are float32."""

    def __init__(self, inputs: int, args: Args) -> None:
        super().__init__(nn.Linear(inputs, args.hidden), nn.ReLU(), nn.Linear(args.hidden, args.hidden), nn.ReLU())
        self.low_precision = args.bfloat16

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low_precision):
            return super().forward(input).float()


class SoftQNetwork(nn.Module):
    """Two Q functions at once: (B, 2)."""

    def __init__(self, inputs: int, args: Args) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(Hidden(inputs, args), nn.Linear(args.hidden, 1)) for _ in range(2))

    def forward(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        x = torch.cat((observations, actions), -1)
        return torch.cat([layers(x) for layers in self.layers], -1)


class Actor(nn.Module):
    def __init__(self, inputs: int, action_space: gym.spaces.Box, args: Args) -> None:
        super().__init__()
        self.trunk, action_size = Hidden(inputs, args), int(np.prod(action_space.shape))
        self.mean, self.log_std = nn.Linear(args.hidden, action_size), nn.Linear(args.hidden, action_size)
        high, low = torch.from_numpy(action_space.high), torch.from_numpy(action_space.low)
        self.action_scale, self.action_bias = nn.Buffer((high - low) / 2), nn.Buffer((high + low) / 2)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and log standard deviation, (..., A) each, of actions before they are squashed."""
        x = self.trunk(observations)
        return self.mean(x), -5 + 3.5 * (torch.tanh(self.log_std(x)) + 1)

    def squash(self, u: torch.Tensor) -> torch.Tensor:
        return torch.tanh(u) * self.action_scale + self.action_bias

    def sample(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Actions (..., A) with their log probabilities (...,)."""
        mean, log_std = self(observations)
        noise = torch.randn_like(mean)
        u = mean + log_std.exp() * noise
        log_density = -0.5 * (noise.square() + math.log(2 * math.pi)) - log_std
        # log(1 - tanh(u)^2), in a form that does not underflow
        log_slope = 2 * (math.log(2) - u - F.softplus(-2 * u))
        return self.squash(u), (log_density - log_slope - self.action_scale.log()).sum(-1)


class Agent(nn.Module):
    """Networks, entropy coefficient, mean and standard deviation of observations while exploring; and the losses."""

    def __init__(self, envs: gym.vector.VectorEnv, args: Args) -> None:
        super().__init__()
        observation_space, action_space = envs.single_observation_space, envs.single_action_space
        assert isinstance(observation_space, gym.spaces.Box)
        assert isinstance(action_space, gym.spaces.Box), "only continuous action space is supported"
        observation_size, action_size = int(np.prod(observation_space.shape)), int(np.prod(action_space.shape))
        self.gamma, self.target_entropy = args.gamma, -action_size
        self.mean, self.std = nn.Buffer(torch.zeros(observation_size)), nn.Buffer(torch.ones(observation_size))
        self.actor = Actor(observation_size, action_space, args)
        self.qf = SoftQNetwork(observation_size + action_size, args)
        self.qf_target = SoftQNetwork(observation_size + action_size, args).requires_grad_(False)
        self.qf_target.load_state_dict(self.qf.state_dict())
        self.log_ent_coef = nn.Parameter(torch.tensor(0.0))

    def fit_normalization(self, observations: torch.Tensor) -> None:
        self.mean.copy_(observations.mean(0))
        self.std.copy_(observations.std(0).clamp_min(1e-2))

    def normalize(self, observations: torch.Tensor) -> torch.Tensor:
        return ((observations - self.mean) / self.std).clamp(-10, 10)

    def losses(self, batch: Batch, update_actor: bool = True) -> tuple[torch.Tensor, ...]:
        """Losses of the Q functions, the entropy coefficient and, with `update_actor`, the actor."""
        observations, next_observations = self.normalize(batch.observations), self.normalize(batch.next_observations)
        ent_coef = self.log_ent_coef.detach().exp()
        with torch.no_grad():
            next_actions, next_log_probability = self.actor.sample(next_observations)
            next_value = self.qf_target(next_observations, next_actions).amin(-1) - ent_coef * next_log_probability
            target = batch.rewards + self.gamma * (1 - batch.terminations) * next_value
        qf_loss = F.mse_loss(self.qf(observations, batch.actions), target[:, None].expand(-1, 2))
        # From the next states' log probabilities, which every update computes; CleanRL samples actions once more.
        ent_coef_loss = -self.log_ent_coef.exp() * (next_log_probability + self.target_entropy).mean()
        if not update_actor:
            return qf_loss, ent_coef_loss
        actions, log_probability = self.actor.sample(observations)
        frozen = {name: parameter.detach() for name, parameter in self.qf.named_parameters()}
        values = torch.func.functional_call(self.qf, frozen, (observations, actions)).amin(-1)
        return qf_loss, ent_coef_loss, (ent_coef * log_probability - values).mean()

    @torch.no_grad()
    def act(self, observations: np.ndarray, deterministic: bool = False) -> np.ndarray:
        """Actions (..., A) for observations (..., D)."""
        x = torch.as_tensor(observations, dtype=torch.float32, device=self.log_ent_coef.device)
        x, actor = self.normalize(x), self.actor
        return (actor.squash(actor(x)[0]) if deterministic else actor.sample(x)[0]).cpu().numpy()


def load_agent(run_folder: Path, envs: gym.vector.VectorEnv) -> Agent:
    """The best agent of a finished run, on the CPU, for environments with the run's observations and actions."""
    agent = Agent(envs, Args(hidden=json.loads((run_folder / "result.json").read_text())["args"]["hidden"]))
    agent.load_state_dict(torch.load(run_folder / "agent.pt", map_location="cpu"))
    return agent


def save(state: dict[str, Any], path: Path) -> None:
    """Write a file as a whole: after a crash there is the one before."""
    torch.save(state, path.with_suffix(".partial"))
    os.replace(path.with_suffix(".partial"), path)


def plain_args(args: Args) -> dict[str, Any]:
    return {name: value for name, value in vars(args).items() if name not in ("runs_folder", "resume")}


def load_checkpoint(run_folder: Path) -> tuple[Args, dict[str, Any]]:
    """Settings and state of a run to resume. Tensors stay in the file until they are used."""
    try:
        state = torch.load(run_folder / "checkpoint.pt", map_location="cpu", weights_only=True, mmap=True)
        return Args(**state["args"], runs_folder=run_folder.parent, resume=run_folder), state
    except Exception as error:
        raise ValueError(
            "`resume` must be the folder of a run of this version that has reached a checkpoint. "
            f"Received {run_folder}: {error}"
        ) from error


def check_named_code(saved: Args, given: Args) -> None:
    """Refuse a checkpoint, which may be a stranger's, that names code to run, unless flags say the same."""
    for name in ("env_id", "reward", "combine_views"):
        value = getattr(saved, name)
        free = "vlmrm_gym:" if name == "env_id" else ""  # importing this package registers IDs
        if ":" in str(value).removeprefix(free) and value != getattr(given, name):
            raise ValueError(
                f"`{name}` of the checkpoint names code that would be run. Received {value!r}. If you trust it, pass "
                f"the same as --{name.replace('_', '-')}."
            )


def main(args: Args) -> Path:
    started = time.monotonic()
    saved, state = (args, {}) if args.resume is None else load_checkpoint(args.resume)
    for name, before in plain_args(saved).items():
        now = getattr(args, name)
        if now != before and name not in MAY_CHANGE and not (name == "total_timesteps" and now > before):
            raise ValueError(f"`{name}` is {now!r}, was {before!r}. Start a new run for that.")
    task = find_task(args.env_id)
    run_name = f"{args.env_id.replace('/', '_').replace(':', '_')}__{args.exp_name}__{args.seed}__{int(time.time())}"
    run_folder = args.resume or args.runs_folder / run_name
    if args.track:
        import wandb

        wandb.init(project="vlmrm_gym", sync_tensorboard=True, config=vars(args), name=run_name, save_code=True)
    writer = SummaryWriter(str(run_folder))
    settings = "\n".join(f"|{name}|{value}|" for name, value in vars(args).items())
    writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{settings}")

    # TRY NOT TO MODIFY: seeding
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    auto = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(auto if args.device == "auto" else args.device)

    # env setup
    curriculum = {"start_near_goal": args.start_near_goal} if args.start_near_goal else {}
    envs = EpisodeStatistics(make_envs(args, args.num_envs, overlap=True, **curriculum))
    selection_envs = make_envs(args, 4)

    agent = Agent(envs, args).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, fused=True)
    greedy = partial(agent.act, deterministic=True)
    buffer = ReplayBuffer(args.buffer_size, envs, device=device, seed=args.seed)
    losses = agent.losses
    if device.type == "cuda" and args.compile:
        losses = torch.compile(agent.losses, mode="reduce-overhead")
    last_losses = torch.full((3,), torch.nan, device=device)
    curve: list[dict[str, float]] = []
    best_return, global_step, updates = -math.inf, 0, 0
    if state:
        agent.load_state_dict(state["agent"])
        buffer.load_state_dict(state["buffer"])
        optimizer.load_state_dict(state["optimizer"])
        curve, best_return = state["curve"], state["best_return"]
        global_step, updates = state["global_step"], state["updates"]
        torch.set_rng_state(state["torch"])
        state.clear()

    # TRY NOT TO MODIFY: start the game
    observations, _ = envs.reset(seed=args.seed + global_step)
    envs.action_space.seed(args.seed + global_step)
    progress = tqdm(total=args.total_timesteps, initial=global_step, unit="step", smoothing=0.05)
    previous_step, actions = global_step, envs.action_space.sample()
    while True:
        # ALGO LOGIC: training
        learning = global_step >= args.learning_starts and len(buffer) >= args.batch_size
        if learning and not updates:
            agent.fit_normalization(buffer.sample(10_000).observations)
        while learning and updates < (global_step - args.learning_starts) * args.updates_per_step:
            updates += 1
            update_actor = updates % args.policy_frequency == 0
            optimizer.zero_grad()  # to None, with which Adam leaves the actor as it is
            new_losses = torch.stack(losses(buffer.sample(args.batch_size), update_actor))
            new_losses.sum().backward()
            optimizer.step()
            last_losses[: len(new_losses)] = new_losses.detach()
            with torch.no_grad():
                for target, parameter in zip(agent.qf_target.parameters(), agent.qf.parameters(), strict=True):
                    target.lerp_(parameter, args.tau)
        if learning and global_step // 1_000 > previous_step // 1_000:
            for name, value in zip(("qf_loss", "ent_coef_loss", "actor_loss"), last_losses.tolist(), strict=True):
                writer.add_scalar(f"losses/{name}", value, global_step)
            writer.add_scalar("losses/ent_coef", agent.log_ent_coef.exp().item(), global_step)
            writer.add_scalar("charts/SPS", progress.format_dict["rate"] or 0, global_step)

        # Keep the agent if it is the best so far
        is_last = global_step >= args.total_timesteps
        if is_last or (
            learning and global_step // args.selection_frequency > previous_step // args.selection_frequency
        ):
            played = play_episodes(selection_envs, greedy, seed=args.seed).means()
            for name, value in played.items():
                writer.add_scalar(f"greedy/{name}", value, global_step)
            progress.set_postfix({name: f"{value:.2f}" for name, value in played.items()})
            if played["vlm_return"] >= best_return:
                best_return = played["vlm_return"]
                save(agent.state_dict(), run_folder / "agent.pt")
        if is_last or global_step // args.checkpoint_frequency > previous_step // args.checkpoint_frequency:
            state = {"args": plain_args(args), "agent": agent.state_dict(), "optimizer": optimizer.state_dict()}
            state |= {"buffer": buffer.state_dict(), "torch": torch.get_rng_state(), "curve": curve}
            state |= {"best_return": best_return, "global_step": global_step, "updates": updates}
            save(state, run_folder / "checkpoint.pt")
        if is_last:
            break

        # ALGO LOGIC: put action logic here
        if learning:
            actions = agent.act(observations)
        elif global_step // args.num_envs % args.exploration_hold == 0:
            actions = envs.action_space.sample()

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
    progress.close()
    envs.close()
    selection_envs.close()

    # Evaluate the best agent
    agent.load_state_dict(torch.load(run_folder / "agent.pt", map_location=device))
    evaluation_envs = make_envs(args, args.eval_episodes)
    episodes = play_episodes(evaluation_envs, greedy, seed=10_000)
    means = episodes.means((task and task.success_threshold) or 0.5)
    evaluation_envs.close()
    result = {**means, "timesteps": global_step, "minutes": (time.monotonic() - started) / 60}
    result |= {"version": vlmrm_gym.__version__, "args": plain_args(args)}
    (run_folder / "result.json").write_text(json.dumps(result, indent=2))
    with (run_folder / "learning_curve.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["step", *episodes.means()])
        table.writeheader()
        table.writerows(curve)
    if args.capture_video:
        env = make_env(args.env_id, **task_options(args))
        title = args.prompt or args.reward or (task and task.prompt) or ""
        record_video(env, greedy, run_folder / "agent.mp4", seed=args.seed, title=title)
        env.close()
    writer.close()
    print(f"\n{run_folder}: " + ", ".join(f"{name} {value:.2f}" for name, value in means.items()))
    return run_folder


if __name__ == "__main__":
    given = tyro.cli(Args, description=__doc__)
    defaults = default_args(given.env_id) if given.resume is None else load_checkpoint(given.resume)[0]
    check_named_code(defaults, given)
    main(tyro.cli(Args, description=__doc__, default=defaults))
