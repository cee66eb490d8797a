"""Does a reward from videos pay for going in circles? The sum of its steps, beside the way from start to end.

python examples/metaworld_from_videos.py --task drawer-close-v3 --steps 2000   # recordings and their reward
python benchmarks/circles.py runs/drawer-close-v3__recordings__1/reward --task drawer-close-v3
"""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro
from metaworld.policies import ENV_POLICY_MAP  # pyright: ignore[reportMissingImports]
from metaworld_from_videos import Args as Training
from metaworld_from_videos import Task

from vlmrm_gym import Demonstrations
from vlmrm_gym.rewards.distance import DistanceNetwork
from vlmrm_gym.states import StateView


@dataclass
class Args:
    """Compare what steps pay with what was gained."""

    reward: Annotated[Path, tyro.conf.Positional]
    """the folder of a reward from videos"""
    task: str = "drawer-close-v3"
    """a task of Meta-World"""
    episodes: int = 8
    """of the scripted policy, and as many of random actions, each held for ten steps"""
    steps: int = 60
    """of an episode"""


@torch.no_grad()
def main(args: Args) -> None:
    """Print a line for each behaviour."""
    network = DistanceNetwork.load(args.reward / "head.safetensors")
    model = Demonstrations.load(args.reward).build("cpu")
    env, rng = Task(Training(task=args.task), seed=5), np.random.default_rng(0)
    for name in ("scripted policy", "random actions"):
        paid, gained, circles = [], [], []
        with closing(StateView(env)) as view:
            for _ in range(args.episodes):
                observation, _ = env.reset()
                view.reset()
                policy, states = ENV_POLICY_MAP[args.task](), [view.capture()]
                action = env.action_space.sample()
                for step in range(args.steps):
                    if name == "scripted policy":
                        action = np.clip(policy.get_action(observation), -1, 1)
                    elif step % 10 == 0:
                        action = rng.uniform(-1, 1, action.shape)
                    observation, *_ = env.step(action.astype(np.float32))
                    states.append(view.capture())
                rows, changes = zip(*states, strict=True)
                features = torch.as_tensor(model.encode(view.draw(np.stack(rows), changes))).float()
                distances = network.frames * torch.stack(
                    [network(one.expand_as(features), features) for one in features]
                )
                places = network.frames * network.places(features)
                paid.append(distances.diagonal(1).sum())
                gained.append(places[-1] - places[0])
                first = torch.arange(len(features) - 4)  # there in two steps of two frames each, and back
                circles.append(
                    (distances[first, first + 2] + distances[first + 2, first + 4] + distances[first + 4, first]).abs()
                )
        print(
            f"{name}: steps pay {torch.stack(paid).mean():.1f}, gained {torch.stack(gained).mean():.1f}, "
            f"mean difference {(torch.stack(paid) - torch.stack(gained)).abs().mean():.1f}; "
            f"a circle of three {torch.cat(circles).mean():.2f}, at most {torch.cat(circles).max():.1f}"
        )


if __name__ == "__main__":
    main(tyro.cli(Args))
