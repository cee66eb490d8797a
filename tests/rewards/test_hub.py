"""Rewards on the hub, a server on this machine: what is uploaded and downloaded, and what is refused."""

import json
import shutil

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import TASK_PROMPT, cartpole_frame
from hub_server import serve_hub
from PIL import Image

import vlmrm_gym
from vlmrm_gym._util import errors
from vlmrm_gym._util.errors import InputError
from vlmrm_gym.rewards import PreferenceHead, load_reward
from vlmrm_gym.tools.cli import main
from vlmrm_gym.tools.cli.push import push

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
CART_POLE = "VLMRM/CartPole-v1"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    errors.say_once.cache_clear()
    with serve_hub(monkeypatch, tmp_path / "cache") as server:
        yield server


@pytest.fixture
def head(tmp_path):
    made = PreferenceHead((1, 128), fingerprint="tiny, squash", prompt="up", seed=3)
    made.standardise(torch.randn(50, 1, 128, generator=torch.Generator().manual_seed(0)))
    made.save(tmp_path / "own.safetensors")
    return str(tmp_path / "own.safetensors")


def play(reward):
    env = gym.make(CART_POLE, reward=reward, episode_length=4)
    env.reset(seed=1)
    rewards = [env.step(1)[1] for _ in range(4)]
    env.close()
    return rewards


def test_a_reward_is_the_same_after_the_hub(hub, head, tmp_path):
    """A head, a picture and a program, in a sum: by its name at a door, as a specification, and offline again."""
    program = tmp_path / "program.py"
    program.write_text("def reward(frame):\n    return frame.mean() / 255\n")
    reward = vlmrm_gym.Preference(head=head, model="tiny") + vlmrm_gym.CLIP(
        goal_images=[cartpole_frame(0)], model="tiny"
    )
    reward = 0.5 * reward + vlmrm_gym.Program(path=str(program))
    expected = play(reward)
    name = reward.push_to_hub("me/upright")
    assert name == f"hf-hub:me/upright@{list(hub.repos['me/upright'])[-1]}"
    files = next(iter(hub.repos["me/upright"].values()))
    assert sorted(files) == ["README.md", "own.safetensors", "picture.png", "reward.json"]
    program.unlink()
    np.testing.assert_allclose(play(name), expected, atol=1e-6)
    np.testing.assert_allclose(play(vlmrm_gym.RewardSpec.from_hub("me/upright")), expected, atol=1e-6)
    assert b'reward="hf-hub:me/upright"' in files["README.md"]


def test_names_without_a_commit_are_resolved_and_the_commit_is_printed(hub, capsys):
    first = vlmrm_gym.CLIP(prompt=TASK_PROMPT).push_to_hub("me/pole")
    vlmrm_gym.CLIP(prompt="another pole").push_to_hub("me/pole")
    assert load_reward("hf-hub:me/pole").prompt == "another pole"
    newest = list(hub.repos["me/pole"])[-1]
    assert f"hf-hub:me/pole is hf-hub:me/pole@{newest}. Name it so" in capsys.readouterr().err
    assert load_reward(first).prompt == TASK_PROMPT
    assert capsys.readouterr().err == ""


def test_the_command_puts_figures_on_the_card(hub, tmp_path, capsys):
    vlmrm_gym.CLIP(prompt=TASK_PROMPT).save(tmp_path / "pole")
    (tmp_path / "pole" / "fit.json").write_text(json.dumps({"measures": {"order": 0.987654, "warnings": []}}))
    main(["push", str(tmp_path / "pole"), "me/pole"])
    assert "Use it: --reward hf-hub:me/pole@" in capsys.readouterr().out
    card = hub.repos["me/pole"].popitem()[1]["README.md"].decode()
    assert "| order | 0.988 |" in card
    assert "warnings" not in card
    check = tmp_path / "check"
    check.mkdir()
    (check / "measures.json").write_text(json.dumps({"table": [{"measures": {"auc": 0.75, "curve": [1]}}]}))
    push(tmp_path / "pole", "me/other", check=check)
    assert "| auc | 0.75 |" in hub.repos["me/other"].popitem()[1]["README.md"].decode()
    with pytest.raises(InputError, match=r"empty must have a reward.json"):
        push(tmp_path / "empty", "me/pole")


def test_what_is_no_reward_is_refused_and_nothing_is_executed(hub, tmp_path):
    for files, rule in (
        ({"model.py": b"raise SystemExit"}, r"must have a reward.json, which `vlmrm-gym push` writes. It has \['model"),
        ({"reward.json": b"[]"}, "must have a mapping"),
        ({"reward.json": json.dumps({"kind": "import", "path": "os:getcwd"}).encode()}, "names code that would be run"),
    ):
        hub.repos.pop("me/bad", None)
        hub.commit("me/bad", files)
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        with pytest.raises(InputError, match=rule):
            load_reward("hf-hub:me/bad")
    with pytest.raises(InputError, match=r"the hub does not have hf-hub:me/none, .*Repository Not Found"):
        load_reward("hf-hub:me/none")
    with pytest.raises(InputError, match=r"the hub does not have hf-hub:me/bad@0000, .*Revision Not Found"):
        load_reward("hf-hub:me/bad@0000")
    with pytest.raises(InputError, match="`reward`: the hub does not have hf-hub:me/bad/more"):
        load_reward("hf-hub:me/bad/more")


def test_files_that_are_too_large_are_not_downloaded(hub, monkeypatch):
    monkeypatch.setattr("vlmrm_gym.rewards.hub.MAX_BYTES", 10)
    hub.commit("me/large", {"reward.json": b"{}", "head.safetensors": bytes(20)})
    with pytest.raises(InputError, match=r"must have at most 10 bytes. It has 22"):
        load_reward("hf-hub:me/large")


def test_a_server_that_does_not_answer_is_said(monkeypatch, tmp_path):
    with serve_hub(monkeypatch, tmp_path / "cache"):
        pass
    with pytest.raises(InputError, match="`reward`: the hub does not have hf-hub:me/pole, or does not answer"):
        load_reward("hf-hub:me/pole")


def test_pictures_of_a_runs_goal_travel_with_the_agent(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.fromarray(cartpole_frame(0)).save("goal.png")
    flags = ["--total-timesteps", "40", "--episode-length", "10", "--rl.n-envs-per-worker", "2", "--run-name", "shown"]
    main(["train", CART_POLE, "--goal-images", "goal.png", *flags, "--logging.video-freq", "0"])
    name = push(tmp_path / "runs" / "shown", "me/shown")
    shutil.rmtree(tmp_path / "runs")
    main(["evaluate", name, "--episodes", "2", "--no-video"])
    with pytest.raises(InputError, match="`check` is for rewards"):
        push(next(tmp_path.glob("me--shown--*")), "me/shown", check="check")


def test_an_agent_is_the_same_after_the_hub(hub, cart_pole_run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["evaluate", str(cart_pole_run), "--episodes", "3", "--no-video"])
    expected = json.loads((cart_pole_run / "evaluation.json").read_text())
    name = push(cart_pole_run, "me/agent")
    files = next(iter(hub.repos["me/agent"].values()))
    assert {"README.md", "best.zip", "config.yaml", "evaluation.json"} <= set(files)
    assert not any("checkpoint" in file or "events" in file for file in files)
    assert b"vlmrm-gym evaluate hf-hub:me/agent" in files["README.md"]
    main(["evaluate", name, "--episodes", "3", "--no-video"])
    (folder,) = tmp_path.glob("me--agent--*")
    found = json.loads((folder / "evaluation.json").read_text())
    assert {**found, "policy": None} == {**expected, "policy": None}
    vlmrm_gym.CLIP(prompt="a pole").push_to_hub("me/reward")
    with pytest.raises(SystemExit):
        main(["evaluate", "hf-hub:me/reward"])
    assert "must have a config.yaml, which `vlmrm-gym push` writes" in capsys.readouterr().err
