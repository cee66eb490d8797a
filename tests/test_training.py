"""A training is configured, leaves its folder, and goes on as if nothing had happened."""

import pytest
import torch
from stable_baselines3.common.buffers import ReplayBuffer

from vlmrm_gym.training import callbacks
from vlmrm_gym.training.algorithms import ALGORITHMS, algorithm_class
from vlmrm_gym.training.config import Config, LoggingConfig, RewardConfig, RLConfig, suited
from vlmrm_gym.training.run import resume, start
from vlmrm_gym.training.run_folder import RunFolder

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept"),
]

FREQUENCY = 24 * 3


def small(algorithm, tmp_path, name="run", **reward):
    """A configuration that trains within a second or two; checkpoints fall into the middle of episodes."""
    env_name = "VLMRM/CartPole-v1" if ALGORITHMS[algorithm].discrete else "VLMRM/MountainCarContinuous-v0"
    on_policy = ALGORITHMS[algorithm].on_policy
    rl = RLConfig(
        algorithm=algorithm,
        n_steps=240,
        n_envs_per_worker=2,
        episode_length=25,
        learning_starts=None if on_policy else 60,
        train_freq=12 if on_policy else 3,
        gradient_steps=None if algorithm == "A2C" else 2,
        batch_size=None if algorithm == "A2C" else 8,
        policy_kwargs={"net_arch": [16]},
        device="cpu",
    )
    logging = LoggingConfig(checkpoint_freq=FREQUENCY, video_freq=0, tensorboard_freq=50)
    reward.setdefault("textured", env_name == "VLMRM/CartPole-v1")
    return suited(
        Config(
            env_name=env_name,
            base_path=str(tmp_path),
            run_name=name,
            seed=5,
            rl=rl,
            reward=RewardConfig(**reward),
            logging=logging,
        )
    )


def train(config):
    folder = RunFolder.create(config.run_folder)
    start(config, folder)
    return folder


class Crash(Exception):
    pass


def crash_at(monkeypatch, step):
    """From now on, trainings die when they get to a step."""
    own = callbacks.RunCallback._on_step

    def on_step(self):
        if self.model.num_timesteps >= step:
            raise Crash
        return own(self)

    monkeypatch.setattr(callbacks.RunCallback, "_on_step", on_step)


def contents(folder):
    """All that a training has learned, and what it has logged but the time."""
    kind = algorithm_class(folder.path.name.split("-")[0])
    model = kind.load(folder.policy("last"), device="cpu")
    values = {f"policy {name}": value for name, value in model.policy.state_dict().items()}
    for name, optimizer in vars(model.policy).items():
        if isinstance(optimizer, torch.optim.Optimizer):
            for number, state in optimizer.state_dict()["state"].items():
                values |= {f"{name} {number} {key}": torch.as_tensor(value) for key, value in state.items()}
    buffer = list(folder.checkpoints.values())[-1] / "replay_buffer.pkl"
    if buffer.exists():
        import pickle

        stored: ReplayBuffer = pickle.loads(buffer.read_bytes())
        for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
            values[f"buffer {name}"] = torch.as_tensor(getattr(stored, name)[: stored.size()])
        values["held"] = torch.as_tensor(stored.held)
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in folder.metrics()]
    values["metrics"] = torch.tensor([list(row.values()) for row in rows])
    return values


def assert_equal(one, other):
    one, other = contents(one), contents(other)
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=0, atol=0, equal_nan=True, msg=f"{name} differs")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_run_that_died_and_was_resumed_equals_the_unbroken_one(algorithm, tmp_path, monkeypatch):
    """Checkpoints fall into the middle of episodes, with rewards that have not come."""
    unbroken = train(small(algorithm, tmp_path, f"{algorithm}-unbroken"))
    config = small(algorithm, tmp_path, f"{algorithm}-broken")
    with monkeypatch.context() as patch:
        crash_at(patch, 180)
        with pytest.raises(Crash):
            train(config)
    broken = RunFolder.open(config.run_folder)
    assert max(broken.checkpoints) in (144, 146)
    resume(config, broken)
    assert_equal(unbroken, broken)
    assert len(broken.metrics()) == 4
