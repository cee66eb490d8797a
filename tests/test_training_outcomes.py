"""The table of trainings: what it must hold, and the weights that its trainings were made with."""

import hashlib
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import training_outcomes
from benchmarks.training_outcomes import FILES, TINY, load_outcomes, weights_folder
from vlmrm_gym import CLIPReward
from vlmrm_gym.envs.humanoid_body import XML, plain_model
from vlmrm_gym.envs.humanoid_poses import TASK_POSES, pose
from vlmrm_gym.envs.humanoid_textures import textured_model
from vlmrm_gym.rendering.mujoco import MuJoCoRenderer
from vlmrm_gym.rendering.views import make_cameras
from vlmrm_gym.tasks import HUMANOID_PROMPTS, PAPER_CAMERA

ROOT = Path(__file__).parent.parent
OUTCOMES = load_outcomes()


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


@pytest.fixture(scope="module")
def history() -> None:
    """Skips where the repository's history is not at hand."""
    try:
        top = git("rev-parse", "--show-toplevel")
    except FileNotFoundError:
        pytest.skip("git is not installed")
    if not top or Path(top).resolve() != ROOT.resolve():
        pytest.skip("not a git repository")
    if git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("a shallow clone")


def test_every_humanoid_training_of_the_results_is_in_the_table():
    """Task, side, steps, success and commit agree with the table in RESULTS.md."""
    line = re.compile(r"^\| ([a-z-]+), (front|side|three quarters).*? \| ([\d,]+).*? \| (\d+)% \|.* (\w{7}) \|$", re.M)
    rows = line.findall((ROOT / "benchmarks" / "RESULTS.md").read_text())
    assert len(rows) == 9
    cameras = {"front": "paper", "side": "side", "three quarters": {**PAPER_CAMERA, "azimuth": 135}}
    for task, side, steps, percent, commit in rows:
        same = [
            outcome
            for outcome in OUTCOMES
            if f"commit {commit};" in outcome.source
            and outcome.task_id == f"VLMRM/Humanoid-{task}-v0"
            and outcome.camera == cameras[side]
        ]
        assert [(one.steps, one.success) for one in same] == [(int(steps.replace(",", "")), int(percent) / 100)]


def test_rewards_that_succeed_and_that_fail_are_in_the_table():
    """Thresholds of a verdict cannot be chosen with one kind alone."""
    assert {outcome.task_id for outcome in OUTCOMES if outcome.success == 0} >= {
        "VLMRM/Humanoid-arms-raised-v0",
        "VLMRM/Humanoid-hands-on-hips-v0",
        "VLMRM/Humanoid-splits-v0",
    }
    assert sum(outcome.success >= 0.86 for outcome in OUTCOMES) > 10


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: outcome.id)
def test_cameras_are_valid_for_the_humanoid(outcome):
    """Only humanoids have cameras; several of them, if the table says how their rewards are combined."""
    assert (outcome.camera is not None) == ("Humanoid" in outcome.task_id)
    if outcome.camera is not None:
        cameras = make_cameras(plain_model(), outcome.camera, PAPER_CAMERA)
        assert (len(cameras) > 1) == (outcome.combine_views is not None)


def test_side_is_where_the_trainings_looked_from():
    """They named it azimuth 90."""
    (camera,) = make_cameras(plain_model(), "side", PAPER_CAMERA)
    assert camera.azimuth == 90


@pytest.mark.parametrize("commit", sorted({outcome.weights_commit for outcome in OUTCOMES}))
def test_weights_are_those_of_the_commit(commit, history, tmp_path, monkeypatch):
    """To the byte; written once, and nothing else is left behind."""
    monkeypatch.setattr(training_outcomes, "WEIGHTS", tmp_path / "weights")
    folder = weights_folder(commit)
    for name in FILES:
        data = (folder / name).read_bytes()
        assert hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest() == git("rev-parse", f"{commit}:{TINY}/{name}")
    written = (folder / FILES[0]).stat().st_mtime_ns
    assert weights_folder(commit) == folder
    assert (folder / FILES[0]).stat().st_mtime_ns == written
    assert [path.name for path in folder.parent.iterdir()] == [commit]


@pytest.mark.parametrize("azimuth", [180, 135, 90])
def test_weights_give_the_rewards_of_the_results(azimuth, history):
    """The rewards of the library's poses, as RESULTS.md has had them since the trainings of these weights."""
    reported = {
        "arms-raised": {180: 0.837, 135: 0.838, 90: 0.832},
        "hands-on-hips": {180: 0.808, 135: 0.795, 90: 0.742},
        "splits": {180: 0.777, 135: 0.838, 90: 0.840},
    }
    model = f"local-dir:{weights_folder('c2affa6')}"
    rewards = {task: CLIPReward(model, prompt=str(HUMANOID_PROMPTS[task]), device="cpu") for task in reported}
    height, width = rewards["splits"].render_size(480, 480)
    camera = {**PAPER_CAMERA, "azimuth": azimuth}
    renderer = MuJoCoRenderer(textured_model(str(XML)), height, width, camera=camera, quality="fast")
    frames = renderer.render(np.stack([pose(*TASK_POSES[task]) for task in reported]))
    renderer.close()
    for frame, (task, reward) in zip(frames, rewards.items(), strict=True):
        np.testing.assert_allclose(reward(frame[None]), [reported[task][azimuth]], atol=0.0015)


@pytest.mark.parametrize("commit", ["HEAD", "c2aff", "C2AFFA6", "c2affa6; ls", ""])
def test_a_name_that_is_no_hash_is_refused(commit):
    with pytest.raises(ValueError, match="`commit` must be 7 to 40 lower-case hexadecimal digits"):
        weights_folder(commit)


def test_a_commit_without_weights_says_what_to_do(tmp_path, monkeypatch):
    """And leaves nothing behind."""
    monkeypatch.setattr(training_outcomes, "WEIGHTS", tmp_path)
    with pytest.raises(RuntimeError, match=r"Git has no .*of commit 0000000 here: .*\n?.*git fetch --unshallow"):
        weights_folder("0000000")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"success": 1.01}, "`success` must be from 0 to 1. Received 1.01"),
        ({"success": float("nan")}, "`success` must be from 0 to 1. Received nan"),
        ({"alpha": -0.1}, "`alpha` must be from 0 to 1"),
        ({"task_id": "VLMRM/Humanoid-kneeling-v0"}, "`task_id` must be one of"),
        ({"look": "photo"}, "`look` must be one of"),
        ({"combine_views": "max"}, "`combine_views` must be one of"),
        ({"steps": -1}, "`steps` must be an integer of at least 1"),
        ({"seeds": 0}, "`seeds` must be an integer of at least 1"),
        ({"source": ""}, "`source` must not be empty"),
        ({"weights_commit": "c2affa"}, "`weights_commit` must be 7 lower-case hexadecimal digits"),
    ],
)
def test_wrong_values_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(OUTCOMES[0], **change)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",steps,", ",step,", "the columns must be id, task_id"),
        (",40000,", ",many,", "line 2: `steps` must be an integer. Received 'many'"),
        (",1.0,", ",100%,", "line 2: `success` must be a number. Received '100%'"),
        ('"{}"', '"{"', "line 2: `camera` must be empty, a name, or a JSON object"),
        (",here", ",here,there", "line 2: the row must have as many values"),
        (",here", "", "line 2: the row must have as many values"),
    ],
)
def test_problems_of_the_table_are_named_with_their_line(old, new, message, tmp_path):
    header = (ROOT / "benchmarks" / "training_outcomes.csv").read_text().splitlines()[0]
    text = f'{header}\na,VLMRM/CartPole-v1,a pole,a cart,0,,"{{}}",,DQN,40000,1,1.0,c2affa6,here\n'
    assert old in text
    path = tmp_path / "outcomes.csv"
    path.write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=re.escape(message)):
        load_outcomes(path)


def test_ids_that_repeat_are_refused(tmp_path):
    lines = (ROOT / "benchmarks" / "training_outcomes.csv").read_text().splitlines()
    path = tmp_path / "outcomes.csv"
    path.write_text("\n".join([*lines, lines[1]]))
    with pytest.raises(ValueError, match=f"IDs must be unique. More than once: {OUTCOMES[0].id}"):
        load_outcomes(path)
