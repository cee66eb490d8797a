"""Code that a stranger's file names is not run without `--trust-code`."""

import json
import shutil
from contextlib import closing

import gymnasium as gym
import pytest
import yaml
from commands import refused

from vlmrm_gym._util.errors import InputError
from vlmrm_gym.tools.environments import make_unscored_env
from vlmrm_gym.tools.train.checks import find_named_code
from vlmrm_gym.tools.train.config import Config, RewardConfig
from vlmrm_gym.tools.train.config_file import flatten
from vlmrm_gym.tools.train.evaluation import run_actions

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

BEFORE = "vlmrm_gym:gym.spaces.box.np."


def attacks(folder):
    """Rewards that start a program."""
    return {
        "reward": {"name": f"{BEFORE}f2py.subprocess.Popen", "kwargs": {"args": ["touch", str(folder / "made")]}},
        "views": {"camera": ["paper", "side"], "combine_views": f"{BEFORE}f2py.subprocess.Popen"},
    }


@pytest.mark.parametrize(("door", "attack"), [("train", "reward"), ("evaluate", "views"), ("resume", "reward")])
def test_a_path_that_begins_in_this_package_runs_nothing(door, attack, cart_pole_run, tmp_path, capsys):
    """Its modules lead to all that they import."""
    file = cart_pole_run / "config.yaml"
    settings = yaml.safe_load(file.read_text())
    settings["reward"] = attacks(tmp_path)[attack]
    file.write_text(yaml.safe_dump(settings))
    if door == "resume":
        shutil.rmtree(cart_pole_run / "checkpoints")
        (cart_pole_run / "learning_curve.png").unlink()  # a run that begins
    arguments = {
        "train": ["train", file, "--base-path", tmp_path / "elsewhere"],
        "evaluate": ["evaluate", cart_pole_run, "--no-video"],
        "resume": ["train", "--resume", cart_pole_run],
    }[door]
    output = refused(capsys, *arguments)
    key = "combine_views" if attack == "views" else "name"
    assert f"`reward.{key}` names code that would be run. Received '{BEFORE}" in output
    assert "pass --trust-code" in output
    assert not (tmp_path / "made").exists()
    assert not (tmp_path / "elsewhere").exists()


def test_a_runs_policy_is_played_without_its_reward(cart_pole_run, tmp_path):
    file = cart_pole_run / "config.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "reward": attacks(tmp_path)["reward"]}))
    with closing(make_unscored_env("VLMRM/CartPole-v1", None)) as env:
        act = run_actions(cart_pole_run, env)
        assert env.action_space.contains(act(env.reset(seed=0)[0]))
    assert not (tmp_path / "made").exists()


def test_what_names_code_needs_trust_unless_a_flag_says_the_same():
    for config, key in (
        (Config(env_name="evil:A-v0"), "env_name"),
        (Config(env_name="vlmrm_gym.tools.check:A-v0"), "env_name"),
        (Config(env_name="A-v0", env_kwargs={"make_kwargs": [{"a": {"id": "evil:B-v0"}}]}), "env_kwargs"),
        (Config(reward=RewardConfig(name="import", kwargs={"path": "evil:f"})), "reward.name"),
        (Config(reward=RewardConfig(ray_options={"num_gpus": 1, "runtime_env": {}})), "reward.ray_options"),
    ):
        (problem,) = find_named_code(config)
        assert ".".join(problem.key) == key
        assert "names code that would be run" in problem.message
        assert not list(find_named_code(config, flatten(config)))
    for config in (
        Config(env_name="vlmrm_gym:VLMRM/CartPole-v1"),
        Config(env_name="Ant-v5", env_kwargs={"xml_file": "ant.xml", "terminate_when_unhealthy": False}),
        Config(reward=RewardConfig(name="clip", combine_views="mean", camera=["paper", "side"])),
        Config(reward=RewardConfig(ray_options={"num_gpus": 0.5, "resources": {"a": 1}})),
    ):
        assert not list(find_named_code(config))


def test_keyword_arguments_that_name_code_reach_no_environment(tmp_path, capsys, monkeypatch):
    made = []
    file = tmp_path / "config.yaml"
    file.write_text("env_name: Pendulum-v1\nenv_kwargs: {g: 'evil:B-v0'}\nreward: {prompt: a}\n")
    with closing(make_unscored_env("Pendulum-v1", None)) as env, monkeypatch.context() as patch:
        patch.setattr(gym, "make", lambda *arguments, **kwargs: made.append(kwargs))
        assert "line 2: `env_kwargs` names code" in refused(capsys, "train", file)
        with pytest.raises(InputError, match=r"`env_kwargs` names code that would be run.*pass --trust-code"):
            run_actions(tmp_path, env)
    assert made == []


def test_a_flag_is_ones_own_word_also_beside_a_file_that_says_the_same(tmp_path, capsys):
    """Another key of the file that names code is not trusted by it."""
    file, name = tmp_path / "config.yaml", "vlmrm_gym:no_such_thing"
    file.write_text(f"env_name: VLMRM/CartPole-v1\nreward: {{name: '{name}', combine_views: '{name}'}}\n")
    output = refused(capsys, "train", file, "--reward.name", name)
    assert "`reward.combine_views` names code" in output
    assert "`reward.name` names code" not in output


@pytest.mark.parametrize("key", ["combine_views", "labeler"])
def test_a_rewards_file_names_no_code_where_a_flag_says_another(key, make_module, tmp_path, capsys):
    folder = make_module("evil", "from pathlib import Path\nPath(__file__).with_name('imported').touch()\n")
    (file := tmp_path / "spec.json").write_text(json.dumps({"kind": "clip", "prompt": "a pole", key: "evil:f"}))
    flags = ["--combine-views", "min", "--labeler", "ground_truth"]
    refused(capsys, "train", "--env-name", "CartPole-v1", "--reward", file, *flags)
    assert not (folder / "imported").exists()


def test_nothing_is_imported_before_it_is_trusted(make_module, tmp_path, capsys):
    folder = make_module("evil", "from pathlib import Path\nPath(__file__).with_name('imported').touch()\n")
    for text in ("env_name: evil:A-v0\nreward: {prompt: a}\n", "env_name: CartPole-v1\nreward: {name: 'evil:f'}\n"):
        (file := tmp_path / "config.yaml").write_text(text)
        assert "names code that would be run. Received 'evil:" in refused(capsys, "train", file)
        assert not (folder / "imported").exists()
