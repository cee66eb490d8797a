r"""SAC with a reward that it learns from comparisons on the way: collect, ask, fit, relabel, learn.

    python examples/preference_sac.py
    python examples/preference_sac.py --mistake-rate 0.3 --questions 1_000 --answers answers.db
    python examples/preference_sac.py --labeler '{"kind": "human"}'
    python examples/preference_sac.py --env-id Ant-v5 --prompt "an ant robot on its back" \
        --labeler my_module:my_labeler --model ViT-B-32/laion2b_s34b_b79k

The agent learns from a labeler's answers alone, which say which of two states is closer to the goal. By default they
come from the task's own grade, and some are wrong. The environment's reward and success (if defined) are logged. Writes
into runs/<run name>: TensorBoard events, a picture of each round's pairs with their answers, answers.db (all of
them), head.safetensors (the reward: `reward=vlmrm_gym.Preference(head=...)` uses it elsewhere), agent.pt (the best by
the newest head), result.json, agent.mp4 (the trained agent, with its reward drawn in).

The same command with --resume FOLDER continues a run that was stopped. What has been answered is not asked again, also
if a run is repeated with the same --answers.

After CleanRL's sac_continuous_action.py (https://docs.cleanrl.dev/rl-algorithms/sac/); the loop over rounds is that
of PEBBLE (arXiv 2106.05091) and RL-VLM-F (arXiv 2402.03681).
"""

import copy
import io
import json
import math
import os
import random
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
import yaml
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

import vlmrm_gym
from vlmrm_gym import ReplayBuffer
from vlmrm_gym.data.replay import Batch
from vlmrm_gym.data.statistics import EpisodeStatistics, finished_episodes, play_episodes
from vlmrm_gym.data.videos import record_video
from vlmrm_gym.envs.make import find_task, make_env, make_vector_env
from vlmrm_gym.learning import FitOptions, GroundTruthLabeler, PreferenceLearner
from vlmrm_gym.learning.pictures import write_round


@dataclass
class Args:
    exp_name: str = "preference_sac"
    """the name of this experiment"""
    env_id: str = "VLMRM/MountainCarContinuous-v0"
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
    """folder of a run to resume from its checkpoint; the other flags are those of the run, or more total_timesteps"""

    # The reward
    prompt: str | None = None
    """the goal, as labelers are told; None: the task's prompt"""
    labeler: str | None = None
    """a labeler's mapping as JSON, or package.module:attribute; None: the task's grade, or the environment's reward"""
    mistake_rate: float = 0.1
    """without a labeler: the fraction of answers that are wrong"""
    answers: Path | None = None
    """file of answers, which runs may share; None: answers.db in the run's folder"""
    questions: int = 500
    """pairs that are asked about in the whole training"""
    pairs: int = 50
    """pairs of a round; the first round is when learning would start"""
    round_frequency: int = 1_000
    """timesteps from one round to the next"""
    segment_length: int = 1
    """states of a segment, whose rewards add up"""
    l2: float = 200.0
    """regularisation of the reward's networks; strong, the reward rises up to states that are seldom compared"""
    model: str | None = None
    """the vision-language model whose features the reward is made of: tiny or any open_clip model (None: by the
    environment, see `vlmrm_gym.CLIP`)"""
    device: str = "auto"
    """device of the vision-language model and the agent; auto: a GPU if there is one"""
    episode_length: int | None = None
    """steps until an episode is truncated; None: the environment's own"""
    camera: str | None = None
    """MuJoCo: paper, side, front-side, around, a camera of the model, or JSON as for `camera=`; None: the default"""
    num_workers: int = 0
    """worker processes that render and encode; 0: the main process"""

    # Algorithm specific arguments
    total_timesteps: int = 40_000
    """total timesteps of the experiment, over all environments"""
    num_envs: int = 8
    """the number of parallel environments"""
    buffer_size: int = 200_000
    """the replay memory buffer size; features are kept, too: 512 bytes a transition with "tiny" and one camera"""
    gamma: float = 0.995
    """the discount factor gamma"""
    tau: float = 0.005
    """target smoothing coefficient"""
    batch_size: int = 256
    """the batch size of samples from the replay memory"""
    learning_starts: int = 4_800
    """timestep of the first round; actions are random until there is a reward to learn from"""
    learning_rate: float = 6e-4
    """the learning rate of the optimizer"""
    updates_per_step: float = 0.5
    """gradient steps per timestep"""
    hidden: int = 128
    """units of each of the two hidden layers"""
    exploration_noise: float = 1.0
    """standard deviation of the noise that is added to actions, as a multiple of half their range"""
    exploration_hold: int = 30
    """number of steps for which random actions and noise are repeated: the car has to swing up to see the flag"""
    start_near_goal: float = 0.0
    """humanoids: probability that a training episode starts on the way to the task's pose: a curriculum"""
    selection_frequency: int = 5_000
    """timesteps between candidates for the best agent"""
    selection_episodes: int = 12
    """episodes of a candidate, played in parallel"""
    checkpoint_frequency: int = 20_000
    """timesteps between checkpoints; episodes that are under way end there"""
    eval_episodes: int = 100
    """episodes of the final evaluation"""


MAY_CHANGE = ("runs_folder", "resume", "answers", "device", "num_workers", "capture_video", "track", "eval_episodes")
"""Settings that may be others when a run is resumed; `total_timesteps` may be higher."""


def task_options(args: Args, head: Path | None = None) -> dict[str, Any]:
    """Keywords of the environments. With the file of a head their reward is a frozen one."""
    task = find_task(args.env_id)
    prompt = args.prompt or (task.prompt if task else None)
    reward = vlmrm_gym.Preference(prompt=prompt, model=args.model, head=None if head is None else str(head))
    options = {"reward": reward, "device": args.device, "episode_length": args.episode_length}
    # Left out where they are not given: MuJoCo alone has cameras.
    return options | ({} if args.camera is None else {"camera": yaml.safe_load(args.camera)})


# ALGO LOGIC: initialize agent here:
def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )


class SoftQNetwork(nn.Module):
    """Two Q functions at once: (B, 2)."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.functions = nn.ModuleList(mlp(inputs, hidden, 1) for _ in range(2))

    def forward(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        x = torch.cat((observations, actions), -1)
        return torch.cat([function(x) for function in self.functions], -1)


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
        self.qf = SoftQNetwork(observation_size + action_size, args.hidden)
        self.qf_target = copy.deepcopy(self.qf).requires_grad_(False)
        self.log_ent_coef = nn.Parameter(torch.tensor(0.0))
        self.gamma, self.target_entropy = args.gamma, -action_size

    def fit_normalization(self, observations: torch.Tensor) -> None:
        self.mean.copy_(observations.mean(0))
        self.std.copy_(observations.std(0).clamp_min(1e-2))

    def normalize(self, observations: torch.Tensor) -> torch.Tensor:
        return ((observations - self.mean) / self.std).clamp(-10, 10)

    def sample(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Actions (..., A) for normalized observations, their log probabilities (...,), and the mean actions."""
        mean, log_std = self.actor(observations).chunk(2, -1)
        log_std = -5 + 3.5 * (torch.tanh(log_std) + 1)
        noise = torch.randn_like(mean)
        u = mean + log_std.exp() * noise
        log_density = -0.5 * (noise.square() + math.log(2 * math.pi)) - log_std
        # log(1 - tanh(u)^2), in a form that does not underflow
        log_slope = 2 * (math.log(2) - u - F.softplus(-2 * u))
        log_probability = (log_density - log_slope - self.action_scale.log()).sum(-1)
        actions, mean_actions = (torch.tanh(x) * self.action_scale + self.action_bias for x in (u, mean))
        return actions, log_probability, mean_actions

    def losses(self, batch: Batch) -> dict[str, torch.Tensor]:
        observations, next_observations = self.normalize(batch.observations), self.normalize(batch.next_observations)
        ent_coef = self.log_ent_coef.detach().exp()
        with torch.no_grad():
            next_actions, next_log_probability, _ = self.sample(next_observations)
            next_value = self.qf_target(next_observations, next_actions).amin(-1) - ent_coef * next_log_probability
            target = batch.rewards + self.gamma * (1 - batch.terminations) * next_value
        qf_loss = F.mse_loss(self.qf(observations, batch.actions), target[:, None].expand(-1, 2))
        actions, log_probability, _ = self.sample(observations)
        # The actor's loss reaches the actor through the Q functions, but does not train them.
        frozen = {name: parameter.detach() for name, parameter in self.qf.named_parameters()}
        values = torch.func.functional_call(self.qf, frozen, (observations, actions)).amin(-1)
        actor_loss = (ent_coef * log_probability - values).mean()
        ent_coef_loss = -self.log_ent_coef.exp() * (log_probability.detach() + self.target_entropy).mean()
        return {"qf_loss": qf_loss, "actor_loss": actor_loss, "ent_coef_loss": ent_coef_loss}

    @torch.no_grad()
    def act(self, observations: np.ndarray, deterministic: bool = False) -> np.ndarray:
        """Actions (..., A) for observations (..., D)."""
        x = torch.as_tensor(observations, dtype=torch.float32, device=self.log_ent_coef.device)
        actions, _, mean_actions = self.sample(self.normalize(x))
        return (mean_actions if deterministic else actions).cpu().numpy()


def play_features(envs: gym.vector.VectorEnv, agent: Agent, seed: int) -> list[torch.Tensor]:
    """Features, float32 (T, V, D), of an episode in every environment: any head makes their rewards."""
    observations, _ = envs.reset(seed=seed)
    features: dict[int, torch.Tensor] = {}
    while len(features) < envs.num_envs:
        observations, _, _, _, infos = envs.step(agent.act(observations, deterministic=True))
        for late in vlmrm_gym.read_late(infos):
            features.setdefault(late.env, torch.as_tensor(late.features))
    return list(features.values())


def plain_args(args: Args) -> dict[str, Any]:
    """Settings as JSON and a checkpoint keep them."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}


def save_checkpoint(state: dict[str, Any], learner: PreferenceLearner, run_folder: Path) -> None:
    """Write the state of a run as one file, as a whole: after a crash there is the one before."""
    learner.save(saved := io.BytesIO())
    state["learner"] = torch.frombuffer(saved.getbuffer(), dtype=torch.uint8)
    torch.save(state, run_folder / "checkpoint.partial")
    os.replace(run_folder / "checkpoint.partial", run_folder / "checkpoint.pt")


def load_checkpoint(args: Args, run_folder: Path) -> dict[str, Any]:
    """The state of a run with these settings. Tensors stay in the file until they are used."""
    try:
        state = torch.load(run_folder / "checkpoint.pt", map_location="cpu", weights_only=True, mmap=True)
        saved = {name: value for name, value in state["args"].items() if name not in MAY_CHANGE}
    except Exception as error:
        raise ValueError(
            "`resume` must be the folder of a run of this version that has reached a checkpoint. "
            f"Received {run_folder}: {error}"
        ) from error
    given = plain_args(args)
    for name, before in saved.items():
        if given[name] != before and not (name == "total_timesteps" and given[name] > before):
            raise ValueError(f"`{name}` is {given[name]!r}, was {before!r}. Start a new run for that.")
    return state


def main(args: Args) -> Path:
    started = time.monotonic()
    task = find_task(args.env_id)
    run_name = f"{args.env_id.replace('/', '_').replace(':', '_')}__{args.exp_name}__{args.seed}__{int(time.time())}"
    run_folder = args.resume or args.runs_folder / run_name
    state = {} if args.resume is None else load_checkpoint(args, run_folder)
    settings = plain_args(args)
    if args.track:
        import wandb

        wandb.init(project="vlmrm_gym", sync_tensorboard=True, config=settings, name=run_name, save_code=True)
    writer = SummaryWriter(str(run_folder))
    table = "\n".join(f"|{name}|{value}|" for name, value in settings.items())
    writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{table}")

    # TRY NOT TO MODIFY: seeding
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    auto = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(auto if args.device == "auto" else args.device)

    # env setup: rewards are NaN until there is a head
    curriculum = {"start_near_goal": args.start_near_goal} if args.start_near_goal else {}
    options = {"num_workers": args.num_workers, **task_options(args), **curriculum}
    scored: Any = make_vector_env(args.env_id, args.num_envs, **options)
    head, envs = scored.head, EpisodeStatistics(scored)
    selection_envs = make_vector_env(args.env_id, args.selection_episodes, **task_options(args))

    # yaml.safe_load reads JSON, and leaves package.module:attribute as it is
    labeler = yaml.safe_load(args.labeler) if args.labeler else GroundTruthLabeler(mistake_rate=args.mistake_rate)
    learner = PreferenceLearner(
        envs,
        labeler,
        answers=args.answers or run_folder / "answers.db",
        segment_length=args.segment_length,
        fit=FitOptions(l2=args.l2),
        seed=args.seed,
    )
    buffer = ReplayBuffer(args.buffer_size, envs, device=device, seed=args.seed)
    agent = Agent(envs, args).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate)
    candidates: list[tuple[dict[str, Any], list[torch.Tensor]]] = []
    global_step, learning_step, updates = 0, math.inf, 0
    if state:
        learner.load(io.BytesIO(state["learner"].numpy()))
        buffer.load_state_dict(state["buffer"])
        if learner.head is not None:
            buffer.relabel(head)
        agent.load_state_dict(state["agent"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["torch"])
        candidates, updates = state["candidates"], state["updates"]
        global_step, learning_step = state["global_step"], state["learning_step"]

    assert isinstance(envs.action_space, gym.spaces.Box)
    low, high = envs.action_space.low, envs.action_space.high
    observations = random_actions = noise = np.zeros_like(low)
    progress = tqdm(total=args.total_timesteps, initial=global_step, unit="step", smoothing=0.05)
    is_start, previous_step = True, global_step
    while True:
        # Start the game. A run starts anew after every checkpoint: what it does then depends on nothing else.
        is_last = global_step >= args.total_timesteps
        if is_start or is_last:
            observations, infos = envs.reset(seed=args.seed + global_step)
            buffer.add_rewards(infos)
            state = {"args": settings, "agent": agent.state_dict(), "optimizer": optimizer.state_dict()}
            state |= {"buffer": buffer.state_dict(), "torch": torch.get_rng_state(), "candidates": candidates}
            state |= {"global_step": global_step, "learning_step": learning_step, "updates": updates}
            save_checkpoint(state, learner, run_folder)
            np.random.seed(args.seed + global_step)
            envs.action_space.seed(args.seed + global_step)
        if is_last:
            break

        # COLLECT
        if is_start or global_step // args.num_envs % args.exploration_hold == 0:
            random_actions = envs.action_space.sample()
            noise = args.exploration_noise * (high - low) / 2 * np.random.standard_normal(low.shape)
        actions = random_actions if learner.head is None else np.clip(agent.act(observations) + noise, low, high)
        next_observations, rewards, terminations, truncations, infos = envs.step(actions)
        buffer.add(observations, actions, next_observations, rewards, terminations, truncations, infos)
        observations = next_observations
        previous_step, global_step = global_step, global_step + int(infos["_task_reward"].sum())  # without autoresets
        progress.update(global_step - previous_step)
        for row in finished_episodes(infos):
            for name, value in row.items():
                if not math.isnan(value):  # as returns are before the first head
                    writer.add_scalar(f"charts/{name}", value, global_step)

        # ASK, FIT, RELABEL
        is_due = global_step >= args.learning_starts + learner.num_rounds * args.round_frequency
        count = max(0, min(args.pairs, args.questions - args.pairs * learner.num_rounds))
        if is_due and len(learner.log) and count:
            outcome = learner.run_round(count)
            progress.write(f"Round {outcome.number}: {outcome.verdict.reason}")
            write_round(outcome.pairs, outcome.answers, run_folder / f"round_{outcome.number:03}.png")
            for name, value in outcome.scalars.items():
                writer.add_scalar(f"preferences/{name}", value, global_step)
            if outcome.verdict.accepted:
                buffer.relabel(head)  # all rewards, old and new ones, are of the newest head
                assert learner.head is not None
                learner.head.save(run_folder / "head.safetensors")
                if head.version == 1:
                    learning_step = global_step
                    agent.fit_normalization(buffer.sample(10_000).observations)
        all_asked = args.pairs * learner.num_rounds >= args.questions
        if learner.head is None and (all_asked or global_step >= args.total_timesteps):
            raise RuntimeError(f"There is no reward to learn from after {learner.num_questions} questions.")

        # LEARN
        while updates < (global_step - learning_step) * args.updates_per_step:
            losses = agent.losses(buffer.sample(args.batch_size))
            optimizer.zero_grad()
            torch.stack(list(losses.values())).sum().backward()
            optimizer.step()
            with torch.no_grad():
                for target, parameter in zip(agent.qf_target.parameters(), agent.qf.parameters(), strict=True):
                    target.lerp_(parameter, args.tau)
            updates += 1
            if updates % 500 == 0:
                for name, loss in losses.items():
                    writer.add_scalar(f"losses/{name}", loss.item(), global_step)
                writer.add_scalar("charts/SPS", progress.format_dict["rate"] or 0, global_step)

        # Keep a candidate, with the features of its episodes: rewards of different heads cannot be compared
        is_start = global_step // args.checkpoint_frequency > previous_step // args.checkpoint_frequency
        is_due = global_step // args.selection_frequency > previous_step // args.selection_frequency
        is_due = is_due or global_step >= args.total_timesteps
        if is_due and learner.head is not None:
            played = play_features(selection_envs, agent, seed=args.seed)
            candidates.append((copy.deepcopy(agent.state_dict()), played))
    progress.close()
    envs.close()
    selection_envs.close()
    learner.answers.close()

    # Evaluate the agent that is the best by the newest head
    returns = [sum(head(features.numpy()).sum() for features in played) for _, played in candidates]
    best, _ = candidates[int(np.argmax(returns))]
    torch.save(best, run_folder / "agent.pt")
    agent.load_state_dict(best)
    greedy = partial(agent.act, deterministic=True)
    frozen = task_options(args, run_folder / "head.safetensors")
    evaluation_envs = make_vector_env(args.env_id, args.eval_episodes, num_workers=args.num_workers, **frozen)
    episodes = play_episodes(evaluation_envs, greedy, seed=10_000)
    evaluation_envs.close()
    means = episodes.means((task and task.success_threshold) or 0.5)
    result = {**means, "questions": learner.num_questions, "rounds": learner.num_rounds}
    result |= {"head_version": head.version, "timesteps": global_step, "minutes": (time.monotonic() - started) / 60}
    result |= {"version": vlmrm_gym.__version__, "args": settings}
    (run_folder / "result.json").write_text(json.dumps(result, indent=2))
    if args.capture_video:
        env = make_env(args.env_id, **frozen)
        record_video(env, greedy, run_folder / "agent.mp4", seed=args.seed, title=frozen["reward"].prompt)
        env.close()
    writer.close()
    print(f"\n{run_folder}: " + ", ".join(f"{name} {value:.2f}" for name, value in means.items()))
    return run_folder


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
