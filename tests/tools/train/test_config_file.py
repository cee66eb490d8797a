"""Configuration files and flags: the published format is read as it is, and errors have the key and the line."""

import sys
from contextlib import closing
from dataclasses import replace
from typing import get_args

import pytest
from commands import write
from trainings import CONTINUOUS

from vlmrm_gym.sb3 import make_vec_env
from vlmrm_gym.tasks import TASKS
from vlmrm_gym.tools.cli.train import configure, id_as_flag
from vlmrm_gym.tools.train.algorithms import algorithm_options, parameters, with_defaults
from vlmrm_gym.tools.train.checks import complete, read_settings
from vlmrm_gym.tools.train.config import AlgorithmName, Config, RewardConfig, RLConfig
from vlmrm_gym.tools.train.config_file import ConfigError, flatten, read_config_file, to_yaml
from vlmrm_gym.tools.train.run import plan_training

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The bundled model does not know"),
]

PUBLISHED = """\
env_name: Humanoid-v4            # the format of the published code
base_path: /data/runs
seed: 7
description: a humanoid that does something
tags: [training, CLIP]
reward:
  name: clip
  pretrained_model: ViT-B-32/laion2b_s34b_b79k
  batch_size: 1600
  alpha: 0.5
  target_prompts:
    - a humanoid robot dancing
  baseline_prompts: [a humanoid robot]
  cache_dir: /data/cache
  camera_config: {trackbodyid: 1, distance: 3.5, lookat: [0.0, 0.0, 1.0], elevation: -10.0, azimuth: 180.0}
  textured: true
rl:
  policy_name: MlpPolicy
  n_steps: 100000
  n_envs_per_worker: 2
  episode_length: 200
  learning_starts: 100
  train_freq: 200
  batch_size: 64
  gradient_steps: 1
  tau: 0.005
  gamma: 0.99
  learning_rate: 3e-4
  buffer_size: 1_000_000
  ent_coef: auto_0.1
  use_sde: false
  target_update_interval: 1
  policy_kwargs: {net_arch: [64, 64]}
  action_noise: {name: NormalActionNoise, mean: 0.0, sigma: 0.2}
logging:
  checkpoint_freq: 800
  video_freq: 800
  tensorboard_freq: 800
"""


CART = ["--env-name", "VLMRM/CartPole-v1"]


def read(text, tmp_path):
    return read_config_file(write(text, tmp_path))


def find_problems(text, tmp_path):
    """The problems of a file, as users see them, before anything is loaded."""
    try:
        read_settings(write(text, tmp_path), {}, trust_code=True)
    except ConfigError as error:
        return [line.removeprefix("  ") for line in str(error).splitlines()[1:]]
    return []


def test_the_published_format_is_read_as_it_is(tmp_path):
    config = configure(write(PUBLISHED, tmp_path), [])
    assert (config.task.id, config.seed, config.num_envs) == ("VLMRM/Humanoid-v0", 7, 2)
    assert config.reward.prompt == ["a humanoid robot dancing"]
    assert config.reward.camera["lookat"] == [0.0, 0.0, 1.0]
    assert config.rl.algorithm == "SAC"
    given = {"learning_rate": 3e-4, "buffer_size": 1_000_000, "ent_coef": "auto_0.1", "train_freq": 200}
    assert config.rl.values.items() >= given.items()
    assert config.logging.checkpoint_freq == 800
    assert flatten(read(to_yaml(config), tmp_path).config) == flatten(config)  # what is written is read again
    assert with_defaults(config) == config


def test_rl_kwargs_of_the_published_format_are_keys_of_rl(tmp_path):
    text = PUBLISHED.replace("  use_sde: false\n", "  rl_kwargs: {use_sde_at_warmup: true, tau: 1}\n")
    assert find_problems(text.replace("  tau: 0.005\n", ""), tmp_path) == []
    assert read(text, tmp_path).config.rl.options["use_sde_at_warmup"] is True
    assert find_problems(text, tmp_path) == [
        "line 31: `rl.rl_kwargs.tau` is given twice: as `rl.tau` in line 26. Leave one."
    ]


def test_names_of_the_published_code_mean_ours():
    for legacy, prompts, id in (
        ("CartPole-v1", None, "VLMRM/CartPole-v1"),
        ("MountainCarContinuous-v0", None, "VLMRM/MountainCarContinuous-v0"),
        ("Humanoid-v4", ["a humanoid robot kneeling"], "VLMRM/Humanoid-kneel-v0"),
        ("Humanoid-v4", ["a humanoid robot kneeling", "a robot"], "VLMRM/Humanoid-v0"),
    ):
        config = with_defaults(Config(env_name=legacy, reward=RewardConfig(prompt=prompts)))
        assert config.task.id == with_defaults(config).task.id == id


def test_a_name_is_enough_for_every_task():
    for task in TASKS:
        config = Config(env_name=task.id, reward=RewardConfig(prompt=None if task.prompt else ["a robot"]))
        full = complete(config)
        assert full.rl.episode_length == task.episode_length
        assert full.reward.prompt == [task.prompt or "a robot"]
        assert full.reward.baseline is None  # alpha is 0
        full = with_defaults(replace(config, reward=replace(config.reward, alpha=0.5)))
        assert full.reward.baseline == [task.baseline]


def test_an_id_without_its_version_is_that_of_the_task():
    for prefix in ("", "vlmrm_gym.tasks:"):
        full = complete(Config(env_name=f"{prefix}VLMRM/CartPole"))
        assert full == complete(Config(env_name=f"{prefix}VLMRM/CartPole-v1"))
        assert full.env_name == f"{prefix}VLMRM/CartPole-v1"


def test_defaults_are_keys_that_the_algorithm_accepts():
    for name in get_args(AlgorithmName):
        env_name = "VLMRM/MountainCarContinuous-v0" if name in CONTINUOUS else "VLMRM/CartPole-v1"
        config = complete(Config(env_name=env_name, rl=RLConfig(algorithm=name)))
        assert config.rl.arguments.keys() <= parameters(name).keys()


def test_any_parameter_of_an_algorithm_is_a_key_and_a_flag(tmp_path):
    """Flags win, and are YAML; what the class declares as a tuple is one."""
    text = "env_name: VLMRM/CartPole-v1\nrl: {algorithm: PPO, target_kl: 0.1, gae_lambda: .9, train_freq: 8}\n"
    flags = ["--rl.gae-lambda", "1", "--rl.vf_coef=2e-1", "--rl.policy-kwargs", "{net_arch: [4]}"]
    flags += ["--reward.batch-size", "1e3", "--reward.max-pending-bytes", "1e9", "--rl.n-steps", "3e4", "--rl.use-sde"]
    config = configure(write(text, tmp_path), flags)
    assert (config.reward.batch_size, config.reward.max_pending_bytes, config.rl.n_steps) == (1_000, 10**9, 30_000)
    with closing(make_vec_env("VLMRM/CartPole-v1", 1)) as envs:
        options = algorithm_options(config, envs)
    given = {"target_kl": 0.1, "gae_lambda": 1.0, "vf_coef": 0.2, "use_sde": True, "n_steps": 8}
    assert options.items() >= given.items()
    assert options["policy_kwargs"]["net_arch"] == [4]
    assert flatten(read(to_yaml(config), tmp_path).config) == flatten(config)


def test_unknown_keys_types_and_ranges_are_reported_at_once_with_their_lines(tmp_path):
    text = """\
env_name: VLMRM/Humanoid-kneel-v0
seed: -3
episode_length: 9
reward:
  alpha: yes
  pretraned_model: x
  target_prompts: 5
  zoom: 2
  batch_size: 1e300
rl:
  n_steps: many
  tau: .5
  tau: .6
  batch_size: 0.5
  learning_stars: 3
  algorithm: PPPO
  action_noise: 3
  train_freq: '20'
logging: 3
1: 2
"""
    begins = [
        "line 2: `seed` must be an integer of at least 0. Received -3.",
        "line 3: `episode_length` is not known. Did you mean `rl.episode_length`?",
        "line 5: `reward.alpha` must be a number from 0 to 1. Received True.",
        "line 6: `reward.pretraned_model` is not known. Did you mean `reward.pretrained_model`?",
        "line 7: `reward.target_prompts` must be a text or a list of texts. Received 5.",
        "line 8: `reward.zoom` is not known. Known in `reward`: prompt, goal_images, baseline,",
        "line 9: `reward.batch_size` must be an integer of at most 1,000,000,000. Received ",
        "line 11: `rl.n_steps` must be an integer of at least 1",
        "line 13: `rl.tau` is given twice: as `rl.tau` in line 12.",
        "line 14: `rl.batch_size` must be a valid integer",
        "line 15: `rl.learning_stars` is not a parameter of SAC. Did you mean `rl.learning_starts`?",
        "line 16: `rl.algorithm` must be one of 'SAC', 'TD3',",
        "line 17: `rl.action_noise` must be a mapping of keys to values. Received 3.",
        "line 18: `rl.train_freq` must be an integer of at least 1. Received '20'.",
        "line 19: `logging` must be a mapping of keys to values. Received 3.",
        "line 20: `1` is not known. Known: env_name,",
    ]
    problems = find_problems(text, tmp_path)
    assert len(problems) == len(begins)
    for problem, begin in zip(problems, begins, strict=True):
        assert problem.startswith(begin)


def test_what_does_not_fit_together_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    for own, changed, problem in (
        ("train_freq: 200", "train_freq: 1", "line 22: `rl.learning_starts` must be at least one episode of every"),
        ("n_steps: 100000", "n_steps: 300", "line 19: `rl.n_steps` must be at least one episode of every environ"),
        ("learning_starts: 100", "learning_starts: 100000", "line 22: `rl.learning_starts` must be below `rl.n_st"),
        ("    - a humanoid robot dancing", "    - ''", "line 11: `reward.target_prompts` must not be empty. Rec"),
        ("gamma: 0.99", "gamma: .nan", "line 27: `rl.gamma` must be a finite number. Received nan."),
        ("alpha: 0.5", "alpha: 2", "line 10: `reward.alpha` must be a number from 0 to 1. Received 2"),
        ("seed: 7", "seed: 7\nrun_name: a/b", "line 4: `run_name` must be a plain name: not empty, without / and"),
        ("seed: 7", "run_name: ..", "line 3: `run_name` must be a plain name"),
        ("seed: 7", "track: true", "line 3: `track` needs Weights and Biases"),
    ):
        (message,) = find_problems(PUBLISHED.replace(own, changed), tmp_path)
        assert message.startswith(problem)


def test_what_is_left_empty_is_not_given_and_aliases_that_repeat_little_are_read(tmp_path):
    text = "env_name: CartPole-v1\nlogging:\nrl:\n  tau:\nreward: {target_prompts: &p [a pole]}\ntags: *p\n"
    assert find_problems(text, tmp_path) == []
    assert read(text, tmp_path).config.tags == ["a pole"]
    assert find_problems("", tmp_path) == [
        "`env_name` is missing. Say which environment; `vlmrm-gym tasks` lists them."
    ]
    named = Config(run_name="1e5", description="3e-4", tags=["0"])
    assert flatten(read(to_yaml(named), tmp_path).config) == flatten(named)


def test_learning_starts_after_the_rollout_in_which_the_first_episodes_end():
    """The published example has `learning_starts` 100, and trains after 200 steps of 2 environments: all is well."""
    rl = RLConfig(n_envs_per_worker=2, episode_length=200, learning_starts=100, train_freq=200)
    config = Config(env_name="VLMRM/MountainCarContinuous-v0", rl=rl)
    complete(replace(config, rl=replace(rl, train_freq=201)))
    with pytest.raises(ConfigError):
        complete(replace(config, rl=replace(rl, train_freq=199)))  # it would start at 398
    with pytest.raises(ConfigError, match="two episodes of every environment, 800 steps"):
        complete(replace(config, reward=RewardConfig(overlap=True)))
    for num_workers, expected in ((1, 4_000), (8, 6_399)):  # 8 environments a worker, 100 steps an episode
        config = complete(Config(env_name="VLMRM/Humanoid-stand-v0", reward=RewardConfig(num_workers=num_workers)))
        assert config.rl.learning_starts == expected


def test_a_plan_counts_updates_and_memory():
    """A cart-pole's transition: two observations of 4 float32, an action of 8 bytes, reward, end and time limit.

    1,600 steps, of which 800 come after learning starts, in fours, are 200 updates.
    """
    dqn = "--rl.train-freq 1 --rl.learning-starts 800 --rl.buffer-size 1000000"
    for flags, updates in (
        (f"{dqn} --rl.gradient-steps -1", "about 800 gradient steps: 1 for each step after the first 800"),
        (f"{dqn} --rl.gradient-steps 2", "about 400 gradient steps: 0.5 for each step after the first 800"),
        ("--rl.algorithm PPO --rl.train-freq 100 --rl.gradient-steps 3", "3 epochs over each of 4"),
    ):
        plan = plan_training(configure(None, [*CART, "--rl.n-steps", "1600", *flags.split()]))
        assert plan["updates"].startswith(updates)
        assert "PPO" in flags or plan["memory"].startswith(f"{1e6 * (2 * 16 + 8 + 12) / 1e9:.2f} GB")


def test_an_id_may_come_first_in_place_of_a_file():
    assert id_as_flag(["VLMRM/CartPole-v1", "--seed", "3"]) == [*CART, "--seed", "3"]
    for others in (["missing.yaml"], ["--seed", "3"], []):
        assert id_as_flag(others) == others
