"""How many files a change touches: a field of CLIP, and a kind of reward, one each."""

import os
import subprocess
import sys
from dataclasses import dataclass, field

import gymnasium as gym
import numpy as np
import pytest
from changed_package import change_package
from own_kind import Level

import vlmrm_gym
from vlmrm_gym.rewards import specification
from vlmrm_gym.tools.cli import train
from vlmrm_gym.tools.train.algorithms import with_defaults
from vlmrm_gym.tools.train.config import Config, RewardConfig
from vlmrm_gym.tools.train.config_file import ConfigError
from vlmrm_gym.tools.train.environments import make_video_env

WHITE = 255.0
"""The first pixel of cart-pole."""

USE = """
import pathlib
import gymnasium as gym
import numpy as np
import vlmrm_gym
from vlmrm_gym import CLIP, sb3
from vlmrm_gym.tools import cli
from vlmrm_gym.tools.cli import train
from vlmrm_gym.tools.train.config_file import ConfigError
from vlmrm_gym.tools.train.environments import make_video_env

built = []


def build(self, device):
    built.append(self.sharpness)
    return vlmrm_gym.rewards.own.CallableModel(lambda frames: np.zeros(len(frames)))


CLIP.build = build
cart_pole = gym.make("CartPole-v1", render_mode="rgb_array")
vlmrm_gym.VLMReward(cart_pole, "a pole", sharpness=0.125)
gym.make("VLMRM/CartPole-v1", sharpness=0.25)
gym.make_vec("VLMRM/CartPole-v1", 1, sharpness=0.375).close()
sb3.make_vec_env("VLMRM/CartPole-v1", sharpness=0.5).close()
gym.make("VLMRM/CartPole-v1", reward={"kind": "clip", "prompt": "a", "sharpness": 0.625})
make_video_env(train.configure(None, ["--env-name", "VLMRM/CartPole-v1", "--reward.sharpness", "0.75"]))
make_video_env(train.configure(pathlib.Path("file.yaml"), []))
assert built == [0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875], built
vlmrm_gym.CLIPReward("tiny", prompt="a pole", sharpness=0.5)
for call in (lambda: CLIP(prompt="a", sharpness=2), lambda: vlmrm_gym.CLIPReward("tiny", prompt="a", sharpness=2)):
    try:
        call()
    except ValueError as error:
        assert "`sharpness` must be a number from 0 to 1. Received 2." in str(error)
    else:
        raise AssertionError("it was accepted")
try:
    train.configure(None, ["--env-name", "VLMRM/CartPole-v1", "--reward.sharpness", "2"])
except ConfigError as error:
    assert "`reward.sharpness` must be a number from 0 to 1. Received 2." in str(error)
else:
    raise AssertionError("it was accepted")
for command in ("train", "check", "score", "dataset"):
    try:
        cli.main([command, "--help-all" if command == "train" else "--help"])
    except SystemExit:
        pass
"""


@pytest.mark.slow
def test_a_field_of_clip_is_added_in_one_file(tmp_path):
    """Constructors, doors, mapping form, flag, file, checks and help have it, with no other file changed."""
    new = '    sharpness: float = field(default=0.0, metadata={"check": check_fraction})\n    """How sharp."""\n'
    change_package(tmp_path, "rewards/clip.py", "    alpha: float = field(", new)
    (tmp_path / "file.yaml").write_text("env_name: VLMRM/CartPole-v1\nreward: {sharpness: 0.875}\n")
    (tmp_path / "use.py").write_text(USE)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "use.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "--reward.sharpness X" in done.stdout
    assert done.stdout.count("│ --sharpness X") == 3  # of the other commands
    assert done.stdout.count("How sharp. (default: 0.0)") == 4


@dataclass(frozen=True, kw_only=True)
class Flat(Level):
    """A kind as this package would have it: one file, and a line in the table."""

    kind: str = field(default="flat", init=False)


@pytest.fixture
def flat(monkeypatch):
    """The kind, registered by one line."""
    monkeypatch.setitem(specification.KINDS, "flat", Flat)


def test_a_registered_kind_is_written_by_its_name(flat):
    """Every door takes own kinds: see test_own_kinds.py."""
    env = gym.make("VLMRM/CartPole-v1", reward={"kind": "flat", "scale": 0.5})
    assert specification.to_mapping(Flat(scale=0.5)) == {"kind": "flat", "scale": 0.5}
    for one in (env, gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))):
        one.reset(seed=0)
        assert one.step(0)[1] == WHITE / 2
        one.close()


def test_files_name_a_registered_kind_and_no_code(flat, tmp_path):
    file = tmp_path / "file.yaml"
    file.write_text("env_name: VLMRM/CartPole-v1\nreward: {name: flat, kwargs: {scale: 4}}\n")
    envs = make_video_env(train.configure(file, []))
    envs.reset(seed=0)
    envs.step(np.zeros(1, dtype=np.int64))
    assert envs.flush()["vlm_rewards"][0].tolist() == [4 * WHITE]
    envs.close()
    for reward, message in [
        ("{name: flat, kwargs: {scael: 4}}", "`reward.kwargs.scael` is not a field of a reward. Did you mean `scale`"),
        (
            "{name: import, kwargs: {path: 'os:getcwd'}}",
            "`reward.name` names code that would be run. Received 'import'",
        ),
    ]:
        file.write_text(f"env_name: VLMRM/CartPole-v1\nreward: {reward}\n")
        with pytest.raises(ConfigError, match=f"line 2: {message}"):
            train.configure(file, [])


def test_the_tasks_baseline_is_checked_against_the_prompt():
    """Where alpha needs it; it was refused only when the environments were made."""
    baseline = "pole and cart"
    assert baseline == next(task.baseline for task in vlmrm_gym.TASKS if task.id == "VLMRM/CartPole-v1")
    with pytest.raises(ConfigError, match=r"`reward.baseline` must differ from `prompt`"):
        train.configure(None, ["--env-name", "VLMRM/CartPole-v1", "--reward.prompt", baseline, "--reward.alpha", "1"])
    config = Config(env_name="VLMRM/CartPole-v1", reward=RewardConfig(alpha=0.5))
    assert with_defaults(config).reward.baseline == [baseline]
