"""`vlmrm-gym score` of datasets: a copy with other rewards, of the frames that actions led to."""

import json

import h5py
import minari
import numpy as np
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces
from lerobot_files import CAMERA, write_lerobot
from minari_files import write_minari

import vlmrm_gym
from vlmrm_gym import InputError
from vlmrm_gym.data.lerobot import LeRobotDataset
from vlmrm_gym.data.minari import find_data
from vlmrm_gym.tools.cli.dataset import record_dataset
from vlmrm_gym.tools.cli.score import score
from vlmrm_gym.tools.segments import DatasetSegments

EPISODES = [[10, 20, 40], [50, 90], [100, 110, 130, 160]]


def grey(frames):
    return frames.mean((1, 2, 3))


def read_rewards(folder):
    tables = [pq.read_table(path) for path in sorted((folder / "data").glob("*/*.parquet"))]
    return {name: np.concatenate([one[name].to_numpy() for one in tables]) for name in tables[0].column_names[-2:]}


@pytest.mark.parametrize("is_video", [True, False])
def test_a_lerobot_dataset_gets_rewards_of_the_next_frames(tmp_path, is_video):
    source = write_lerobot(tmp_path / "arm", EPISODES, is_video=is_video)
    out = score(source, reward=grey, out=tmp_path / "scored")
    expected = [20, 40, 40, 90, 90, 110, 130, 160, 160]  # nothing is known of what the last action led to
    columns = read_rewards(out / "data")
    assert columns["next.reward"].dtype == np.float32
    np.testing.assert_allclose(columns["next.reward"], expected, atol=2 if is_video else 1e-4)
    copy = LeRobotDataset(out / "data")
    assert [[int(one.mean()) for one in frames] for frames in copy.frames()] == [
        [int(one.mean()) for one in frames] for frames in LeRobotDataset(source).frames()
    ]
    stats = json.loads((out / "data" / "meta" / "stats.json").read_text())["next.reward"]
    assert stats["count"] == [9]
    assert stats["max"] == [columns["next.reward"].max()]
    assert "next.reward" in json.loads((out / "data" / "meta" / "info.json").read_text())["features"]
    assert "next.reward" not in json.loads((source / "meta" / "info.json").read_text())["features"]


def test_progress_pays_nothing_for_an_action_whose_result_is_unknown(tmp_path):
    source = write_lerobot(tmp_path / "arm", EPISODES, is_video=False)
    reward = vlmrm_gym.Progress(vlmrm_gym.rewards.specification.resolve_reward(grey))
    out = score(source, reward=reward, out=tmp_path / "scored")
    np.testing.assert_allclose(read_rewards(out / "data")["next.reward"], [10, 20, 0, 40, 0, 10, 20, 30, 0], atol=1e-3)


def test_a_datasets_own_rewards_are_kept_and_may_be_a_term(tmp_path):
    source = write_lerobot(tmp_path / "arm", EPISODES[:1], is_video=False, rewards=[1, 2, 3])
    reward = 0.5 * vlmrm_gym.rewards.specification.resolve_reward(grey) + 100 * vlmrm_gym.TaskReward()
    out = score(source, reward=reward, out=tmp_path / "scored")
    columns = read_rewards(out / "data")
    np.testing.assert_allclose(columns["next.reward"], [110, 220, 320], atol=1e-3)
    np.testing.assert_allclose(columns["next.task_reward"], [1, 2, 3])
    again = score(out / "data", reward=reward, out=tmp_path / "again")
    for name, column in read_rewards(again / "data").items():
        np.testing.assert_allclose(column, columns[name])  # the copy's own rewards are those of the original


def test_own_rewards_that_are_not_known_are_no_term_and_poison_no_other(tmp_path):
    sources = [
        write_lerobot(tmp_path / name, EPISODES[:1], is_video=False, rewards=own)
        for name, own in (("none", None), ("some", [1, np.nan, 3]))
    ]
    for source in sources:
        out = score(source, reward=grey, out=tmp_path / f"{source.name}_scored")
        np.testing.assert_allclose(read_rewards(out / "data")["next.reward"], [20, 40, 40], atol=1e-3)
        reward = vlmrm_gym.rewards.specification.resolve_reward(grey) + vlmrm_gym.TaskReward()
        with pytest.raises(InputError, match="The task's own reward is a term, and must be known of all steps"):
            score(source, reward=reward, out=tmp_path / "refused")
        scored_again = score(out / "data", reward=grey, out=tmp_path / f"{source.name}_again")
        own = read_rewards(scored_again / "data")["next.task_reward"]
        np.testing.assert_array_equal(own, [1, np.nan, 3] if source.name == "some" else [np.nan] * 3)


def test_a_copy_is_replaced_on_request_and_never_inside_of_its_source(tmp_path):
    source = write_lerobot(tmp_path / "arm", EPISODES[:1], is_video=False)
    for scale in (1, 2):
        out = score(source, reward=lambda frames, scale=scale: scale * grey(frames), out=tmp_path / "x", overwrite=True)
        np.testing.assert_allclose(read_rewards(out / "data")["next.reward"], scale * np.array([20, 40, 40]), atol=1e-3)
    with pytest.raises(InputError, match="`out` must not be in the dataset"):
        score(source, reward=grey, out=source / "scored")
    assert not (source / "scored").exists()


def test_links_which_may_lead_anywhere_are_refused(tmp_path):
    source = write_lerobot(tmp_path / "arm", EPISODES[:1], is_video=False)
    (source / "meta" / "notes.txt").symlink_to("/etc/hostname")
    with pytest.raises(InputError, match=r"must have no links.*hf download"):
        score(source, reward=grey, out=tmp_path / "scored")


@pytest.mark.parametrize("lost", ["a row of meta/episodes", "a frame", "the frames per second"])
def test_a_lerobot_dataset_that_contradicts_itself_ends_with_a_sentence(tmp_path, lost):
    source = write_lerobot(tmp_path / "arm", EPISODES)
    if lost == "a row of meta/episodes":
        table = source / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
        pq.write_table(pq.read_table(table)[:-1], table)
    elif lost == "a frame":
        video = source / "videos" / CAMERA / "chunk-000" / "file-000.mp4"
        video.write_bytes((source / "videos" / CAMERA / "chunk-000" / "file-001.mp4").read_bytes())
    else:
        info = json.loads((source / "meta" / "info.json").read_text())
        (source / "meta" / "info.json").write_text(json.dumps({**info, "fps": 0}))
    with pytest.raises(InputError, match="cannot be read"):
        score(source, reward=grey, out=tmp_path / "scored")


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        ({"version": "v2.1"}, {}, "must have the version v3.0. Received 'v2.1'"),
        ({"cameras": ("top", "wrist")}, {}, "`camera` must be one of top, wrist. Received None"),
        ({"cameras": ()}, {}, "must have frames: a feature of dtype video or image"),
        ({"cameras": ("../top",)}, {}, "must name its cameras without a path"),
        ({}, {"camera": "wrist"}, f"`camera` must be one of {CAMERA}. Received 'wrist'"),
        ({}, {"labels": "labels.csv"}, "`labels` is for videos. Received a dataset"),
    ],
)
def test_lerobot_datasets_that_cannot_be_scored(tmp_path, options, given, message):
    source = write_lerobot(tmp_path / "arm", EPISODES[:1], is_video=False, **options)
    with pytest.raises(InputError, match=message):
        score(source, reward=grey, out=tmp_path / "scored", **given)
    assert not (tmp_path / "scored").exists()


@pytest.mark.parametrize("name", ["data/chunk-000/file-000.parquet", "videos/{camera}/chunk-000/file-000.mp4"])
def test_a_damaged_file_of_a_lerobot_dataset_is_named(tmp_path, name):
    source = write_lerobot(tmp_path / "arm", EPISODES)
    (source / name.format(camera=CAMERA)).write_bytes(b"PAR1 and nothing else")
    with pytest.raises(InputError, match=r"arm.* cannot be read"):
        score(source, reward=grey, out=tmp_path / "scored")


def write_greys(folder, *, jpeg):
    frames = [np.stack([np.full((64, 64, 3), one, np.uint8) for one in greys]) for greys in EPISODES]
    return write_minari(folder, spaces.Box(0, 255, (64, 64, 3), np.uint8), frames, jpeg=jpeg)


@pytest.mark.parametrize("jpeg", [True, False])
def test_a_minari_dataset_of_frames(tmp_path, jpeg):
    source = write_greys(tmp_path / "greys", jpeg=jpeg)
    out = score(source, reward=[grey, lambda frames: -grey(frames)], out=tmp_path / "scored")
    dataset = minari.MinariDataset(out / "data")
    for number, greys in enumerate(EPISODES):
        episode, before = dataset[number], minari.MinariDataset(source)[number]
        np.testing.assert_allclose(episode.rewards, greys[1:], atol=2)
        np.testing.assert_allclose(episode.infos["prompt_rewards"], np.outer(greys, [1, -1]), atol=2)
        np.testing.assert_array_equal(episode.infos["task_reward"], [np.nan, *before.rewards])
        np.testing.assert_array_equal(episode.observations, before.observations)  # to the bit: not encoded again


def test_pictures_of_a_minari_dataset_that_would_fill_the_memory(tmp_path, monkeypatch):
    source = write_greys(tmp_path / "greys", jpeg=True)
    monkeypatch.setattr("vlmrm_gym.data.minari._MAX_EPISODE_PIXELS", 2 * 64 * 64)
    with pytest.raises(InputError, match="pictures of an episode must have at most 8,192 pixels together"):
        score(source, reward=grey, out=tmp_path / "scored")


def test_pictures_of_other_formats_which_pillow_may_start_programs_for_are_refused(tmp_path):
    source = write_greys(tmp_path / "greys", jpeg=True)
    with h5py.File(source / "main_data.hdf5", "r+") as file:
        del file["episode_1"]["observations"]
        rows = np.frombuffer(b"%!PS-Adobe-3.0 EPSF-3.0", np.uint8)
        file["episode_1"].create_dataset("observations", data=np.stack([rows, rows]))
    with pytest.raises(InputError, match="pictures must be JPEGs"):
        score(source, reward=grey, out=tmp_path / "scored")


def test_a_function_which_no_file_can_name_is_refused_before_a_dataset_of_states_is_scored(tmp_path):
    source = record_dataset("VLMRM/CartPole-v1", out=tmp_path / "poles", episodes=1, steps=3, prompt="a pole")
    with pytest.raises(InputError, match="function"):
        score(source, reward=lambda frames: grey(frames), out=tmp_path / "scored")
    assert not (tmp_path / "scored").exists()


def test_a_dataset_of_states_is_drawn_again_and_stays_a_dataset(tmp_path):
    source = record_dataset("VLMRM/CartPole-v1", out=tmp_path / "poles", episodes=2, steps=6, prompt="a pole")
    out = score(source, prompt=["an upright pole", "a pole"], out=tmp_path / "scored")
    recorded = record_dataset(
        "VLMRM/CartPole-v1", out=tmp_path / "same", episodes=2, steps=6, prompt=["an upright pole", "a pole"]
    )
    for made, expected in zip(*(minari.MinariDataset(one / "data") for one in (out, recorded)), strict=True):
        np.testing.assert_allclose(made.rewards, expected.rewards, atol=1e-5)
        for name in ("prompt_rewards", "task_reward", "state"):
            np.testing.assert_allclose(made.infos[name], expected.infos[name], atol=1e-5)
    with DatasetSegments(out) as segments:
        assert [len(one) for one in segments.rollouts] == [6, 6]
    assert find_data(out) == out / "data"


def test_the_environments_own_reward_is_a_term_of_a_recorded_one(tmp_path):
    plain, mixed = (
        minari.MinariDataset(
            record_dataset("VLMRM/CartPole-v1", out=tmp_path / name, episodes=1, steps=5, reward=reward) / "data"
        )[0]
        for name, reward in [
            ("plain", vlmrm_gym.CLIP(prompt="a pole")),
            ("mixed", vlmrm_gym.CLIP(prompt="a pole") + 10 * vlmrm_gym.TaskReward()),
        ]
    )
    np.testing.assert_allclose(mixed.rewards, plain.rewards + 10 * plain.infos["task_reward"][1:], atol=1e-5)
