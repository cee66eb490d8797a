"""`LeRobot` asks a reward model of LeRobot, as its interface is: batches of tensors by names, and the task's text."""

import sys

import fake_lerobot
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled

import vlmrm_gym
from vlmrm_gym import InputError
from vlmrm_gym.rewards.saved import read_saved

CLIPS = np.random.default_rng(0).integers(0, 256, (3, 4, 8, 10, 3), dtype=np.uint8)


@pytest.mark.parametrize("frames", [None, 4])
def test_a_model_gets_images_from_0_to_1_and_the_task(tmp_path, monkeypatch, frames):
    fake_lerobot.install(monkeypatch)
    model = vlmrm_gym.LeRobot(model=str(tmp_path), prompt="open it", frames=frames).build("cpu")
    seen = CLIPS if frames else CLIPS[:, -1]
    np.testing.assert_allclose(model(seen), CLIPS[:, -1].mean((1, 2, 3)) / 255, atol=1e-6)
    (_, batch) = fake_lerobot.CALLS[-1]
    assert batch["task"] == ["open it"] * 3
    assert tuple(batch["observation.images.top"]) == ((3, 4, 3, 8, 10) if frames else (3, 3, 8, 10))
    assert model.clip_length == (frames or 1)
    assert fake_lerobot.CALLS[0] == ("config", str(tmp_path))


def test_settings_of_the_checkpoint_are_used(tmp_path, monkeypatch):
    fake_lerobot.install(monkeypatch, max_frames=16, image_key="observation.images.top")
    (tmp_path / "classifier_preprocessor.json").write_text("{}")
    model = vlmrm_gym.LeRobot(model=str(tmp_path)).build("cpu")
    assert model.clip_length == 16
    assert ("pipeline", "classifier_preprocessor.json", {"device_processor": {"device": "cpu"}}) in fake_lerobot.CALLS
    np.testing.assert_allclose(model(CLIPS), CLIPS[:, -1].mean((1, 2, 3)) / 255 + 1, atol=1e-6)


def test_an_environment_pays_progress_of_it(tmp_path, monkeypatch):
    fake_lerobot.install(monkeypatch)
    reward = vlmrm_gym.Progress(vlmrm_gym.LeRobot(model=str(tmp_path), frames=4))
    env = vlmrm_gym.VLMReward(gym.make("CartPole-v1", render_mode="rgb_array"), reward=reward)
    env.reset(seed=0)
    before = env.render().mean() / 255
    paid = env.step(1)[1]
    assert paid == pytest.approx(env.render().mean() / 255 - before, abs=1e-6)
    env.close()


def test_models_that_cannot_be_asked(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lerobot", None)
    with pytest.raises(DependencyNotInstalled, match=r"LeRobot 0\.6 or newer"):
        vlmrm_gym.LeRobot(model=str(tmp_path)).build("cpu")
    fake_lerobot.install(monkeypatch, features=("observation.images.a", "observation.images.b"))
    with pytest.raises(InputError, match="`image_key` must be given"):
        vlmrm_gym.LeRobot(model=str(tmp_path)).build("cpu")


def test_a_strangers_file_does_not_load_one(tmp_path):
    vlmrm_gym.LeRobot(model="someone/model").save(tmp_path / "reward")
    with pytest.raises(InputError, match="names code that would be run"):
        read_saved(tmp_path / "reward")
    assert read_saved(tmp_path / "reward", trust_code=True)["model"] == "someone/model"
