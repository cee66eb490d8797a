"""Datasets read back, and labels that a person gave."""

import json
import os
import shutil
from functools import partial
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from vlmrm_gym._util.errors import InputError
from vlmrm_gym.data.dataset_folder import check_environment, read_dataset, read_settings
from vlmrm_gym.data.labels import read_labels, read_video_labels
from vlmrm_gym.envs.make import find_task
from vlmrm_gym.states.scene_changes import SceneChange, save_changes
from vlmrm_gym.tools.cli import main

TASK = find_task("VLMRM/CartPole-v1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A dataset of two episodes of three steps."""
    out = tmp_path_factory.mktemp("data") / "poles"
    main(["dataset", TASK.id, "--out", str(out), "--episodes", "2", "--steps", "3", "--seed", "7"])
    return out


@pytest.fixture(scope="module")
def rollouts(folder):
    return read_dataset(folder)


LABELS = ["0,0,1", "0,1,0", "0,2,1", "1,0,0", "1,1,0", "1,2,1"]
EXPECTED = [[True, False, True], [False, False, True]]


def read(path, rollouts):
    return [labels.tolist() for labels in read_labels(path, rollouts)]


def test_a_dataset_is_read_back_as_trajectories(folder, rollouts):
    found = [(one.episode_index, len(one), len(one.with_initial), one.source) for one in rollouts]
    assert found == [(0, 3, 4, "random"), (1, 3, 4, "random")]
    for one in rollouts:
        assert one.observations.shape == (4, 4)
        np.testing.assert_allclose(one.observations[:, ::2], one.with_initial.rows, rtol=1e-6)
        np.testing.assert_array_equal(one.success, one.task_rewards)  # no pole falls in three steps
        assert one.truncated.tolist() == [False, False, True]
    settings = read_settings(folder)
    assert (settings["id"], settings["prompt"], settings["steps"]) == (TASK.id, [TASK.prompt], 3)


def test_labels_are_read_in_any_order_and_spelling(folder, tmp_path, rollouts):
    assert read(folder / "labels.csv", rollouts) == [one.success.tolist() for one in rollouts]
    mixed = ["note,success,step,episode", *(f"a,{line[-1]},{line[2]},{line[0]}" for line in LABELS[::-1])]
    words = ["episode,step,success", *(line[:-1] + {"0": " False", "1": "TRUE"}[line[-1]] for line in LABELS)]
    path = tmp_path / "labels.csv"
    for content in ("\n".join(mixed).encode(), b"\xef\xbb\xbf" + "\r\n".join(words).encode()):  # as a spreadsheet's
        path.write_bytes(content)
        assert read(path, rollouts) == EXPECTED
    path.write_bytes(table("0,,1", *LABELS[3:]))  # a line for all of an episode
    assert read(path, rollouts) == [[True] * 3, EXPECTED[1]]


def table(*lines):
    return "\n".join(["episode,step,success", *lines, ""]).encode()


WRONG_LABELS = [
    (table(*LABELS[:-1]), r"1 of 6 lack one: step 2 of episode 1\. Write 0 or 1"),
    (table("0,0,", LABELS[1]), r"5 of 6 lack one: step 0 of episode 0, step 2 of episode 0, .* and 2 more\."),
    (
        table(*LABELS, "1,3,1"),
        r"line 8: `episode` must be one of the episodes.* Received \['1', '3', '1'\]",
    ),
    (table(*LABELS, "0,1,0"), "line 8: .*each in one line"),
    (table("0,0,maybe", *LABELS[1:]), "line 2: .*`success` 0, 1, true or false.*'maybe'"),
    (table("0,-1,1", *LABELS[1:]), "line 2: .*`step` empty or one of its steps.*'-1'"),
    (table(",,1", *LABELS[1:]), "line 2: .*must be one of the episodes"),
    (b"", r"must have the columns episode, step, success. Received \[\]"),
    (b"\xff\xfe\x00", "cannot be read: .utf-8"),
    (b'episode,step,success\n0,0,"' + b"a" * 200_000, "cannot be read: field larger than"),
]


def test_labels_that_do_not_fit_are_named_and_a_file_that_is_no_table_is_refused(tmp_path, rollouts):
    path = tmp_path / "labels.csv"
    for content, message in WRONG_LABELS:
        path.write_bytes(content)
        with pytest.raises(InputError, match=message):
            read_labels(path, rollouts)


def test_labels_of_videos_may_be_of_frames_or_of_all(tmp_path):
    path, sources = tmp_path / "labels.csv", {f"videos/{name}.mp4": SimpleNamespace(count=3) for name in ("up", "down")}
    path.write_text("frame,video,success\n2,up,1\n0,up.mp4,0\n1,up,\n,videos/down.mp4,FALSE\n")
    up, down = read_video_labels(path, sources).values()
    np.testing.assert_array_equal(up, [0, np.nan, 1])
    np.testing.assert_array_equal(down, [0, 0, 0])
    for text, rule in (
        ("frame,success\n0,1", "must have the columns video, success"),
        ("video,success\nleft,1", r"line 2: `video` must be one of the videos.*Received \['left', '', '1'\]"),
        ("video,frame,success\nup,3,1", "`frame` empty or one of its frames"),
        ("video,frame,success\nup,,1\nup,2,0", "line 3: .*each in one line"),
        ("video,success\nup,1", "must have successes and failures. Received labels of 3 frames, all alike"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=rule):
            read_video_labels(path, sources)


def test_a_folder_that_the_command_did_not_make_or_complete_is_refused(folder, tmp_path):
    for text in (None, "{}", "[1]"):
        if text is not None:
            (tmp_path / "settings.json").write_text(text)
        with pytest.raises(InputError, match="is not a folder that `vlmrm-gym dataset` made"):
            read_dataset(tmp_path)
    (tmp_path / "settings.json").write_bytes((folder / "settings.json").read_bytes())
    with pytest.raises(InputError, match="is not complete"):
        read_dataset(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "metadata.json").write_bytes((folder / "data" / "metadata.json").read_bytes())
    (tmp_path / "data" / "main_data.hdf5").write_bytes((folder / "data" / "main_data.hdf5").read_bytes()[:3000])
    with pytest.raises(InputError, match=r"main_data\.hdf5 cannot be read"):
        read_dataset(tmp_path)


def test_a_dataset_of_another_environment_is_refused(folder):
    check_environment(folder, f"vlmrm_gym:{TASK.id}")
    for id, kwargs, said in (("a:b", None, "a:b"), (TASK.id, {"size": 3}, rf"{TASK.id} \{{'size': 3\}}")):
        with pytest.raises(InputError, match=f"must be of {said}. Received one of {TASK.id}. Pass another"):
            check_environment(folder, id, kwargs)


def json_with(name, **values):
    def change(folder):
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


settings_with, metadata_with = partial(json_with, "settings.json"), partial(json_with, "data/metadata.json")


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


def pipe(folder):
    (folder / "data" / "metadata.json").unlink()
    os.mkfifo(folder / "data" / "metadata.json")


BOX = {"type": "Box", "dtype": "<U100000000", "shape": [], "low": 0, "high": 1}


CHANGED = [
    (settings_with(id=3), r"settings.json: `id` and `policy` must be texts. Received \[3"),
    (pipe, "metadata.json must be a regular file. Received a pipe"),
    (metadata_with(total_episodes=0), "at least one episode. Received 0"),
    (metadata_with(total_episodes=3), "cannot be read"),
    (metadata_with(data_format="arrow"), "must have the format hdf5"),
    (metadata_with(observation_space=json.dumps(BOX)), "a space must be of numbers"),
    (data_with("episode_0/infos/state", None), "it has no 'state'"),
    (data_with("episode_0/infos/state", np.zeros((4, 3))), "states of all episodes must have the same shape"),
    (data_with("episode_0/infos/state", np.zeros((5, 2))), "`state` of episode 0 is float64 .5, 2. for 3 steps"),
    (data_with("episode_0/infos/state", np.full((4, 2), np.nan)), "must have finite rows"),
    (data_with("episode_0/infos/task_reward", np.zeros(4, int)), "`task_reward` of episode 0 is int64"),
    (data_with("episode_0/infos/success", np.int8(1)), "`success` of episode 0 is int8 .. for 3 steps"),
    (data_with("episode_0/terminations", np.zeros(3)), "`terminations` of episode 0 is float64"),
    (scenes_with({}, count=9), "has 9 scenes of 4 states"),
    (scenes_with({"mesh_vertadr": np.array([10**9])}), "a scene cannot change 'mesh_vertadr'"),
    (scenes_with({"mesh_vertadr": np.array([1e9])}), "a scene cannot change 'mesh_vertadr'"),
    (scenes_with({"mat_texid": np.array([200], dtype=np.uint8)}), "a scene cannot change 'mat_texid'"),
    (scenes_with({"vis.quality.shadowsize": 10**6}), "a scene cannot change 'vis.quality.shadowsize'"),
    (scenes_with({}, frame=np.zeros((2, 2, 3))), "a captured frame must be uint8"),
]


def test_a_dataset_of_a_stranger_has_the_right_types_shapes_and_ranges(folder, tmp_path, subtests):
    for number, (change, message) in enumerate(CHANGED):
        copied = shutil.copytree(folder, tmp_path / str(number))
        change(copied)
        with subtests.test(message), pytest.raises(InputError, match=message):
            read_dataset(copied)


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
