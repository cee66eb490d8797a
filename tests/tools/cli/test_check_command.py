"""`vlmrm-gym check` from end to end, with small searches and few rollouts."""

import json
import re

import pytest
from check_subjects import few_states
from commands import refused
from conftest import TASK_PROMPT

import vlmrm_gym
from vlmrm_gym.tools.cli import main

pytestmark = pytest.mark.filterwarnings("ignore:The bundled model does not know this scene")

CARTPOLE = "VLMRM/CartPole-v1"
STANDING = "VLMRM/Humanoid-stand-v0"
OTHER = "the cart is at the left end of the track"
POLES = ["--prompt", TASK_PROMPT, "--baseline", "pole and cart"]


@pytest.fixture(scope="module", autouse=True)
def smaller():
    with few_states():
        yield


def check(out, *arguments):
    """The contents of measures.json, all of whose numbers are finite, and the report."""
    main(["check", *arguments, "--out", str(out)])
    assert sorted(path.name for path in out.iterdir()) == ["measures.json", "report.html"]

    def no_number(text):
        raise AssertionError(f"{text} in measures.json")

    measures = json.loads((out / "measures.json").read_text(), parse_constant=no_number)
    report = (out / "report.html").read_text()
    assert not re.search(r"\bnan\b", re.sub(r"data:image[^\"]*", "", report), re.IGNORECASE)
    return measures, report


def numbers(row):
    """The measures of a row of the table, without intervals."""
    known = {name: value for name, value in row["measures"].items() if value is not None and name != "states"}
    return {name: value["value"] if name in ("auc", "epic") else value for name, value in known.items()}


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """A check of two prompts with two alphas."""
    out = tmp_path_factory.mktemp("checks") / "poles"
    return check(out, CARTPOLE, *POLES, "--prompt", OTHER, "--alpha", "0", "0.5")


def test_two_prompts_and_two_alphas_make_four_rows(four):
    """Report and measures say where they are from."""
    measures, report = four
    candidates = [row["candidate"] for row in measures["table"]]
    expected = {(prompt, alpha) for prompt in (TASK_PROMPT, OTHER) for alpha in (0, 0.5)}
    assert {(candidate["prompt"], candidate["alpha"]) for candidate in candidates} == expected
    for candidate in candidates:
        assert (candidate["model"], candidate["camera"]) == ("tiny", "own")
        assert candidate["textured"] is candidate["combine_views"] is None  # there is one of each
    assert measures["subject"] == CARTPOLE
    assert measures["seconds"] > 0
    for text in (TASK_PROMPT, OTHER, "data:image"):
        assert text in report
    provenance = measures["provenance"]
    assert list(provenance) == ["Date", "Version", "Weights", "Seed", "Hardware"]
    assert measures["command"].startswith(f"vlmrm-gym check {CARTPOLE} --prompt '{TASK_PROMPT}' --baseline")
    assert re.fullmatch(r"tiny, SHA-256 [0-9a-f]{12}", provenance["Weights"])
    assert vlmrm_gym.__version__ in provenance["Version"]


def test_a_row_has_intervals_and_says_whether_the_reward_ranks(four):
    """AUC and EPIC distance; where the interval of the AUC is not above the best control, it does not rank."""
    measures, report = four
    for row in measures["table"]:
        assert row["measures"]["states"] == "states around the goal"
        for name in ("auc", "epic"):
            interval = row["measures"][name]
            assert interval["low"] <= interval["value"] <= interval["high"]
        assert row["ranks"] == (row["measures"]["auc"]["low"] > row["measures"]["control_auc"])
    assert {row["candidate"]["prompt"] for row in measures["table"] if row["ranks"]} == {TASK_PROMPT}
    assert report.count(">does not rank<") == 2
    auc = {(row["candidate"]["prompt"], row["candidate"]["alpha"]): numbers(row)["auc"] for row in measures["table"]}
    assert auc[TASK_PROMPT, 0] > 0.95
    assert auc[OTHER, 0] < 0.8
    assert list(auc.values()) == sorted(auc.values(), reverse=True)
    rewards = [exploit["reward"] for exploit in measures["exploits"]]
    assert 1 <= len(rewards) <= 5
    assert rewards == sorted(rewards, reverse=True)
    for exploit in measures["exploits"]:
        assert max(exploit["failed"].values()) > 0.5  # by more than a near miss
        assert exploit["failed"].keys() <= {"pole upright", "cart on its track"}


def test_a_combination_has_the_same_measures_alone(four, tmp_path):
    """The seed decides, and the other combinations change nothing."""
    measures, _ = check(tmp_path / "one", CARTPOLE, *POLES)
    (alone,) = measures["table"]
    (among,) = (row for row in four[0]["table"] if row["candidate"] == alone["candidate"])
    assert numbers(alone) == pytest.approx(numbers(among), abs=1e-5)
    exploits, others = ([exploit["reward"] for exploit in one["exploits"]] for one in (measures, four[0]))
    assert exploits == pytest.approx(others, abs=1e-5)


OTHER_MODEL = ["check_subjects:OtherModel", "--model", "tiny", "--prompt", TASK_PROMPT]
PENDULUM = ["InvertedPendulum-v5", "--prompt", TASK_PROMPT, "--model", "tiny"]


def test_without_known_success_it_shows_the_states_with_the_highest_rewards(tmp_path):
    cameras = "[{lookat: [0, 0, 50], distance: 1}, {distance: 3, azimuth: 90}]"
    measures, _ = check(tmp_path / "out", *PENDULUM, "--camera", cameras)
    (row,) = measures["table"]
    assert numbers(row) == {}
    assert row["ranks"] is None
    assert measures["exploits"]
    assert all(exploit["failed"] == {} for exploit in measures["exploits"])
    assert row["candidate"]["combine_views"] == "min"


def test_a_success_function_that_all_rollouts_meet_is_no_error(tmp_path):
    measures, report = check(tmp_path / "out", *PENDULUM, "--success", "check_subjects:is_nearly_upright")
    (row,) = measures["table"]
    assert row["measures"]["auc"] is None
    assert row["measures"]["exploit_excess"] is None
    assert "states are successes: without failures there is nothing to compare them with" in report


def test_the_search_is_left_out_where_states_cannot_be_made(tmp_path):
    """Those of a scene that changes would be drawn in another episode's. Success is known of the states of rollouts."""
    for env, success, reason in (
        ("framed_cart_pole", [], "it needs states that can be made and drawn"),  # its steps say success
        ("recoloured", ["--success", "check_subjects:is_turned"], "the environment changes its scene"),
    ):
        flags = [f"check_subjects:{env}", "--model", "tiny", "--prompt", TASK_PROMPT, *success]
        measures, report = check(tmp_path / env, *flags)
        assert f"There was no search: {reason}" in report
        assert measures["exploits"] == []
        assert measures["subject"] == flags[0]
        (row,) = measures["table"]
        assert row["measures"]["auc"] is not None
        assert row["measures"]["exploit_excess"] is None


def test_labels_of_recorded_rollouts_count_more_than_the_success_function_of_a_task(tmp_path, capsys):
    data = tmp_path / "poles"
    main(["dataset", CARTPOLE, "--out", str(data), "--episodes", "4", "--steps", "40"])
    flags = [CARTPOLE, *POLES, "--rollouts", str(data)]
    assert f"must be of {STANDING}. Received one of {CARTPOLE}" in fails(capsys, STANDING, *flags[1:])
    header, *lines = (data / "labels.csv").read_text().splitlines()
    (turned := tmp_path / "turned.csv").write_text(
        "\n".join([header, *(f"{one[:-1]}{1 - int(one[-1])}" for one in lines)])
    )
    labelled = check(tmp_path / "labelled", *flags, "--labels", str(data / "labels.csv"))[0]
    opposite = check(tmp_path / "opposite", *flags, "--labels", str(turned))[0]
    auc = [numbers(one["table"][0])["auc"] for one in (labelled, opposite)]
    assert auc[0] == pytest.approx(1 - auc[1])
    for one in (labelled, opposite):  # nothing says which other states fail
        assert one["exploits"]
        assert not any(exploit["failed"] for exploit in one["exploits"])
        assert one["table"][0]["measures"]["exploit_excess"] is None


@pytest.mark.slow
def test_a_humanoid_with_two_looks_and_several_views(tmp_path):
    flags = ["--textured", "both", "--camera", "paper", "front-side", "--combine-views", "min", "mean"]
    with few_states(steps=8, evaluations=30):
        measures, _ = check(tmp_path / "out", STANDING, *flags)
    candidates = {
        tuple(row["candidate"][name] for name in ("textured", "camera", "combine_views")) for row in measures["table"]
    }
    views = [("paper", None), ("front-side", "min"), ("front-side", "mean")]  # one view is not combined
    assert candidates == {(textured, *view) for textured in (True, False) for view in views}
    assert len(measures["table"]) == 6
    for row in measures["table"]:
        assert numbers(row)["auc"] > 0.8
    for exploit in measures["exploits"]:
        assert max(exploit["failed"].values()) > 0.5


def fails(capsys, *arguments):
    """What a command that cannot be carried out prints, in one line."""
    printed = [line for line in refused(capsys, "check", *arguments).splitlines() if line and "states/s" not in line]
    assert "Traceback" not in "".join(printed)
    return printed[-1]


def test_what_cannot_be_used_is_refused_before_anything_is_scored(capsys, in_folder):
    for arguments, message in (
        ([], "`id` must be a registered ID, module:ID or package.module:function. Received None"),
        (["no_such_module:Env-v0"], "`id` must be a registered ID.*Importing it raised .*no_such_module"),
        (["check_subjects:no_such"], "Importing it raised AttributeError.*check_subjects' has no attribute 'no_such'"),
        ([CARTPOLE, "--env-kwargs", "{a: 1}"], "`env_kwargs` is for IDs of other packages"),
        (
            ["check_subjects:one_step", "--env-kwargs", "{a: 1}"],
            "cannot be used: one_step.* unexpected keyword arg.*'a'",
        ),
        (["check_subjects:no_env"], "`env` must be a gymnasium.Env. Received 'an environment'"),
        (["check_subjects:silent_env"], '`env` must be made with render_mode="rgb_array"'),
        (["VLMRM/Humanoid-v0"], "`prompt` must be given"),
        ([CARTPOLE, "--alpha", "0", "0.5", "0"], "Each `alpha` must be a different one. Received 0.0, 0.5, 0.0"),
        ([CARTPOLE, "--device", "gpu"], "`device` must be .* Received 'gpu'"),
        ([CARTPOLE, "--seed", "-1"], "`seed` must be an integer of at least 0. Received -1"),
        ([CARTPOLE, "--textured", "both"], "`textured` is for tasks with two render styles. Received 'both'"),
        ([CARTPOLE, "--combine-views", "mean"], "`combine_views` is for several views. Received 'mean'"),
        ([CARTPOLE, "--success", "check_subjects:is_upright"], "`success` is for MuJoCo environments"),
        ([CARTPOLE, "--labels", "labels.csv"], "`labels` needs --rollouts"),
        (
            [*PENDULUM, "--rollouts", "a", "--labels", "b", "--success", "check_subjects:is_upright"],
            "`labels` and `success` cannot both be passed",
        ),
        ([STANDING, "--camera", "sid"], "`camera`: this model has no camera 'sid'.*Named sets: 'paper', 'side'"),
        ([*PENDULUM, "--success", "is_upright"], '`success` must be "package.module:attribute"'),
        ([*PENDULUM, "--success", "check_subjects:of_all_states"], r"returned bool \(\) for states \(2, 2\)"),
        ([*PENDULUM, "--success", "check_subjects:raises"], "raised KeyError: 'no such state'"),
        ([*OTHER_MODEL, "--out", "out"], "changed to a model or an appearance"),
        ([STANDING, "--camera", "{lookat: [200, 0, 50], distance: 1}"], "^All frames are alike.*another --camera"),
    ):
        assert re.search(message, fails(capsys, *arguments))
        assert list(in_folder.iterdir()) == []  # nothing that a second try would have to overwrite


def test_no_folder_is_overwritten_unasked_and_what_cannot_be_written_to_is_refused(capsys, tmp_path):
    for name in ("report.html", "notes.txt"):
        (tmp_path / name).write_text("mine")
    assert "exists. Pass --overwrite" in fails(capsys, CARTPOLE, "--out", str(tmp_path))
    fails(capsys, CARTPOLE, "--rollouts", str(tmp_path), "--out", str(tmp_path), "--overwrite")
    for name in ("report.html", "notes.txt"):  # a check that fails leaves the report that was there
        assert (tmp_path / name).read_text() == "mine"
    file = tmp_path / "notes.txt"
    assert "`out` must be a folder" in fails(capsys, CARTPOLE, "--out", str(file))
    assert "cannot be written to: Not a directory" in fails(capsys, CARTPOLE, "--out", str(file / "folder"))
