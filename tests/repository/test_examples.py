"""The examples import what is public, and the short ones run as they are."""

import ast
import re
import sys
import types
from pathlib import Path

import dqn_cartpole
import furl
import own_env
import preference_sac
import pytest
import sac_continuous
import sb3_sac
from conftest import LIBRARIES_WARN

from vlmrm_gym.tasks import CART_POLE_TRAINING, HUMANOID_TRAINING, MOUNTAIN_CAR_TRAINING

ROOT = Path(__file__).parents[2]

pytestmark = LIBRARIES_WARN


def test_examples_import_of_this_package_only_what_the_reference_documents():
    reference = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    documented = set(re.findall(r"^\.\. auto\w+:: ([\w.]+)", reference, re.M))
    documented |= {name.rpartition(".")[0] for name in documented}
    examples = sorted((ROOT / "examples").glob("*.py"))
    for example in examples:
        nodes = [node for node in ast.walk(ast.parse(example.read_text())) if isinstance(node, ast.ImportFrom)]
        modules = {node.module for node in nodes}
        assert {module for module in modules if module.startswith("vlmrm_gym")} <= documented, example
        assert not modules & {path.stem for path in examples}


@pytest.mark.parametrize(
    "example", [dqn_cartpole, preference_sac, sac_continuous], ids=lambda example: example.__name__
)
def test_weights_and_biases_is_started_before_the_events_that_it_mirrors(example, tmp_path, monkeypatch):
    started = []

    def init(**options):
        started.append((options, list(tmp_path.iterdir())))
        raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    with pytest.raises(KeyboardInterrupt):
        example.main(example.Args(runs_folder=tmp_path, track=True))
    ((options, files),) = started
    assert (options["sync_tensorboard"], options["config"]["seed"], files) == (True, 1, [])


@pytest.mark.parametrize(
    ("args", "training", "shared"),
    [
        (dqn_cartpole.Args(), CART_POLE_TRAINING, "gamma exploration_fraction"),
        (furl.Args(), MOUNTAIN_CAR_TRAINING, "gamma learning_starts"),
        (preference_sac.Args(), MOUNTAIN_CAR_TRAINING, "learning_starts"),
        (sac_continuous.default_args("VLMRM/MountainCarContinuous-v0"), MOUNTAIN_CAR_TRAINING, "gamma"),
        (sac_continuous.default_args("VLMRM/Humanoid-kneel-v0"), HUMANOID_TRAINING, "gamma"),
    ],
    ids=lambda value: type(value).__module__ if hasattr(value, "num_envs") else "",
)
def test_settings_of_single_files_are_those_of_the_training_command(args, training, shared):
    """They are the settings that `benchmarks/RESULTS.md` names; those that are not `shared` have their own reasons."""
    for name in ("batch_size", "learning_rate", *shared.split()):
        assert getattr(args, name) == training[name]
    assert args.num_envs == training["n_envs_per_worker"]
    assert args.updates_per_step == training["gradient_steps"] / training["n_envs_per_worker"]
    if args.__class__ is dqn_cartpole.Args:
        assert args.end_e == training["exploration_final_eps"]
        return
    assert args.total_timesteps == training["n_steps"]
    assert [args.hidden] * 2 == training["policy_kwargs"]["net_arch"]
    if args.__class__ is not furl.Args:
        assert args.exploration_hold == training.get("action_noise", {}).get("hold", 1)
    if args.__class__ is sac_continuous.Args:
        assert args.learning_starts == 4_800


@pytest.mark.filterwarnings("ignore:rich is experimental")
def test_what_a_stable_baselines3_user_writes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sb3_sac.main(sb3_sac.Args(env_id="VLMRM/MountainCarContinuous-v0", num_envs=1, total_timesteps=420))
    assert (tmp_path / "runs" / "SAC_1" / "model.zip").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The bundled model does not know this scene")
def test_an_environment_of_ones_own_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own_env.main(own_env.Args(total_timesteps=250))
    assert (tmp_path / "own_env.zip").exists()
