"""Trainings of `vlmrm-gym train` that take a second or two, and how two of them are compared."""

import json

import numpy as np
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vlmrm_gym.tools.train.algorithms import ON_POLICY, algorithm_class, with_defaults
from vlmrm_gym.tools.train.config import Config, LoggingConfig, RewardConfig, RLConfig
from vlmrm_gym.tools.train.run import start
from vlmrm_gym.tools.train.run_folder import RunFolder

CONTINUOUS = ("SAC", "TD3", "DDPG", "TQC", "CrossQ")
FREQUENCY = 45
"""Checkpoints are due in the middle of episodes, and taken where these end: after 50, 100, 150, 200 and 240 steps."""


def small(algorithm, tmp_path, run_name="run", **reward):
    """A configuration that trains in a second or two; episodes of 25 steps are several rollouts."""
    env_name = "VLMRM/MountainCarContinuous-v0" if algorithm in CONTINUOUS else "VLMRM/CartPole-v1"
    on_policy = algorithm in ON_POLICY
    rl = {
        "algorithm": algorithm,
        "n_steps": 240,
        "n_envs_per_worker": 2,
        "episode_length": 25,
        "train_freq": 25 if on_policy else 5,
        "normalize_observations": algorithm in ("SAC", "DQN", "PPO"),
        "policy_kwargs": {"net_arch": [16]},
        "device": "cpu",
    }
    if not on_policy:
        rl |= {"learning_starts": 120 if reward.get("overlap") else 60, "buffer_size": 1_000}
    if algorithm != "A2C":
        rl |= {"gradient_steps": 2, "batch_size": 10}
    logging = LoggingConfig(checkpoint_freq=FREQUENCY, video_freq=0, tensorboard_freq=FREQUENCY // 2)
    reward.setdefault("textured", env_name == "VLMRM/CartPole-v1")
    return with_defaults(
        Config(
            env_name=env_name,
            base_path=str(tmp_path),
            run_name=run_name,
            seed=5,
            rl=RLConfig.of(rl),
            reward=RewardConfig(**reward),
            logging=logging,
        )
    )


def train(config):
    folder = RunFolder(config.run_folder)
    start(config, folder)
    return folder


class Crash(Exception):
    pass


def contents(folder):
    """Everything a training has learned and logged, except times."""
    kind = algorithm_class(folder.path.name.split("-")[0])
    model = kind.load(folder.policy("last"), device="cpu")
    values = {f"policy {name}": value for name, value in model.policy.state_dict().items()}
    numbers = {name: value for name, value in vars(model).items() if isinstance(value, int | float)}
    other = ("start_time", "_num_timesteps_at_start")  # differ between processes
    values |= {f"attribute {name}": torch.as_tensor(value) for name, value in numbers.items() if name not in other}
    for name, optimizer in vars(model.policy).items():
        if isinstance(optimizer, torch.optim.Optimizer):
            for number, state in optimizer.state_dict()["state"].items():
                values |= {f"{name} {number} {key}": torch.as_tensor(value) for key, value in state.items()}
    buffer = list(folder.checkpoints.values())[-1] / "replay_buffer.npz"
    if buffer.exists():
        with np.load(buffer, allow_pickle=False) as stored:
            values |= {
                f"buffer {name}": torch.as_tensor(stored[name]) for name in stored if stored[name].dtype.kind != "U"
            }
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in folder.metrics()]
    values["metrics"] = torch.tensor([list(row.values()) for row in rows])
    best = kind.load(folder.policy("best"), device="cpu")
    values |= {f"best policy {name}": value for name, value in best.policy.state_dict().items()}
    if (folder.path / "best.json").exists():
        values["best"] = torch.tensor(list(json.loads((folder.path / "best.json").read_text()).values()))
    events = EventAccumulator(str(folder.path)).Reload()
    for name in set(events.Tags()["scalars"]) - {"time/steps_per_second"}:
        values[f"events {name}"] = torch.tensor([(one.step, one.value) for one in events.Scalars(name)])
    return values


def assert_equal(one, other):
    one, other = contents(one), contents(other)
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=0, atol=0, equal_nan=True, msg=f"{name} differs")
