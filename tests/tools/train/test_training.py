"""Trainings: the run folder, exact resumption, and failures of disks, signals and checkpoints."""

import functools
import json
import os
import resource
import shutil
import signal
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import get_args

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3.common.logger import Logger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer
from trainings import FREQUENCY, Crash, assert_equal, contents, small, train

from vlmrm_gym.tools.train import callbacks, evaluation, run
from vlmrm_gym.tools.train.algorithms import algorithm_class, with_defaults
from vlmrm_gym.tools.train.config import AlgorithmName, Config, RewardConfig, RLConfig
from vlmrm_gym.tools.train.config_file import ConfigError, to_yaml
from vlmrm_gym.tools.train.environments import make_envs
from vlmrm_gym.tools.train.evaluation import evaluate, load_policy
from vlmrm_gym.tools.train.outputs import TensorBoardWriter
from vlmrm_gym.tools.train.run import resume
from vlmrm_gym.tools.train.run_folder import RunError, RunFolder
from vlmrm_gym.tools.train.signals import Interrupted

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept"),
]


def crash_at(monkeypatch, step):
    """Make trainings crash at a step."""
    own = callbacks.RunCallback._on_step

    def on_step(self):
        if self.model.num_timesteps >= step:
            raise Crash
        return own(self)

    monkeypatch.setattr(callbacks.RunCallback, "_on_step", on_step)


def stop_at(monkeypatch, step, signal_number=signal.SIGINT):
    """Send a signal to trainings at a step."""
    own = callbacks.RunCallback._on_step
    sent = []

    def on_step(self):
        if self.model.num_timesteps >= step and not sent:
            sent.append(step)
            os.kill(os.getpid(), signal_number)
        return own(self)

    monkeypatch.setattr(callbacks.RunCallback, "_on_step", on_step)


def assert_resuming_changes_nothing(configured, monkeypatch, ends=crash_at, step=180, unbroken=None):
    """Train with and without interruption at a step, and compare; `configured` takes the run's name."""
    unbroken, config = unbroken or train(configured("unbroken")), configured("broken")
    with monkeypatch.context() as patch:
        ends(patch, step)
        with pytest.raises((Crash, Interrupted, KeyboardInterrupt)):
            train(config)
    broken = RunFolder.open(config.run_folder)
    reached = max(broken.checkpoints, default=0)
    resume(config, broken)
    assert_equal(unbroken, broken)
    return reached


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Trains an algorithm once: the folder of its finished run."""
    return functools.cache(lambda name: train(small(name, tmp_path_factory.mktemp("runs"), f"{name}-unbroken")))


@pytest.fixture
def finished(unbroken):
    """A configuration and the folder of its finished run."""
    folder = unbroken("DQN")
    return small("DQN", folder.path.parent, folder.path.name), folder


@pytest.mark.parametrize(
    "algorithm",
    [
        name if name in ("SAC", "PPO") else pytest.param(name, marks=pytest.mark.slow)
        for name in get_args(AlgorithmName)
    ],
)
def test_resuming_after_a_crash_equals_an_uninterrupted_run(algorithm, unbroken, tmp_path, monkeypatch):
    """Checkpoints are due in the middle of episodes, with rewards pending. Policies are rebuilt as they were."""
    configured, expected = (lambda name: small(algorithm, tmp_path, f"{algorithm}-{name}")), unbroken(algorithm)
    reached = assert_resuming_changes_nothing(configured, monkeypatch, unbroken=expected)
    assert reached == 150
    config, path = small(algorithm, tmp_path), RunFolder.open(tmp_path / f"{algorithm}-broken").policy("last")
    rebuilt, expected = load_policy(config, path), algorithm_class(algorithm).load(path, device="cpu")
    observations = np.random.default_rng(0).normal(size=(50, *expected.observation_space.shape))
    actions = [model.predict(observations, deterministic=True)[0] for model in (rebuilt, expected)]
    np.testing.assert_array_equal(*actions)


CAR = "VLMRM/MountainCarContinuous-v0"
REPEATED = {"action_noise": {"name": "ActionRepeatNoise", "sigma": 2, "hold": 9}, "learning_starts": 120}
RESUMED = {
    # Algorithm, environment, settings of reward and algorithm, the step of the crash, and the checkpoint before it.
    "interpolated rewards": ("PPO", None, {"score_every": 3}, {}, 180, 150),  # PPO scores parts of episodes
    "the environment's own reward": ("SAC", "VLMRM/Humanoid-stand-v0", {"name": "ground_truth"}, {}, 180, 150),
    "no checkpoint yet": ("DQN", None, {}, {}, 40, 0),
    "noise that repeats": ("TD3", None, {}, {**REPEATED, "train_freq": 7}, 200, 196),
    "state-dependent exploration": ("PPO", CAR, {}, {"train_freq": 7, "use_sde": True, "batch_size": 7}, 200, 196),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", RESUMED)
def test_resuming_changes_nothing_whatever_was_under_way(case, tmp_path, monkeypatch):
    """Also of humanoids stepped by `mujoco.batch`, and of exploration with state in rollouts that cut episodes."""
    algorithm, env_name, reward, rl, step, expected = RESUMED[case]

    def configured(name):
        config = small(algorithm, tmp_path, f"{algorithm}-{name}", **reward)
        config = replace(config, rl=RLConfig.of(config.rl.values | rl))
        return config if env_name is None else with_defaults(replace(config, env_name=env_name))

    assert assert_resuming_changes_nothing(configured, monkeypatch, step=step) == expected
    if "score_every" in reward:
        rows = RunFolder.open(tmp_path / "PPO-broken").metrics()
        assert rows
        assert all(0.3 < row["scored"] <= 1 for row in rows)


@pytest.mark.parametrize("repeated", [False, True])
def test_resuming_after_a_signal(repeated, unbroken, tmp_path, monkeypatch):
    """A second one arrives while the checkpoint of the first is written: the one before it is kept."""
    usual = signal.getsignal(signal.SIGTERM)

    def stop(patch, step):
        stop_at(patch, step, signal.SIGTERM)
        if repeated:
            make_checkpoints_fail(patch, {150}, lambda path: os.kill(os.getpid(), signal.SIGTERM))

    configured, expected = (lambda name: small("SAC", tmp_path, f"SAC-{name}")), unbroken("SAC")
    reached = assert_resuming_changes_nothing(configured, monkeypatch, stop, step=102, unbroken=expected)
    assert reached == (100 if repeated else 150)
    assert signal.getsignal(signal.SIGTERM) == usual


@pytest.mark.slow
def test_videos_and_workers_do_not_change_the_training(tmp_path, monkeypatch):
    """Loading the model for a video draws random numbers in the training process."""
    own = callbacks.record_video

    def record_after_loading(*args, **kwargs):
        torch.rand(1)  # even if another test has loaded the model already
        own(*args, **kwargs)

    monkeypatch.setattr(callbacks, "record_video", record_after_loading)

    def configured(name):
        config = small("SAC", tmp_path, f"SAC-{name}", num_workers=1)
        return replace(config, logging=replace(config.logging, video_freq=2 * FREQUENCY))

    assert_resuming_changes_nothing(configured, monkeypatch)
    assert len(list(tmp_path.glob("SAC-broken/videos/*.mp4"))) == 3


def test_resuming_with_overlap_loses_no_reward(tmp_path, monkeypatch):
    config = small("DQN", tmp_path, "DQN-overlap", overlap=True)
    with monkeypatch.context() as patch:
        stop_at(patch, 180)
        with pytest.raises(Interrupted):
            train(config)
    folder = RunFolder.open(config.run_folder)
    resume(config, folder)
    assert max(folder.checkpoints) == 240
    with np.load(folder.checkpoints[240] / "replay_buffer.npz", allow_pickle=False) as buffer:
        assert len(buffer["rewards"]) + len(buffer["pending_step_index"]) == 240


@pytest.mark.parametrize("reward", ["clip", "ground_truth"])
def test_only_training_episodes_start_near_the_goal(reward, tmp_path, monkeypatch):
    """In the splits the torso is at 0.2 m, standing at 1.4 m."""
    config = with_defaults(
        Config(
            env_name="VLMRM/Humanoid-splits-v0",
            base_path=str(tmp_path),
            rl=RLConfig(algorithm="SAC", n_envs_per_worker=16, start_near_goal=1.0, device="cpu"),
            reward=RewardConfig(name=reward, textured=False),
        )
    )
    made = []
    monkeypatch.setattr(run, "_learn", lambda config, folder, envs, *_: made.append(envs.reset()[:, 0].min()))
    run.start(config, RunFolder(config.run_folder))
    with closing(make_envs(config, 16)) as envs:
        made.append(envs.reset(seed=0)[0][:, 0].min())
    assert made[0] < 0.9
    assert made[1] > 1.3


def test_run_folder_contents(cart_pole_run, tmp_path):
    """Metrics match the rewards in the buffer; the best policy is that of the best episodes, or the last of a few."""
    config = small("SAC", tmp_path, "SAC-run")
    config = replace(config, logging=replace(config.logging, video_freq=120))
    folder = train(config)
    rows = folder.metrics()
    assert [row["step"] for row in rows] == [50, 100, 150, 200]
    assert [row["episodes"] for row in rows] == [2, 2, 2, 2]
    rewards = contents(folder)["buffer rewards"][:200].reshape(-1, 25).sum(1).reshape(-1, 2).mean(1)
    np.testing.assert_allclose([row["vlm_return"] for row in rows], rewards, rtol=1e-5)
    assert all(row["success"] == row["success_fraction"] == 0 for row in rows)
    best = json.loads((folder.path / "best.json").read_text())
    np.testing.assert_allclose(best["vlm_return"], rewards.mean(), rtol=1e-5)  # mean of the only 8 episodes
    assert best["step"] == 200
    assert [video.name for video in sorted(folder.path.glob("videos/*"))] == ["0000000120.mp4", "0000000240.mp4"]
    assert (folder.path / "learning_curve.png").stat().st_size > 10_000
    versions = json.loads((folder.path / "versions.json").read_text())
    assert [start["step"] for start in versions] == [0]
    assert versions[0]["packages"]["torch"] == torch.__version__.split("+")[0]
    whole = [step for step, path in folder.checkpoints.items() if (path / "replay_buffer.npz").exists()]
    assert list(folder.checkpoints) == [50, 100, 150, 200, 240]
    assert whole == [200, 240]
    barely = RunFolder(cart_pole_run)
    assert barely.policy("best") == barely.policy("last") == barely.policy("40")


def test_events_after_the_checkpoint_are_purged(tmp_path, monkeypatch):
    config = small("SAC", tmp_path, "SAC-run")
    config = replace(config, logging=replace(config.logging, tensorboard_freq=30))
    with monkeypatch.context() as patch:
        crash_at(patch, 200)
        with pytest.raises(Crash):
            train(config)
    resume(config, RunFolder.open(config.run_folder))
    events = EventAccumulator(str(config.run_folder)).Reload()
    steps = [one.step for one in events.Scalars("rollout/vlm_return")]
    assert steps == sorted(set(steps)) == [60, 120, 150, 210]


def test_event_files_are_read_in_the_order_in_which_they_began(tmp_path, monkeypatch):
    """TensorBoard sorts them by name: the second, then a counter, in which 10 comes before 9."""
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(8))
    for step in range(4):
        with closing(TensorBoardWriter(tmp_path)) as output:
            output.writer.add_scalar("step", step, step)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [one.step for one in events.Scalars("step")] == [0, 1, 2, 3]


def make_checkpoints_fail(monkeypatch, steps, fail):
    """Make checkpoints at these steps fail in the middle of a file."""
    own = RunFolder.save_checkpoint

    def save_checkpoint(self, step, writers):
        own(self, step, {**writers, "state.json": fail} if step in steps else writers)

    monkeypatch.setattr(RunFolder, "save_checkpoint", save_checkpoint)


def fill_disk(path):
    path.symlink_to("/dev/full")
    path.write_bytes(b"much")


def test_a_full_disk_keeps_the_previous_checkpoint_and_training_continues(unbroken, tmp_path, monkeypatch, capsys):
    config = small("DQN", tmp_path, "DQN-full")
    with monkeypatch.context() as patch:
        make_checkpoints_fail(patch, {100, 150}, fill_disk)
        crash_at(patch, 190)
        with pytest.raises(Crash):
            train(config)
    output = capsys.readouterr().err
    assert "The checkpoint could not be written: [Errno 28] No space left on device: '" in output
    assert "/checkpoints/0000000100/state.json'. Training continues" in output
    folder = RunFolder.open(config.run_folder)
    assert list(folder.checkpoints) == [50]
    assert [path.name for path in (folder.path / "checkpoints").iterdir()] == ["0000000050"]
    resume(config, folder)
    assert_equal(unbroken("DQN"), folder)


def test_a_full_disk_loses_no_metrics(unbroken, tmp_path, monkeypatch, capsys):
    """Rows that fail at first are written exactly once, also after resuming; no line is partial."""
    expected = [{**row, "seconds": 0} for row in unbroken("DQN").metrics()]
    config = small("DQN", tmp_path, "DQN-full")
    own, refused = RunFolder.append_metrics, []

    def append_metrics(self, rows):
        """Fail once for the rows of some steps."""
        steps = [row["step"] for row in rows if 90 < row["step"] < 120]
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        if steps and not refused:
            refused.extend(steps)
            file = self.path / "metrics.csv"
            resource.setrlimit(resource.RLIMIT_FSIZE, ((file.stat().st_size if file.exists() else 0) + 5, limits[1]))
        try:
            own(self, rows)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append_metrics", append_metrics)
        stop_at(patch, 145)
        with pytest.raises(Interrupted):
            train(config)
    assert refused
    assert "Metrics could not be written: " in capsys.readouterr().err
    folder = RunFolder.open(config.run_folder)
    resume(config, folder)
    assert [{**row, "seconds": 0} for row in folder.metrics()] == expected


def test_failed_events_are_written_with_the_next(tmp_path, monkeypatch):
    dump, refused = Logger.dump, []

    def refuse_once(self, step=0):
        if step >= 110 and not refused:
            refused.append(step)
            raise OSError(28, "No space left on device")
        dump(self, step)

    monkeypatch.setattr(Logger, "dump", refuse_once)
    folder = train(small("DQN", tmp_path, "DQN-run"))
    returns = {row["step"]: row["vlm_return"] for row in folder.metrics()}
    events = EventAccumulator(str(folder.path)).Reload().Scalars("rollout/vlm_return")
    values = {one.step: one.value for one in events}
    assert refused == [110]
    assert 110 not in values
    np.testing.assert_allclose(values[140], returns[100], rtol=1e-5)


def test_results_without_a_complete_checkpoint_are_not_overwritten(finished, tmp_path):
    config = replace(finished[0], base_path=str(tmp_path))
    folder = RunFolder(Path(shutil.copytree(finished[1].path, config.run_folder)))
    rows = folder.metrics()
    for steps in ((200, 240), (50, 100, 150)):  # the complete ones, then the remains of older ones
        for step in steps:
            shutil.rmtree(folder.checkpoints[step])
        with pytest.raises(RunError, match="has results, but no complete checkpoint to resume from"):
            resume(config, folder)
    assert folder.metrics() == rows
    assert (folder.path / "best.zip").exists()


def test_only_one_process_trains_a_run(tmp_path):
    (folder := RunFolder(tmp_path / "run")).create()
    with folder.locked(), pytest.raises(RunError, match="is being trained by another process"), folder.locked():
        pass
    with folder.locked():
        pass


def test_a_full_disk_at_the_last_checkpoint_is_an_error(tmp_path, monkeypatch):
    """After Ctrl-C, and at the end; the checkpoint before is kept."""
    make_checkpoints_fail(monkeypatch, {150}, fill_disk)
    stop_at(monkeypatch, 110)
    config = small("SAC", tmp_path, "SAC-run")
    with pytest.raises(OSError, match="No space left on device"):
        train(config)
    assert RunFolder.open(config.run_folder).newest_checkpoint() == config.run_folder / "checkpoints" / "0000000100"


def test_another_configuration_is_refused(finished):
    config, folder = finished
    other = replace(config, seed=6, rl=RLConfig.of(config.rl.values | {"gamma": 0.5, "n_steps": 400}))
    message = r"another configuration: `seed` is 6, was 5; `rl.gamma` is 0.5, was 0.98\. Start"
    original = folder.config_file.read_text()
    try:
        for _ in range(2):
            with pytest.raises(RunError, match=message):
                resume(other, folder)
            folder.config_file.write_text(to_yaml(other))  # the checkpoint's configuration counts
    finally:
        folder.config_file.write_text(original)
    with pytest.raises(RunError, match=r"another configuration: `rl.n_steps` is 239, was 240\. Start"):
        resume(replace(config, rl=replace(config.rl, n_steps=239)), folder)


def test_what_cannot_be_built_is_named(tmp_path, monkeypatch):
    """Also where an error has no text, as when there is not enough memory for the replay buffer."""
    config = small("DQN", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"`rl.device` must be .* no CUDA. Received 'cuda:0'"):
        train(replace(config, rl=replace(config.rl, device="cuda:0")))
    monkeypatch.setattr(run, "algorithm_options", lambda *_: (_ for _ in ()).throw(MemoryError))
    with pytest.raises(ConfigError, match=r"`rl`: MemoryError$"):
        train(config)


def test_evaluations_and_videos_match_the_registered_task(finished, tmp_path, monkeypatch):
    """Returns, and frames and rewards of videos, equal those of a single environment scored at every step."""
    config, folder = finished
    model = algorithm_class("DQN").load(folder.policy("best"))
    result = evaluate(config, model, 5, seed=70)
    env = gym.make("VLMRM/CartPole-v1", episode_length=25)
    episodes, frames = [], []
    for i in range(5):
        observation, _ = env.reset(seed=70 + i)
        steps, truncated = [], False
        while not truncated:
            observation, reward, _, truncated, info = env.step(model.predict(observation, deterministic=True)[0])
            steps.append((reward, info["task_reward"], info["success"]))
            frames.append(env.render())
        scored, task, successes = np.sum(steps, axis=0)
        np.testing.assert_allclose(result.vlm_returns[i], scored, rtol=1e-5)
        assert result.task_returns[i] == task
        assert result.success_fractions[i] == successes / 25
        assert (result.success_fractions[i] >= config.success_threshold) == (successes == 25)
        episodes.append(steps)
    env.close()
    videos = []
    monkeypatch.setattr(
        evaluation.videos, "save_video", lambda path, frames, rewards, title: videos.append((frames, rewards))
    )
    for column, name in enumerate(("clip", "ground_truth")):
        own = replace(config, reward=replace(config.reward, name=name))
        evaluation.record_video(own, model, tmp_path / "a.mp4", seed=70)
        np.testing.assert_array_equal(videos[-1][0], frames[:25])
        np.testing.assert_allclose(videos[-1][1], np.array(episodes[0])[:, column], atol=1e-5)
