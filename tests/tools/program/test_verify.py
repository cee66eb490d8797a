"""Programs are verified on real frames of cart-pole: each rule rejects what breaks it, and says which frames decide."""

from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vlmrm_gym
from vlmrm_gym._util.errors import InputError
from vlmrm_gym.data.trajectory import Trajectory
from vlmrm_gym.states import StateView
from vlmrm_gym.states.states import States
from vlmrm_gym.tools.cli import main
from vlmrm_gym.tools.environments import make_unscored_env
from vlmrm_gym.tools.program.episodes import Examples, gather
from vlmrm_gym.tools.program.verify import ALIKE, DETERMINISTIC, Limits, verify
from vlmrm_gym.tools.train.evaluation import run_actions

Program = partial(vlmrm_gym.Program, isolate=False)
"""In this process: isolation changes no answer, and two processes for each verification take time."""
CARTPOLE = "VLMRM/CartPole-v1"
LENGTH = 16

HELPERS = """
import numpy as np

def brown(frame):
    # Rows and columns of the pole, which is (202, 152, 101), in a quarter of the resolution.
    return np.nonzero(abs(frame[::4, ::4].astype(np.int32) - [202, 152, 101]).max(-1) < 30)

def up(frame):
    rows, columns = brown(frame)
    return len(rows) > 5 and bool(np.ptp(rows) > 2 * np.ptp(columns) and rows.mean() < 72)

def column(frame):
    rows, columns = brown(frame)
    return columns.mean() / 150 if len(columns) else 0.5
"""
UP = HELPERS + "def reward(frame):\n    return up(frame)\n"
PLACES = (
    HELPERS
    + """
class Left:
    def reset(self): pass
    def __call__(self, frame): return column(frame) < 0.4

class Right:
    def reset(self): pass
    def __call__(self, frame): return column(frame) > 0.6
"""
)
"""First the cart is at the left, then at the right."""


def states(positions, angles=0.0):
    return States(np.stack(np.broadcast_arrays(np.asarray(positions, float), np.asarray(angles, float)), axis=1))


LINE = np.linspace(0, 1, LENGTH)


@pytest.fixture(scope="module")
def draw():
    with closing(make_unscored_env(CARTPOLE, None)) as env, closing(StateView(env)) as view:
        yield lambda rows: view.draw(rows.rows, rows.changes)


@pytest.fixture(scope="module")
def examples(draw):
    """A function that makes episodes of their sources, positions of the cart and angles of the pole."""

    def make(*episodes, needed=0.0):
        made = [Trajectory(source=source, states=states(*rows), **known) for source, *rows, known in episodes]
        return Examples(episodes=made, experts=[one.source == "expert" for one in made], draw=draw, needed=needed)

    return make


@pytest.fixture(scope="module")
def swings(examples):
    """Experts raise the pole from the side; random and constant behaviour does not. Success is not known."""
    down = np.linspace(1.5, 3, LENGTH)
    return examples(
        *(("random", 0.1 * i * LINE, down, {}) for i in range(2)),
        ("constant", 2 * LINE, 1.6, {}),
        *(("expert", 0.2 * i * LINE, np.linspace(1.5, 0, LENGTH), {}) for i in range(2)),
    )


@pytest.fixture(scope="module")
def drives(examples):
    """Experts drive the cart to the left, and then to the right, where they end between; random behaviour stays."""
    there = np.interp(LINE, [0, 0.4, 0.8, 1], [0, -1.5, 1.5, 0])
    return examples(("random", 0.2 * LINE, {}), ("constant", -0.2 * LINE, {}), ("expert", there, {}))


def rows(found):
    return {row.behaviour: row for row in found.rows}


def broken(found):
    return {failure.behaviour for failure in found.failures}


def test_a_function_that_sees_the_goal_is_accepted(swings):
    found = verify(Program(source=UP), swings)
    assert found.accepted
    assert found.failures == []
    expected = {"random": 0, "constant": 0, "expert: expert": 1, "experts, frames moved by a pixel": 1, "frozen": 0}
    expected |= {"reversed": None, "shuffled": None, "black": 0}
    assert {name: row.completed for name, row in rows(found).items()} == expected
    assert "a function gets the same frames" in rows(found)["reversed"].note
    assert found.accuracy is None


def test_sub_tasks_in_order_are_accepted_and_reversed_episodes_count(drives):
    found = verify(Program(source=PLACES), drives)
    assert found.accepted
    assert found.subtasks == ("Left", "Right")
    assert rows(found)["expert: expert"].subtasks == (1, 1)
    assert rows(found)["reversed"].completed == 0
    assert rows(found)["reversed"].subtasks == (1, 0)  # the way back is right, then left
    assert "an order, which a shuffle may have by chance" in rows(found)["shuffled"].note


ALWAYS = "def reward(frame):\n    return True"
INVERTED = UP.replace("return up(frame)", "return not up(frame) and len(brown(frame)[0]) > 5")
BOTH = (
    HELPERS
    + """
class Both:
    def reset(self): self.seen = set()
    def __call__(self, frame):
        x = column(frame)
        self.seen |= {"left"} if x < 0.4 else {"right"} if x > 0.6 else set()
        return len(self.seen) == 2
"""
)
"""Left and right, in any order."""
WAITS = "class Waits:\n    def reset(self): self.n = 0\n    def __call__(self, frame):\n        self.n += 1\n"
WAITS += "        return self.n > 9"


BROKEN = {
    "always": (ALWAYS, {"random", "constant", "frozen", "black"}),
    "inverted": (INVERTED, {"random", "constant", "frozen"}),
    "waits": (WAITS, {"random", "constant", "frozen", "black"}),
    "never": ("def reward(frame):\n    return False", {"expert: expert", "experts, frames moved by a pixel"}),
    "nothing": (UP.replace("len(rows) > 5 and", "not len(rows) or"), {"black"}),
    "white": (UP.replace("return up(frame)", "return frame[:, 0].mean() > 254"), {"random", "constant", "frozen"}),
}


def test_a_function_or_a_counter_that_others_complete_is_not_accepted(swings, subtests):
    for name, (source, behaviours) in BROKEN.items():
        with subtests.test(name):
            found = verify(Program(source=source), swings)
            assert found.verified
            assert not found.accepted
            assert behaviours <= broken(found)
            assert all(failure.rule.startswith("The program must ") for failure in found.failures)
            assert {row.behaviour for row in found.rows if not row.kept} <= broken(found)


def test_an_order_counts_where_it_matters_to_the_program(swings, drives):
    assert broken(verify(Program(source=BOTH), drives)) == {"reversed", "shuffled"}
    machine = BOTH.replace('{"right"} if x > 0.6', '{"right"} if x > 0.6 and self.seen')
    found = verify(Program(source=machine), drives)
    assert found.accepted
    assert rows(found)["reversed"].completed == 0
    held = WAITS.replace("self.n += 1", "self.n += up(frame)").replace("self.n > 9", "self.n >= 3")
    found = verify(Program(source=HELPERS + held), swings)
    assert found.accepted
    assert rows(found)["reversed"].note == "2 left out: their last frame alone completes the program"
    assert rows(found)["shuffled"].episodes == 0


def test_a_failure_has_the_frames_that_decide(drives, draw):
    found = verify(Program(source=PLACES.replace("> 0.6", "> 0.99")), drives)
    failure = next(one for one in found.failures if one.behaviour == "expert: expert")
    assert failure.episode == 2
    assert "at least 100%" in failure.rule
    assert {0, LENGTH - 1} <= set(failure.steps.tolist())
    left = int(np.argmax(failure.values >= 0.5))
    expert = drives.episodes[2].states
    assert expert.rows[failure.steps[left], 0] < -0.4
    np.testing.assert_array_equal(failure.frames, draw(expert)[failure.steps])


def test_memorised_frames_are_found(swings, draw):
    ends = [draw(expert.states[-1:])[0].astype(np.int64).ravel() for expert in swings.episodes[3:]]
    keys = {int(end @ np.arange(end.size)) for end in ends}
    source = "import numpy as np\ndef reward(frame):\n    return int(frame.astype(np.int64).ravel() @ "
    source += f"np.arange(frame.size)) in {keys}"
    assert broken(verify(Program(source=source), swings)) == {"experts, frames moved by a pixel"}


CHANGING = {
    "time": "import time\ndef reward(frame):\n    return int(time.perf_counter() * 1e5) % 2",
    "calls": "calls = 0\ndef reward(frame):\n    global calls\n    calls += 1\n    return calls > 30",
    "a global": HELPERS + "best = 0\nclass Raises:\n    def reset(self): pass\n    def __call__(self, frame):\n"
    "        global best\n        best = max(best, up(frame))\n        return best",
    "a counter": "calls = 0\n" + WAITS.replace("self.n > 9", "count() > 20") + "\ndef count():\n    global calls\n"
    "    calls += 1\n    return calls",
}


def test_what_depends_on_the_time_or_on_calls_is_found(swings, subtests):
    for name, source in CHANGING.items():
        with subtests.test(name):
            said = [one.rule for one in verify(Program(source=source), swings).failures]
            assert any(rule == DETERMINISTIC or "must return the same for the same" in rule for rule in said)


def test_a_program_that_sees_the_background_only_is_found_and_an_error_names_the_frame(swings, tmp_path):
    found = verify(Program(source="def reward(frame):\n    return frame[:20].mean() / 500"), swings)
    assert ALIKE in {failure.rule for failure in found.failures}
    found = verify(Program(source=HELPERS + "def reward(frame):\n    return 1 / len(brown(frame)[0])"), swings)
    failure = next(one for one in found.failures if one.behaviour == "black")
    assert "ZeroDivisionError" in failure.rule
    assert failure.steps.tolist() == [0]
    assert np.isnan(failure.values).all()
    found.write(tmp_path)
    assert "<figcaption>step 0: failed</figcaption>" in (tmp_path / "report.html").read_text()


def test_limits_are_what_the_caller_says(swings):
    half = HELPERS + "def reward(frame):\n    return 0.5 * up(frame)"
    for source, limits in ((WAITS, {"random": 1, "negatives": 1}), (half, {"threshold": 0.5})):
        assert not verify(Program(source=source), swings).accepted
        assert verify(Program(source=source), swings, Limits(**limits)).accepted
    with pytest.raises(ValueError, match=r"`random` must be a number from 0 to 1\. Received 1\.1\."):
        Limits(random=1.1)


def test_accuracy_is_counted_against_success_and_untrained_successes_do_not_count(examples):
    fallen = np.where(LINE < 0.5, 0.0, 3.0)
    angles = (("expert", 0 * LINE), ("random", 0 * LINE), ("random", fallen))
    episodes = [(source, 0.0, own, {"success": (own == 0).astype(float)}) for source, own in angles]
    found = verify(Program(source=UP), examples(*episodes, needed=1.0))
    assert found.accepted
    assert rows(found)["random"].episodes == 1
    assert rows(found)["random"].note == "1 left out: they succeed"
    assert rows(found)["frozen"].note == "1 left out: their first frame is a success"
    accuracy = found.accuracy
    assert accuracy is not None
    counts = (accuracy.true_positives, accuracy.false_positives, accuracy.false_negatives, accuracy.true_negatives)
    assert counts == (2 * LENGTH + (fallen == 0).sum(), 0, 0, (fallen != 0).sum())
    assert (accuracy.accuracy, accuracy.auc) == (1, 1)


def test_a_program_of_states(swings):
    angle = Program(source="def reward(state):\n    return bool(abs(state[1]) < 0.2)", inputs="states")
    found = verify(angle, swings)
    assert found.accepted
    assert "black" not in rows(found)
    stored = Trajectory(source="random", states=States(swings.draw(swings.episodes[0].states)))
    with pytest.raises(InputError, match="`inputs` must be 'frames' for an environment whose frames are stored"):
        verify(angle, replace(swings, episodes=[stored]))


def test_frames_have_the_size_of_the_program():
    small = Program(source="def reward(frame):\n    return frame.shape == (20, 30, 3)", size=(20, 30))
    with gather(CARTPOLE, episodes=1, steps=2, size=(20, 30)) as found:
        assert {row.subtasks for row in verify(small, found).rows if row.episodes} == {(1,)}
        with pytest.raises(InputError, match=r"`size` must be that of the episodes, \(20, 30\)"):
            verify(Program(source=small.source), found)


def test_the_way_to_the_goal_takes_the_place_of_experts():
    with gather("VLMRM/Humanoid-kneel-v0", episodes=1, steps=8) as found:
        assert [one.source for one in found.episodes] == ["random", "constant", "the way to the goal"]
        assert found.experts == [False, False, True]
        assert found.succeeded(2)
        expert = found.episodes[2].states
        np.testing.assert_array_equal(expert.rows[4:], expert.rows[-1:].repeat(4, axis=0))
        assert len(found.draw(expert)) == 8


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=130), st.sampled_from([0.0, 0.3, 1.0]))
def test_the_states_that_a_function_sees_are_a_success_if_the_episode_is_one(success, needed):
    whole = Trajectory(states=states(np.arange(len(success))), success=np.array(success, dtype=float))
    found = Examples(episodes=[whole], experts=[False], draw=lambda rows: rows.rows, needed=needed)
    steps = found.thin(0, 50)
    assert len(steps) <= 50
    assert len(set(np.diff(steps))) <= 1
    thinned = np.array(success)[steps]
    assert (thinned.any() and thinned.mean() >= needed) == found.succeeded(0)
    unknown = replace(found, episodes=[Trajectory(states=whole.states)])
    assert unknown.succeeded(0) is None
    assert unknown.thin(0, 50)[-1] == len(success) - 1


def test_an_expert_may_succeed_at_one_step_only(examples):
    positions = np.where(np.arange(110) == 109, 1.0, 0.0)
    at_one = Program(source="def reward(state):\n    return bool(state[0] == 1)", inputs="states")
    found = verify(at_one, examples(("expert", positions, {"success": positions})))
    assert found.accepted
    assert found.accuracy is not None
    assert found.accuracy.true_positives == 1


def test_only_successes_are_experts(cart_pole_run, tmp_path):
    main(["dataset", CARTPOLE, "--out", str(tmp_path / "poles"), "--episodes", "1", "--steps", "80"])
    policies = {"barely": partial(run_actions, cart_pole_run)}
    with gather(CARTPOLE, policies=policies, rollouts=[tmp_path / "poles"], episodes=1, steps=80) as found:
        assert [one.source for one in found.episodes] == ["random", "constant", "barely", "poles"]
        assert found.experts[2:] == [found.succeeded(2), False]
        assert found.succeeded(3) is False  # random actions
