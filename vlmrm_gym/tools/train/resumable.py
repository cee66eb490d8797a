"""Keeps a run's progress, and makes a resumed run equal to one that was not stopped.

Whatever is random begins anew, from seed and step, between two rollouts wherever all episodes have just ended, also
where no checkpoint is written. So a checkpoint has networks, the replay buffer and counters, but no state of an
environment or of a random generator.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.utils import set_random_seed

from vlmrm_gym.sb3 import VLMVecEnv

COUNTERS = ("num_timesteps", "learning_starts", "_n_updates", "_n_calls", "_episode_num", "exploration_rate")
COUNTERS += ("_current_progress_remaining",)
"""Counters of algorithms, and values computed from them; each algorithm has a subset."""


@dataclass
class RunProgress:
    """The progress of a training run; part of a checkpoint."""

    step: int = 0
    """Step at the start of the last rollout."""
    seconds: float = 0.0
    best_return: float = -np.inf
    checkpoint: int | None = None
    """The step of the last checkpoint."""
    recent: list[float] = field(default_factory=list)
    """The newest returns; if the reward is learned, those of episodes that began with its newest head."""
    head_version: int = 0
    """The newest head of a reward that is learned, as far as returns and the best policy are by it."""
    head_step: int = 0
    """The step at which that head came."""
    has_new_returns: bool = False
    """Whether returns have arrived since policies were last compared."""
    unwritten: list[dict[str, float]] = field(default_factory=list)
    """Rows of metrics.csv that could not be written yet, as on a full disk."""
    unlogged: list[dict[str, float]] = field(default_factory=list)
    """Rows that are not in TensorBoard yet."""
    logged: dict[str, float] = field(default_factory=dict)
    """Values of the algorithm's that are not in TensorBoard yet, such as its newest losses."""


def restart(model: BaseAlgorithm, envs: VLMVecEnv, seed: int) -> list[dict[str, Any]]:
    """Begin all that is random anew, between two rollouts. Episodes in progress end.

    Returns infos with the rewards and episodes that have arrived; the replay buffer has them already.
    """
    new_seed = int(np.random.SeedSequence((seed, model.num_timesteps)).generate_state(1)[0])
    set_random_seed(new_seed, using_cuda=model.device.type == "cuda")
    model.action_space.seed(new_seed)
    envs.seed(new_seed)
    model._last_obs = envs.reset()
    model._last_episode_starts = np.ones(envs.num_envs, dtype=np.bool_)
    arrived = envs.flush()
    if (rollout := getattr(model, "rollout_buffer", None)) is not None:
        rollout.reset()  # the reset of the environments has ended it
    if (buffer := getattr(model, "replay_buffer", None)) is not None:
        for infos in arrived:
            buffer.receive(infos)
    if (noise := getattr(model, "action_noise", None)) is not None:
        noise.reset()
    if getattr(model, "use_sde", False):
        policy: Any = getattr(model, "actor", model.policy)
        policy.reset_noise(envs.num_envs)
    return [info for infos in arrived for info in infos]


@contextmanager
def preserve_rng() -> Iterator[None]:
    """Restore all random states after this block. For example, loading a model draws random numbers."""
    # Reading the state of an unused GPU would allocate hundreds of MB on it.
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        torch.cuda.set_rng_state_all(cuda)
