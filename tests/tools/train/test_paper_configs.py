"""The files in configs/ are read by the real configuration checker, and say what the paper says."""

import contextlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import budget
from commands import write

from vlmrm_gym.sb3 import make_vec_env
from vlmrm_gym.states.cameras import PAPER_CAMERA
from vlmrm_gym.tasks import TASKS
from vlmrm_gym.tools.cli.train import configure
from vlmrm_gym.tools.train.algorithms import algorithm_options
from vlmrm_gym.tools.train.config_file import flatten, read_config_file

FILES = sorted(Path(__file__).parents[3].glob("configs/*.yaml"))
FILLED_IN = {("logging", "tensorboard_freq"), ("rl", "episode_length")}
"""Keys that a file may leave to the task without changing the experiment."""

PAPER = {
    "CartPole": {
        "algorithm": "DQN",
        "n_steps": 3_000_000,
        "episode_length": 200,
        "learning_starts": 75_000,
        "train_freq": 200,
        "gradient_steps": 200,
        "learning_rate": 2.3e-3,
        "policy_kwargs": {"net_arch": [256, 256]},
    },
    "MountainCar": {
        "algorithm": "SAC",
        "n_steps": 3_000_000,
        "episode_length": 200,
        "learning_rate": 1e-4,
        "gamma": 0.9999,
        "tau": 0.01,
        "ent_coef": 0.1,
        "policy_kwargs": {"net_arch": [64, 64]},
    },
    "Humanoid": {
        "algorithm": "SAC",
        "n_steps": 10_000_000,
        "episode_length": 100,
        "learning_starts": 50_000,
        "train_freq": 100,
        "gradient_steps": 100,
        "learning_rate": 6e-4,
        "gamma": 0.95,
        "tau": 0.005,
        "batch_size": 512,
    },
}
"""Hyperparameters of VLM-RM's appendix C, by the class of the environment."""


def env_class(config) -> str:
    return config.task.env.rpartition(":")[2]


def test_a_file_is_complete_and_says_what_the_paper_says():
    """The defaults for the bundled model, which are other than the paper's, fill in nothing. Every task has a file."""
    for path in FILES:
        config = read_config_file(path).config
        written, used = flatten(config), flatten(configure(path, []))
        assert {key for key in used if used[key] != written[key]} <= FILLED_IN
        assert config.task is not None
        assert config.env_name == config.task.id
        assert (config.reward.prompt, config.reward.baseline) == ([config.task.prompt], [config.task.baseline])
        assert config.reward.camera == (dict(PAPER_CAMERA) if env_class(config) == "Humanoid" else None)
        assert (config.reward.model, config.reward.alpha) == ("ViT-bigG-14/laion2b_s39b_b160k", 0.0)
        assert config.rl.values.items() >= PAPER[env_class(config)].items()
        if env_class(config) == "Humanoid":
            assert config.num_envs == 32
            assert config.reward.batch_size * config.reward.num_workers == 3_200
    names = [read_config_file(path).config.env_name for path in FILES]
    assert sorted(names) == sorted(task.id for task in TASKS if task.prompt is not None)


def test_the_budget_counts_an_architecture():
    """Against what is published of ViT-B-32: 151.3 M parameters, 87.8 M of them in the image tower, 8.8 GFLOP."""
    model = budget.count("ViT-B-32")
    assert round(model.parameters / 1e6, 1) == 151.3
    assert round(model.image_parameters / 1e6, 1) == 87.8
    assert model.image_flop == pytest.approx(8.8e9, rel=0.02)


def test_the_budget_of_a_file(capsys):
    budget.main((FILES[0].parent / "humanoid_kneel.yaml",), peak_tflops=100.0, utilisation=0.5, gpus=2)
    printed = capsys.readouterr().out
    assert "(2 x 100 TFLOP/s x 0.5) = 26.9 h" in printed  # 1e7 x 967.5e9 / 1e14 s
    assert "310,900" in printed  # (1e7 - 5e4) // 3,200 x 100
    assert "5.65 GB" in printed  # a million times two observations of 348 float64, 17 actions and three more float32


PUBLISHED = """\
env_name: CartPole-v1
reward: {name: clip, pretrained_model: ViT-B-32/laion2b_s34b_b79k, alpha: 0.0, batch_size: 800}
rl: {n_steps: 30000, n_envs_per_worker: 8, episode_length: 200, learning_starts: 7500, train_freq: 200, batch_size: 64,
     gradient_steps: 200, tau: 0.005, gamma: 0.99, learning_rate: 2.3e-3}
"""


def test_a_published_file_of_dqn_updates_its_target_network_at_every_step(tmp_path):
    """There the interval is 1 unless the file says otherwise; Stable-Baselines3's DQN has 10,000, for tau 1.

    Other missing keys mean the defaults of Stable-Baselines3; those of a name alone, the defaults of the task.
    """
    rl = configure(write(PUBLISHED, tmp_path), []).rl
    assert rl.values.items() >= {"algorithm": "DQN", "tau": 0.005, "target_update_interval": 1}.items()
    assert not {"exploration_fraction", "policy_kwargs"} & rl.values.keys()
    assert configure(None, ["--env-name", "CartPole-v1"]).rl.options["policy_kwargs"] == {"net_arch": [128, 128]}


NOISE = """\
env_name: Humanoid-v4
reward: {target_prompts: a robot}
rl: {action_noise: {name: OrnsteinUhlenbeckActionNoise, mean: 0.5, sigma: 0.0, theta: 1.0, dt: 0.25}}
"""


def test_published_noise_has_theta_and_dt(tmp_path):
    config = configure(write(NOISE, tmp_path), [])
    with contextlib.closing(make_vec_env("VLMRM/MountainCarContinuous-v0", 1)) as envs:
        action_noise = algorithm_options(config, envs)["action_noise"]
    # Without sigma it moves from 0 towards the mean: x += theta (mean - x) dt.
    assert [action_noise().item() for _ in range(2)] == [0.125, 0.21875]
