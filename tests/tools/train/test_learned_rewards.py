"""Trainings that learn their reward from comparisons: rounds, exact resumption, the best agent, refused settings."""

import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from commands import refused
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from trainings import Crash, assert_equal, small, train

import vlmrm_gym
from vlmrm_gym.data.episode_log import EpisodeLog
from vlmrm_gym.learning import AnswersFile, learner
from vlmrm_gym.learning.fitting import Verdict
from vlmrm_gym.rewards.preference_model import PreferenceHead
from vlmrm_gym.rewards.saved import read_saved
from vlmrm_gym.rewards.specification import from_mapping
from vlmrm_gym.tools.cli import main
from vlmrm_gym.tools.cli.train import configure
from vlmrm_gym.tools.train.checks import find_named_code
from vlmrm_gym.tools.train.config import Config, PreferencesConfig, RewardConfig
from vlmrm_gym.tools.train.config_file import ConfigError, flatten
from vlmrm_gym.tools.train.run import resume
from vlmrm_gym.tools.train.run_folder import RunFolder

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept"),
]

ASKED: list[str] = []
STOPS: list[int] = []
"""The pairs that `hesitate` was asked about, and before how many it raises."""


def hesitate(pairs):
    """Prefers the higher grade."""
    for pair in pairs:
        if len(ASKED) in STOPS:
            raise Crash
        ASKED.append(pair.key)
        yield float(pair.grades[1].sum() > pair.grades[0].sum())


def learning(algorithm, tmp_path, run_name="run", labeler="ground_truth", checkpoint_freq=25, **own):
    """Three rounds of 10 pairs, after 60, 120 and 180 of 240 steps; checkpoints before, between and after them."""
    config = small(algorithm, tmp_path, run_name, name="preference", labeler=labeler, kwargs={"hidden_size": 8})
    own = {"every": 60, "pairs": 10, "total": 30, "fit": {"epochs": 5, "min_answers": 5}, **own}
    logging, rl = replace(config.logging, checkpoint_freq=checkpoint_freq), replace(config.rl, episode_length=5)
    return replace(config, preferences=PreferencesConfig(**own), rl=rl, logging=logging)


def learned(folder):
    """What a run has learned of the reward."""
    with zipfile.ZipFile(list(folder.checkpoints.values())[-1] / "preferences.zip") as archive:
        known = json.loads(archive.read("learner.json"))
        with archive.open("comparisons.npz") as file, np.load(file) as arrays:
            return known, {name: array.tobytes() for name, array in arrays.items()}, folder.head.read_bytes()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run of which every head was accepted, and its configuration. The last head comes at step 210."""
    config = learning("DQN", tmp_path_factory.mktemp("runs"), segment_length=2, every=75)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learner, "judge", lambda *_: Verdict(True, "It is new."))
        return train(config), config


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "stop", "reached"),
    [
        ("DQN", 4, 50),  # in the first round: there is no reward yet
        ("PPO", 16, 110),  # in the second; the first is at step 60, before its first rollout
    ],
)
def test_a_run_that_ends_in_a_round_and_is_resumed_ends_as_one_that_did_not(algorithm, stop, reached, tmp_path):
    """Weights, rewards, heads, metrics and the best agent are the same to the bit, and no pair is asked about twice."""
    ASKED.clear()
    unbroken = train(learning(algorithm, tmp_path, f"{algorithm}-unbroken", f"{__name__}:hesitate"))
    expected = [*ASKED]
    assert len(expected) == len(set(expected)) > 25
    ASKED.clear()
    config = learning(algorithm, tmp_path, f"{algorithm}-broken", f"{__name__}:hesitate")
    STOPS.append(stop)
    with pytest.raises(Crash):
        train(config)
    STOPS.clear()
    broken = RunFolder.open(config.run_folder)
    assert max(broken.checkpoints, default=0) == reached
    resume(config, broken)
    assert expected == ASKED
    assert_equal(unbroken, broken)
    assert learned(unbroken) == learned(broken)
    for folder in (unbroken, broken):
        with AnswersFile(folder.path / "answers.db") as answers:
            assert [record.pair for record in answers.records()] == expected


def test_a_run_has_its_rounds_in_its_folder_and_in_tensorboard(run):
    folder, _ = run
    assert sorted(path.name for path in folder.path.glob("rounds/*")) == ["001.png", "002.png", "003.png"]
    events = EventAccumulator(str(folder.path)).Reload()
    questions = [(one.step, one.value) for one in events.Scalars("preferences/questions")]
    assert questions == [(60, 10), (140, 20), (210, 30)]
    assert {"preferences/loss", "preferences/answer_accuracy"} <= set(events.Tags()["scalars"])
    for stored in folder.checkpoints.values():
        assert (stored / "model.zip").exists()


def test_the_newest_head_alone_is_a_reward_like_any_other(run, tmp_path):
    """The file that other commands read makes the rewards that the agent learned from. It names no folder."""
    folder, config = run
    copied = Path(shutil.copytree(folder.path, tmp_path / "copied"))
    assert Path(str(from_mapping(read_saved(copied / "reward.json")).head)) == copied / "head.safetensors"
    spec = from_mapping(read_saved(folder.path / "reward.json"))
    assert isinstance(spec, vlmrm_gym.Preference)
    assert (spec.prompt, Path(str(spec.head))) == (config.reward.prompt[0], folder.head)
    with np.load(folder.checkpoints[240] / "replay_buffer.npz") as stored:
        made = PreferenceHead.load(folder.head)(torch.from_numpy(stored["features"][:, 0]))
        np.testing.assert_allclose(stored["rewards"][:, 0], made.numpy(), atol=1e-5)


def test_the_best_agent_is_judged_by_the_newest_head(run):
    """It came after the best agent, whose return is what it gives to the episodes kept with it."""
    folder, config = run
    best, kept = json.loads((folder.path / "best.json").read_text()), EpisodeLog.of([])
    kept.load(folder.path / "best_episodes.npz")
    assert [len(episode) for episode in kept.episodes] == [5] * 8
    assert best["step"] < 210
    spec = from_mapping(read_saved(folder.path / "reward.json"))
    envs = vlmrm_gym.sb3.make_vec_env(config.env_name, 2, reward=spec, episode_length=5, return_features=True).envs
    returns = [envs.head(envs.scorer.features(one.states)).sum() for one in kept.episodes]
    envs.close()
    assert best["vlm_return"] == pytest.approx(np.mean(returns), abs=1e-3)


def test_a_run_is_evaluated_by_its_newest_head(run, tmp_path, capsys):
    """Also if its labeler is code, which is not run; code in the reward, and a run without a head are refused."""
    folder, _ = run
    before = folder.config_file.read_text()
    folder.config_file.write_text(before.replace("labeler: ground_truth", "labeler: evil:labeler"))
    main(["evaluate", str(folder.path), "--episodes", "2", "--no-video"])
    stranger = yaml.safe_load(before)
    stranger["reward"]["name"], stranger["reward"]["kwargs"] = "sum", {"terms": [{"kind": "import", "path": "evil:f"}]}
    folder.config_file.write_text(yaml.safe_dump(stranger))
    assert "`reward.kwargs` names code" in refused(capsys, "evaluate", folder.path)
    folder.config_file.write_text(before)
    assert np.isfinite(json.loads((folder.path / "evaluation.json").read_text())["vlm_return"])
    (tmp_path / "config.yaml").write_text(before)
    assert "has not learned a reward yet: it has no head.safetensors" in refused(capsys, "evaluate", tmp_path)


FLAGS = ["--env-name", "VLMRM/CartPole-v1", "--reward", "preference"]


def test_settings_that_cannot_be_used_are_refused_before_anything_is_made(tmp_path, capsys):
    human = [*FLAGS, "--labeler", "human"]
    for flags, message in (
        (FLAGS, "`reward.labeler` is missing: the reward is learned from a labeler's answers."),
        ([*FLAGS[:2], "--labeler", "human"], "`reward.labeler` must be left out: the reward clip is not learned."),
        ([*FLAGS, "--labeler", "grond_truth"], "Did you mean 'ground_truth'?"),
        ([*FLAGS, "--total-timestep", "5"], "`--total-timestep` is not known. Did you mean --total-timesteps?"),
        (
            [*FLAGS, "--labeler", "{kind: ground_truth, mistake_rate: 2}"],
            "`reward.labeler.mistake_rate` must be a number from",
        ),
        ([*human, "--prompt", "a", "b"], "`reward.prompt` must be a text."),
        ([*human, "--preferences.fit", "{epochs: 0}"], "`preferences.fit.epochs` must be an"),
        ([*human, "--preferences.every", "5000"], "would be at step 46,600 of 20,000. Received 5"),
        ([*human, "--preferences.segment-length", "201"], "the length of an episode, 200."),
        ([*human, "--preferences.schedule", "hyperbolic"], "`preferences.schedule` must be"),
        ([*human, "--preferences.pairs", "900", "--preferences.total", "900"], "the first round asks about 900 pair"),
        ([*FLAGS, "--labeler", "{kind: endpoint}"], "`reward.labeler`: EndpointLabeler.__init__() missing 1 required"),
        ([*FLAGS, "--labeler", "{kind: endpoint, model: m, api_key_env: NO_SUCH}"], "NO_SUCH is not set."),
    ):
        output = refused(capsys, "train", *flags, "--base-path", tmp_path)
        assert message in " ".join(output.replace("│", "").split())
        assert list(tmp_path.iterdir()) == []


def test_a_file_of_answers_about_another_prompt_is_refused_before_the_folder_is_made(tmp_path):
    AnswersFile(tmp_path / "answers.db", prompt="a fallen pole").close()
    config = learning("DQN", tmp_path, answers=str(tmp_path / "answers.db"))
    with pytest.raises(ConfigError, match=r"preferences.answers.*about the prompt 'a fallen pole'"):
        train(config)
    assert not config.run_folder.exists()


def test_a_labeler_that_is_code_or_gets_a_key_needs_trust():
    endpoint = {"kind": "endpoint", "model": "a"}
    for labeler, needs_trust in (
        ("evil:labeler", True),
        ({"name": "evil:Labeler"}, True),
        ({**endpoint, "base_url": "http://evil"}, True),
        ({**endpoint, "api_key_env": "AWS_SECRET_ACCESS_KEY"}, True),
        ("ground_truth", False),
        ({**endpoint, "base_url": "http://127.0.0.1:8000/v1"}, False),
    ):
        config = Config(reward=RewardConfig(name="preference", labeler=labeler))
        problems = [problem.message for problem in find_named_code(config)]
        assert len(problems) == needs_trust
        for message in problems:
            assert message.startswith("`reward.labeler` names code that would be run, or a server that pictures")
        assert not list(find_named_code(config, flatten(config)))


def test_rounds_are_in_the_first_half_of_a_training_unless_it_says_otherwise():
    config = configure(None, [*FLAGS, "--labeler", "human"])
    assert config.rl.learning_starts == 1_600
    assert config.preferences.every == 920  # (20,000 - 1,600) / 2 / 10 rounds
    assert config.reward.prompt == ["pole vertically upright on top of the cart"]
    example = configure(Path(__file__).parents[3] / "configs" / "preferences" / "cartpole.yaml", [])
    assert example.reward.labeler == {"kind": "ground_truth", "mistake_rate": 0.1}


def test_a_reward_may_be_the_file_of_a_specification(tmp_path, capsys):
    path, head = tmp_path / "reward.json", "/heads/pole.safetensors"
    for values, expected in (
        (
            {"kind": "clip", "prompt": "a pole", "alpha": 0.5, "baseline": "a cart", "batch_size": None},
            {"name": "clip", "prompt": ["a pole"], "alpha": 0.5, "baseline": ["a cart"], "kwargs": None},
        ),
        (
            {"kind": "preference", "head": head, "prompt": "a pole", "model": "tiny"},
            {"name": "preference", "prompt": ["a pole"], "kwargs": {"head": head}},
        ),
    ):
        path.write_text(json.dumps(values))
        reward = configure(None, [*FLAGS[:2], "--reward", str(path)]).reward
        assert {name: getattr(reward, name) for name in expected} == expected
    for text, flags, message in (
        ('{"kind": "evil:Reward"}', [], "`reward.name` names code that would be run. Received 'evil:Reward'"),
        ('{"kind": "clip", "prompt": "a", "alpa": 0.5}', [], "`reward.alpa` is not known. Did you mean `reward.alpha`"),
        ('{"kind": "clip", "prompt": "a"}', ["--alpha", "0.5"], "`reward.alpha` cannot be passed beside the file"),
        ("[", [], "reward.json cannot be read: Expecting value"),
    ):
        path.write_text(text)
        output = refused(capsys, "train", *FLAGS[:2], "--reward", path, *flags, "--base-path", tmp_path / "runs")
        assert message in output
