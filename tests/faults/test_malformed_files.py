"""Files that are not what they should be: refused in a sentence that names the file, never with a traceback."""

import json
import shutil
from pathlib import Path

import pytest

from vlmrm_gym import CLIPReward
from vlmrm_gym.cli import main
from vlmrm_gym.tiny import FOLDER
from vlmrm_gym.training.run_folder import RunFolder

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

CONFIG = """\
env_name: CartPole-v1
rl:
  n_steps: 200
  n_envs_per_worker: 2
  episode_length: 25
  learning_starts: 60
  train_freq: 5
  gradient_steps: 1
  batch_size: 8
logging:
  checkpoint_freq: 50
  video_freq: 0
"""


def refused(capsys, *arguments):
    """What the command line says when it refuses: at the door, with status 2."""
    with pytest.raises(SystemExit) as raised:
        main(list(map(str, arguments)))
    output = capsys.readouterr().err
    assert raised.value.code == 2, output
    assert "Traceback" not in output
    assert len(output) < 5_000
    return output


# ---------------------------------------------------------------------------------------------------------------------
# Configurations
# ---------------------------------------------------------------------------------------------------------------------

CONFIGURATIONS = {
    "empty": (b"", "`env_name` is missing"),
    "nothing but a comment": (b"# to do\n", "`env_name` is missing"),
    "binary": (bytes(range(256)), "problem in"),
    "UTF-16 cut off": ("env_name: CartPole-v1".encode("utf-16")[:-1], "problem in"),
    "Latin-1": ("description: Übung".encode("latin-1"), "problem in"),
    "a null byte": (b"env_name: Cart\x00Pole-v1", "problem in"),
    "a tab": (b"rl:\n\tn_steps: 3", "this is not valid YAML"),
    "a bracket that is not closed": (b"tags: [a, b", "this is not valid YAML"),
    "a quote that is not closed": (b'env_name: "CartPole-v1', "this is not valid YAML"),
    "two documents": (b"env_name: CartPole-v1\n---\nseed: 3\n", "problem in"),
    "a merge conflict": (b"<<<<<<< HEAD\nseed: 3\n=======\nseed: 4\n>>>>>>> other\n", "this is not valid YAML"),
    "a web page": (b"<!DOCTYPE html>\n<html><body>404: not found</body></html>", "problem in"),
    "JSON with a comma too many": (b'{"env_name": "CartPole-v1",, "seed": 3}', "this is not valid YAML"),
    "a list": (b"- env_name: CartPole-v1\n", "a configuration is a mapping"),
    "a number": (b"42", "a configuration is a mapping"),
    "an unknown tag": (b"seed: !wish 3", "problem in"),
    "an object": (b"description: !!python/object/apply:os.getcwd []", "problem in"),
    "a key that is a list": (b"? [a, b]\n: 3\n", "problem in"),
    "a section that is text": (b"env_name: CartPole-v1\nrl: fast\n", "`rl`"),
    "a key twice": (b"env_name: CartPole-v1\nseed: 1\nseed: 2\n", "`seed` is given twice"),
}


@pytest.mark.parametrize(("content", "words"), CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_a_malformed_configuration_is_refused(content, words, tmp_path, capsys):
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    output = refused(capsys, "train", path, "--base-path", tmp_path / "runs")
    assert str(path) in output.splitlines()[0]
    assert words in output
    assert not (tmp_path / "runs").exists()


def test_a_folder_is_no_configuration(tmp_path, capsys):
    assert "cannot be read" in refused(capsys, "train", tmp_path)


# ---------------------------------------------------------------------------------------------------------------------
# Folders of runs
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a short run."""
    path = tmp_path_factory.mktemp("runs")
    (path / "config.yaml").write_text(CONFIG)
    main(["train", str(path / "config.yaml"), "--base-path", str(path), "--run-name", "run"])
    return path / "run"


@pytest.fixture
def run(trained, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def empty(file):
    file.write_bytes(b"")


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def one_bit(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def something_else(file):
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")


def remove(file):
    file.unlink()


def a_folder(file):
    file.unlink()
    file.mkdir()


def written(content):
    return lambda file: file.write_bytes(content)


NEWEST = "checkpoints/0000000200"
RUNS = {
    # What is damaged, how, and what refuses it: going on with the run, or playing its last or its best policy.
    "policy empty": (f"{NEWEST}/model.zip", empty, "resume last"),
    "policy cut off": (f"{NEWEST}/model.zip", cut, "resume last"),
    "policy with another bit": (f"{NEWEST}/model.zip", one_bit, "resume"),
    "policy that was not fetched": (f"{NEWEST}/model.zip", something_else, "resume last"),
    "policy removed": (f"{NEWEST}/model.zip", remove, "resume last"),
    "policy that is a folder": (f"{NEWEST}/model.zip", a_folder, "resume last"),
    "state empty": (f"{NEWEST}/state.*", empty, "resume"),
    "state cut off": (f"{NEWEST}/state.*", cut, "resume"),
    "state with another bit": (f"{NEWEST}/state.*", one_bit, "resume"),
    "state removed": (f"{NEWEST}/state.*", remove, "resume"),
    "replay buffer cut off": (f"{NEWEST}/replay_buffer.*", cut, "resume"),
    "replay buffer removed": (f"{NEWEST}/replay_buffer.*", remove, "resume"),
    "metrics of a checkpoint with another bit": (f"{NEWEST}/metrics.csv", one_bit, "resume"),
    "manifest empty": (f"{NEWEST}/manifest.json", empty, "resume"),
    "manifest that is no JSON": (f"{NEWEST}/manifest.json", cut, "resume"),
    "manifest that is a list": (f"{NEWEST}/manifest.json", written(b"[1, 2]"), "resume"),
    "manifest without digests": (f"{NEWEST}/manifest.json", written(b'{"model.zip": 3}'), "resume"),
    "best policy empty": ("best.zip", empty, "best"),
    "best policy cut off": ("best.zip", cut, "best"),
    "configuration empty": ("config.yaml", empty, "resume best"),
    "configuration cut off": ("config.yaml", written(b"env_name: ["), "resume best"),
    "configuration removed": ("config.yaml", remove, "resume best"),
    "configuration that is a folder": ("config.yaml", a_folder, "resume best"),
}


@pytest.mark.parametrize(("pattern", "damage", "commands"), RUNS.values(), ids=RUNS)
def test_a_damaged_run_is_refused(pattern, damage, commands, run, capsys):
    (file,) = run.glob(pattern)
    damage(file)
    for command in commands.split():
        arguments = ["train", "--resume", run] if command == "resume" else ["evaluate", run, "--policy", command]
        output = refused(capsys, *arguments)
        assert any(str(named) in output for named in (file, file.parent))


HARMLESS = {
    "metrics with a broken line": ("metrics.csv", lambda file: file.write_bytes(file.read_bytes() + b"7,8,\xff")),
    "metrics removed": ("metrics.csv", remove),
    "best.json removed": ("best.json", remove),
    "the learning curve removed": ("learning_curve.png", remove),
    "an older checkpoint's policy damaged": ("checkpoints/0000000050/model.zip", cut),
}


@pytest.mark.parametrize(("name", "damage"), HARMLESS.values(), ids=HARMLESS)
def test_a_run_goes_on_without_what_it_does_not_need(name, damage, run, capsys):
    """Metrics, best policy and curve are restored from the checkpoint."""
    expected = [{**row, "seconds": 0} for row in RunFolder(run).metrics()]
    damage(run / name)
    main(["train", "--resume", str(run), "--rl.n-steps", "250"])
    assert "Done" in capsys.readouterr().out
    assert max(RunFolder(run).checkpoints) == 250
    assert [{**row, "seconds": 0} for row in RunFolder(run).metrics()][: len(expected)] == expected


# ---------------------------------------------------------------------------------------------------------------------
# Models
# ---------------------------------------------------------------------------------------------------------------------

WEIGHTS, SETTINGS = "open_clip_model.safetensors", "open_clip_config.json"


def changed(**values):
    """Other settings in the model's part of the configuration."""

    def change(file):
        settings = json.loads(file.read_text())
        settings["model_cfg"].update(values)
        file.write_text(json.dumps(settings))

    return change


MODELS = {
    "weights empty": (WEIGHTS, empty),
    "weights cut off": (WEIGHTS, cut),
    "weights that were not fetched": (WEIGHTS, something_else),
    "weights removed": (WEIGHTS, remove),
    "weights with an endless header": (WEIGHTS, written(b"\xff" * 8 + b"{}")),
    "settings empty": (SETTINGS, empty),
    "settings cut off": (SETTINGS, cut),
    "settings that are a list": (SETTINGS, written(b"[]")),
    "settings without a model": (SETTINGS, written(b"{}")),
    "settings of another size": (SETTINGS, changed(embed_dim=7)),
    "settings with an unknown key": (SETTINGS, changed(wisdom=3)),
    "settings removed": (SETTINGS, remove),
}


@pytest.mark.parametrize(("name", "damage"), MODELS.values(), ids=MODELS)
def test_a_damaged_model_folder_is_refused(name, damage, tmp_path):
    for wanted in (WEIGHTS, SETTINGS):
        shutil.copy(FOLDER / wanted, tmp_path)
    damage(tmp_path / name)
    with pytest.raises((ValueError, FileNotFoundError)) as raised:
        CLIPReward(f"local-dir:{tmp_path}", prompt="an upright pole")
    assert str(raised.value).startswith("`model`: ")
    assert str(tmp_path) in str(raised.value)
    assert "Received" in str(raised.value)
