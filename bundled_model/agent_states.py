"""States that trained agents visit, for `python -m bundled_model.train --mined`. The search does not find all of them.

    python -m bundled_model.agent_states agents.npy runs/tasks/arms-raised-front-side-min-1/VLMRM_*

The policies are those of `examples/sac_continuous.py`. They draw their actions as in training, so the states spread.
"""

import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro
from numpy.typing import NDArray

from vlmrm_gym.infos import STATE_KEY
from vlmrm_gym.tasks.humanoid_vector import HumanoidVectorEnv

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import sac_continuous


def main(
    out: Annotated[Path, tyro.conf.Positional],
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional],
    episodes: int = 100,
    seed: int = 30_000,
) -> None:
    """Write the states, `qpos`, float64 (N, 24), in random order.

    Args:
        out: File for the states.
        runs: Folders of runs.
        episodes: Number of episodes of each agent, of 100 steps each.
        seed: Of the initial states and the actions.
    """
    torch.manual_seed(seed)
    states = np.concatenate([visited(run, episodes, seed) for run in runs])
    np.save(out, np.random.default_rng(seed).permutation(states))
    print(f"{out}: {len(states)} states")


def visited(run: Path, episodes: int, seed: int, deterministic: bool = False) -> NDArray[np.float64]:
    """The states of a run's best agent after every action: float64 (100 * episodes, 24), in the order of steps."""
    envs = HumanoidVectorEnv(episodes, textured=False, episode_length=100)
    agent = sac_continuous.load_agent(run, envs)
    observations, _ = envs.reset(seed=seed)
    states = []
    for _ in range(100):
        observations, *_, infos = envs.step(agent.act(observations, deterministic))
        states.append(np.stack(infos[STATE_KEY]))
    envs.close()
    return np.concatenate(states)


if __name__ == "__main__":
    tyro.cli(main)
