"""The examples import what is public, and the short ones run as they are."""

import ast
import re
import runpy
import sys
import types
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import dqn_cartpole
import preference_sac
import sac_continuous
import sb3_sac

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


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


@pytest.mark.filterwarnings("ignore:rich is experimental")
def test_what_a_stable_baselines3_user_writes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sb3_sac.main(sb3_sac.Args(env_id="VLMRM/MountainCarContinuous-v0", num_envs=1, total_timesteps=420))
    assert (tmp_path / "runs" / "SAC_1" / "model.zip").exists()


@pytest.mark.filterwarnings("ignore:The bundled model does not know this scene")
def test_an_environment_of_ones_own(capsys):
    runpy.run_module("own_env", run_name="__main__")
    assert capsys.readouterr().out.strip()
