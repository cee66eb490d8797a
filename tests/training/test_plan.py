"""The plan that `vlmrm-gym train` prints before it begins."""

import pytest

from vlmrm_gym.cli import main
from vlmrm_gym.cli.train import configure, id_as_flag
from vlmrm_gym.training.plan import plan_training


def plan(*flags):
    return plan_training(configure(None, ["--env-name", "VLMRM/CartPole-v1", *flags]))


def test_a_dry_run_prints_the_plan_and_makes_no_folder(tmp_path, capsys):
    main(["train", "VLMRM/CartPole-v1", "--dry-run", "--base-path", str(tmp_path / "runs"), "--seed", "7"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split(":", 1)[1].strip() == "4 x VLMRM/CartPole-v1, episodes of 200 steps"
    assert lines[1].endswith("seed 7")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "updates"),
    [
        # 1,600 steps, of which 800 come after learning starts, in fours: 200 updates.
        (["--rl.gradient-steps", "-1"], "about 800 gradient steps: 1 for each step after the first 800"),
        (["--rl.gradient-steps", "2"], "about 400 gradient steps: 0.5 for each step after the first 800"),
        (["--rl.algorithm", "PPO", "--rl.train-freq", "100", "--rl.gradient-steps", "3"], "3 epochs over each of 4"),
    ],
)
def test_gradient_steps_are_counted(flags, updates):
    if "PPO" not in flags:
        flags = [*flags, "--rl.train-freq", "1", "--rl.learning-starts", "800"]
    assert plan("--rl.n-steps", "1600", *flags)["updates"].startswith(updates)


def test_the_replay_buffer_is_measured():
    """A cart-pole's transition: two observations of 4 float32, an action of 8 bytes, reward, end and time limit."""
    assert plan("--rl.buffer-size", "1000000")["memory"].startswith(f"{1e6 * (2 * 16 + 8 + 12) / 1e9:.2f} GB")


@pytest.mark.parametrize(
    ("arguments", "spelled"),
    [
        (["VLMRM/CartPole-v1", "--seed", "3"], ["--env-name", "VLMRM/CartPole-v1", "--seed", "3"]),
        (["missing.yaml"], ["missing.yaml"]),
        (["--seed", "3"], ["--seed", "3"]),
        ([], []),
    ],
)
def test_an_id_may_come_first_in_place_of_a_file(arguments, spelled):
    assert id_as_flag(arguments) == spelled
