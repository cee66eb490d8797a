"""Configuration files: the published format is read as it is, and errors have the key and the line."""

import sys
import time
from dataclasses import replace

import pytest

from vlmrm_gym.cli.train import read_settings
from vlmrm_gym.tasks import TASKS
from vlmrm_gym.training.algorithms import ALGORITHMS, parameters
from vlmrm_gym.training.checks import complete
from vlmrm_gym.training.config import Config, RewardConfig, RLConfig
from vlmrm_gym.training.config_file import ConfigError, flatten, read_config_file, to_yaml
from vlmrm_gym.training.defaults import with_defaults

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


def write(text, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(text, tmp_path):
    return read_config_file(write(text, tmp_path))


def find_problems(text, tmp_path):
    """The problems of a file, as users see them, before anything is loaded."""
    try:
        read_settings(write(text, tmp_path), [], trust_code=True)
    except ConfigError as error:
        return [line.removeprefix("  ") for line in str(error).splitlines()[1:]]
    return []


def test_the_published_format_is_read_as_it_is(tmp_path):
    config, _ = read_settings(write(PUBLISHED, tmp_path), [], trust_code=False)
    assert config.task.id == "VLMRM/Humanoid-v0"
    assert config.seed == 7
    assert config.num_envs == 2
    assert config.reward.prompt == ["a humanoid robot dancing"]
    assert config.reward.camera is not None
    assert config.reward.camera["lookat"] == [0.0, 0.0, 1.0]
    assert config.rl.algorithm == "SAC"
    assert config.rl.options["learning_rate"] == 3e-4
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
    full = complete(config)
    assert full.rl.episode_length == task.episode_length
    assert full.reward.prompt == [task.prompt or "a robot"]
    assert full.reward.baseline is None  # alpha is 0
    assert with_defaults(replace(config, reward=replace(config.reward, alpha=0.5))).reward.baseline == [task.baseline]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_defaults_are_keys_that_the_algorithm_accepts(name):
    env_name = "VLMRM/CartPole-v1" if ALGORITHMS[name].discrete else "VLMRM/MountainCarContinuous-v0"
    config = complete(Config(env_name=env_name, rl=RLConfig(algorithm=name)))
    assert config.rl.arguments.keys() <= parameters(name).keys()


def test_what_is_written_is_read_again(tmp_path):
    config = with_defaults(read(PUBLISHED, tmp_path).config)
    assert flatten(read(to_yaml(config), tmp_path).config) == flatten(config)
    assert with_defaults(config) == config
    named = replace(config, run_name="1e5", description="3e-4", tags=["0"])
    assert flatten(read(to_yaml(named), tmp_path).config) == flatten(named)


def test_unknown_keys_types_and_ranges_are_reported_at_once_with_their_lines(tmp_path):
    text = """\
env_name: VLMRM/Humanoid-kneel-v0
seed: -3
gamma: 0.9
reward:
  alpha: yes
  pretraned_model: x
  target_prompts: 5
  zoom: 2
rl:
  n_steps: many
  tau: .5
  tau: .6
  ent_coef: -1
  batch_size: 0.5
  learning_stars: 3
  algorithm: PPPO
  action_noise: 3
  episode_length: '20'
  policy_kwargs: {2: 3}
logging: 3
1: 2
"""
    begins = [
        "line 2: `seed` must be greater than or equal to 0. Received -3.",
        "line 3: `gamma` is not known. Did you mean `rl.gamma`?",
        "line 5: `reward.alpha` must be a valid number. Received True.",
        "line 6: `reward.pretraned_model` is not known. Did you mean `reward.pretrained_model`?",
        "line 7: `reward.target_prompts` must be a valid list. Received 5.",
        "line 8: `reward.zoom` is not known. Known in `reward`: name, kwargs, labeler, prompt, baseline, alpha, model",
        "line 10: `rl.n_steps` must be a valid integer",
        "line 12: `rl.tau` is given twice: as `rl.tau` in line 11.",
        "line 13: `rl.ent_coef` must be greater than or equal to 0. Received -1.",
        "line 14: `rl.batch_size` must be a valid integer",
        "line 15: `rl.learning_stars` is not known. Did you mean `rl.learning_starts`?",
        "line 16: `rl.algorithm` must be 'SAC', 'TD3',",
        "line 17: `rl.action_noise` must be a mapping of keys to values. Received 3.",
        "line 18: `rl.episode_length` must be a valid integer. Received '20'.",
        "line 19: `rl.policy_kwargs` must be a valid string. Received 2.",
        "line 20: `logging` must be a mapping of keys to values. Received 3.",
        "line 21: `1` is not known. Known: env_name,",
    ]
    problems = find_problems(text, tmp_path)
    assert len(problems) == len(begins)
    for problem, begin in zip(problems, begins, strict=True):
        assert problem.startswith(begin)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("train_freq: 200", "train_freq: 1"), "line 22: `rl.learning_starts` must be at least one episode of every"),
        (("n_steps: 100000", "n_steps: 300"), "line 19: `rl.n_steps` must be at least one episode of every environ"),
        (("learning_starts: 100", "learning_starts: 100000"), "line 22: `rl.learning_starts` must be below `rl.n_st"),
        (
            ("    - a humanoid robot dancing", "    - ''"),
            "line 11: `reward.target_prompts` must not be empty. Received",
        ),
        (("alpha: 0.5", "alpha: 2"), "line 10: `reward.alpha` must be a number from 0 to 1. Received 2"),
        (
            ("Humanoid-v4", "Humanoid-v9"),
            "line 1: `env_name` must be a registered ID, or module:ID. Received 'Humanoid-v9': Env",
        ),
        (("robot dancing", "robot"), "line 13: `reward.baseline_prompts` must differ from `prompt`. Received"),
        (("  policy_name: MlpPolicy", "  algorithm: PPO"), "line 23: `rl.train_freq` must be at most 50000, the step"),
    ],
)
def test_what_does_not_fit_together_is_refused(change, problem, tmp_path):
    assert change[0] in PUBLISHED
    text = PUBLISHED.replace(*change)
    if "PPO" in change[1]:
        text = text.replace("train_freq: 200", "train_freq: 50001")
    (message,) = find_problems(text, tmp_path)
    assert message.startswith(problem)


def bomb(levels):
    """Lists of nine times the list before: 9 ** levels values when aliases are expanded."""
    lists = [f"x{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    return "\n".join(["x0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]", *lists]) + "\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (bomb(9) + "tags: *a8", "there may be at most 10,000 values, counted again for each alias of them"),
        ("tags: [" + "a, " * 10_000 + "]", "line 1: .* there may be at most 10,000 values"),
        ("rl:\n  policy_kwargs: " + "[" * 5_000, "there may be at most 32 levels of lists and mappings"),
        ("x: " + "{a: " * 40 + "1" + "}" * 40, "line 1: .* there may be at most 32 levels of lists and mappings"),
        ("- " * 5_000, "there may be at most 32 levels"),
        ("rl: &a\n  policy_kwargs: *a", "there may be at most 32 levels"),  # refers to itself
        ("tags: &a [*a]", "there may be at most 32 levels"),
        ("a: b\n" * 20_001, r"must have at most 100,000 bytes\. Received 100,005"),
        ("seed: !!int ''", "this is not valid YAML"),
        ("seed: !!timestamp x", "this is not valid YAML"),
        ("rl: [", "line 1: this is not valid YAML"),
        ("- 3", r"a configuration is a mapping of keys to values. Received \[3\]"),
        ("description: 2020-13-45", "month must be in 1..12"),
        ("description: a\x01b", "special characters are not allowed"),
        (bytes(range(256)), "cannot be read: 'utf-8' codec"),
        ("env_name: CartPole-v1".encode("utf-16")[:-1], "cannot be read: 'utf-8' codec"),
        ("env_name: Cart\x00Pole-v1", "this is not valid YAML: unacceptable character"),
        ("rl:\n\tn_steps: 3", "line 2: this is not valid YAML"),
        ("env_name: CartPole-v1\n---\nseed: 3\n", "line 2: this is not valid YAML: but found another document"),
        ("<<<<<<< HEAD\nseed: 3\n=======\nseed: 4\n>>>>>>> other\n", "this is not valid YAML"),
        ("seed: !wish 3", "line 1: this is not valid YAML"),
        ("description: !!python/object/apply:os.getcwd []", "line 1: this is not valid YAML"),
        ("? [a, b]\n: 3\n", "line 1: this is not valid YAML"),
    ],
)
def test_what_is_no_configuration_or_too_large_is_refused_at_once(text, problem, tmp_path):
    began = time.process_time()
    with pytest.raises(ConfigError, match=problem) as raised:
        read(text, tmp_path)
    assert len(str(raised.value)) < 400
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "text",
    [
        f"tags: [&a {'a' * 9_000}" + ", [*a]" * 4_000 + "]",
        "seed: 0x" + "f" * 9_000,
        "seed: " + "9" * 9_000,
        "seed: 1" + ":59" * 3_000,
        "0x" + "f" * 9_000 + ": 1",
        f"{'a' * 9_000}: 1",
        f"rl: {{policy_kwargs: {{{'a' * 9_000}: {'a' * 9_000}}}, n_steps: {'a' * 9_000}}}",
        f"reward: {{name: {'a' * 9_000}}}",
        "\n".join(f"a{i}: 1" for i in range(4_000)),
        f"env_name: {'a' * 9_000}",
    ],
    ids=range(10),
)
def test_messages_are_short_whatever_was_received(text, tmp_path):
    if not text.startswith("env_name"):
        text = "env_name: CartPole-v1\n" + text
    with pytest.raises(ConfigError) as raised:
        read_settings(write(text, tmp_path), [], trust_code=True)
    assert max(map(len, str(raised.value).splitlines())) < 1_400
    assert len(str(raised.value).splitlines()) <= 52


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
    [("rl.n_steps", 10**12), ("rl.buffer_size", 10**9), ("reward.num_workers", 1_000), ("reward.batch_size", 10**9)],
)
@pytest.mark.parametrize("value", ["1e300", "9" * 400, None])
def test_integers_have_an_upper_bound(key, most, value, tmp_path):
    section, name = key.split(".")
    problems = find_problems(f"env_name: CartPole-v1\n{section}:\n  {name}: {value or most + 1}\n", tmp_path)
    assert problems[0].startswith(f"line 3: `{key}` must be less than or equal to {most}. Received ")
    assert read(f"{section}: {{{name}: {most}}}", tmp_path).problems == ()


def test_what_is_left_empty_is_not_given(tmp_path):
    assert find_problems("env_name: CartPole-v1\nlogging:\ntags:\nrl:\n  tau:\n", tmp_path) == []


def test_what_is_missing_is_reported(tmp_path, monkeypatch):
    assert find_problems("", tmp_path) == [
        "`env_name` is missing. Say which environment; `vlmrm-gym tasks` lists them."
    ]
    (problem,) = find_problems("env_name: VLMRM/Humanoid-v0", tmp_path)
    assert problem.startswith("`reward.prompt` must be a text or a list of texts. Received None.")
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    (problem,) = find_problems("env_name: CartPole-v1\ntrack: true", tmp_path)
    assert problem.startswith("line 2: `track` needs Weights and Biases")


def test_learning_starts_after_the_rollout_in_which_the_first_episodes_end():
    """The published example has `learning_starts` 100, and trains after 200 steps of 2 environments: all is well."""
    rl = RLConfig(n_envs_per_worker=2, episode_length=200, learning_starts=100, train_freq=200)
    config = Config(env_name="VLMRM/MountainCarContinuous-v0", rl=rl)
    complete(config)
    complete(replace(config, rl=replace(rl, train_freq=201)))
    with pytest.raises(ConfigError):
        complete(replace(config, rl=replace(rl, train_freq=199)))  # it would start at 398
    with pytest.raises(ConfigError, match="two episodes of every environment, 800 steps"):
        complete(replace(config, reward=RewardConfig(overlap=True)))


def test_the_default_of_learning_starts_waits_for_an_episode_of_every_environment():
    for num_workers, expected in ((1, 4_000), (8, 6_399)):  # 8 environments a worker, 100 steps an episode
        config = complete(Config(env_name="VLMRM/Humanoid-stand-v0", reward=RewardConfig(num_workers=num_workers)))
        assert config.rl.learning_starts == expected


def test_a_removed_key_is_said_to_be_removed(tmp_path):
    (tmp_path / "old.yaml").write_text("env_name: VLMRM/CartPole-v1\nreward:\n  score_tolerance: 0.02\n")
    (problem,) = read_config_file(tmp_path / "old.yaml").problems
    assert problem.message == "`reward.score_tolerance` was removed. Use score_every."
