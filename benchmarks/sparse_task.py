"""Agents of a sparse task reward: alone, with a CLIP reward added, and with one that is tuned to successes (FuRL).

    python benchmarks/sparse_task.py cart-pole
    python benchmarks/sparse_task.py mountain-car --seeds 1 2 3 --rewards sparse tuned
    python benchmarks/sparse_task.py mountain-car --white-noise

Unmodified DQN and SAC of Stable-Baselines3, with the settings of the task's record. The sparse reward:

- cart-pole: 1 at the end of an episode of 200 steps in which the pole stood all along, else 0
- mountain car: 1 at every step at the flag, else 0

Rewards: `sparse` is that alone; `clip` adds 0.05 times CLIP's cosine similarity, `tuned` 0.05 times that of
`TunedCLIP`, tuned every `--every` steps. Success is computed from the simulator's state over 100 episodes of the
deterministic policy: after the last step, and at five times on the way, of which the last step is one. The agent does
not know of these.

--white-noise: mountain car without the exploration of the task's record, which holds its noise for 30 steps and thereby
often swings the car up to the flag: the actions of the first steps are independent then.
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import stable_baselines3
import torch
import tyro
from gymnasium.wrappers import TimeLimit
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

import vlmrm_gym
from vlmrm_gym.envs import CartPole, MountainCar
from vlmrm_gym.sb3 import (
    ActionRepeatNoise,
    DeferredReplayBuffer,
    RunningNormExtractor,
    TuningCallback,
    make_vec_env,
)
from vlmrm_gym.tasks import REGISTERED, Task
from vlmrm_gym.versions import read_commit

LENGTH, EPISODES, EVALUATIONS = 200, 100, 5


class SparseCartPole(CartPole):
    """Pays 1 at the last step of an episode in which the pole stood all along."""

    def reset(self, **options: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Begin to count."""
        self._upright = 0
        self._steps = 0
        return super().reset(**options)

    def step(self, action: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """As `CartPole`, with the sparse reward."""
        observation, _, terminated, truncated, info = super().step(action)
        self._steps += 1
        self._upright += info["success"]
        return observation, float(self._upright == LENGTH == self._steps), terminated, truncated, info


class SparseMountainCar(MountainCar):
    """Pays 1 at the flag."""

    def step(self, action: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """As `MountainCar`, with the sparse reward."""
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(info["success"]), terminated, truncated, info


TASKS: dict[str, tuple[str, Callable[[], Any]]] = {
    "cart-pole": ("VLMRM/CartPole-v1", SparseCartPole),
    "mountain-car": ("VLMRM/MountainCarContinuous-v0", SparseMountainCar),
}


@dataclass(frozen=True)
class Args:
    task: Annotated[Literal["cart-pole", "mountain-car"], tyro.conf.Positional]
    """what the agent learns"""
    rewards: tuple[Literal["sparse", "clip", "tuned"], ...] = ("sparse", "clip", "tuned")
    """what it learns from"""
    seeds: tuple[int, ...] = (1, 2, 3)
    """a run for each"""
    steps: int | None = None
    """of a training; None: those of the task's record"""
    every: int = 1_000
    """steps from one tuning to the next"""
    gradient_steps: int | None = None
    """of a tuning; None: as many as `every`"""
    weight: float = 0.05
    """of the cosine similarity"""
    prompt: str | None = None
    """the goal; None: the task's"""
    white_noise: bool = False
    """explore mountain car by independent actions"""
    out: Path | None = None
    """file to which each run's result is appended as a line of JSON"""


class Watch(BaseCallback):
    """Evaluates the policy five times, and counts training episodes that succeeded."""

    def __init__(self, task: Task, make: Callable[[], Any], steps: int) -> None:
        super().__init__()
        self._threshold, self._make, self._every = find_threshold(task), make, steps / EVALUATIONS
        self.success: list[float] = []
        self.successes: list[int] = [0]
        self._streaks: list[list[bool]] = []

    def _on_step(self) -> bool:
        self._streaks = self._streaks or [[] for _ in self.locals["infos"]]
        for streak, info, done in zip(self._streaks, self.locals["infos"], self.locals["dones"], strict=True):
            streak.append(info["success"])
            if done:
                self.successes[-1] += int(np.mean(streak) >= self._threshold)
                streak.clear()
        if self.num_timesteps >= (len(self.success) + 1) * self._every:
            self.success.append(evaluate(self.model, self._threshold, self._make))
            self.successes.append(0)
        return True


def find_threshold(task: Task) -> float:
    """The fraction of an episode's steps that must succeed."""
    assert task.success_threshold is not None
    return task.success_threshold


def evaluate(model: Any, threshold: float, make: Callable[[], Any]) -> float:
    """The fraction of episodes of the deterministic policy that succeed."""
    envs = [make() for _ in range(EPISODES)]
    observations = np.stack([env.reset(seed=10_000 + i)[0] for i, env in enumerate(envs)])
    success = np.zeros((LENGTH, EPISODES))
    for t in range(LENGTH):
        actions, _ = model.predict(observations, deterministic=True)
        made = [env.step(action) for env, action in zip(envs, actions, strict=True)]
        observations = np.stack([one[0] for one in made])
        success[t] = [one[4]["success"] for one in made]
    return float((success.mean(0) >= threshold).mean())


def train(args: Args, reward: str, seed: int) -> dict[str, Any]:
    """Train and evaluate an agent."""
    began, (id, make) = time.monotonic(), TASKS[args.task]
    task = REGISTERED[f"Sparse/{id.partition('/')[2]}"]
    rl = dict(task.training)
    steps, num_envs, name = args.steps or rl["n_steps"], rl["n_envs_per_worker"], rl["algorithm"]
    for used in ("n_steps", "n_envs_per_worker", "algorithm"):
        rl.pop(used)
    if rl.pop("normalize_observations", False):
        rl["policy_kwargs"] = {**rl["policy_kwargs"], "features_extractor_class": RunningNormExtractor}
    if (noise := rl.pop("action_noise", None)) is not None and not args.white_noise:
        options = {key: value for key, value in noise.items() if key != "name"}
        rl["action_noise"] = ActionRepeatNoise(1, steps=rl["learning_starts"] // num_envs, **options)
    watch = Watch(task, make, steps)
    callbacks: list[BaseCallback] = [watch]
    if reward == "sparse":
        envs: Any = DummyVecEnv([lambda: TimeLimit(make(), LENGTH)] * num_envs)
        envs.seed(seed)
    else:
        rl["replay_buffer_class"] = DeferredReplayBuffer
        own = vlmrm_gym.TunedCLIP(prompt=args.prompt or str(task.prompt), weight=args.weight)
        envs = make_vec_env(task.id, num_envs, seed=seed, reward=own, task_reward_weight=1, device="cpu")
    if reward == "tuned":
        callbacks.insert(0, TuningCallback(every=args.every, gradient_steps=args.gradient_steps, seed=seed))
    model = getattr(stable_baselines3, name)("MlpPolicy", envs, seed=seed, device="cpu", **rl)
    model.learn(steps, callback=callbacks)
    envs.close()
    return {
        "task": args.task,
        "reward": reward,
        "seed": seed,
        "success": watch.success,
        "training_successes": watch.successes,
        "minutes": (time.monotonic() - began) / 60,
        "steps": steps,
        "white_noise": args.white_noise,
        "weight": args.weight,
        "prompt": args.prompt,
    }


def main(args: Args) -> None:
    torch.set_num_threads(1)
    for id, make in TASKS.values():
        record = REGISTERED[id]
        vlmrm_gym.register(
            replace(record, id=f"Sparse/{id.partition('/')[2]}", env=f"{Path(__file__).stem}:{make.__name__}")
        )
    print(f"{args.task}, vlmrm_gym {vlmrm_gym.__version__}, commit {read_commit() or 'unknown'}\n")
    print("| reward | success after the last step, by seed | best of five | successful training episodes | minutes |")
    print("|---|---|---|---|---|")
    for reward in args.rewards:
        results = []
        for seed in args.seeds:
            results.append(train(args, reward, seed))
            if args.out is not None:
                with args.out.open("a") as file:
                    file.write(json.dumps(results[-1]) + "\n")
        last, best = ([f"{100 * pick(one['success']):.0f}" for one in results] for pick in (lambda own: own[-1], max))
        counts = ", ".join(str(int(sum(one["training_successes"]))) for one in results)
        minutes = statistics.mean(one["minutes"] for one in results)
        print(f"| {reward} | {', '.join(last)}% | {', '.join(best)}% | {counts} | {minutes:.1f} |", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
