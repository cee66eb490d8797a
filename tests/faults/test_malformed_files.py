"""Files that are not what they should be: refused in a sentence that names the file, never with a traceback."""

import json
import shutil
from pathlib import Path

import pytest

from vlmrm_gym import CLIPReward
from vlmrm_gym.cli import main
from vlmrm_gym.tiny import FOLDER

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def refused(capsys, *arguments):
    """What the command line says when it refuses: at the door, with status 2."""
    with pytest.raises(SystemExit) as raised:
        main(list(map(str, arguments)))
    output = capsys.readouterr().err
    assert raised.value.code == 2, output
    assert "Traceback" not in output
    assert len(output) < 5_000
    return output


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


def empty(file):
    file.write_bytes(b"")


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def written(content):
    return lambda file: file.write_bytes(content)


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
    "weights that were not fetched": (WEIGHTS, written(b"version https://git-lfs.github.com/spec/v1\n")),
    "weights removed": (WEIGHTS, Path.unlink),
    "weights with an endless header": (WEIGHTS, written(b"\xff" * 8 + b"{}")),
    "settings empty": (SETTINGS, empty),
    "settings cut off": (SETTINGS, cut),
    "settings that are a list": (SETTINGS, written(b"[]")),
    "settings without a model": (SETTINGS, written(b"{}")),
    "settings of another size": (SETTINGS, changed(embed_dim=7)),
    "settings with an unknown key": (SETTINGS, changed(wisdom=3)),
    "settings removed": (SETTINGS, Path.unlink),
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
