"""A world of another package is one file with one record: every door and every command knows it by that."""

import json
import sys
from dataclasses import replace

import gymnasium as gym
import imageio.v3 as iio
import numpy as np
import pytest
import worlds  # noqa: F401  (registers the ID)
from gymnasium.envs.registration import EnvSpec

from vlmrm_gym.envs.make import find_task, make_base_env
from vlmrm_gym.tasks import REGISTERED, TASKS, Task, register
from vlmrm_gym.tasks.known_states import fails_clearly
from vlmrm_gym.tools.cli import main
from vlmrm_gym.tools.train.algorithms import with_defaults
from vlmrm_gym.tools.train.checks import complete
from vlmrm_gym.tools.train.config import Config, RLConfig
from vlmrm_gym.tools.train.config_file import ConfigError

ROD = "Worlds/Rod-v0"
WITH_STATES = [*TASKS, REGISTERED[ROD]]

pytestmark = pytest.mark.filterwarnings("ignore:.*bundled model")


def redness(frames):
    """A reward that needs no model."""
    return frames[..., 0].mean((1, 2))


def test_gym_make_scores_it_with_its_prompt_camera_time_limit_and_arguments():
    env = gym.make(ROD, model="tiny")
    assert env.spec.kwargs["prompt"] == "a rod that stands upright"
    env.reset(seed=0)
    steps = [env.step(np.zeros(1)) for _ in range(10)]
    assert [step[3] for step in steps] == [False] * 9 + [True]
    assert steps[0][4]["success"] is False
    assert env.render().shape == (48, 64, 3)
    env.close()
    env = gym.make(ROD, hanging=False, reward="test_worlds:redness", episode_length=3)
    env.reset(seed=0)
    assert env.step(np.zeros(1))[4]["success"] is True
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.spec == env.spec
    again.close()
    env.close()
    envs = gym.make_vec(ROD, 2, reward=redness)
    envs.reset(seed=0)
    for _ in range(10):
        infos = envs.step(np.zeros((2, 1)))[4]
    assert [len(rewards) for rewards in infos["vlm_rewards"]] == [10, 10]
    envs.close()


def test_a_process_that_has_not_imported_it_makes_it_from_its_spec(monkeypatch):
    env = gym.make(ROD, reward="test_worlds:redness")
    spec = env.spec.to_json()
    env.close()
    for known, name in ((sys.modules, "worlds"), (gym.registry, ROD), (REGISTERED, ROD)):
        monkeypatch.delitem(known, name)
    gym.make(EnvSpec.from_json(spec)).close()
    assert REGISTERED[ROD].env == "worlds:Rod"


def test_it_is_trained_and_evaluated_by_name(tmp_path, capsys):
    flags = ["--model", "tiny", "--base-path", str(tmp_path), "--run-name", "run", "--logging.video-freq", "0"]
    main(["train", "--env-name", f"worlds:{ROD}", *flags, "--reward.camera", "{azimuth: 0, distance: 2}"])
    lines = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    assert lines[0].split(",")[-1] == "success"
    main(["evaluate", str(tmp_path / "run"), "--episodes", "2", "--trust-code"])
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text())["success"] == 0


def test_defaults_of_its_training_are_those_of_its_record_and_wrong_settings_are_refused(tmp_path, capsys, monkeypatch):
    """Those that the record does not have are those of its kind of actions."""
    rl = with_defaults(Config(env_name=ROD)).rl
    assert (rl.algorithm, rl.n_steps, rl.n_envs_per_worker, rl.episode_length) == ("SAC", 40, 2, 10)
    assert rl.options["batch_size"] == 256
    for flags, problem in (
        (["--reward.camera", "nowhere"], "this model has no camera 'nowhere'"),
        (["--reward.no-textured"], "`reward.textured` is not for Rod"),
    ):
        with pytest.raises(SystemExit):
            main(["train", "--env-name", ROD, "--model", "tiny", "--base-path", str(tmp_path), *flags])
        assert problem in " ".join(capsys.readouterr().err.replace("│", "").split())
    monkeypatch.setitem(REGISTERED, ROD, replace(REGISTERED[ROD], training={"gama": 0.9}))
    with pytest.raises(ConfigError, match=r"`env_name` has a record whose `training` cannot be used\.") as raised:
        complete(Config(env_name=ROD))
    assert "Did you mean `rl.gamma`?" in str(raised.value)


@pytest.mark.slow
def test_it_is_checked_with_its_own_states(tmp_path):
    main(["check", f"worlds:{ROD}", "--model", "tiny", "--out", str(tmp_path / "out")])
    (row,) = json.loads((tmp_path / "out" / "measures.json").read_text())["table"]
    assert row["candidate"]["prompt"] == "a rod that stands upright"
    assert row["measures"]["auc"] is not None  # its states say what succeeds: rollouts never do
    assert 0 <= row["measures"]["auc"]["value"] <= 1


def test_pictures_show_its_initial_state_and_its_goal_if_known(tmp_path, capsys):
    main(["tasks", f"worlds:{ROD}", "--pictures", str(tmp_path)])
    (picture,) = tmp_path.iterdir()
    frame = iio.imread(picture)
    assert frame.shape == (48, 2 * 64, 3)
    rod = frame[..., 0].astype(int) - frame[..., 2] > 60
    heights = [np.flatnonzero(half.any(axis=1)).mean() for half in (rod[:, :64], rod[:, 64:])]
    assert heights[0] > heights[1] + 5  # it hangs on the left, and stands on the right
    output = capsys.readouterr().out
    assert "a rod that stands upright" in output
    assert "CartPole" not in output
    register(Task(id="Worlds/Bare-v0", env="worlds:Rod", episode_length=5))  # it has no states
    try:
        main(["tasks", "Worlds/Bare-v0", "--pictures", str(tmp_path)])
        assert iio.imread(tmp_path / "Worlds_Bare-v0.png").shape == (48, 64, 3)
    finally:
        del REGISTERED["Worlds/Bare-v0"], gym.registry["Worlds/Bare-v0"]


def test_the_list_has_it_beside_our_own_and_names_what_does_not_exist(capsys):
    main(["tasks"])
    output = capsys.readouterr().out
    assert all(task.id in output for task in WITH_STATES)
    for id, reason in (("Worlds/Rod-v7", "Did you mean 'Worlds/Rod-v0'"), ("no_such:Rod-v0", "Importing it")):
        with pytest.raises(SystemExit):
            main(["tasks", id])
        error = " ".join(capsys.readouterr().err.split())
        assert id in error
        assert reason in error


def test_successes_have_at_least_the_grades_of_clear_failures(rng):
    for task in WITH_STATES:
        if not task.success_threshold:
            continue
        known = task.make_states()
        states = known.sample(200, rng)
        grades, success, wrong = known.grade(states), known.succeeds(states), fails_clearly(known, states)
        assert (grades.shape, grades.dtype) == ((200,), np.float64)
        assert ((grades >= 0) & (grades <= 1)).all()
        assert success.any()
        assert wrong.any()
        assert grades[success].min() >= grades[wrong].max(), task.id
        goal = known.example_goal()[None]
        assert (known.grade(goal)[0], known.succeeds(goal)[0]) == (1, True)


def test_the_grade_of_cart_pole_is_the_poles_angle_within_the_track_and_of_mountain_car_the_position():
    pole, car = (REGISTERED[id].make_states() for id in ("VLMRM/CartPole-v1", "VLMRM/MountainCarContinuous-v0"))
    angles = np.deg2rad([0, -45, 90, 180])
    np.testing.assert_allclose(pole.grade(np.stack([np.full(4, 1.5), angles], axis=1)), [1, 0.75, 0.5, 0])
    at_the_end = np.stack([np.full(4, -2.4), angles], axis=1)
    np.testing.assert_allclose(pole.grade(at_the_end), [1 - 12 / 180, 0.75, 0.5, 0])
    np.testing.assert_allclose(car.grade(np.array([[-1.2], [-0.375], [0.45], [0.6]])), [0, 0.5, 1, 1])


def test_a_curriculum_leads_to_the_goal():
    states = REGISTERED["VLMRM/Humanoid-splits-v0"].make_states()
    way = states.on_the_way(np.array([0.0, 0.5, 1.0]))
    assert states.succeeds(way).tolist() == [False, False, True]
    assert (np.diff(states.grade(way)) > 0).all()


def test_an_id_is_found_with_its_module_and_without_its_version():
    assert find_task(f"worlds:{ROD}") is find_task("Worlds/Rod") is REGISTERED[ROD]
    assert make_base_env(REGISTERED[ROD], 3).spec is None
    assert RLConfig.of(REGISTERED[ROD].training).n_steps == 40
