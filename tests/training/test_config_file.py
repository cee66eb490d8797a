"""Configuration files: the published format is read as it is, and all errors are reported at once."""

import re
import sys
import time
from dataclasses import asdict, replace

import gymnasium as gym
import pytest

from vlmrm_gym.tasks import TASKS
from vlmrm_gym.training.algorithms import ALGORITHMS, accepted_keys, algorithm_class
from vlmrm_gym.training.checks import validate
from vlmrm_gym.training.config import NON_ALGORITHM_KEYS, Config, RewardConfig, RLConfig
from vlmrm_gym.training.config_file import ConfigError, describe, flatten, read_config_file, to_yaml
from vlmrm_gym.training.defaults import with_defaults

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


def find_problems(text, tmp_path):
    """The problems of a file, as users see them."""
    file = read(text, tmp_path)
    wrong = {problem.key for problem in file.problems}
    return describe([*file.problems, *validate(file.config, wrong)], file, file.config)


def test_the_published_format_is_read_as_it_is(tmp_path):
    assert find_problems(PUBLISHED, tmp_path) == []
    config = with_defaults(read(PUBLISHED, tmp_path).config)
    assert config.task.id == "VLMRM/Humanoid-v0"
    assert config.seed == 7
    assert config.num_envs == 2
    assert config.reward.prompt == ["a humanoid robot dancing"]
    assert config.reward.camera is not None
    assert config.reward.camera["lookat"] == [0.0, 0.0, 1.0]
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
    config = with_defaults(Config(env_name=legacy, reward=RewardConfig(prompt=prompts)))
    assert config.task.id == with_defaults(config).task.id == id


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_a_name_is_enough_for_every_task(task):
    config = Config(env_name=task.id, reward=RewardConfig(prompt=None if task.prompt else ["a robot"]))
    assert list(validate(config)) == []
    full = with_defaults(config)
    assert full.rl.episode_length == task.episode_length
    assert full.reward.prompt == [task.prompt or "a robot"]
    assert full.reward.baseline is None  # alpha is 0
    assert with_defaults(replace(config, reward=replace(config.reward, alpha=0.5))).reward.baseline == [task.baseline]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_defaults_are_keys_that_the_algorithm_accepts(name):
    env_name = "VLMRM/CartPole-v1" if ALGORITHMS[name].discrete else "VLMRM/MountainCarContinuous-v0"
    config = Config(env_name=env_name, rl=RLConfig(algorithm=name))
    assert list(validate(config)) == []
    filled = {key for key, value in asdict(with_defaults(config).rl).items() if value is not None}
    assert filled - set(NON_ALGORITHM_KEYS) <= accepted_keys(name)


def test_what_is_written_is_read_again(tmp_path):
    config = with_defaults(read(PUBLISHED, tmp_path).config)
    assert flatten(read(to_yaml(config), tmp_path).config) == flatten(config)
    assert with_defaults(config) == config
    named = replace(config, run_name="1e5", description="3e-4", tags=["0"])
    assert flatten(read(to_yaml(named), tmp_path).config) == flatten(named)


def test_all_problems_are_reported_at_once_with_their_lines(tmp_path):
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
    problems = find_problems(text, tmp_path)
    begins = [
        "line 1: `env_name` must be a registered ID",
        "line 2: `seed` must be greater than or equal to 0. Received -3.",
        "line 3: `gamma` is not known. Its place is `rl.gamma`.",
        "line 5: `reward.alpha` must be a number from 0 to 1. Received 2.",
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
    problems = find_problems(PUBLISHED.replace(*change), tmp_path)
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
        ("rl: {ent_coef: auto_eee}", "line 2: `rl.ent_coef` must be a number, auto, or auto_0.1. Received 'auto_eee'."),
        ("rl: {ent_coef: auto_0}", "line 2: `rl.ent_coef` must be a number, auto, or auto_0.1. Received 'auto_0'."),
        (
            "rl: {ent_coef: auto_1e999}",
            "line 2: `rl.ent_coef` must be a number, auto, or auto_0.1. Received 'auto_1e999'.",
        ),
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
    (message,) = find_problems(f"env_name: CartPole-v1\n{text}\n", tmp_path)
    assert message.startswith(problem)


@pytest.mark.parametrize(
    "noise",
    ["{name: [a]}", "{name: ActionRepeatNoise, hold: 0}", "{name: NormalActionNoise, sigma: .nan}", "{sigma: 1}"],
)
def test_noise_that_is_none(noise, tmp_path):
    (message,) = find_problems(f"env_name: MountainCarContinuous-v0\nrl: {{action_noise: {noise}}}\n", tmp_path)
    assert message.startswith("line 2: `rl.action_noise` must have a name, and may have numbers:")


def test_a_camera_is_looked_at_before_anything_is_loaded(tmp_path):
    (message,) = find_problems(PUBLISHED.replace("distance: 3.5", "distnce: 3.5"), tmp_path)
    assert message.startswith("line 15: `reward.camera_config` is not valid: `camera` has no field 'distnce'.")


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
    (message,) = find_problems(f"env_name: VLMRM/Humanoid-stand-v0\n{text}\n", tmp_path)
    assert wrong in message


@pytest.mark.parametrize(
    ("text", "line"), [("rl: &a\n  policy_kwargs: *a", 2), ("&a\nrl: *a", 2), ("tags: &a [*a]", 1)]
)
def test_what_refers_to_itself_is_refused(text, line, tmp_path):
    with pytest.raises(ConfigError, match=rf"line {line}: the alias 'a' refers to itself"):
        find_problems(text, tmp_path)


def bomb(levels):
    """Lists of nine times the list before: 9 ** levels values when aliases are expanded."""
    lists = [f"x{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    return "\n".join(["x0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]", *lists]) + "\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            bomb(9) + "tags: *a8",
            "line 5: there may be at most 10,000 values, counted again for each alias of them. Rec",
        ),
        (bomb(9).replace("x", "  x") + "env_name: &a3 x", "line 5: there may be at most 10,000 values"),
        ("tags: [" + "a, " * 10_000 + "]", "line 1: there may be at most 10,000 values, .* Received 10,001 or more"),
        ("rl:\n  policy_kwargs: " + "[" * 5_000, "line 2: there may be at most 32 levels .* Received 33 or more"),
        ("x: " + "{a: " * 5_000, "line 1: there may be at most 32 levels of lists and mappings"),
        ("- " * 5_000, "line 1: there may be at most 32 levels"),
        ("description: " + "a" * 10_001, "line 1: there may be at most 10,000 characters in a text. Received 10,001"),
        ("a: b\n" * 200_001, "it may have at most 1,000,000 bytes. Received more"),
        ("seed: !!int ''", "this is not valid YAML"),
        ("seed: !!timestamp x", "this is not valid YAML"),
    ],
)
def test_a_file_that_is_too_large_when_loaded_is_refused_at_once(text, problem, tmp_path):
    began = time.monotonic()
    with pytest.raises(ConfigError, match=problem) as raised:
        read(text, tmp_path)
    assert len(str(raised.value)) < 400
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "text",
    [
        "tags: [" + f"[{'a' * 9_000}], " * 90 + "]",
        f"tags: [&a {'a' * 9_000}" + ", [*a]" * 4_000 + "]",
        "seed: 0x" + "f" * 9_000,
        "seed: " + "9" * 9_000,
        "seed: 1" + ":59" * 3_000,
        "seed: " + "1" * 9_999 + "_",
        "0x" + "f" * 9_000 + ": 1",
        f"{'a' * 9_000}: 1",
        f"rl: {{policy_kwargs: {{{'a' * 9_000}: {'a' * 9_000}, net_arch: {{a: {'a' * 9_000}}}}}}}",
        f"rl: {{action_noise: {{name: {'a' * 9_000}}}}}",
        f"reward: {{pretrained_model: {'a' * 9_000}/b}}",
        "\n".join(f"a{i}: 1" for i in range(4_000)),
        f"env_name: {'a' * 9_000}",
    ],
    ids=range(13),
)
def test_messages_are_short_whatever_was_received(text, tmp_path):
    if not text.startswith("env_name"):
        text = "env_name: CartPole-v1\n" + text
    path = tmp_path / "config.yaml"
    path.write_text(text)
    try:
        message = str(ConfigError("config.yaml", find_problems(text, tmp_path)))
    except ConfigError as error:
        message = str(error)
    assert "problem" in message
    assert max(map(len, message.splitlines())) < 1_200
    assert len(message.splitlines()) <= 52


def test_aliases_are_read_where_they_repeat_little(tmp_path):
    text = "env_name: CartPole-v1\nreward: {target_prompts: &p [a pole]}\ntags: *p\n"
    assert find_problems(text, tmp_path) == []
    assert read(text, tmp_path).config.tags == ["a pole"]


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "a/b", "..", ".", "''", "' '", "'a\\b'", '"a\\0"', "a/"])
def test_a_run_has_a_plain_name(name, tmp_path):
    (message,) = find_problems(f"env_name: CartPole-v1\nrun_name: {name}\n", tmp_path)
    assert message.startswith(
        "line 2: `run_name` must be a plain name: not empty, without / and \\, and neither . nor .."
    )


@pytest.mark.parametrize(
    ("key", "most"),
    [
        ("rl.n_steps", 10**12),
        ("rl.learning_starts", 10**12),
        ("logging.video_freq", 10**12),
        ("rl.n_envs_per_worker", 10**9),
        ("rl.buffer_size", 10**9),
        ("rl.gradient_steps", 10**9),
        ("reward.num_workers", 1_000),
        ("reward.batch_size", 10**9),
    ],
)
@pytest.mark.parametrize("value", ["1e300", "9" * 400, None])
def test_integers_have_an_upper_bound(key, most, value, tmp_path):
    section, name = key.split(".")
    problems = find_problems(f"env_name: CartPole-v1\n{section}:\n  {name}: {value or most + 1}\n", tmp_path)
    assert problems[0].startswith(f"line 3: `{key}` must be less than or equal to {most}. Received ")
    assert len(problems[0]) < 300
    assert read(f"{section}: {{{name}: {most}}}", tmp_path).problems == ()


@pytest.mark.parametrize(
    ("algorithm", "options", "problem"),
    [
        (
            "SAC",
            "net_arch: [-3]",
            "`rl.policy_kwargs.net_arch` must be a list of at most 100 layer sizes, integers from 1 ",
        ),
        ("SAC", "net_arch: [0]", "`rl.policy_kwargs.net_arch` must"),
        ("SAC", "net_arch: [2.5]", "`rl.policy_kwargs.net_arch` must"),
        ("SAC", "net_arch: [true]", "`rl.policy_kwargs.net_arch` must"),
        ("SAC", "net_arch: [99999999]", "`rl.policy_kwargs.net_arch` must"),
        ("SAC", "net_arch: 64", "`rl.policy_kwargs.net_arch` must"),
        (
            "SAC",
            "net_arch: {pi: [8]}",
            "`rl.policy_kwargs.net_arch` must be .* or a mapping of pi and qf to such lists",
        ),
        ("PPO", "net_arch: {pi: [8], qf: [8]}", "`rl.policy_kwargs.net_arch` must be .* pi and vf to such lists"),
        (
            "SAC",
            "activation_fn: ReLU",
            "`rl.policy_kwargs.activation_fn` must be a class, which a configuration cannot",
        ),
        ("TD3", "optimizer_class: SGD", "`rl.policy_kwargs.optimizer_class` must be a class"),
        ("TD3", "optimizer_kwargs: {weight_decy: 1}", "`rl.policy_kwargs.optimizer_kwargs` does not fit the optimiser"),
        ("TD3", "optimizer_kwargs: 3", "`rl.policy_kwargs.optimizer_kwargs` must be a valid dictionary"),
        ("TQC", "n_critics: -1", "`rl.policy_kwargs.n_critics` must be from 1 to 100. Received -1"),
        ("TQC", "n_quantiles: many", "`rl.policy_kwargs.n_quantiles` must be a valid integer. Received 'many'"),
        ("SAC", "log_std_init: .nan", "`rl.policy_kwargs.log_std_init` must be a finite number"),
        ("SAC", "features_extractor_kwargs: {a: 1}", "`rl.policy_kwargs.features_extractor_kwargs` must be left out"),
    ],
)
def test_arguments_of_the_policy_are_looked_at_with_their_lines(algorithm, options, problem, tmp_path):
    text = f"env_name: MountainCarContinuous-v0\nrl:\n  algorithm: {algorithm}\n  policy_kwargs:\n    {options}\n"
    (message,) = find_problems(text, tmp_path)
    assert re.match(f"line 5: {problem}", message)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_networks_that_stable_baselines_makes_are_accepted(name, tmp_path):
    """As by making the algorithm itself."""
    env = gym.make("CartPole-v1" if ALGORITHMS[name].discrete else "MountainCarContinuous-v0")
    critic = "vf" if ALGORITHMS[name].on_policy else "qf"
    shapes = [[], [8], [8, 8]] + ([] if name in ("DQN", "QRDQN") else [{"pi": [8], critic: [4]}])
    for shape in shapes:
        options = {"net_arch": shape, "optimizer_kwargs": {"weight_decay": 0.1}}
        algorithm_class(name)("MlpPolicy", env, policy_kwargs=dict(options), device="cpu")
        rl = RLConfig(algorithm=name, policy_kwargs=options)
        env_name = "CartPole-v1" if ALGORITHMS[name].discrete else "MountainCarContinuous-v0"
        assert list(validate(Config(env_name=env_name, rl=rl))) == []
    env.close()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("devices: []\n  num_workers: 2", "line 3: `reward.devices` must have at least 1 item"),
        (
            "pretrained_model: local-dir:/etc",
            "line 3: `reward.pretrained_model`: a local-dir must be a folder with an open",
        ),
        ("pretrained_model: 'local-dir:'", "line 3: `reward.pretrained_model`: a local-dir must"),
        ("pretrained_model: ViT-B-33/openai", 'line 3: `reward.pretrained_model` must be "tiny"'),
        ("pretrained_model: ViT-B-32/", "line 3: `reward.pretrained_model` must name weights of ViT-B-32"),
        ("pretrained_model: ViT-B-32/none.pt", "line 3: `reward.pretrained_model`: the checkpoint file 'none.pt' does"),
        ("pretrained_model: ''", "line 3: `reward.pretrained_model` must"),
        (
            "zoom: 2",
            "line 3: `reward.zoom` is not known. Known in `reward`: name, kwargs, prompt, baseline, alpha, model",
        ),
        (
            "pretrained_modell: tiny",
            "line 3: `reward.pretrained_modell` is not known. Did you mean `reward.pretrained_",
        ),
    ],
)
def test_a_reward_that_cannot_be_made_is_refused_with_its_line(text, problem, tmp_path):
    (message,) = find_problems(f"env_name: CartPole-v1\nreward:\n  {text}\n", tmp_path)
    assert message.startswith(problem)


@pytest.mark.parametrize("value", ["{a: 2020-01-01}", "{a: !!binary YQ==}", "{a: !!set {b}}", "{a: [{2: 3}]}"])
def test_mappings_consist_of_plain_values(value, tmp_path):
    (message,) = find_problems(f"env_name: CartPole-v1\nrl:\n  policy_kwargs: {value}\n", tmp_path)
    assert message.startswith("line 3: `rl.policy_kwargs` must consist of numbers, texts,")


def test_a_published_file_leaves_open_what_stable_baselines_decides(tmp_path):
    """Its missing keys mean the defaults of Stable-Baselines3; those of a name alone, the defaults of the task."""
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
    config = with_defaults(read(text, tmp_path).config)
    assert config.rl.algorithm == "DQN"
    assert config.rl.policy_kwargs is config.rl.exploration_fraction is None
    assert with_defaults(config) == config
    assert with_defaults(Config(env_name="CartPole-v1")).rl.policy_kwargs == {"net_arch": [128, 128]}


def test_what_is_left_empty_is_not_given(tmp_path):
    assert find_problems("env_name: CartPole-v1\nlogging:\ntags:\nrl:\n  tau:\n", tmp_path) == []


def test_what_is_missing_is_reported(tmp_path, monkeypatch):
    assert find_problems("", tmp_path) == [
        "`env_name` is missing. Say which environment; `vlmrm-gym tasks` lists them."
    ]
    (problem,) = find_problems("env_name: VLMRM/Humanoid-v0", tmp_path)
    assert problem.startswith("`reward.prompt` is missing: VLMRM/Humanoid-v0 has no prompt of its own.")
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    (problem,) = find_problems("env_name: CartPole-v1\ntrack: true", tmp_path)
    assert problem.startswith("line 2: `track` needs Weights and Biases")


def test_learning_starts_after_the_rollout_in_which_the_first_episodes_end():
    """The published example has `learning_starts` 100, and trains after 200 steps of 2 environments: all is well."""
    rl = RLConfig(n_envs_per_worker=2, episode_length=200, learning_starts=100, train_freq=200)
    config = Config(env_name="VLMRM/MountainCarContinuous-v0", rl=rl)
    assert list(validate(config)) == []
    assert list(validate(replace(config, rl=replace(rl, train_freq=201)))) == []
    assert list(validate(replace(config, rl=replace(rl, train_freq=199)))) != []  # it would start at 398
    overlapping = replace(config, reward=RewardConfig(overlap=True))
    (problem,) = validate(overlapping)
    assert "two episodes of every environment, 800" in problem.message


def test_the_default_of_learning_starts_waits_for_an_episode_of_every_environment():
    for num_workers, expected in ((1, 4_000), (8, 6_399)):  # 8 environments a worker, 100 steps an episode
        config = Config(env_name="VLMRM/Humanoid-stand-v0", reward=RewardConfig(num_workers=num_workers))
        assert list(validate(config)) == []
        assert with_defaults(config).rl.learning_starts == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rl: [", r"line 1: this is not valid YAML"),
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
