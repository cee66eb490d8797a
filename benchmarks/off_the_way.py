"""What a reward from videos pays where no video was: beside Meta-World's dense reward, and in circles.

python examples/metaworld_from_videos.py --task door-open-v3 --steps 2000   # recordings and their reward
python benchmarks/off_the_way.py runs/door-open-v3__recordings__1/reward --task door-open-v3
"""

import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from metaworld.policies import ENV_POLICY_MAP  # pyright: ignore[reportMissingImports]

from vlmrm_gym import Demonstrations
from vlmrm_gym.learning.demonstrations_report import rank_correlation
from vlmrm_gym.rewards.distance import DistanceNetwork
from vlmrm_gym.states import StateView

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from metaworld_from_videos import Args as Training
from metaworld_from_videos import Task


@dataclass
class Args:
    """Compare the place, and what steps pay, with the dense reward, for several behaviours."""

    reward: Annotated[Path, tyro.conf.Positional]
    """the folder of a reward from videos"""
    task: str = "door-open-v3"
    """a task of Meta-World"""
    episodes: int = 4
    """of each behaviour"""
    steps: int = 60
    """of an episode, at most 100; the task repeats each action twice"""


def behaviours(args: Args, rng: np.random.Generator) -> dict[str, Callable[[Any, int], Any]]:
    """By name, actions for an observation of a step."""
    policy = ENV_POLICY_MAP[args.task]()
    held = np.zeros(4)

    def hold(size: float, steps: int, step: int) -> Any:
        if step % steps == 0:
            held[:] = rng.uniform(-size, size, 4)
        return held

    def to_object(observation: Any) -> Any:
        way = observation[4:7] - observation[:3]
        return np.append(0.7 * way / np.linalg.norm(way), 0)

    return {
        "scripted policy": lambda observation, step: policy.get_action(observation),
        "scripted policy, disturbed": lambda observation, step: policy.get_action(observation) + hold(1, 10, step),
        "towards the object": lambda observation, step: to_object(observation),
        "away from the object": lambda observation, step: -to_object(observation),
        "down": lambda observation, step: np.array([0, 0, -0.7, 0]),
        "random": lambda observation, step: rng.uniform(-1, 1, 4),
        "random, each for 10 steps": lambda observation, step: hold(1, 10, step),
        "random, each for 30 steps": lambda observation, step: hold(1.5, 30, step),
    }


@torch.no_grad()
def main(args: Args) -> None:
    """Print a row of a table for each behaviour."""
    network = DistanceNetwork.load(args.reward / "head.safetensors")
    model = Demonstrations.load(args.reward).build("cpu")
    env = Task(Training(task=args.task, reward="dense"), seed=5)
    print("| behaviour | place at the end | at most | rank correlation with dense | steps pay | gained |")
    print("|---|---|---|---|---|---|")
    everything = list[Any]()
    with closing(env), closing(StateView(env)) as view:
        for name, act in behaviours(args, np.random.default_rng(0)).items():
            places, dense, paid = [], [], []
            for _ in range(args.episodes):
                observation, _ = env.reset()
                view.reset()
                states, rewards = [view.capture()], []
                for step in range(args.steps):
                    action = np.clip(act(observation, step), -1, 1).astype(np.float32)
                    observation, reward, *_ = env.step(action)
                    states.append(view.capture())
                    rewards.append(reward)
                rows, changes = zip(*states, strict=True)
                features = torch.as_tensor(model.encode(view.draw(np.stack(rows), changes))).float()
                places.append(network.places(features).numpy())
                paid.append(float(network(features[:-1], features[1:]).sum()))
                dense.append(rewards)
            place = np.array(places)
            everything.append((place[:, 1:].ravel(), np.ravel(dense)))
            print(
                f"| {name} | {place[:, -1].mean():.2f} | {place.max():.2f} | {rank_correlation(*everything[-1]):.2f} "
                f"| {np.mean(paid):.2f} | {(place[:, -1] - place[:, 0]).mean():.2f} |",
                flush=True,
            )
    pooled = (np.concatenate(values) for values in zip(*everything, strict=True))
    print(f"Rank correlation over all: {rank_correlation(*pooled):.2f}")


if __name__ == "__main__":
    main(tyro.cli(Args))
