"""`vlmrm-gym label` and `vlmrm-gym fit`: a reward from answers about a dataset, with no training."""

import json
import shutil

import numpy as np
import pytest
from conftest import TASK_PROMPT, cartpole_frame

import vlmrm_gym
from vlmrm_gym._util.errors import InputError
from vlmrm_gym.learning import AnswersFile, GroundTruthLabeler
from vlmrm_gym.learning.answer_table import COLUMNS
from vlmrm_gym.rewards import from_mapping
from vlmrm_gym.rewards.saved import read_saved
from vlmrm_gym.tools.cli import main
from vlmrm_gym.tools.cli.dataset import record_dataset
from vlmrm_gym.tools.cli.fit import fit
from vlmrm_gym.tools.cli.label import label

CARTPOLE = "VLMRM/CartPole-v1"


def bright(frames):
    return frames.mean((1, 2, 3))


def coin(pairs):
    return np.random.default_rng(0).integers(2, size=len(pairs)).tolist()


class Upright:
    """Prefers the smaller angle at the end, and remembers what it was asked. Raises after `patience` answers."""

    def __init__(self, patience=1_000):
        self.asked, self.patience = [], patience

    def __call__(self, pairs):
        for pair in pairs:
            if len(self.asked) == self.patience:
                raise ConnectionError("the server is gone")
            self.asked.append(pair)
            yield float(angle(pair.second) < angle(pair.first))


def angle(side):
    return abs(side.states.rows[-1, 1])


@pytest.fixture(scope="module")
def poles(tmp_path_factory):
    """The folder of a dataset: 8 episodes of 40 random steps."""
    return record_dataset(
        CARTPOLE, out=tmp_path_factory.mktemp("data") / "poles", episodes=8, steps=40, reward=f"{__name__}:bright"
    )


@pytest.fixture(scope="module")
def labelled(poles, tmp_path_factory):
    """A file with 120 answers, without label noise."""
    path = tmp_path_factory.mktemp("answers") / "answers.db"
    label(poles, labeler="ground_truth", pairs=120, out=path)
    return path


@pytest.fixture(scope="module")
def upright(poles, labelled, tmp_path_factory):
    """The folder of a reward that was fitted to them."""
    folder = tmp_path_factory.mktemp("rewards") / "upright"
    main(["fit", str(poles), str(labelled), "--out", str(folder)])
    return folder


def test_pairs_are_of_the_dataset_and_asked_once_whatever_happens(poles, tmp_path, capsys):
    settings = {"out": tmp_path / "answers.db", "segment_length": 3}
    labeler = Upright(patience=4)
    with pytest.raises(InputError, match="the server is gone"):
        label(poles, labeler=labeler, pairs=10, **settings)
    assert "has 4 answers" in capsys.readouterr().err
    labeler.patience = 1_000
    for count in (10, 10, 12):
        label(poles, labeler=labeler, pairs=count, **settings)
        assert len(labeler.asked) == count
        assert "100.0% of the answers agree with the task's grade" in capsys.readouterr().out
    with AnswersFile(settings["out"]) as file:
        assert {record.pair for record in file.records()} == {pair.key for pair in labeler.asked}
    places = {(side.episode_index, side.start) for pair in labeler.asked for side in (pair.first, pair.second)}
    assert len(places) == 24  # no segment twice
    pair = labeler.asked[0]
    assert pair.frames[0].shape == (3, 1, 400, 600, 3)
    assert pair.prompt == TASK_PROMPT


def test_a_fitted_reward_orders_what_it_was_not_told(upright):
    found = json.loads((upright / "fit.json").read_text())
    assert found["held_out"]["answers"] == 24
    assert found["fitted"]["answers"] == 96
    assert found["held_out"]["accuracy"] >= 0.8
    assert found["held_out"]["accuracy_by_grade"] == pytest.approx(found["held_out"]["accuracy"])  # without label noise
    assert found["held_out"]["cross_entropy"] < np.log(2)
    assert list(found["labelers"].values()) == [120]
    assert {"Date", "Version", "Weights", "Seed", "Hardware"} == found["provenance"].keys()
    reward = from_mapping(read_saved(upright / "reward.json")).build("cpu")
    upper, fallen = reward(np.stack([cartpole_frame(0), cartpole_frame(90)])[:, None])
    assert upper > fallen


def test_answers_of_one_labeler_can_be_fitted(poles, labelled, tmp_path, capsys):
    """Of two who always contradict each other; named as the commands name them."""
    path = shutil.copy(labelled, tmp_path / "answers.db")
    flags = ["--labeler", "{kind: ground_truth, mistake_rate: 1.0, seed: 3}", "--pairs", "120", "--out", str(path)]
    main(["label", str(poles), *flags])
    assert "0.0% of the answers agree" in capsys.readouterr().out
    fit(poles, path, out=tmp_path / "wrong", labeler="ground_truth mistake_rate=1.0, seed=3")
    found = json.loads((tmp_path / "wrong" / "fit.json").read_text())
    assert list(found["labelers"].values()) == [120]
    assert found["held_out"]["accuracy_by_grade"] < 0.2
    with pytest.raises(
        InputError, match=r"`labeler` must be one of 'ground_truth', 'ground_truth mistake_rate=1.0, seed=3'"
    ):
        fit(poles, path, out=tmp_path / "other", labeler="human")


def test_a_reward_that_predicts_no_better_than_chance_is_not_written(poles, tmp_path):
    """And an earlier one does not stay in its place."""
    path, folder = tmp_path / "answers.db", tmp_path / "reward"
    label(poles, labeler=f"{__name__}:coin", pairs=60, out=path)
    folder.mkdir()
    (folder / "reward.json").touch()
    with pytest.raises(InputError, match=r"No reward is written\. The new head is worse: on 12 held-out answers"):
        fit(poles, path, out=folder, options={"l2": 0, "epochs": 300}, overwrite=True)
    assert [file.name for file in folder.iterdir()] == ["fit.json"]
    assert not json.loads((folder / "fit.json").read_text())["accepted"]


def test_labels_that_cannot_be_asked_for_end_with_a_sentence(poles, labelled, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = shutil.copy(labelled, tmp_path / "answers.db")
    for settings, message in (
        ({"dataset": "."}, "is not a folder that `vlmrm-gym dataset` made"),
        ({"labeler": {"kind": "ground_truth", "mistake_rate": 2}}, "`mistake_rate` must be"),
        ({"pairs": 161}, "`pairs` must be at most half of the dataset's segments of 1 states, 320"),
        ({"pairs": 0}, "`pairs` must be an integer of at least 1"),
        ({"camera": "front"}, "`camera`"),
        ({"prompt": "a fallen pole"}, "are about the prompt"),
    ):
        with pytest.raises(InputError, match=message):
            label(**{"dataset": poles, "labeler": "ground_truth", "pairs": 5, "out": path, **settings})


def test_fits_that_cannot_be_made_end_with_a_sentence(poles, labelled, tmp_path):
    for settings, message in (
        ({"answers": "none.db"}, "none.db cannot be read: No such file"),
        ({"device": "gpu"}, "`device`"),
        ({"reward_kwargs": {"hidden": 1}}, "`hidden` is not a field of the reward. Did you mean `hidden_size`"),
        ({"options": {"epoch": 1}}, "`epoch` is not a field of FitOptions. Did you mean `epochs`"),
        ({"options": {"min_answers": 100}}, "too few answers: 96 to fit, 24 held out"),
        ({"held_out": 0.0}, "`held_out` must be between 0 and 1"),
        ({"seed": -1}, "`seed` must be"),
    ):
        with pytest.raises(InputError, match=message):
            fit(**{"dataset": poles, "answers": labelled, "out": tmp_path / "out", **settings})
        assert not (tmp_path / "out").exists()


def test_answers_must_be_of_the_dataset_and_of_one_length(poles, labelled, tmp_path):
    path = shutil.copy(labelled, tmp_path / "answers.db")
    other = record_dataset(CARTPOLE, out=tmp_path / "other", episodes=8, steps=40, seed=8, reward=f"{__name__}:bright")
    with pytest.raises(InputError, match="The answers must be about the dataset"):
        fit(other, path, out=tmp_path / "out")
    label(poles, labeler=GroundTruthLabeler(), pairs=5, segment_length=2, out=path)
    with pytest.raises(InputError, match=r"All segments must have the same length.*\[1, 2\]"):
        fit(poles, path, out=tmp_path / "out")
    empty = tmp_path / "empty.db"
    AnswersFile(empty).close()
    with pytest.raises(InputError, match="has no answers to fit"):
        fit(poles, empty, out=tmp_path / "out")


@pytest.fixture
def table(labelled, tmp_path):
    """The answers as a CSV file that someone else wrote."""
    with AnswersFile(labelled) as file:
        answers = {record.pair: record.answer.preference for record in file.records()}
        pairs = sorted(file.pairs(), key=lambda pair: pair.pair)  # as `fit` orders them
    path = tmp_path / "preferences.csv"
    lines = [",".join(COLUMNS), *(f"{a[1]},{a[2]},{b[1]},{b[2]},{a[3]},{answers[key]}" for key, _, a, b in pairs)]
    path.write_text("\n".join(lines))
    return path


def test_preferences_of_others_are_fitted_without_being_asked_again(poles, table, upright, tmp_path):
    fit(poles, table, prompt="an upright pole", out=tmp_path / "table")
    found, same = (json.loads((one / "fit.json").read_text()) for one in (tmp_path / "table", upright))
    assert found["fitted"]["answers"] == same["fitted"]["answers"]
    assert found["held_out"]["accuracy"] >= 0.8
    assert found["held_out"]["accuracy_by_grade"] == pytest.approx(found["held_out"]["accuracy"])
    assert read_saved(tmp_path / "table")["prompt"] == "an upright pole"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("steps,", "", "must have the columns first_episode, .* Received"),
        ("\n0,", "\n-1,", "line 2: it must have episodes and steps from 0 on"),
        ("\n", "\n9,0,0,0,1,1\n", "steps 0 to 1 of episode 9, which it does not have"),
        ("\n", "\n0,0,0,1,1,2\n", "line 2: it must have .* a preference from 0 to 1"),
        ("\n", "\n0,a,0,1,1,2\n", "Received .*'a'"),
    ],
)
def test_tables_of_preferences_that_cannot_be_used(poles, table, tmp_path, old, new, message):
    text = table.read_text().replace(old, new, 1)
    if old == "\n0,":
        text = text.split("\n")[0] + "\n-1,0,0,1,1,1"
    table.write_text(text)
    with pytest.raises(InputError, match=message):
        fit(poles, table, prompt="a pole", out=tmp_path / "out")
    with pytest.raises(InputError, match="A CSV file needs a `prompt`"):
        fit(poles, table, out=tmp_path / "out")


def test_preferences_about_arrays_of_frames(tmp_path):
    angles = np.random.default_rng(0).uniform(0, 90, (60, 2))
    first, second = (np.stack([cartpole_frame(angle) for angle in side])[:, None] for side in angles.T)
    preferences = angles[:, 1] < angles[:, 0]
    settings = {"prompt": "an upright pole", "model": "tiny"}
    reward = vlmrm_gym.fit_preferences(first, second, preferences, out=tmp_path / "reward", **settings)
    assert json.loads((tmp_path / "reward" / "fit.json").read_text())["held_out"]["accuracy"] >= 0.8
    upper, fallen = reward.build("cpu")(np.stack([cartpole_frame(0), cartpole_frame(90)])[:, None])
    assert upper > fallen
    for wrong, message in (
        ((first[:, 0], second, preferences), r"`first` must be frames, uint8 \(N, T, H, W, 3\)"),
        ((first, second[:9], preferences), "`second` must be frames"),
        ((first, second, preferences[:9]), "`preferences` must have one number for each of 60 pairs. Received 9"),
        ((first, second, 2 * preferences), "`preference`"),
    ):
        with pytest.raises(InputError, match=message):
            vlmrm_gym.fit_preferences(*wrong, out=tmp_path / "none", **settings)


def test_code_that_a_dataset_names_needs_trust(poles, labelled, tmp_path):
    stranger = shutil.copytree(poles, tmp_path / "stranger")
    settings = json.loads((stranger / "settings.json").read_text())
    (stranger / "settings.json").write_text(json.dumps({**settings, "id": f"nowhere:{CARTPOLE}"}))
    with pytest.raises(InputError, match=r"names code that would be run.*--trust-code"):
        fit(stranger, labelled, out=tmp_path / "out")
    with pytest.raises(InputError, match="nowhere"):
        label(stranger, labeler="ground_truth", out=tmp_path / "answers.db", trust_code=True)
