"""Configuration files: the published format is read as it is, and all that is wrong is said at once."""

import re
import sys
from dataclasses import asdict, replace

import pytest

from vlmrm_gym.tasks import TASKS
from vlmrm_gym.training.algorithms import ALGORITHMS, keys_of
from vlmrm_gym.training.checks import conflicts
from vlmrm_gym.training.config import OF_ALL_ALGORITHMS, Config, RewardConfig, RLConfig, suited
from vlmrm_gym.training.config_file import ConfigError, describe, flat, read_config_file, to_yaml

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


def read(text, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return read_config_file(path)


def said(text, tmp_path):
    """What is wrong with a file."""
    file = read(text, tmp_path)
    wrong = {problem.key for problem in file.problems}
    return describe([*file.problems, *conflicts(file.config, wrong)], file, file.config)


def test_the_published_format_is_read_as_it_is(tmp_path):
    assert said(PUBLISHED, tmp_path) == []
    config = suited(read(PUBLISHED, tmp_path).config)
    assert config.task.id == "VLMRM/Humanoid-v0"
    assert config.seed == 7
    assert config.num_envs == 2
    assert config.reward.target_prompts == ["a humanoid robot dancing"]
    assert config.reward.camera_config is not None
    assert config.reward.camera_config["lookat"] == [0.0, 0.0, 1.0]
    assert config.rl.algorithm == "SAC"
    assert config.rl.learning_rate == 3e-4
    assert config.rl.buffer_size == 1_000_000
    assert config.rl.ent_coef == "auto_0.1"
    assert config.logging.checkpoint_freq == 800


@pytest.mark.parametrize(
    ("legacy", "prompts", "id"),
    [
        ("CartPole-v1", None, "VLMRM/CartPole-v1"),
        ("MountainCarContinuous-v0", None, "VLMRM/MountainCarContinuous-v0"),
        ("Humanoid-v4", ["a humanoid robot kneeling"], "VLMRM/Humanoid-kneel-v0"),
        ("Humanoid-v4", ["a humanoid robot kneeling", "a robot"], "VLMRM/Humanoid-v0"),
    ],
)
def test_names_of_the_published_code_mean_ours(legacy, prompts, id):
    config = suited(Config(env_name=legacy, reward=RewardConfig(target_prompts=prompts)))
    assert config.task.id == suited(config).task.id == id


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_a_name_is_enough_for_every_task(task):
    config = Config(env_name=task.id, reward=RewardConfig(target_prompts=None if task.prompt else ["a robot"]))
    assert list(conflicts(config)) == []
    full = suited(config)
    assert full.rl.episode_length == task.episode_length
    assert full.reward.target_prompts == [task.prompt or "a robot"]
    assert full.reward.baseline_prompts is None  # alpha is 0
    assert suited(replace(config, reward=replace(config.reward, alpha=0.5))).reward.baseline_prompts == [task.baseline]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_suits_a_task_is_what_its_algorithm_knows(name):
    env_name = "VLMRM/CartPole-v1" if ALGORITHMS[name].discrete else "VLMRM/MountainCarContinuous-v0"
    config = Config(env_name=env_name, rl=RLConfig(algorithm=name))
    assert list(conflicts(config)) == []
    filled = {key for key, value in asdict(suited(config).rl).items() if value is not None}
    assert filled - set(OF_ALL_ALGORITHMS) <= keys_of(name)


def test_what_is_written_is_read_again(tmp_path):
    config = suited(read(PUBLISHED, tmp_path).config)
    assert flat(read(to_yaml(config), tmp_path).config) == flat(config)
    assert suited(config) == config
    named = replace(config, run_name="1e5", description="3e-4", tags=["0"])
    assert flat(read(to_yaml(named), tmp_path).config) == flat(named)


def test_all_problems_are_said_at_once_with_their_lines(tmp_path):
    text = """\
env_name: VLMRM/Humanoid-knel-v0
seed: -3
gamma: 0.9
reward:
  alpha: 2
  pretraned_model: x
  target_prompts: 5
rl:
  n_steps: many
  tau: .5
  tau: .6
  ent_coef: automatic
  batch_size: 0.5
  learning_stars: 3
  zzz: 1
  action_noise: 3
logging: 3
"""
    problems = said(text, tmp_path)
    begins = [
        "line 1: `env_name` must be a registered ID",
        "line 2: `seed` must be greater than or equal to 0. Received -3.",
        "line 3: `gamma` is not known. Its place is `rl.gamma`.",
        "line 5: `reward.alpha` must be less than or equal to 1. Received 2.",
        "line 6: `reward.pretraned_model` is not known. Did you mean `reward.pretrained_model`?",
        "line 7: `reward.target_prompts` must be a valid list. Received 5.",
        "line 9: `rl.n_steps` must be a valid integer",
        "line 11: `rl.tau` is given twice, in line 10 too.",
        "line 12: `rl.ent_coef` must be a number, auto,",
        "line 13: `rl.batch_size` must be a valid integer",
        "line 14: `rl.learning_stars` is not known. Did you mean `rl.learning_starts`?",
        "line 15: `rl.zzz` is not known. Known in `rl`: algorithm,",
        "line 16: `rl.action_noise` must be a mapping of keys to values. Received 3.",
        "line 17: `logging` must be a mapping of keys to values. Received 3.",
    ]
    assert len(problems) == len(begins)
    for problem, begin in zip(problems, begins, strict=True):
        assert problem.startswith(begin)
    assert "Did you mean 'VLMRM/Humanoid-kneel-v0'?" in problems[0]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            ("env_name: Humanoid-v4", "env_name: CartPole-v1"),
            "line 15: `reward.camera_config` is not for VLMRM/CartPole",
        ),
        (("  tau:", "  algorithm: DQN\n  tau:"), "line 26: `rl.algorithm` must act in continuous spaces"),
        (("  tau:", "  algorithm: TD3\n  tau:"), "line 31: `rl.ent_coef` is not for TD3. Leave it out."),
        (("train_freq: 200", "train_freq: 1"), "line 22: `rl.learning_starts` must be at least one episode of every"),
        (
            ("n_steps: 100000", "n_steps: 300"),
            "line 19: `rl.n_steps` must be at least one episode of every environment",
        ),
        (("    - a humanoid robot dancing", "    - ''"), "line 11: `reward.target_prompts` must"),
        (("NormalActionNoise", "PinkNoise"), "line 34: `rl.action_noise` must have a name, and may have numbers:"),
        (("  textured: true", "  devices: [cpu]"), "line 16: `reward.devices` is for workers"),
        (("env_name: Humanoid-v4", "env_name: Humanoid-v9"), "line 1: `env_name` must be a registered ID"),
    ],
)
def test_what_does_not_fit_together_is_refused(change, problem, tmp_path):
    assert change[0] in PUBLISHED
    problems = said(PUBLISHED.replace(*change), tmp_path)
    assert [one for one in problems if one.startswith(problem)], problems


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("seed: true", "line 2: `seed` must be a valid integer. Received True."),
        ("rl: {n_steps: '20'}", "line 2: `rl.n_steps` must be a valid integer. Received '20'."),
        ("reward: {alpha: yes}", "line 2: `reward.alpha` must be a valid number. Received True."),
        ("reward: {device: gpu}", "line 2: `reward.device` must be auto, cpu, mps, cuda or cuda:1. Received 'gpu'."),
        ("1: 2", "line 2: `1` is not known. Known: env_name,"),
        ("rl: {action_noise: {name: [a]}, algorithm: SAC}", "line 2: `rl.algorithm` must act in discrete spaces"),
        ("rl: {policy_kwargs: {net_arc: [3]}}", "line 2: `rl.policy_kwargs`: the policy of DQN has no 'net_arc'. Did"),
        ("rl: {algorithm: PPO, gradient_steps: -1}", "line 2: `rl.gradient_steps` must be at least 1 for PPO."),
        (
            "rl: {episode_length: '20', n_steps: 400, learning_starts: 80}",
            "line 2: `rl.episode_length` must be a valid",
        ),
        ("rl: {ent_coef: aut}", "line 2: `rl.ent_coef` must be a number, auto, or auto_0.1. Received 'aut'."),
        (
            "rl: {policy_kwargs: {action_space: 3}}",
            "line 2: `rl.policy_kwargs`: the policy of DQN has no 'action_space'",
        ),
        ("rl: {algorithm: A2C, gradient_steps: 0}", "line 2: `rl.gradient_steps` is not for A2C."),
        ("rl: {gradient_steps: 0}", "line 2: `rl.gradient_steps` must be at least 1 for DQN."),
        ("rl: {algorithm: PPPO, ent_coef: 0.01}", "line 2: `rl.algorithm` must be 'SAC', 'TD3',"),
        ("reward: {name: ground_truth, num_workers: 2}", "line 2: `reward.name` ground_truth is the environment's own"),
    ],
)
def test_a_wrong_value_is_one_problem(text, problem, tmp_path):
    (told,) = said(f"env_name: CartPole-v1\n{text}\n", tmp_path)
    assert told.startswith(problem)


@pytest.mark.parametrize(
    "noise", ["{name: [a]}", "{name: HeldActionNoise, hold: 0}", "{name: NormalActionNoise, sigma: .nan}", "{sigma: 1}"]
)
def test_noise_that_is_none(noise, tmp_path):
    (told,) = said(f"env_name: MountainCarContinuous-v0\nrl: {{action_noise: {noise}}}\n", tmp_path)
    assert told.startswith("line 2: `rl.action_noise` must have a name, and may have numbers:")


def test_a_camera_is_looked_at_before_anything_is_loaded(tmp_path):
    (told,) = said(PUBLISHED.replace("distance: 3.5", "distnce: 3.5"), tmp_path)
    assert told.startswith("line 15: `reward.camera_config` is no camera: `camera` has no field 'distnce'.")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("rl: {ent_coef: -1}", "line 2: `rl.ent_coef` must be at least 0. Received -1"),
        ("rl: {n_steps: 1000, learning_starts: 1000}", "line 2: `rl.learning_starts` must be below `rl.n_steps`, 1000"),
        ("rl: {algorithm: PPO, n_steps: 2000}", "`rl.train_freq`, the length of PPO's rollouts, must be at most 250"),
        ("reward: {camera_config: {distance: 2, distance: 3}}", "`reward.camera_config.distance` is given twice"),
    ],
)
def test_what_is_impossible_is_refused(text, wrong, tmp_path):
    (told,) = said(f"env_name: VLMRM/Humanoid-stand-v0\n{text}\n", tmp_path)
    assert wrong in told


@pytest.mark.parametrize("text", ["rl: &a\n  policy_kwargs: *a", "&a\nrl: *a", "tags: " + "[" * 5_000])
def test_what_refers_to_itself_or_is_too_deep_is_refused(text, tmp_path):
    with pytest.raises(ConfigError, match=r"refers to itself|is no YAML"):
        said(text, tmp_path)


def test_a_published_file_leaves_open_what_stable_baselines_decides(tmp_path):
    """What it does not say is as in Stable-Baselines3; what a name alone leaves open suits the task."""
    text = PUBLISHED.replace("Humanoid-v4", "CartPole-v1")
    for key in (
        "buffer_size",
        "ent_coef",
        "use_sde",
        "target_update_interval",
        "policy_kwargs",
        "action_noise",
        "camera_config",
    ):
        text = re.sub(rf"^  {key}:.*(\n    .*)*\n", "", text, flags=re.MULTILINE)
    config = suited(read(text, tmp_path).config)
    assert config.rl.algorithm == "DQN"
    assert config.rl.policy_kwargs is config.rl.target_update_interval is config.rl.exploration_fraction is None
    assert suited(config) == config
    assert suited(Config(env_name="CartPole-v1")).rl.policy_kwargs == {"net_arch": [128, 128]}


def test_what_is_left_empty_is_not_given(tmp_path):
    assert said("env_name: CartPole-v1\nlogging:\ntags:\nrl:\n  tau:\n", tmp_path) == []


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    assert said("", tmp_path) == ["`env_name` is missing. Say which environment; `vlmrm-gym tasks` lists them."]
    (problem,) = said("env_name: VLMRM/Humanoid-v0", tmp_path)
    assert problem.startswith("`reward.target_prompts` is missing: VLMRM/Humanoid-v0 has no prompt of its own.")
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    (problem,) = said("env_name: CartPole-v1\ntrack: true", tmp_path)
    assert problem.startswith("line 2: `track` needs Weights and Biases")


def test_learning_starts_after_the_rollout_in_which_the_first_episodes_end():
    """The published example has `learning_starts` 100, and trains after 200 steps of 2 environments: all is well."""
    rl = RLConfig(n_envs_per_worker=2, episode_length=200, learning_starts=100, train_freq=200)
    config = Config(env_name="VLMRM/MountainCarContinuous-v0", rl=rl)
    assert list(conflicts(config)) == []
    assert list(conflicts(replace(config, rl=replace(rl, train_freq=201)))) == []
    assert list(conflicts(replace(config, rl=replace(rl, train_freq=199)))) != []  # it would start at 398
    overlapping = replace(config, reward=RewardConfig(overlap=True))
    (problem,) = conflicts(overlapping)
    assert "two episodes of every environment, 800" in problem.message


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rl: [", r"line 1: this is no YAML"),
        ("- 3", r"a configuration is a mapping of keys to values. Received \[3\]"),
        (None, r"cannot be read"),
        ("description: 2020-13-45", "month must be in 1..12"),
        ("description: a\x01b", "special characters are not allowed"),
    ],
)
def test_what_is_no_configuration_is_refused(text, problem, tmp_path):
    path = tmp_path / "config.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        read_config_file(path)
