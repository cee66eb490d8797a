"""An endpoint as the reward and as the labeler of commands and files."""

import json
import os
import signal
import subprocess
import sys
import time

import minari
import numpy as np
import pytest
from check_subjects import few_states
from commands import refused
from poles import accuracy
from vlm_server import KEY, VLMServer

from vlmrm_gym._util.errors import InputError
from vlmrm_gym.learning import AnswersFile
from vlmrm_gym.tools.cli import main
from vlmrm_gym.tools.cli.dataset import record_dataset
from vlmrm_gym.tools.cli.fit import fit
from vlmrm_gym.tools.cli.score import score
from vlmrm_gym.tools.segments import DatasetSegments

CARTPOLE = "VLMRM/CartPole-v1"


@pytest.fixture
def flags(server):
    """Makes the flags of a command."""

    def make(**more):
        settings = {"prompt": "The pole is upright.", "model": "m", "base_url": server.url, **more}
        return ["--reward", "endpoint", "--reward-kwargs", json.dumps(settings)]

    return make


def test_rollouts_are_recorded(server, flags, tmp_path):
    main(["dataset", CARTPOLE, *flags(every=20), "--out", str(tmp_path / "data"), "--episodes", "1", "--steps", "40"])
    (episode,) = minari.MinariDataset(tmp_path / "data" / "data")
    assert episode.rewards.tolist() == [episode.rewards[0]] * 20 + [episode.rewards[20]] * 20
    assert episode.rewards[0] != episode.rewards[20]
    assert server.requests == len(server.asked) <= 3  # the initial state, and two of the episode


def test_a_check_says_how_much_it_will_ask_and_its_budget_ends_it_with_a_sentence(server, flags, tmp_path, capsys):
    with few_states():
        said = refused(capsys, "check", CARTPOLE, *flags(max_calls=20), "--out", tmp_path / "check")
        # 2 x 2 rollouts of 25 steps, 60 states around the goal, 12 goals and 110 of the search
        assert "will ask m about some 282 states: a call each, or 5 if there are no log probabilities" in said
        assert "max_calls: 20." in said
        assert "The budget of m is used up" in said
        assert server.requests == 20


FILE = """
env_name: VLMRM/CartPole-v1
base_path: {path}
run_name: run
rl: {{n_steps: 80, n_envs_per_worker: 2, episode_length: 10, learning_starts: 44, batch_size: 8, buffer_size: 100}}
logging: {{video_freq: 0, checkpoint_freq: 80}}
reward:
  name: endpoint
  num_workers: 2
  kwargs: {{prompt: The pole is upright., model: m, base_url: "{url}", every: 5, cache: "{path}/scores.db"}}
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_run_whose_budget_is_used_up_goes_on_with_a_higher_one_and_has_no_key_in_it(server, tmp_path, capfd):
    (file := tmp_path / "file.yaml").write_text(FILE.format(path=tmp_path, url=server.url))
    kwargs = {"prompt": "The pole is upright.", "model": "m", "base_url": server.url, "every": 5}
    kwargs |= {"cache": str(tmp_path / "scores.db"), "max_calls": 6}
    with pytest.raises(SystemExit):
        main(["train", str(file), "--reward-kwargs", json.dumps(kwargs)])
    assert 0 < server.requests <= 6  # the last question might have needed 5
    hint = f"To resume from step 0: vlmrm-gym train --resume {tmp_path / 'run'}"
    assert hint in (said := capfd.readouterr().err)
    assert "The budget of m is used up" in said
    main(["train", "--resume", str(tmp_path / "run"), "--reward-kwargs", json.dumps({**kwargs, "max_calls": 100})])
    assert server.requests == len(server.asked) > 6
    assert (tmp_path / "run" / "metrics.csv").is_file()
    assert (tmp_path / "run" / "checkpoints" / "0000000080").is_dir()
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"The pole is upright." in written
    assert KEY.encode() not in written
    assert KEY not in said + "".join(capfd.readouterr())


def test_a_file_that_names_a_server_elsewhere_needs_trust(tmp_path, monkeypatch, capsys):
    """Whoever wrote it would get the key."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    file, run = tmp_path / "reward.json", tmp_path / "run.yaml"
    for settings, is_refused in (
        ({"base_url": "https://example.org/v1"}, True),
        ({"api_key_env": "AWS_SECRET_ACCESS_KEY"}, True),
        ({"base_url": "http://localhost:1/v1", "api_key_env": None}, False),
    ):
        kwargs = {"prompt": "The pole is upright.", "model": "m", **settings}
        file.write_text(json.dumps({"kind": "endpoint", **kwargs}))
        run.write_text(json.dumps({"env_name": CARTPOLE, "reward": {"name": "endpoint", "kwargs": kwargs}}))
        said = (
            "names a server that pictures and a key would be sent to.*pass --trust-code" if is_refused else "no file or"
        )
        with pytest.raises(InputError, match=said):
            score(tmp_path / "none.mp4", reward=str(file))
        if is_refused:
            assert "names a server" in refused(capsys, "train", run, "--dry-run")
        main(["train", str(run), "--dry-run", *["--trust-code"] * is_refused])
        assert "scored by the process that trains" in capsys.readouterr().out


PAIRS, CONCURRENCY = 60, 3
CALLS, ORDERS = 4, 2
"""Requests of a pair in two stages, and in how many its images are."""


@pytest.mark.slow
def test_a_labelling_that_is_killed_goes_on_and_its_answers_make_a_reward(tmp_path):
    """Nothing that was answered is asked again, nothing is lost, the budget holds, and the key is in no file."""
    dataset = record_dataset(CARTPOLE, out=tmp_path / "poles", episodes=8, steps=40, reward=f"{__name__}:zero")
    with VLMServer(latency=0.02) as server:
        first = start_labelling(server, dataset, tmp_path, max_calls=CALLS * 40)
        while server.requests < CALLS * 20:
            assert first.poll() is None
            time.sleep(0.01)
        first.send_signal(signal.SIGKILL)
        first.wait()
        while server.active:
            time.sleep(0.01)
        with AnswersFile(tmp_path / "answers.db") as file:
            known = len(file.records())
        lost, shown = server.requests - CALLS * known, sum(server.asked.values())
        assert 0 < known < 30
        assert 0 <= lost <= CALLS * CONCURRENCY  # what was under way, and no more

        assert start_labelling(server, dataset, tmp_path, max_calls=CALLS * 20).wait(120) == 0
        assert f"{PAIRS - known - 20} of 60 pairs are not answered" in (tmp_path / "said.txt").read_text()
        assert server.requests - lost == CALLS * (known + 20)
        assert start_labelling(server, dataset, tmp_path).wait(120) == 0
        assert server.requests - lost == CALLS * PAIRS
        assert sum(server.asked.values()) - shown == ORDERS * (PAIRS - known)
        assert len(server.asked) == ORDERS * PAIRS
        assert server.keys == {f"Bearer {KEY}"}
    reward = fit(dataset, tmp_path / "answers.db", out=tmp_path / "reward")
    found = json.loads((tmp_path / "reward" / "fit.json").read_text())
    assert found["held_out"]["answers"] == PAIRS // 5
    with DatasetSegments(dataset) as segments:
        assert accuracy(reward.build("cpu"), segments.sample(100, 1, "other pairs", seed=1)) >= 0.8
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"answers.db", "reward.json", "settings.json", "said.txt"} <= {path.name for path in files}
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


def zero(frames):
    """A reward, as datasets have one."""
    return np.zeros(len(frames), dtype=np.float32)


def start_labelling(server, dataset, folder, **settings):
    settings |= {"kind": "endpoint", "model": "m", "base_url": server.url, "concurrency": CONCURRENCY}
    command = [sys.executable, "-m", "vlmrm_gym", "label", str(dataset), "--pairs", str(PAIRS)]
    command += ["--labeler", json.dumps(settings), "--out", str(folder / "answers.db")]
    with (folder / "said.txt").open("a") as said:
        return subprocess.Popen(command, env=os.environ | {"OPENAI_API_KEY": KEY}, stdout=said, stderr=said)
