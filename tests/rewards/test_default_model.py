"""Rewards that name no model: which one an environment gets, at every door; and what is said without a network."""

import socket
import time
from functools import partial

import gymnasium as gym
import imageio.v3 as iio
import numpy as np
import pytest
from conftest import TASK_PROMPT
from counting_env import Counting
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from huggingface_hub import constants

import vlmrm_gym
from vlmrm_gym._util.errors import say_once
from vlmrm_gym.rewards import models
from vlmrm_gym.rewards.sources import PUBLISHED, default_model
from vlmrm_gym.sb3 import make_vec_env
from vlmrm_gym.tasks.cartpole import CartPole
from vlmrm_gym.tasks.humanoid_vector import HumanoidVectorEnv
from vlmrm_gym.tools.cli import main
from vlmrm_gym.tools.train.checks import complete
from vlmrm_gym.tools.train.config import Config, RewardConfig
from vlmrm_gym.tools.train.config_file import ConfigError


def make(id):
    return gym.make(id, render_mode="rgb_array")


class Redrawn(CartPoleEnv):
    """What a subclass draws is not known."""


KNOWN = {
    "CartPole-v1": partial(make, "CartPole-v1"),
    "MountainCarContinuous-v0": partial(make, "MountainCarContinuous-v0"),
    "Humanoid-v5": partial(make, "Humanoid-v5"),
    "ours": partial(CartPole, render_mode="rgb_array"),
    "its class": partial(CartPoleEnv, render_mode="rgb_array"),
    "one after the other": lambda: SyncVectorEnv([KNOWN["CartPole-v1"]] * 2),
    "in processes": lambda: gym.make_vec("CartPole-v1", 2, "async", render_mode="rgb_array"),
    "captured in processes": lambda: AsyncVectorEnv([lambda: vlmrm_gym.CaptureState(make("CartPole-v1"))] * 2),
    "their own vector": lambda: gym.make_vec("CartPole-v1", 2, "vector_entry_point", render_mode="rgb_array"),
    "humanoids at once": lambda: HumanoidVectorEnv(2, episode_length=5),
}
UNKNOWN = {
    "Acrobot-v1": partial(make, "Acrobot-v1"),
    "one's own": Counting,
    "a subclass": partial(Redrawn, render_mode="rgb_array"),
    "one of two": lambda: SyncVectorEnv([Counting, lambda: Counting(lengths=[2])]),
    "in processes": lambda: AsyncVectorEnv([Counting] * 2),
}


def test_scenes_that_the_bundled_model_knows_have_it_and_others_a_published_one():
    """Without an environment nothing is known of the frames."""
    for known, makers in ((True, KNOWN), (False, UNKNOWN)):
        for name, make in makers.items():
            env = make()
            assert default_model(env) == ("tiny" if known else PUBLISHED), name
            env.close()
    assert default_model() == PUBLISHED


def test_what_scores_an_environment_names_its_model():
    """Specifications, fingerprints of features, and the file of a run: nothing depends on a later default."""
    envs = gym.make_vec("VLMRM/CartPole-v1", 1, return_features=True)
    assert envs.reward.model == "tiny"
    assert envs.head.fingerprint == "tiny, squash"
    envs.close()
    for reward in (RewardConfig(), RewardConfig(name="preference", labeler="ground_truth")):
        assert complete(Config(env_name="VLMRM/CartPole-v1", reward=reward)).reward.model == "tiny"
    reward = RewardConfig(prompt=["an acrobat"])
    assert complete(Config(env_name="Acrobot-v1", reward=reward)).reward.model == PUBLISHED
    reward = RewardConfig(name="preference", labeler="ground_truth", kwargs={"model": "RN50/openai"})
    assert complete(Config(env_name="VLMRM/CartPole-v1", reward=reward)).reward.model is None
    for kind in (vlmrm_gym.CLIP, vlmrm_gym.Preference):  # a model that is named stays
        assert kind(prompt="up", model="RN50/openai").with_model("tiny").model == "RN50/openai"
        assert kind(prompt="up").with_model("tiny") == kind(prompt="up", model="tiny")


PROMPT = {"prompt": "an acrobat that stands"}
ACROBOT = partial(make, "Acrobot-v1")
DOORS = [
    lambda: vlmrm_gym.VLMReward(ACROBOT(), **PROMPT),
    lambda: vlmrm_gym.VLMRewardVectorEnv([ACROBOT] * 2, **PROMPT),
    lambda: vlmrm_gym.VLMRewardVectorEnv([ACROBOT], reward=vlmrm_gym.Preference(**PROMPT)),
    lambda: make_vec_env("Acrobot-v1", 2, **PROMPT),
    lambda: vlmrm_gym.CLIPReward(**PROMPT),
]


def test_a_default_that_is_not_on_this_machine_is_one_error_that_names_both_ways_out(capsys):
    """Tests are without a network. The line about the default comes once, whatever follows."""
    say_once.cache_clear()
    for door in DOORS:
        with pytest.raises(RuntimeError) as raised:
            door()
        message = str(raised.value)
        assert message.startswith(f"`model`: the weights of {PUBLISHED!r} could not be downloaded")
        assert 'pass model="ViT-B-32/path/to/that/file"' in message
        assert 'model="tiny" is bundled' in message
    assert capsys.readouterr().err.count("The weights (605 MB) are downloaded once") == 1


def test_commands_have_the_same_default(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    iio.imwrite("picture.png", np.zeros((20, 20, 3), dtype=np.uint8))
    for command in (
        ["check", "Acrobot-v1"],
        ["dataset", "Acrobot-v1", "--out", "out", "--episodes", "1"],
        ["score", "picture.png"],
        ["train", "Acrobot-v1"],
    ):
        with pytest.raises(SystemExit):
            main([*command, "--prompt", "an acrobat"])
        printed = " ".join(capsys.readouterr().err.replace("│", "").split())
        assert f"the weights of {PUBLISHED!r} could not be downloaded" in printed


def test_without_a_network_the_error_comes_soon(monkeypatch, capfd):
    """Hugging Face's library tries six times for each of two files: 45 seconds, and 40 lines."""
    with socket.create_server(("127.0.0.1", 0)) as server:  # it never answers
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr("vlmrm_gym.rewards.sources.CONNECTION_SECONDS", 0.5)
        start = time.perf_counter()
        with pytest.raises(RuntimeError, match="could not be downloaded"):
            models.load(PUBLISHED, "cpu")
        assert time.perf_counter() - start < 3
    assert capfd.readouterr().err == ""
    assert constants.HF_HUB_OFFLINE is False


def test_a_training_whose_model_cannot_exist_is_refused_before_it_begins(tmp_path, capsys):
    """Also by --dry-run."""
    flags = ["--base-path", str(tmp_path), "--dry-run"]
    with pytest.raises(SystemExit):
        main(["train", "VLMRM/CartPole-v1", "--model", "ViT-B32/openai", *flags])
    assert "`reward.model` must be" in (error := " ".join(capsys.readouterr().err.replace("│", "").split()))
    assert "Nearest architectures: ViT-B-32" in error
    reward = RewardConfig(name="preference", labeler="ground_truth", kwargs={"model": "ViT-B32/x"})
    with pytest.raises(ConfigError, match=r"`reward\.kwargs\.model` must be"):
        complete(Config(env_name="CartPole-v1", reward=reward))


def test_a_file_is_no_prompt(tmp_path, monkeypatch):
    """A picture of the goal was taken for a sentence."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "goal.png").write_bytes(b"")
    for field, kind in (
        ("prompt", vlmrm_gym.CLIP),
        ("baseline", partial(vlmrm_gym.CLIP, prompt="a pole")),
        ("prompt", vlmrm_gym.Preference),
        ("prompt", partial(vlmrm_gym.Endpoint, model="any")),
    ):
        assert getattr(kind(**{field: "no such goal.png"}), field) == "no such goal.png"
        with pytest.raises(ValueError, match=f"`{field}` must say in words .*'goal.png', which is a file"):
            kind(**{field: "goal.png"})
        assert kind(**{field: f"{TASK_PROMPT}." * 100})
