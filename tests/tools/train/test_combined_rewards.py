"""Goal images and combined rewards in trainings, commands and files."""

import json
import shutil

import numpy as np
import pytest
import yaml
from check_subjects import few_states
from conftest import TASK_PROMPT, cartpole_frame
from PIL import Image
from trainings import small, train

from vlmrm_gym._util.errors import InputError
from vlmrm_gym.data.metrics import best_threshold, threshold_errors
from vlmrm_gym.rewards.saved import read_saved
from vlmrm_gym.tools.cli.check import check
from vlmrm_gym.tools.cli.dataset import record_dataset
from vlmrm_gym.tools.cli.score import score
from vlmrm_gym.tools.cli.train import configure
from vlmrm_gym.tools.train.config_file import read_config_file
from vlmrm_gym.tools.train.environments import make_envs, make_video_env
from vlmrm_gym.tools.train.evaluation import evaluate, load_policy
from vlmrm_gym.tools.train.run import resume
from vlmrm_gym.tools.train.run_folder import RunFolder

CARTPOLE = "VLMRM/CartPole-v1"
CLIP = {"kind": "clip", "prompt": TASK_PROMPT, "model": "tiny"}


@pytest.fixture
def picture(tmp_path):
    Image.fromarray(cartpole_frame(0, 0)).save(tmp_path / "goal.png")
    return tmp_path / "goal.png"


def write(path, values):
    path.write_text(json.dumps(values))
    return str(path)


def test_a_run_keeps_its_pictures_also_when_it_is_moved(picture, tmp_path):
    terms = [{"weight": 0.5, "kind": "clip", "goal_images": [str(picture)]}, {"weight": 2.0, **CLIP}]
    folder = train(small("DQN", tmp_path / "runs", name="sum", kwargs={"terms": terms, "constant": 0.5}))
    picture.unlink()
    shutil.move(folder.path, tmp_path / "moved")
    written = yaml.safe_load((tmp_path / "moved" / "config.yaml").read_text())
    (name,) = written["reward"]["kwargs"]["terms"][0]["goal_images"]
    assert (tmp_path / "moved" / name).is_file()
    moved = RunFolder.open(tmp_path / "moved")
    config = read_config_file(moved.config_file).config
    resume(config, moved)
    assert moved.metrics()


def test_flags_and_files_name_pictures(picture, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = configure(None, ["--env-name", CARTPOLE, "--goal-images", "goal.png"])
    assert (config.reward.goal_images, config.reward_with_task_prompts.prompt) == (["goal.png"], None)
    both = configure(None, ["--env-name", CARTPOLE, "--goal-images", "goal.png", "--prompt", "a pole"])
    assert both.reward_with_task_prompts.prompt == ["a pole"]
    (tmp_path / "below").mkdir()
    file = tmp_path / "below" / "config.yaml"
    file.write_text(f"env_name: {CARTPOLE}\nreward: {{goal_images: [../goal.png]}}\n")
    assert configure(file, []).reward.goal_images == [str(tmp_path / "below" / "../goal.png")]
    nested = {"kind": "progress", "reward": {"kind": "clip", "goal_images": ["../goal.png"]}}
    read = read_saved(write_path(tmp_path / "below" / "r.json", nested))
    assert read["reward"]["goal_images"] == [str(tmp_path / "below" / "../goal.png")]


def write_path(path, values):
    write(path, values)
    return path


def test_what_a_part_of_a_strangers_reward_names_is_refused(tmp_path):
    """Code and servers, however deep they are."""
    for part, what in (
        ({"kind": "import", "path": "os:system"}, "code"),
        ("os:system", "code"),
        ({"kind": "endpoint", "model": "m", "prompt": "p", "base_url": "http://elsewhere.org/v1"}, "a server"),
    ):
        nested = {"kind": "sum", "terms": [{"weight": 1, **CLIP}, {"kind": "progress", "reward": part}]}
        with pytest.raises(InputError, match=f"names {what}"):
            read_saved(write_path(tmp_path / "r.json", nested))
        (config := tmp_path / "c.yaml").write_text(
            yaml.safe_dump({"env_name": CARTPOLE, "reward": {"name": "sum", "kwargs": {"terms": nested["terms"]}}})
        )
        with pytest.raises(InputError, match=f"names {what}"):
            configure(config, [])


@pytest.mark.slow
def test_check_measures_progress_and_success_by_their_scores_and_proposes_a_threshold(tmp_path):
    success = {"kind": "success", "threshold": 0.5, "reward": {"kind": "sum", "terms": [{"weight": 2.0, **CLIP}]}}
    with few_states():
        doubled = check(CARTPOLE, reward=write(tmp_path / "r.json", success), threshold="auto", out=tmp_path / "a")
        single = check(CARTPOLE, prompt=TASK_PROMPT, threshold="auto", out=tmp_path / "b")
        shown = check(CARTPOLE, goal_images="task", threshold=0.99, out=tmp_path / "c")
    assert doubled.measures.auc == single.measures.auc
    assert doubled.measures.threshold == pytest.approx(2 * single.measures.threshold, abs=1e-5)
    assert doubled.measures.misses == single.measures.misses
    assert any("Progress and success look at the states before" in note for note in doubled.notes)
    assert not single.notes
    assert shown.measures.auc.value > 0.8
    assert shown.measures.threshold == 0.99
    assert shown.measures.misses > 0.5
    page = (tmp_path / "a" / "report.html").read_text()
    assert "False positives" in page
    assert "data:image/png;base64,iVBOR" not in (tmp_path / "c" / "measures.json").read_text()


def test_the_best_threshold_is_that_of_trying_them_all():
    rng = np.random.default_rng(0)
    for _ in range(50):
        rewards, success = rng.normal(size=30).round(1), rng.random(30) < 0.4
        success[:2] = True, False
        found = sum(threshold_errors(rewards, success, best_threshold(rewards, success)))
        tried = [
            (~success & (rewards >= one)).sum() / (~success).sum() + (success & (rewards < one)).sum() / success.sum()
            for one in np.arange(-5, 5, 0.05) + 0.01
        ]
        assert found == pytest.approx(min(tried), abs=1e-9)
    assert threshold_errors(np.array([0.0, 1, 2]), np.array([False, False, True]), 1) == (0.5, 0.0)


def test_score_and_dataset_take_rewards_that_look_back(tmp_path):
    """A video's first frame stands for the state before any action; a dataset has that state."""
    frames = [cartpole_frame(angle, 0) for angle in (40, 20, 10, 5, 0, 0)]
    (tmp_path / "rise").mkdir()
    for number, frame in enumerate(frames):
        Image.fromarray(frame).save(tmp_path / "rise" / f"{number}.png")
    progress = write(tmp_path / "progress.json", {"kind": "progress", "reward": CLIP})
    clip = write(tmp_path / "clip.json", CLIP)
    out = score(tmp_path / "rise", reward=[progress, clip], out=tmp_path / "scores", video=False)
    rows = [line.split(",") for line in (out / "rewards.csv").read_text().splitlines()[1:]]
    paid, scores = (np.array([float(row[k]) for row in rows]) for k in (3, 4))
    np.testing.assert_allclose(paid, np.diff(scores, prepend=scores[0]), atol=1e-5)
    assert paid.sum() > 0.2

    from minari import MinariDataset

    folder = record_dataset(CARTPOLE, reward=[clip, progress], episodes=2, steps=7, out=tmp_path / "data")
    for episode in MinariDataset(folder / "data"):
        every, gains = episode.infos["prompt_rewards"].T
        np.testing.assert_allclose(gains, np.diff(every, prepend=every[0]), atol=1e-5)


def test_a_reward_that_ends_episodes_is_evaluated_and_filmed_as_it_trains(tmp_path):
    """It needs the reward of each step everywhere."""
    kwargs = {"threshold": 0.0, "hold": 3, "terminate": True, "reward": CLIP}
    config = small("DQN", tmp_path, name="success", kwargs=kwargs, scoring="step")
    for envs in (make_envs(config, 2), make_video_env(config)):
        envs.reset(seed=0)
        ends = [envs.step(np.zeros(envs.num_envs, dtype=int))[2].all() for _ in range(3)]
        assert ends == [False, False, True]
        envs.close()


def test_paths_of_pictures_know_the_home_folder_and_own_fields_are_not_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "c.yaml"
    file.write_text("reward: {goal_images: [~/a.png]}")
    assert read_config_file(file).config.reward.goal_images == [str(tmp_path / "a.png")]
    file.write_text("reward: {goal_images: [~nobody-has-this-name/a.png]}")
    assert read_config_file(file).config.reward.goal_images == [str(tmp_path / "~nobody-has-this-name/a.png")]
    file.write_text("reward: {name: 'own:Kind', kwargs: {goal_images: kitchen}}")
    assert read_config_file(file).config.reward.kwargs == {"goal_images": "kitchen"}


def test_a_run_with_a_combined_reward_is_evaluated(tmp_path):
    terms = [{"kind": "task_reward"}, {"weight": 3.0, "kind": "progress", "gamma": 0.98, "reward": CLIP}]
    folder = train(small("DQN", tmp_path, name="sum", kwargs={"terms": terms}))
    config = read_config_file(folder.config_file).config
    episodes = evaluate(config, load_policy(config, folder.policy("last")), 2, seed=0)
    assert (np.abs(episodes.vlm_returns - episodes.task_returns) < 4).all()  # for progress
