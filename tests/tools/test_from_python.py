"""`vlmrm_gym.check` and `vlmrm_gym.score`: from Python and in notebooks, without a command line."""

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from check_subjects import few_states
from conftest import TASK_PROMPT, cartpole_frame

import vlmrm_gym

FRAMES = np.stack([cartpole_frame(angle) for angle in (90, 45, 0)])
UPRIGHT = vlmrm_gym.CLIP(prompt=TASK_PROMPT, model="tiny")


@pytest.fixture(scope="module", autouse=True)
def smaller():
    with few_states(10, 40):
        yield


def bright(frames):
    return frames.mean((1, 2, 3))


def test_frames_are_scored_by_several_rewards():
    scores = vlmrm_gym.score(FRAMES, [UPRIGHT, bright])
    assert scores.labels == [TASK_PROMPT, "bright"]
    assert scores.rewards.dtype == np.float32
    np.testing.assert_allclose(scores.rewards[:, 1], bright(FRAMES), rtol=1e-6)
    np.testing.assert_allclose(scores.rewards[:, 0], UPRIGHT.build("cpu")(FRAMES), atol=1e-5)
    assert (np.diff(scores.rewards[:, 0]) > 0).all()
    assert "3 frames" in repr(scores)
    assert '<img src="data:image/png;base64,' in scores._repr_html_()


def test_progress_of_frames_is_that_of_their_order():
    scores = vlmrm_gym.score(FRAMES, vlmrm_gym.Progress(UPRIGHT))
    np.testing.assert_allclose(scores.rewards[1:, 0], np.diff(UPRIGHT.build("cpu")(FRAMES)), atol=1e-5)


def test_frames_that_are_none_are_refused():
    with pytest.raises(TypeError, match=r"`frames`.* must be .* uint8 \(T, H, W, 3\)"):
        vlmrm_gym.score(FRAMES / 255, UPRIGHT)
    with pytest.raises(vlmrm_gym.InputError, match=r"There is no file or folder nothing.mp4"):
        vlmrm_gym.score("nothing.mp4", UPRIGHT)


@pytest.mark.parametrize(
    "env", [lambda: gym.make("CartPole-v1", render_mode="rgb_array"), "instance"], ids=["function", "instance"]
)
def test_an_environment_of_ones_own_is_checked(env, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = gym.make("CartPole-v1", render_mode="rgb_array")
    report = vlmrm_gym.check(own if env == "instance" else env, rewards=[UPRIGHT], out="found")
    assert (tmp_path / "found" / "report.html").exists()
    assert report._repr_html_().startswith("<iframe srcdoc=")
    own.reset(seed=0)  # it was left open
    own.close()


def test_a_second_check_has_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = [lambda: gym.make("CartPole-v1", render_mode="rgb_array")] * 2
    for one in made:
        one.__name__ = "pole"
        vlmrm_gym.check(one, rewards=UPRIGHT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pole_check", "pole_check_2"]


def test_public_names_are_listed_and_rooms_need_no_import():
    code = (
        "import vlmrm_gym, sys; names = dir(vlmrm_gym); assert 'Any' not in names and 'VLMReward' in names; "
        "assert 'torch' not in sys.modules; vlmrm_gym.rewards.to_mapping; vlmrm_gym.learning.AnswersFile"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_reader_that_stops_reading_is_no_error():
    """As `vlmrm-gym tasks | head -1`."""
    command = f"{sys.executable} -m vlmrm_gym train --help-all | head -1"
    run = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in run.stderr
    assert run.stdout.startswith("usage: vlmrm-gym")


def test_environments_say_what_they_are_scored_by():
    env = gym.make("VLMRM/CartPole-v1", prompt=TASK_PROMPT)
    envs = gym.make_vec("VLMRM/CartPole-v1", 2, prompt=TASK_PROMPT)
    for one in (env, envs):
        assert f"by CLIP(prompt='{TASK_PROMPT}'" in repr(one)
        assert "model='tiny') of " in repr(one)
        one.close()
