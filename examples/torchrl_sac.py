"""SAC of TorchRL with rewards from a prompt: mountain car, and any ID with continuous actions that renders.

python -m pip install -e ".[torchrl,train]"
python examples/torchrl_sac.py --env-id VLMRM/MountainCarContinuous-v0

In TorchRL's words: a collector, loss modules, and a replay buffer into which rewards are written when episodes have
been scored. The folder runs/ENV__torchrl_sac__SEED gets policy.pt, the best by VLM return, and result.json.
"""

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import tyro
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from tensordict.nn.distributions import NormalParamExtractor
from torch import nn
from torchrl.collectors import Collector
from torchrl.data.tensor_specs import ContinuousBox
from torchrl.envs import DoubleToFloat, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import SoftUpdate
from torchrl.objectives.sac import SACLoss
from tqdm import tqdm

from vlmrm_gym.data.statistics import play_episodes
from vlmrm_gym.envs.make import find_task, make_vector_env
from vlmrm_gym.torchrl import LateReplayBuffer, make_env


@dataclass
class Args:
    """Train with TorchRL."""

    env_id: str = "VLMRM/MountainCarContinuous-v0"
    """the id of the environment"""
    prompt: str | None = None
    """the goal; None: the task's prompt"""
    model: str | None = None
    """the vision-language model (None: by the environment)"""
    seed: int = 1
    """of environments, networks and actions"""
    num_envs: int = 8
    """the number of parallel environments"""
    total_frames: int = 40_000
    """transitions, over all environments"""
    frames_per_batch: int = 160
    """transitions that are collected at once"""
    updates_per_frame: float = 0.5
    """gradient steps for each transition"""
    learning_starts: int = 4_800
    """transitions before the first gradient step; actions are random until then"""
    exploration_hold: int = 30
    """steps for which a random action is repeated: the car has to swing up before the reward guides it"""
    capacity: int = 100_000
    """transitions that the buffer holds"""
    batch_size: int = 256
    """transitions of a gradient step"""
    gamma: float = 0.99
    """the discount factor"""
    learning_rate: float = 6e-4
    """of all optimizers"""
    hidden: int = 128
    """units of each of the two hidden layers"""
    selection_frequency: int = 4_800
    """transitions between evaluations of the deterministic policy; the best one is kept"""
    eval_episodes: int = 100
    """episodes of the final evaluation"""
    runs_folder: Path = Path("runs")
    """parent folder of the run's folder"""


class Explore(TensorDictModuleBase):
    """Random actions, each held for some steps, until learning starts; then the policy."""

    def __init__(self, policy: TensorDictModuleBase, env: TransformedEnv, args: Args) -> None:
        super().__init__()
        self.in_keys, self.out_keys = ["observation"], ["action"]
        self.policy, self.action_spec, self.args, self.steps = policy, env.action_spec, args, 0

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.steps += 1
        if self.steps * self.args.num_envs > self.args.learning_starts:
            return self.policy(tensordict)
        if self.steps % self.args.exploration_hold == 1:
            self.held = self.action_spec.rand()
        return tensordict.set("action", self.held.clone())


def make_networks(env: TransformedEnv, args: Args) -> tuple[ProbabilisticActor, ValueOperator]:
    """The policy, and a value of observations and actions."""
    size, bounds = env.action_spec.shape[-1], env.action_spec.space
    assert isinstance(bounds, ContinuousBox), "only continuous action space is supported"
    options = {"num_cells": [args.hidden] * 2, "activation_class": nn.ReLU}
    network = nn.Sequential(MLP(out_features=2 * size, **options), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(network, in_keys=["observation"], out_keys=["loc", "scale"]),
        spec=env.action_spec,
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": bounds.low[0], "high": bounds.high[0]},
        return_log_prob=True,
        default_interaction_type=ExplorationType.RANDOM,
    )
    value = ValueOperator(MLP(out_features=1, **options), in_keys=["observation", "action"])
    for one in (actor, value):
        one(env.fake_tensordict())  # makes the lazy layers
    return actor, value


def greedy(actor: ProbabilisticActor, observations: np.ndarray) -> np.ndarray:
    """The deterministic policy's actions."""
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        return actor(torch.as_tensor(observations, dtype=torch.float32))[2].numpy()


def reward_options(args: Args) -> dict[str, Any]:
    """The keywords of the environments that say which reward."""
    given = {"prompt": args.prompt, "model": args.model}
    return {name: value for name, value in given.items() if value is not None}


def make_evaluation_envs(args: Args, num_envs: int) -> gym.vector.VectorEnv:
    return make_vector_env(args.env_id, num_envs, **reward_options(args))


def main(args: Args) -> Path:
    """Train, and evaluate the best policy."""
    started = time.monotonic()
    torch.manual_seed(args.seed)
    folder = args.runs_folder / f"{args.env_id.replace('/', '_')}__torchrl_sac__{args.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    made = make_env(args.env_id, args.num_envs, seed=args.seed, overlap=True, **reward_options(args))
    env = TransformedEnv(made, DoubleToFloat())
    actor, value = make_networks(env, args)
    loss_module = SACLoss(actor, value, num_qvalue_nets=2)
    loss_module.make_value_estimator(gamma=args.gamma)
    target = SoftUpdate(loss_module, tau=0.005)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=args.learning_rate)
    buffer = LateReplayBuffer(env, args.capacity, batch_size=args.batch_size)
    collector = Collector(
        env, Explore(actor, env, args), frames_per_batch=args.frames_per_batch, total_frames=args.total_frames
    )
    selection_envs, best_return, updates, frames = make_evaluation_envs(args, 4), -math.inf, 0, 0
    with tqdm(total=args.total_frames, unit=" frames") as progress:
        for data in collector:
            buffer.extend(data)
            before, frames = frames, frames + data.numel()
            progress.update(data.numel())
            learning = frames >= args.learning_starts and buffer.num_arrived >= args.batch_size
            while learning and updates < (frames - args.learning_starts) * args.updates_per_frame:
                losses = loss_module(buffer.sample())
                optimizer.zero_grad()
                (losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_alpha"]).backward()
                optimizer.step()
                target.step()
                updates += 1
            is_last = frames >= args.total_frames
            if is_last or (learning and frames // args.selection_frequency > before // args.selection_frequency):
                means = play_episodes(selection_envs, lambda seen: greedy(actor, seen), seed=args.seed).means()
                progress.set_postfix({name: f"{mean:.2f}" for name, mean in means.items()})
                if means["vlm_return"] >= best_return:
                    best_return = means["vlm_return"]
                    torch.save(actor.state_dict(), folder / "policy.pt")
    selection_envs.close()
    actor.load_state_dict(torch.load(folder / "policy.pt"))
    task, envs = find_task(args.env_id), make_evaluation_envs(args, args.eval_episodes)
    episodes = play_episodes(envs, lambda seen: greedy(actor, seen), seed=10_000)
    envs.close()
    means = episodes.means((task and task.success_threshold) or 0.5)
    settings = {name: one for name, one in vars(args).items() if name != "runs_folder"}
    result = {**means, "minutes": (time.monotonic() - started) / 60, "args": settings}
    (folder / "result.json").write_text(json.dumps(result, indent=2))
    print(f"\n{folder}: " + ", ".join(f"{name} {mean:.2f}" for name, mean in means.items()))
    return folder


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
