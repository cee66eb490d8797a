"""Seconds and peak memory of relabelling a replay buffer, and of saving it.

    python benchmarks/relabel.py
    python benchmarks/relabel.py --transitions 100_000 --features-dtype float16

Fills the features and task rewards of `vlmrm_gym.ReplayBuffer` with random numbers; no environment is stepped.
Heads:

- linear: one matrix product.
- ensemble: the mean of three linear heads.

Seconds: the median over the rounds, on all cores that torch uses. Peak: how much the process's memory grew at most
while the buffer was relabelled, or saved, read from /proc/self/status after the peak was reset. Saving is `torch.save`
of `state_dict`; for comparison, of a copy of it, and so are `numpy.savez` and `numpy.load` with Stable-Baselines3's
buffer.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from processes import memory

import vlmrm_gym
from vlmrm_gym import ReplayBuffer
from vlmrm_gym.rewards import RewardModel
from vlmrm_gym.sb3 import DeferredReplayBuffer

FeaturesDtype = Literal["float32", "float16"]


@dataclass(frozen=True)
class Args:
    transitions: int = 1_000_000
    """stored transitions that are relabelled"""
    saved_transitions: int = 100_000
    """stored transitions, with the widest features, that are saved"""
    sizes: tuple[int, ...] = (128, 512)
    """features of a transition, which has one view"""
    features_dtype: FeaturesDtype = "float32"
    """how the buffer keeps features"""
    rounds: int = 3
    """runs of each figure"""


def peak_growth(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds of a call, and GB by which the process's memory grew at most."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak becomes what is in memory now
    before, began = memory("VmRSS"), time.perf_counter()
    call()
    return time.perf_counter() - began, (memory("VmHWM") - before) / 1e3


def fill(late: Any, count: int, size: int) -> None:
    """Random features and task rewards for the first transitions."""
    late.allocate((1, size))
    rng = np.random.default_rng(0)
    for start in range(0, count, 10_000):
        rows = late.columns["features"][start : min(count, start + 10_000)]
        rows[:] = rng.standard_normal(rows.shape, dtype=np.float32)
    late.columns["task_rewards"][:count] = rng.standard_normal(count, dtype=np.float32)
    late.num_stored = count


class Features(RewardModel):
    """A reward of features, which are only declared."""

    def __init__(self, size: int) -> None:
        self.feature_size = self._size = size

    def encode(self, frames: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Zeros."""
        return np.zeros((len(frames), self._size), dtype=np.float32)

    def head(self, features: torch.Tensor) -> torch.Tensor:
        """Their mean."""
        return features.mean((1, 2))


def plain_buffer(count: int, size: int, dtype: FeaturesDtype, views: int = 1) -> ReplayBuffer:
    """A full buffer with random features: that of an environment, whose saved state is made longer."""
    model: Any = Features
    model.__abstractmethods__ = frozenset()  # older checkouts, in `compare_speed.py`, have an abstract `__call__`
    make = partial(gym.make, "InvertedPendulum-v5", render_mode="rgb_array")
    cameras = [{"azimuth": 90.0 * view} for view in range(views)]
    envs = vlmrm_gym.VLMRewardVectorEnv([make], reward=model(size), camera=cameras, return_features=True)
    buffer = ReplayBuffer(count, envs, features_dtype=dtype)
    state = buffer.state_dict()
    columns = {name: value for name, value in state.items() if torch.is_tensor(value) and name != "generator"}
    longer = {name: torch.zeros((count, *column.shape[1:]), dtype=column.dtype) for name, column in columns.items()}
    longer["features"].normal_(generator=torch.Generator().manual_seed(0))
    buffer.load_state_dict({**state, **longer, "stored": count})
    envs.close()
    return buffer


def sb3_buffer(count: int, size: int, dtype: FeaturesDtype) -> DeferredReplayBuffer:
    env = gym.make("CartPole-v1")
    buffer = DeferredReplayBuffer(count, env.observation_space, env.action_space, "cpu", features_dtype=dtype)
    fill(buffer._late, count, size)
    buffer.full = True
    return buffer


def heads(size: int) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    weights = torch.randn(3, size, generator=torch.Generator().manual_seed(0))
    linear = torch.nn.Linear(size, 3)
    linear.weight.data[:] = weights
    return {
        "linear": lambda features: features[:, 0] @ weights[0],
        "ensemble of 3": lambda features: linear(features[:, 0]).mean(1),
    }


def main(args: Args) -> None:
    print(f"{torch.get_num_threads()} threads, {args.features_dtype}\n")
    print("| transitions | features | head | seconds | peak, GB above the buffer | buffer's features, GB |")
    print("|---|---|---|---|---|---|")
    for size in args.sizes:
        buffer = plain_buffer(args.transitions, size, args.features_dtype)
        for name, head in heads(size).items():
            runs = [peak_growth(lambda b=buffer, h=head: b.relabel(h)) for _ in range(args.rounds)]
            seconds, peak = statistics.median(run[0] for run in runs), max(run[1] for run in runs)
            held = buffer._late.columns["features"].nbytes / 1e9
            print(f"| {args.transitions:,} | {size} | {name} | {seconds:.2f} | {peak:.2f} | {held:.2f} |", flush=True)
        del buffer

    print(f"\n| {args.saved_transitions:,} transitions, {max(args.sizes)} features | seconds | peak, GB above |")
    print("|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        save_plain(args, Path(folder) / "buffer.pt")
        save_sb3(args, Path(folder) / "buffer.npz")


def save_plain(args: Args, file: Path) -> None:
    """Rows of the buffer that needs no RL library."""
    plain, other = (plain_buffer(args.saved_transitions, max(args.sizes), args.features_dtype) for _ in range(2))

    def save_copy() -> None:
        torch.save({name: v.clone() if torch.is_tensor(v) else v for name, v in plain.state_dict().items()}, file)

    def load(mmap: bool) -> None:
        other.load_state_dict(torch.load(file, weights_only=True, mmap=mmap))

    report("torch.save of a copy", save_copy, args.rounds)
    report("torch.save", lambda: torch.save(plain.state_dict(), file), args.rounds)
    report("torch.load", lambda: load(False), args.rounds)
    report("torch.load with mmap (pages of the file count)", lambda: load(True), args.rounds)


def save_sb3(args: Args, file: Path) -> None:
    """Rows of the buffer for Stable-Baselines3."""
    buffer, other = (sb3_buffer(args.saved_transitions, max(args.sizes), args.features_dtype) for _ in range(2))

    def save() -> None:
        state: Any = buffer.state_dict()
        np.savez(file, **state)

    def load() -> None:
        with np.load(file, allow_pickle=False) as state:
            other.load_state_dict(state)

    report("numpy.savez, Stable-Baselines3", save, args.rounds)
    report("numpy.load, Stable-Baselines3", load, args.rounds)


def report(name: str, call: Callable[[], object], rounds: int) -> None:
    """Print the row of a table."""
    runs = [peak_growth(call) for _ in range(rounds)]
    seconds, peak = statistics.median(run[0] for run in runs), max(run[1] for run in runs)
    print(f"| {name} | {seconds:.2f} | {peak:.2f} |", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
