"""Several cameras in configuration files, on the command line, in pictures and videos, and with Stable-Baselines3."""

import json
from contextlib import closing

import imageio.v3 as iio
import numpy as np
import pytest
from commands import refused, write

from vlmrm_gym.envs.make import make_env
from vlmrm_gym.states.cameras import PAPER_CAMERA
from vlmrm_gym.tasks import TASKS
from vlmrm_gym.tools.cli import main
from vlmrm_gym.tools.cli.tasks import draw_task
from vlmrm_gym.tools.cli.train import configure
from vlmrm_gym.tools.train.config_file import flatten, read_config_file, to_yaml
from vlmrm_gym.tools.train.evaluation import load_policy
from vlmrm_gym.tools.train.run_folder import RunFolder

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

STAND = "VLMRM/Humanoid-stand-v0"
SIDE = {**PAPER_CAMERA, "azimuth": 90.0}


def test_cameras_are_read_from_files_and_flags_and_written_again(tmp_path):
    """All forms, under both names; a flag is YAML, and wins."""
    for camera in ("track", 0, SIDE, ["paper", "track", SIDE]):
        for word in ("camera", "camera_config"):
            file = write(f"env_name: {STAND}\nreward: {{{word}: {json.dumps(camera)}}}\n", tmp_path)
            config = read_config_file(file).config
            assert config.reward.camera == camera
            assert flatten(read_config_file(write(to_yaml(config), tmp_path)).config) == flatten(config)
        file = write(f"env_name: {STAND}\nreward: {{camera: front-side}}\n", tmp_path)
        assert configure(file, []).reward.camera == "front-side"
        for flag in ("--camera", "--reward.camera-config"):
            assert configure(file, [flag, json.dumps(camera)]).reward.camera == camera


TRAINING = """--rl.n-steps 20 --rl.n-envs-per-worker 2 --rl.episode-length 5 --rl.learning-starts 10 --rl.train-freq 5
--rl.gradient-steps 1 --rl.batch-size 4 --rl.policy-kwargs {"net_arch":[4]} --reward.no-textured
--logging.video-freq 0"""
OWN = {"reward": "own_things:Green", "textured": False, "episode_length": 5}


def rewards_of_single_cameras(policy, cameras, seed):
    """Rewards (V, T) of one episode, from each camera alone."""
    rewards = []
    for camera in cameras:
        with closing(make_env(STAND, camera=camera, **OWN)) as env:
            observation, _ = env.reset(seed=seed)
            steps = [env.step(policy.predict(observation, deterministic=True)[0])]
            while not steps[-1][3]:
                steps.append(env.step(policy.predict(steps[-1][0], deterministic=True)[0]))
            rewards.append([step[1] for step in steps])
    return np.array(rewards)


def test_a_training_from_two_cameras_is_paid_the_minimum(tmp_path, capsys):
    """By a function of one's own, and its evaluation, too; the video shows both views side by side."""
    reward = f"name: 'own_things:Green', camera: [paper, {json.dumps(SIDE)}], combine_views: 'own_things:lowest'"
    file = write(f"env_name: {STAND}\nreward: {{{reward}}}\n", tmp_path)
    main(["train", str(file), "--trust-code", *TRAINING.split(), "--base-path", str(tmp_path), "--run-name", "run"])
    folder = RunFolder(tmp_path / "run")
    assert np.isfinite([row["vlm_return"] for row in folder.metrics()]).all()
    assert "pass --trust-code" in refused(capsys, "evaluate", folder.path)
    main(["evaluate", str(folder.path), "--episodes", "1", "--seed", "77", "--policy", "last", "--trust-code"])
    result = json.loads((folder.path / "evaluation.json").read_text())
    policy = load_policy(read_config_file(folder.config_file).config, folder.policy("last"))
    single = rewards_of_single_cameras(policy, ["paper", SIDE], seed=77)
    assert (single[0] != single[1]).all()
    assert result["vlm_return"] == pytest.approx(single.min(0).sum(), abs=1e-5)
    video = iio.imread(folder.path / "evaluation.mp4")
    assert video.shape == (5, 480 + 72, 2 * 480, 3)
    assert (video[:, :480, :480] != video[:, :480, 480:]).any()


def test_pictures_of_tasks_show_all_views(tmp_path, capsys):
    """The goal state below, each view side by side; tasks without a camera are shown as always."""
    stand = next(task for task in TASKS if task.id == STAND)
    picture, alone = draw_task(stand, "front-side"), draw_task(stand)
    assert picture.shape == (2 * 480, 2 * 480, 3)
    np.testing.assert_array_equal(np.concatenate([picture[:480, :480], picture[480:, :480]], axis=1), alone)
    np.testing.assert_array_equal(draw_task(TASKS[0], "front-side"), draw_task(TASKS[0]))
    assert "this model has no camera 'back'" in refused(capsys, "tasks", "--pictures", tmp_path, "--camera", "back")
    assert "Pass --pictures FOLDER" in refused(capsys, "tasks", "--camera", "front-side")
