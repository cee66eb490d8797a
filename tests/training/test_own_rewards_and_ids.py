"""Trainings on rewards and environments that are not ours."""

import inspect
import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from test_training import Crash, crash_at

from vlmrm_gym import CLIP, sb3
from vlmrm_gym.cli import main
from vlmrm_gym.training.aliases import ALIASES
from vlmrm_gym.training.config import Config, RewardConfig, RLConfig
from vlmrm_gym.training.defaults import with_defaults
from vlmrm_gym.training.run_folder import RunFolder
from vlmrm_gym.vector import VLMRewardVectorEnv

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:The bundled model does not know"),
]

MODULE = """\
import gymnasium as gym
import numpy as np
from pathlib import Path

Path(__file__).with_name("imported").touch()


def mean_pixel(frames, scale=1.0):
    return scale * frames.mean((1, 2, 3))


class Brightness:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, frames):
        return np.full(len(frames), self.scale)


class Short(gym.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode=None, size=1, keys=False, actions=None):
        self.render_mode = render_mode
        one = gym.spaces.Box(-1, 1, (size,), np.float32)
        self.observation_space = gym.spaces.Dict({"a": one, "b": one}) if keys else one
        self.action_space = gym.spaces.MultiBinary(2) if actions else gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(3, 8))
        return self.observation_space.sample(), {}

    def step(self, action):
        self.left -= 1
        return self.observation_space.sample(), 1.0, self.left == 0, False, {}

    def render(self):
        return np.full((16, 16, 3), self.left, np.uint8)


class Blind(Short):
    metadata = {"render_modes": []}


for name, limit in (("Short-v0", 10), ("Endless-v0", None)):
    gym.register("Own/" + name, Short, max_episode_steps=limit)
gym.register("Own/Blind-v0", Blind, max_episode_steps=10)
"""

FLAGS = ["--rl.n-steps", "60", "--rl.n-envs-per-worker", "2", "--rl.episode-length", "10", "--logging.video-freq", "0"]
FLAGS += ["--rl.gradient-steps", "1", "--rl.batch-size", "4", "--rl.policy-kwargs", "{net_arch: [4]}"]


@pytest.fixture
def own(make_module):
    """The folder of a module that can be imported."""
    yield make_module("own_things", MODULE)
    for id in [id for id in gym.registry if id.startswith("Own/")]:
        del gym.registry[id]


def write(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def train(tmp_path, *arguments, flags=FLAGS):
    main(["train", *map(str, arguments), *flags, "--base-path", str(tmp_path), "--run-name", "run"])
    return RunFolder(tmp_path / "run")


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as raised:
        main(list(map(str, arguments)))
    assert raised.value.code == 2
    return capsys.readouterr().err


def test_the_keys_of_a_file_are_the_fields_of_clip(capsys):
    """In their order, with their defaults, types and help."""
    keys = list(RewardConfig().clip_fields)
    assert keys == [one.name for one in fields(CLIP) if one.init]
    assert CLIP(prompt="a").settings() == {**RewardConfig().clip_fields, "prompt": "a"}
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    shown = " ".join(re.sub("[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
    assert "--reward.alpha FLOAT Strength of the goal-baseline regularisation, from 0 (cosine" in shown
    assert "--reward.precision {auto,fp32,bf16,fp16}" in shown
    assert "--reward.batch-size {None}|INT Maximum number of frames encoded at once" in shown
    assert "The goal: a text or a list of texts. None: the task's." in shown


def test_the_other_keys_of_a_file_have_the_defaults_of_the_doors():
    parameters = inspect.signature(VLMRewardVectorEnv.__init__).parameters
    names = {one.name for one in fields(RewardConfig)} & parameters.keys()
    assert names >= {"camera", "quality", "max_pending_bytes", "worker_timeouts", "num_workers", "devices", "overlap"}
    for name in names - {"prompt"}:
        assert getattr(RewardConfig(), name) == parameters[name].default


@pytest.mark.parametrize("word", ALIASES)
def test_words_of_the_published_format_and_new_ones_cannot_both_be_given(word, tmp_path, capsys):
    key, value = ALIASES[word], "{distance: 3}" if ALIASES[word] == "camera" else "tiny"
    text = f"env_name: VLMRM/Humanoid-stand-v0\nreward:\n  {word}: {value}\n  {key}: {value}\n"
    output = refused(capsys, "train", write(tmp_path, text))
    assert f"  line 4: `reward.{key}` is given twice: as `reward.{word}` in line 3. Leave one.\n" in output


def test_errors_name_the_word_of_the_file(tmp_path, capsys):
    for word in ("model", "pretrained_model"):
        file = write(tmp_path, f"env_name: CartPole-v1\nreward:\n  {word}: 3\n")
        assert f"\n  line 3: `reward.{word}` must be" in refused(capsys, "train", file)
    output = refused(capsys, "train", file, "--model=other", "--alpha", "2")
    assert output.splitlines()[1:] == ["  `reward.alpha` must be a number from 0 to 1. Received 2.0."]


def test_short_flags_and_old_words_are_read(tmp_path):
    folder = train(tmp_path, "--env-name", "VLMRM/CartPole-v1", "--prompt", "a pole", "--reward.pretrained_model=tiny")
    written = folder.config_file.read_text()
    assert "  prompt:\n  - a pole\n" in written.replace("    - ", "  - ")
    assert "  model: tiny\n" in written


def test_a_function_of_ones_own_trains_and_evaluates(own, tmp_path, capsys):
    file = write(
        tmp_path,
        "env_name: VLMRM/CartPole-v1\nreward: {name: 'own_things:Brightness', kwargs: {scale: 2.5}, num_workers: 1}\n",
    )
    output = refused(capsys, "train", file)
    assert "line 2: `reward.name` names code that would be run. Received 'own_things:Brightness'" in output
    assert "--trust-code" in output
    assert not (own / "imported").exists()
    folder = train(tmp_path, file, "--trust-code")
    rows = folder.metrics()
    assert rows
    assert all(row["vlm_return"] == 25.0 for row in rows)  # 10 steps
    for command in (["evaluate", folder.path, "--no-video"], ["train", "--resume", folder.path]):
        assert "pass --trust-code" in refused(capsys, *command)
    main(["evaluate", str(folder.path), "--no-video", "--episodes", "1", "--trust-code"])
    assert json.loads((folder.path / "evaluation.json").read_text())["vlm_return"] == 25.0
    main(["train", "--resume", str(folder.path), "--trust-code", "--rl.n-steps", "80"])
    assert max(folder.checkpoints) == 80


def test_code_named_by_a_flag_alone_needs_no_permission(own, tmp_path):
    folder = train(
        tmp_path,
        *("--env-name", "VLMRM/CartPole-v1", "--reward.name", "own_things:mean_pixel"),
        *("--reward.kwargs", "{scale: 0}"),
    )
    assert {row["vlm_return"] for row in folder.metrics()} == {0.0}


def test_a_module_in_the_current_folder_can_be_named(tmp_path):
    """The installed program, unlike `python -m`, does not have that folder on its path."""
    (tmp_path / "my_rewards.py").write_text("")
    command = [Path(sys.executable).with_name("vlmrm-gym"), "train", "--env-name", "VLMRM/CartPole-v1"]
    command += ["--reward.name", "my_rewards:Upright"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, "but there is no 'Upright'" in " ".join(done.stderr.split())) == (2, True)


@pytest.mark.parametrize(
    ("reward", "problem"),
    [
        ("name: 'no_such_module:f'", "`reward.name` must name a module that can be imported here"),
        ("name: 'own_things:mean_pixl'", "`reward.name` must exist. .*Did you mean 'mean_pixel'"),
        ("name: 'own_things:np.pi'", "`reward.name` must be a callable or a class"),
        ("name: clop", "`reward.name`: kind must be one of 'clip', .*Received 'clop'. Did you mean 'clip'"),
        (
            "name: 'own_things:mean_pixel', kwargs: {scael: 2}",
            "`reward.kwargs` must fit 'own_things:mean_pixel', which takes .*unexpected keyword argument 'scael'",
        ),
        ("kwargs: {}, name: 'own_things:Brightness'", "`reward.kwargs` must fit 'own_things:Brightness', .*'scale'"),
        ("name: 'own_things:mean_pixel', alpha: 0.5", "`reward.name` and `alpha` cannot both be passed"),
        ("name: 'own_things:mean_pixel', target_prompts: a", "`reward.name` and `prompt` cannot both be passed"),
        ("kwargs: {a: 1}", "`reward.kwargs` needs a `reward` to pass them to"),
        ("max_pending_bytes: 0", "`reward.max_pending_bytes` must be greater than or equal to 1"),
        ("precision: fp8", "`reward.precision` must be 'auto', 'fp32', 'bf16' or 'fp16'. Received 'fp8'"),
        ("backend: rai", "`reward.backend` must be 'process' or 'ray'. Received 'rai'"),
        ("prompt: a, baseline: a", "`reward.baseline` must differ from `prompt`"),
        # Found when the environments are made:
        ("worker_timeouts: {laod: 3}", "`reward.worker_timeouts` must be a mapping of 'load', 'draw', 'encode'"),
        ("ray_options: {num_gpus: 1}", '`reward.ray_options` needs backend="ray"'),
    ],
)
def test_rewards_that_cannot_be_are_refused_with_their_line(reward, problem, own, tmp_path, capsys):
    file = write(tmp_path, f"env_name: CartPole-v1\nreward: {{{reward}}}\n")
    output = refused(capsys, "train", file, "--trust-code", "--base-path", tmp_path / "runs")
    assert re.search(f"\n  line 2: {problem}", output), output
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("id", "algorithm", "kwargs"),
    [
        ("Ant-v5", "SAC", []),
        ("Pendulum-v1", "SAC", []),
        ("Acrobot-v1", "DQN", []),
        ("own_things:Own/Short-v0", "DQN", ["{size: 3}"]),
        ("own_things:Own/Short-v0", "DQN", ["{keys: true}"]),  # observations that are dictionaries
    ],
)
def test_any_id_that_renders_is_trained_on(id, algorithm, kwargs, own, tmp_path, capsys):
    """Success is not known there, and is not reported."""
    arguments = ["--env-name", id, "--prompt", "something", *(["--env-kwargs", *kwargs] if kwargs else [])]
    folder = train(tmp_path, *arguments)
    written = folder.config_file.read_text()
    assert f"  algorithm: {algorithm}\n" in written
    assert ("  normalize_observations: true\n" in written) == (algorithm == "SAC")
    rows = folder.metrics()
    assert list(rows[0]) == ["step", "seconds", "episodes", "vlm_return", "task_return"]
    assert np.isfinite([row["vlm_return"] for row in rows]).all()
    capsys.readouterr()
    main(["evaluate", str(folder.path), "--episodes", "2", *(["--trust-code"] if ":" in id else [])])
    assert "success" not in capsys.readouterr().out
    assert "success" not in json.loads((folder.path / "evaluation.json").read_text())
    assert (folder.path / "evaluation.mp4").exists()


def test_settings_follow_from_spaces_and_time_limit(own):
    config = with_defaults(Config(env_name="Ant-v5", reward=RewardConfig(prompt=["an ant robot on its back"])))
    assert (config.rl.algorithm, config.rl.policy_name, config.rl.normalize_observations) == ("SAC", "MlpPolicy", True)
    assert config.rl.episode_length == 1_000  # Gymnasium's
    assert config.rl.learning_starts >= 1_000 * config.num_envs
    config = with_defaults(
        Config(env_name="own_things:Own/Short-v0", env_kwargs={"keys": True}, reward=RewardConfig(prompt=["a"]))
    )
    assert (config.rl.algorithm, config.rl.policy_name) == ("DQN", "MultiInputPolicy")
    overlap = Config(env_name="Pendulum-v1", reward=RewardConfig(prompt=["a"], overlap=True), rl=RLConfig())
    assert with_defaults(overlap).rl.learning_starts >= 2 * 200 * with_defaults(overlap).num_envs


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ["Ant-v6", "--prompt", "a"],
            "`env_name` must be a registered ID, or module:ID. Received 'Ant-v6': Env.*Did you mean 'Ant-v",
        ),
        (["no_such:Ant-v5", "--prompt", "a"], "Received 'no_such:Ant-v5': No module named 'no_such'"),
        (["Ant-v5"], "`reward.prompt` must be a text or a list of texts. Received None"),
        (["Ant-v5", "--prompt", "a", "--alpha", "0.5"], "`reward.alpha` above 0 needs a `baseline`"),
        (
            ["Ant-v5", "--prompt", "a", "--env-kwargs", "{zzz: 1}"],
            "must be a registered ID, or module:ID, that takes `env_kwargs`. Received .*zzz",
        ),
        (["Ant-v5", "--prompt", "a", "--env-kwargs", "{render_mode: human}"], "`env_kwargs` cannot have 'render_mode'"),
        (["own_things:Own/Endless-v0", "--prompt", "a"], "`rl.episode_length` must be given: .* has no time limit"),
        (["own_things:Own/Blind-v0", "--prompt", "a"], 'must have the render mode "rgb_array"'),
        # Found when environments and algorithm are made:
        (["VLMRM/Humanoid-v0", "--prompt", "a", "--rl.start-near-goal", "1"], "`rl.start_near_goal` needs a task"),
        (
            ["own_things:Own/Short-v0", "--prompt", "a", "--env-kwargs", "{actions: true}"],
            "`rl.algorithm`: The algorithm only supports .* MultiBinary",
        ),
    ],
)
def test_ids_that_cannot_be_trained_on_are_refused(arguments, problem, own, tmp_path, capsys):
    output = refused(capsys, "train", "--env-name", *arguments, "--base-path", tmp_path / "runs")
    assert "1 problem in the flags:" in output.splitlines()
    assert re.search(problem, output), output
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("reward", ["clip", "ground_truth"])
def test_a_run_whose_episodes_end_at_different_times_is_resumed(reward, own, tmp_path, monkeypatch):
    """Nothing is lost: every transition gets its reward."""
    arguments = ["--env-name", "own_things:Own/Short-v0", "--prompt", "a", "--reward.name", reward]
    arguments += ["--logging.checkpoint-freq", "22"]
    with monkeypatch.context() as patch:
        crash_at(patch, 40)
        with pytest.raises(Crash):
            train(tmp_path, *arguments)
    folder = RunFolder(tmp_path / "run")
    reached = max(folder.checkpoints)
    assert 0 < reached < 40
    main(["train", "--resume", str(folder.path), "--trust-code"])
    assert max(folder.checkpoints) == 60
    with np.load(folder.checkpoints[60] / "replay_buffer.npz", allow_pickle=False) as buffer:
        pending = buffer["pending_step_index"]
        assert len(buffer["rewards"]) + len(pending) == 60
        assert (pending >= reached // 2).all()  # of the episodes that go on, none from before the break
        assert np.isfinite(buffer["rewards"]).all()
    rows = folder.metrics()
    assert rows[-1]["step"] > reached


def test_stable_baselines_environments_of_any_id(own):
    envs = sb3.make_vec_env("Pendulum-v1", 2, prompt="an upright pole", seed=1, episode_length=3)
    envs.reset()
    for _ in range(3):
        _, _, dones, infos = envs.step(np.zeros((2, 1), np.float32))
    assert dones.all()
    assert [len(info["vlm_rewards"]) for info in infos] == [3, 3]
    assert "is_success" not in infos[0]
    assert "success" not in infos[0]["episode"]
    envs.close()
    envs = sb3.make_vec_env("own_things:Own/Short-v0", reward="own_things:mean_pixel", env_kwargs={"size": 3})
    assert envs.observation_space.shape == (3,)
    envs.close()
    with pytest.raises(ValueError, match="`env_kwargs` is for IDs of other packages"):
        sb3.make_vec_env("VLMRM/CartPole-v1", env_kwargs={"a": 1})
    with pytest.raises(TypeError, match="`prompt` must be a text"):
        sb3.make_vec_env("Pendulum-v1")
    with pytest.raises(gym.error.Error):
        sb3.make_vec_env("Pendulun-v1", prompt="a")
