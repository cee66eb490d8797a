"""Datasets read back, and labels that a person gave."""

import json
import os
import shutil

import h5py
import numpy as np
import pytest

from vlmrm_gym.cli import main
from vlmrm_gym.datasets.labels import check_environment, read_dataset, read_labels, read_settings
from vlmrm_gym.errors import InputError
from vlmrm_gym.registration import find_task
from vlmrm_gym.rendering.scene_changes import SceneChange, save_changes

TASK = find_task("VLMRM/CartPole-v1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A dataset of two episodes of three steps."""
    out = tmp_path_factory.mktemp("data") / "poles"
    main(["dataset", TASK.id, "--out", str(out), "--episodes", "2", "--steps", "3", "--seed", "7"])
    return out


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory):
    """A dataset of an environment that does not say success."""
    out = tmp_path_factory.mktemp("data") / "poles"
    main(["dataset", "CartPole-v1", "--out", str(out), "--episodes", "2", "--steps", "2"])
    return out


@pytest.fixture(scope="module")
def rollouts(folder):
    return read_dataset(folder)


def write(path, lines, header="episode,step,success"):
    """Write a table of six labels, some of them other than asked for."""
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


LABELS = ["0,0,1", "0,1,0", "0,2,1", "1,0,0", "1,1,0", "1,2,1"]
EXPECTED = [[True, False, True], [False, False, True]]


def read(path, rollouts):
    return [labels.tolist() for labels in read_labels(path, rollouts)]


def test_a_dataset_is_read_back_as_rollouts(folder, rollouts):
    assert [(one.episode, one.seed, len(one), one.behaviour) for one in rollouts] == [
        (0, 7, 3, "random"),
        (1, 8, 3, "random"),
    ]
    for one in rollouts:
        assert (len(one.states), len(one.initial), one.observations.shape) == (3, 1, (4, 4))
        np.testing.assert_allclose(one.observations[1:, ::2], one.states.rows, rtol=1e-6)
        np.testing.assert_allclose(one.observations[:1, ::2], one.initial.rows, rtol=1e-6)
        np.testing.assert_array_equal(one.prompt_rewards[:, 0], one.rewards)
        np.testing.assert_array_equal(one.success, one.task_rewards == 1)  # no pole falls in three steps
        assert one.success.dtype == np.bool_
        assert one.truncated.tolist() == [False, False, True]
    settings = read_settings(folder)
    assert (settings["id"], settings["prompt"], settings["steps"]) == (TASK.id, [TASK.prompt], 3)


def test_without_success_and_prompts_there_is_none(unlabelled):
    for one in read_dataset(unlabelled):
        assert one.success is None
        assert one.prompt_rewards is None
        np.testing.assert_array_equal(one.rewards, one.task_rewards)


def test_the_table_that_the_command_writes_is_read_as_the_environments_success(folder, rollouts):
    assert read(folder / "labels.csv", rollouts) == [one.success.tolist() for one in rollouts]


def test_labels_are_read_in_any_order_and_spelling(tmp_path, rollouts):
    assert read(write(tmp_path / "labels.csv", LABELS[::-1]), rollouts) == EXPECTED
    words = [line[:-1] + {"0": " False", "1": "TRUE"}[line[-1]] for line in LABELS]
    assert read(write(tmp_path / "words.csv", words), rollouts) == EXPECTED
    columns = [f"a note,{line[-1]},{line[2]},{line[0]}" for line in LABELS]
    assert read(write(tmp_path / "order.csv", columns, "note,success,step,episode"), rollouts) == EXPECTED
    table = (tmp_path / "labels.csv").read_bytes().replace(b"\n", b"\r\n")
    (tmp_path / "spreadsheet.csv").write_bytes(b"\xef\xbb\xbf" + table)
    assert read(tmp_path / "spreadsheet.csv", rollouts) == EXPECTED


def test_a_table_that_nobody_filled_in_is_refused(unlabelled):
    with pytest.raises(InputError, match=r"4 of 4 lack one: step 0 of episode 0, step 1 of .* and 1 more\. Write 0 or"):
        read_labels(unlabelled / "labels.csv", read_dataset(unlabelled))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (LABELS[:-1], r"1 of 6 lack one: step 2 of episode 1\. Write 0 or 1"),
        ([], "6 of 6 lack one"),
        (["0,0,", *LABELS[1:]], "1 of 6 lack one: step 0 of episode 0"),
        ([*LABELS, "2,0,1"], r"line 8: the dataset has no step 0 of an episode 2\. Remove the line"),
        ([*LABELS, "1,3,1"], r"line 8: the dataset has no step 3 of an episode 1\. Remove"),
        ([*LABELS, "0,1,0"], r"line 8: episode 0, step 1 is in line 3, too\. Leave one"),
        (["0,0,maybe", *LABELS[1:]], r"line 2: `success` must be 0, 1, true or false\. Received 'maybe'"),
        (["0,-1,1", *LABELS[1:]], r"line 2: `step` must be an integer of at least 0\. Received '-1'"),
        ([",,1", *LABELS[1:]], "line 2: `episode` must be an integer of at least 0"),
    ],
)
def test_labels_that_do_not_fit_are_named(lines, message, tmp_path, rollouts):
    with pytest.raises(InputError, match=message):
        read_labels(write(tmp_path / "labels.csv", lines), rollouts)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        (b"", r"must have the columns episode, step, success. Received \[\]"),
        (b"episode,step\n0,0\n", r"must have the columns .* Received \['episode', 'step'\]"),
        (b"\xff\xfe\x00", "cannot be read: .utf-8"),
        (b'episode,step,success\n0,0,"' + b"a" * 200_000, "cannot be read: field larger than"),
    ],
)
def test_a_file_that_is_no_table_is_refused(content, message, tmp_path, rollouts):
    path = tmp_path / "labels.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_labels(path, rollouts)


def test_a_folder_that_the_command_did_not_make_is_refused(folder, tmp_path):
    with pytest.raises(InputError, match="is not a folder that `vlmrm-gym dataset` made"):
        read_dataset(tmp_path)
    with pytest.raises(InputError, match="is not a folder that `vlmrm-gym dataset` made"):
        read_dataset(folder / "data")
    for text in ("{}", "[1]"):
        (tmp_path / "settings.json").write_text(text)
        with pytest.raises(InputError, match="is not a folder that `vlmrm-gym dataset` made"):
            read_dataset(tmp_path)


def test_a_dataset_of_another_environment_is_refused(folder):
    check_environment(folder, f"vlmrm_gym:{TASK.id}", None)
    for id, function in (("CartPole-v1", None), (None, TASK.id.replace("/", ":"))):
        with pytest.raises(InputError, match=f"must be of {id or function}. Received one of {TASK.id}. Pass another"):
            check_environment(folder, id, function)


def test_a_dataset_that_is_not_complete_or_damaged_is_refused(folder, tmp_path):
    (tmp_path / "settings.json").write_bytes((folder / "settings.json").read_bytes())
    with pytest.raises(InputError, match="is not complete"):
        read_dataset(tmp_path)
    (tmp_path / "data").mkdir()
    with pytest.raises(
        InputError, match=r"The dataset .* cannot be read|main_data\.hdf5 cannot be read|metadata\.json cannot be read"
    ):
        read_dataset(tmp_path)
    (tmp_path / "data" / "metadata.json").write_bytes((folder / "data" / "metadata.json").read_bytes())
    (tmp_path / "data" / "main_data.hdf5").write_bytes((folder / "data" / "main_data.hdf5").read_bytes()[:3000])
    with pytest.raises(
        InputError, match=r"The dataset .* cannot be read|main_data\.hdf5 cannot be read|metadata\.json cannot be read"
    ):
        read_dataset(tmp_path)


def settings_with(**values):
    def change(folder):
        path = folder / "settings.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


def metadata_with(**values):
    def change(folder):
        path = folder / "data" / "metadata.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


def data_with(name, value):
    def change(folder):
        with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
            if name in file:
                del file[name]
            if value is not None:
                file[name] = value

    return change


def scenes_with(fields, frame=None, count=4):
    def change(folder):
        (folder / "scenes").mkdir()
        save_changes(folder / "scenes" / "episode_0000.npz", [SceneChange(fields, frame)] * count)

    return change


def pipe(name):
    def change(folder):
        (folder / name).unlink(missing_ok=True)
        (folder / name).parent.mkdir(exist_ok=True)
        os.mkfifo(folder / name)

    return change


BOX = {"type": "Box", "dtype": "<U100000000", "shape": [], "low": 0, "high": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (settings_with(id=3), r"settings.json: `id`: Input should be a valid string. Received 3"),
        (settings_with(id=None), "either an `id` or an `env`"),
        (settings_with(id="", env=""), "either an `id` or an `env`"),
        (settings_with(seed=-1), "`seed`: Input should be greater than or equal to 0"),
        (settings_with(seed="0"), "`seed`: Input should be a valid integer"),
        (settings_with(columns=["\x1b[31m", 3]), "`columns.1`: Input should be a valid string"),
        (settings_with(columns=["one", "two"]), "a column for each reward"),
        (settings_with(camera=json.loads("[" * 40 + "]" * 40)), "at most 32 levels"),
        (pipe("settings.json"), "settings.json must be a regular file. Received a pipe"),
        (pipe("data/metadata.json"), "metadata.json must be a regular file. Received a pipe"),
        (pipe("data/main_data.hdf5"), "main_data.hdf5 must be a regular file. Received a pipe"),
        (pipe("scenes/episode_0000.npz"), "episode_0000.npz must be a regular file. Received a pipe"),
        (metadata_with(total_episodes=0), "at least one episode. Received 0"),
        (metadata_with(total_episodes=-1), "at least one episode. Received -1"),
        (metadata_with(total_episodes=3), "cannot be read"),
        (metadata_with(data_format="arrow"), "must have the format hdf5"),
        (metadata_with(jpeg_encoding=True), "must have the format hdf5"),
        (metadata_with(observation_space=json.dumps(BOX)), "a space must be of numbers"),
        (metadata_with(observation_space="[" * 10_000), "at most 32 levels"),
        (metadata_with(observation_space=None), "cannot be read"),
        (data_with("episode_0/infos/state", None), "it has no 'state'"),
        (data_with("episode_0/infos/state", np.zeros((4, 3))), "have another shape than those before"),
        (data_with("episode_0/infos/state", np.zeros((5, 2))), "`state` of episode 0 is float64 .5, 2. for 3 steps"),
        (data_with("episode_0/infos/success", np.int8(1)), "`success` of episode 0 is int8 .. for 3 steps"),
        (data_with("episode_0/infos/state", np.full((4, 2), np.nan)), "must have finite rows"),
        (data_with("episode_0/infos/state", np.zeros(4)), "must have finite rows"),
        (data_with("episode_0/infos/state", 3), "cannot be read"),
        (data_with("episode_0/infos/task_reward", np.zeros(4, int)), "`task_reward` of episode 0 is int64"),
        (data_with("episode_0/infos/success", np.zeros(9, np.int8)), "`success` of episode 0 is int8 .9,."),
        (data_with("episode_0/infos/prompt_rewards", np.zeros((4, 7))), "must have 1 columns"),
        (data_with("episode_0/rewards", np.zeros((3, 2))), "`rewards` of episode 0 is float64 .3, 2."),
        (data_with("episode_0/rewards", np.zeros(0)), "cannot be read"),
        (data_with("episode_0/terminations", np.zeros(3)), "`terminations` of episode 0 is float64"),
        (data_with("episode_0", h5py.ExternalLink("pipe", "/")), "must have no links"),
        (scenes_with({}, count=9), "has 9 scenes of 4 states"),
        (scenes_with({"mesh_vertadr": np.array([10**9])}), "a scene cannot change 'mesh_vertadr'"),
        (scenes_with({"__class__": 3}), "a scene cannot change '__class__'"),
        (scenes_with({"geom_pos.data": np.zeros(3)}), "a scene cannot change 'geom_pos.data'"),
        (scenes_with({}, frame=np.zeros((2, 2, 3))), "a captured frame must be uint8"),
    ],
)
def test_a_dataset_of_a_stranger_has_the_right_types_shapes_and_ranges(change, message, folder, tmp_path):
    copied = shutil.copytree(folder, tmp_path / "poles")
    change(copied)
    with pytest.raises(InputError, match=message):
        read_dataset(copied)


def test_scenes_that_an_environment_may_change_are_read(folder, tmp_path):
    copied = shutil.copytree(folder, tmp_path / "poles")
    fields = {"geom_pos": np.ones((2, 3)), "vis.map.znear": 0.5, "vis.rgba.fog": np.ones(4), "camera.0.fixedcamid": 1}
    scenes_with(fields)(copied)
    for change in read_dataset(copied)[0].states.changes:
        assert change.fields.keys() == fields.keys()


def test_reading_a_dataset_makes_no_environment(folder, tmp_path):
    copied, made = tmp_path / "poles", tmp_path / "made"
    shutil.copytree(folder, copied)
    file = copied / "data" / "metadata.json"
    metadata = json.loads(file.read_text())
    spec = json.loads(metadata["env_spec"]) | {"entry_point": "pathlib:Path.mkdir", "kwargs": {"self": str(made)}}
    file.write_text(json.dumps({**metadata, "env_spec": json.dumps(spec)}))
    assert len(read_dataset(copied)) == 2  # the spec is not used
    file.write_text(json.dumps({"env_spec": json.dumps(spec), "data_format": "hdf5"}))
    with pytest.raises(InputError, match="cannot be read: it has no 'total_episodes'"):
        read_dataset(copied)
    assert not made.exists()
