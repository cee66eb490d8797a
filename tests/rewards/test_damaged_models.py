"""Files of a model that are not what they should be: refused in a sentence that names the folder."""

import json
import shutil
from pathlib import Path

import pytest

from vlmrm_gym import CLIPReward
from vlmrm_gym.tiny import FOLDER

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


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
