"""`vlmrm-gym dataset`: rollouts with rewards as a Minari dataset."""

import os
import shutil
import signal
from contextlib import closing
from pathlib import Path

import changing_env
import gymnasium as gym
import imageio.v3 as iio
import minari
import numpy as np
import pytest
from commands import refused
from conftest import TASK_PROMPT
from counting_env import Counting

from vlmrm_gym import CLIPReward
from vlmrm_gym.data.dataset_folder import read_dataset
from vlmrm_gym.data.frames import read_layout
from vlmrm_gym.data.videos import STRIP
from vlmrm_gym.envs.make import make_base_env
from vlmrm_gym.rewards.encoder import FrameEncoder
from vlmrm_gym.states import StateView
from vlmrm_gym.tasks import TASKS
from vlmrm_gym.tools.cli import main

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # imageio-ffmpeg leaves pipes to the collector

CARTPOLE = "VLMRM/CartPole-v1"
OTHER = "the cart is at the left end of the track"
POLES = ["dataset", CARTPOLE, "--episodes", "4", "--steps", "15", "--prompt", TASK_PROMPT, "--prompt", OTHER]


def record(out: Path, *flags: str) -> minari.MinariDataset:
    main(["dataset", *flags, "--out", str(out)])
    return minari.MinariDataset(out / "data")


def assert_same_data(one: Path, other: Path) -> None:
    """All arrays of two datasets are the same, and their labels and settings."""
    both = [minari.MinariDataset(folder / "data") for folder in (one, other)]
    for ours, theirs in zip(*both, strict=True):
        for name in ("observations", "actions", "rewards", "terminations", "truncations"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
        np.testing.assert_equal(ours.infos, theirs.infos)
    assert [*both[0].storage.get_episode_metadata(range(4))] == [*both[1].storage.get_episode_metadata(range(4))]
    for name in ("labels.csv", "settings.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def poles(tmp_path_factory):
    """The folder of an unbroken dataset, with videos."""
    out = tmp_path_factory.mktemp("data") / "poles-v0"
    main([*POLES, "--frames", "--out", str(out)])
    return out


def test_a_dataset_has_what_a_loop_over_scored_environments_sees(poles):
    dataset = minari.MinariDataset(poles / "data")
    assert (dataset.total_episodes, dataset.total_steps) == (4, 60)
    for number in (0, 3):
        episode = dataset[number]
        for column, prompt in enumerate([TASK_PROMPT, OTHER]):
            env = gym.make(CARTPOLE, prompt=prompt, episode_length=15)
            observation, _ = env.reset(seed=number)
            np.testing.assert_array_equal(episode.observations[0], observation)
            for step, action in enumerate(episode.actions):
                observation, reward, terminated, truncated, info = env.step(action)
                np.testing.assert_array_equal(episode.observations[step + 1], observation)
                assert episode.infos["prompt_rewards"][step + 1, column] == pytest.approx(reward, abs=1e-5)
                assert episode.infos["task_reward"][step + 1] == info["task_reward"]
                assert episode.infos["success"][step + 1] == info["success"]
                assert (episode.terminations[step], episode.truncations[step]) == (terminated, truncated)
                np.testing.assert_array_equal(episode.infos["state"][step + 1], env.unwrapped.state[::2])
            env.close()
        np.testing.assert_array_equal(episode.rewards, episode.infos["prompt_rewards"][1:, 0])
        assert np.isnan(episode.infos["task_reward"][0])
        assert episode.infos["success"][0] == -1
        assert {len(values) for values in episode.infos.values()} == {16}
    assert [row["seed"] for row in dataset.storage.get_episode_metadata(range(4))] == [0, 1, 2, 3]
    assert dataset.storage.metadata["prompts"] == [TASK_PROMPT, OTHER]


def test_the_lines_that_the_command_prints_load_the_dataset_and_its_environment_pays_its_rewards(
    poles, monkeypatch, capsys
):
    main([*POLES, "--frames", "--out", str(poles)])  # complete: prints the summary again
    printed = capsys.readouterr().out
    assert "4 episodes of 60 steps in all" in printed
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(poles.parent))
    first, second = [eval(line.partition(": ")[2]) for line in printed.splitlines() if ": minari." in line]
    assert first.total_episodes == second.total_episodes == 4
    episode = first[2]
    with closing(first.recover_environment()) as env:
        env.reset(seed=2)
        rewards, truncations = zip(*((step[1], step[3]) for step in map(env.step, episode.actions)), strict=True)
    np.testing.assert_allclose(rewards, episode.rewards, atol=1e-5)
    np.testing.assert_array_equal(truncations, episode.truncations)


def test_frame_k_of_a_video_is_the_state_after_action_k(poles):
    assert names(poles / "videos") == [f"episode_{number:04d}.mp4" for number in range(4)]
    rollout = read_dataset(poles)[3]
    frames = iio.imread(poles / "videos" / "episode_0003.mp4")
    env = make_base_env(TASKS[0], 15)
    with closing(env), closing(StateView(env)) as view:
        drawn = view.draw(rollout.states.rows)
    assert frames.shape == (15, 400 + STRIP, 600, 3)
    assert read_layout(poles / "videos" / "episode_0003.mp4") == ((600, 400 + STRIP), (600, 400))
    shown, expected = (every[:, 150:320, 200:400, 0].astype(float) for every in (frames, drawn))
    differences = np.abs(shown[:, None] - expected).mean(axis=(2, 3))
    np.testing.assert_array_equal(differences.diagonal(), differences.min(axis=1))  # some states look alike
    assert len(np.unique(expected, axis=0)) >= 9
    strips = frames[:, 400:, :, 0] > 128
    assert len({strip.tobytes() for strip in strips}) == 15  # each with its number


def test_after_ctrl_c_the_same_command_goes_on(poles, tmp_path, monkeypatch, capsys):
    out, encode, calls = tmp_path / "poles-v0", FrameEncoder.encode, []

    def interrupted(self, frames):
        calls.append(len(frames))
        if len(calls) == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return encode(self, frames)

    with monkeypatch.context() as patch:
        patch.setattr(FrameEncoder, "encode", interrupted)
        out.mkdir()
        (out / "settings.partial.json").write_text('{"for')  # as after a kill before the settings were written
        with pytest.raises(SystemExit) as raised:
            main([*POLES, "--frames", "--out", str(out)])
    assert raised.value.code == 130
    assert calls == [1, 15] * 3  # each state once, for both prompts; the first is before any action
    assert "2 of 4 episodes are done" in capsys.readouterr().err
    assert not (out / "data").exists()
    (out / "episodes" / "00000003.partial").mkdir()  # as after a kill while it wrote
    (out / "data.partial").mkdir()
    kept = out / "videos" / "episode_0001.mp4"
    before = kept.stat().st_mtime_ns
    main([*POLES, "--frames", "--out", str(out), "--overwrite"])  # which would replace a complete one only
    assert kept.stat().st_mtime_ns == before
    assert_same_data(out, poles)
    assert names(out) == names(poles)


def test_a_complete_dataset_is_left_alone_and_one_with_other_settings_named(poles, tmp_path, monkeypatch, capsys):
    out = tmp_path / "poles-v0"
    shutil.copytree(poles, out)
    (out / "labels.csv").write_text("labelled by hand")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    monkeypatch.setattr(CLIPReward, "__init__", lambda *args: pytest.fail("no model is needed"))
    command = [*POLES, "--frames", "--out", str(out)]
    main(command)
    for flags, name in (
        (["--seed", "1"], "seed"),
        (["--policy", "constant"], "policy"),
        (["--prompt", "a pole"], "prompt"),
        (["--episodes", "5", "--steps", "9"], "episodes"),
    ):
        assert f"has a dataset with another `{name}`" in refused(capsys, *command, *flags)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


def test_overwrite_replaces_the_dataset_and_nothing_else(tmp_path):
    out, flags = tmp_path / "out", ["CartPole-v1", "--episodes", "1", "--steps", "3"]
    record(out, *flags, "--frames")
    (out / "notes.txt").write_text("mine")
    for _ in range(2):  # also with the same settings
        (out / "labels.csv").write_text("labelled by hand")
        assert record(out, *flags, "--overwrite").total_episodes == 1
        assert names(out) == ["data", "labels.csv", "notes.txt", "settings.json"]
        assert (out / "labels.csv").read_text().startswith("episode,step,success")


def test_two_views_of_a_humanoid_are_combined_as_in_training(tmp_path):
    flags = ["--policy", "constant", "--camera", "front-side", "--alpha", "0.5", "--episodes", "1", "--steps", "3"]
    (episode,) = record(tmp_path / "out", "VLMRM/Humanoid-kneel-v0", *flags, "--frames")
    np.testing.assert_array_equal(episode.actions, episode.actions[:1].repeat(3, axis=0))
    with closing(gym.make("VLMRM/Humanoid-kneel-v0", camera="front-side", alpha=0.5)) as env:
        env.reset(seed=0)
        rewards = [env.step(action)[1] for action in episode.actions]
    np.testing.assert_allclose(episode.rewards, rewards, atol=1e-5)
    assert iio.imread(tmp_path / "out" / "videos" / "episode_0000.mp4").shape == (3, 480 + STRIP, 960, 3)


class Nested(Counting):
    """Observations of all kinds that Minari stores; frames are stored, as it cannot be drawn from its states."""

    def __init__(self):
        super().__init__(lengths=(3, 4, 5))
        count, image = self.observation_space, gym.spaces.Box(0, 255, (40, 40, 3), np.uint8)
        pair = gym.spaces.Tuple((gym.spaces.Discrete(9, start=2), gym.spaces.Text(8)))
        self.observation_space = gym.spaces.Dict(count=count, image=image, pair=pair)

    def reset(self, **kwargs):
        count, info = super().reset(**kwargs)
        return nest(count), info

    def step(self, action):
        count, *rest = super().step(action)
        return nest(count), *rest


def nest(count):
    image = np.random.default_rng(int(count[0])).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    return {"count": count, "image": image, "pair": (5, f"at {int(count[0])}")}


class Listing(Counting):
    """Observations that Minari does not store."""

    def __init__(self):
        super().__init__()
        self.observation_space = gym.spaces.Sequence(self.observation_space)


def make_cartpole():
    return make_base_env(TASKS[0], 10)


def test_an_environment_of_a_function_with_nested_observations(tmp_path):
    dataset = record(tmp_path / "out", f"{__name__}:Nested", "--episodes", "3", "--steps", "4", "--frames")
    env, lengths = Nested(), []
    for number, episode in enumerate(dataset):
        observation, _ = env.reset(seed=number)
        for step in range(len(episode.actions) + 1):
            recorded = episode.observations
            np.testing.assert_array_equal(recorded["count"][step], observation["count"])
            np.testing.assert_array_equal(recorded["image"][step], observation["image"])  # lossless
            assert (recorded["pair"][0][step], recorded["pair"][1][step]) == observation["pair"]
            if step < len(episode.actions):
                np.testing.assert_array_equal(episode.infos["state"][step], env.render())
                observation, reward, *_ = env.step(episode.actions[step])
                assert episode.rewards[step] == reward
        assert set(episode.infos) == {"state", "task_reward"}
        lengths.append(len(episode.actions))
    assert lengths == [3, 4, 4]
    assert [bool(episode.terminations[-1]) for episode in dataset] == [True, False, False]
    assert all(episode.terminations[-1] | episode.truncations[-1] for episode in dataset)
    assert dataset.observation_space == Nested().observation_space
    labels = (tmp_path / "out" / "labels.csv").read_text().splitlines()
    assert labels[:2] == ["episode,step,success", "0,0,"]
    assert len(labels) == 1 + 3 + 4 + 4


def make_changing():
    return changing_env.make("geom recoloured", "step")


def test_changes_of_the_scene_are_kept(tmp_path):
    record(tmp_path / "out", f"{__name__}:make_changing", "--episodes", "1", "--steps", "3")
    rollouts = read_dataset(tmp_path / "out")
    env, other = make_changing(), make_changing()
    with closing(env), closing(other), closing(StateView(other, quality="faithful")) as view:
        env.reset(seed=0)
        drawn = view.draw(rollouts[0].states.rows, rollouts[0].states.changes)
        for frame, action in zip(drawn, rollouts[0].actions, strict=True):
            env.step(action)
            np.testing.assert_array_equal(frame, env.render())
        assert (drawn[0] != drawn[-1]).any()
    assert names(tmp_path / "out" / "scenes") == ["episode_0000.npz"]


def test_a_run_plays_and_with_other_weights_does_not_go_on(cart_pole_run, tmp_path, capsys):
    flags = [f"{__name__}:make_cartpole", "--policy", str(cart_pole_run), "--episodes", "1", "--steps", "3"]
    dataset = record(tmp_path / "out", *flags)
    assert dataset.storage.metadata["algorithm_name"] == read_dataset(tmp_path / "out")[0].source == "barely"
    newest, older = sorted(cart_pole_run.glob("checkpoints/*/model.zip"))[-1:-3:-1]
    assert newest.read_bytes() != older.read_bytes()
    shutil.copy(older, cart_pole_run / "best.zip")
    with pytest.raises(SystemExit, match="2"):
        record(tmp_path / "out", *flags)
    assert "has a dataset with another `policy_weights`" in capsys.readouterr().err


def test_bad_input_ends_with_a_sentence(in_folder, capsys):
    Path("taken").mkdir()
    Path("taken/file").touch()
    for flags, message in (
        (["test_dataset:Nested"], "`steps` must be given"),
        (["test_dataset:Listing", "--steps", "2"], "Minari cannot store the observations"),
        ([CARTPOLE, "--episodes", "0"], "`episodes` must be from 1"),
        ([CARTPOLE, "--policy", "clever"], "`policy` must be random, constant or the folder of a run."),
        ([CARTPOLE, "--camera", "side"], "`camera` is for MuJoCo environments"),
        (["VLMRM/Humanoid-kneel-v0", "--combine-views", "random"], "`combine_views` must be one of 'min', 'mean', a"),
        ([CARTPOLE, "--out", "taken", "--overwrite"], "has other contents. Choose another --out"),
    ):
        output = refused(capsys, "dataset", "--out", "out", *flags)
        assert message in output
        assert len(output.splitlines()) == 1
        assert (names(in_folder), names(Path("taken"))) == (["taken"], ["file"])
    flags = ["check_subjects:OtherModel", "--episodes", "2", "--steps", "2"]  # in its second episode
    assert "changed to a model or an appearance" in refused(capsys, "dataset", "--out", "out", *flags)
