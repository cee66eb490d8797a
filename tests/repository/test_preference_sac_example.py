"""examples/preference_sac.py collects, asks, fits, relabels and learns, and leaves what it promises."""

import json

import imageio.v3 as iio
import numpy as np
import preference_sac
import pytest
import torch
from conftest import LIBRARIES_WARN
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vlmrm_gym.learning import AnswersFile, GroundTruthLabeler

pytestmark = [pytest.mark.slow, LIBRARIES_WARN]


def short(folder, **changes):
    settings = {
        "runs_folder": folder,
        "num_envs": 2,
        "episode_length": 25,
        "total_timesteps": 200,
        "learning_starts": 100,
        "questions": 50,
        "pairs": 30,
        "round_frequency": 50,
        "mistake_rate": 0.0,
        "updates_per_step": 0.2,
        "hidden": 8,
        "batch_size": 16,
        "selection_frequency": 130,
        "selection_episodes": 1,
        "eval_episodes": 2,
        "capture_video": False,
    }
    return preference_sac.Args(**(settings | changes))


def test_a_short_run_asks_learns_and_writes_what_it_promises(tmp_path, monkeypatch):
    """The best agent is that of the candidate whose episode has the highest return by the newest head."""
    played, rewards = [], []

    def play_features(envs, agent, seed):
        states = original(envs, agent, seed)
        played.append((agent.state_dict()["actor.0.weight"].clone(), states))
        return states

    class Agent(preference_sac.Agent):
        def losses(self, batch):
            rewards.append(batch.rewards)
            return super().losses(batch)

    original = preference_sac.play_features
    monkeypatch.setattr(preference_sac, "play_features", play_features)
    monkeypatch.setattr(preference_sac, "Agent", Agent)
    folder = preference_sac.main(short(tmp_path, capture_video=True))

    result = json.loads((folder / "result.json").read_text())
    assert (result["timesteps"], result["questions"], result["rounds"]) == (200, 50, 2)
    assert result["success"] in (0, 0.5, 1)
    assert iio.imread(folder / "agent.mp4").shape == (25, 472, 600, 3)
    assert [iio.imread(folder / f"round_00{number}.png").ndim for number in (1, 2)] == [3, 3]
    with AnswersFile(folder / "answers.db") as file:
        assert 45 <= len(file.records()) <= 50  # of few states, some pairs come again, and are not asked again
    events = EventAccumulator(str(folder)).Reload()
    rounds = [(event.step, event.value) for event in events.Scalars("preferences/questions")]
    assert rounds == [(100, 30), (150, 50)]
    assert [event.value for event in events.Scalars("preferences/answer_accuracy")] == [1, 1]  # it knows the task
    assert torch.isfinite(torch.stack(rewards)).all()

    head = preference_sac.vlmrm_gym.rewards.PreferenceHead.load(folder / "head.safetensors")
    returns = [float(head(states).sum()) for _, (states,) in played]
    assert len(returns) == 2
    best, _ = played[int(np.argmax(returns))]
    assert torch.equal(torch.load(folder / "agent.pt")["actor.0.weight"], best)


def test_without_a_reward_it_ends_with_an_error(tmp_path):
    skips = json.dumps({"kind": "ground_truth", "skip_rate": 1.0})
    with pytest.raises(RuntimeError, match="There is no reward to learn from after 30 questions"):
        preference_sac.main(short(tmp_path, labeler=skips, questions=30))


def test_a_run_that_ended_within_a_round_is_resumed_to_the_bit_and_asks_nothing_twice(tmp_path, monkeypatch):
    """Also from within episodes, which have 25 steps: at a checkpoint each has taken 5."""
    settings = {"checkpoint_frequency": 60, "questions": 90, "total_timesteps": 260}
    whole = preference_sac.main(short(tmp_path / "whole", **settings))

    asked, stops = [], [50, None]

    def answers(labeler, pairs):
        for number, answer in original(labeler, pairs):
            if len(asked) == stops[0]:
                stops.pop(0)
                raise KeyboardInterrupt
            asked.append(pairs[number].key)
            yield number, answer

    original = GroundTruthLabeler.answers
    monkeypatch.setattr(GroundTruthLabeler, "answers", answers)
    with pytest.raises(KeyboardInterrupt):
        preference_sac.main(short(tmp_path / "stopped", **settings))
    (stopped,) = (tmp_path / "stopped").iterdir()
    assert not (stopped / "result.json").exists()
    resumed = preference_sac.main(short(tmp_path / "stopped", **settings, resume=stopped))

    assert resumed == stopped
    own, others = (torch.load(folder / "agent.pt") for folder in (whole, resumed))
    assert all(torch.equal(own[name], others[name]) for name in own)
    assert (whole / "head.safetensors").read_bytes() == (resumed / "head.safetensors").read_bytes()
    files = [AnswersFile(folder / "answers.db") for folder in (whole, resumed)]
    keys = [[record.pair for record in file.records()] for file in files]
    assert sorted(keys[0]) == sorted(keys[1])
    assert sorted(asked) == sorted(keys[1])
    results = [json.loads((folder / "result.json").read_text()) for folder in (whole, resumed)]
    names = ("vlm_return", "success", "questions", "rounds", "head_version", "timesteps")
    assert [results[0][name] for name in names] == [results[1][name] for name in names]


def test_a_run_is_resumed_with_its_own_settings_only_or_lengthened(tmp_path):
    folder = preference_sac.main(short(tmp_path))
    with pytest.raises(ValueError, match=r"`mistake_rate` is 0\.5, was 0\.0"):
        preference_sac.main(short(tmp_path, resume=folder, mistake_rate=0.5))
    preference_sac.main(short(tmp_path, resume=folder, total_timesteps=250))
    assert json.loads((folder / "result.json").read_text())["timesteps"] == 250
    with pytest.raises(ValueError, match="`resume` must be the folder of a run"):
        preference_sac.main(short(tmp_path, resume=tmp_path))
