"""Files of strangers, given to commands: one sentence, exit code 2, and nothing is written or waited for."""

import json
import os
import re
import shutil
import sqlite3

import h5py
import numpy as np
import pytest
from commands import refused
from poles import make_pairs

from vlmrm_gym.learning import AnswersFile, GroundTruthLabeler, ask
from vlmrm_gym.tools.cli import main

ID = "VLMRM/CartPole-v1"
RED = "\x1b[31m[/bad]"
FOREVER = "CREATE VIEW prompt (text) AS WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x FROM r) SELECT x FROM r"


@pytest.fixture(scope="module")
def poles(tmp_path_factory):
    """A dataset of one episode of two steps."""
    out = tmp_path_factory.mktemp("data") / "poles"
    main(["dataset", ID, "--out", str(out), "--episodes", "1", "--steps", "2", "--reward", "own_things:mean_pixel"])
    return out


@pytest.fixture
def stranger(poles, tmp_path, monkeypatch):
    """A folder with files that a command is to refuse."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    os.mkfifo("pipe.json")
    (tmp_path / "deep.json").write_text('{"kind": "clip", "prompt": ' + "[" * 5_000 + "]" * 5_000 + "}")
    (tmp_path / "red.json").write_text(json.dumps({"kind": "preference", "prompt": RED, "head": RED}))
    (tmp_path / "list.json").write_text('{"kind": ["clip"]}')
    (tmp_path / "red.yaml").write_text('run_name: "a\\e[31m[/bad]"\n')
    (tmp_path / "empty.db").touch()
    with AnswersFile("answers.db") as file:
        ask(GroundTruthLabeler(), make_pairs(4), file)
    for name, statement in {
        "view.db": f"DROP TABLE prompt; {FOREVER}",
        "types.db": "UPDATE answers SET details = x'00'",
        "path.db": "UPDATE pairs SET key = '../' || key; UPDATE answers SET pair = '../' || pair",
    }.items():
        with sqlite3.connect(shutil.copy("answers.db", name)) as changed:
            changed.executescript(statement)
        changed.close()
    for name, change in {
        "wide": lambda file: file.create_dataset("episode_0/infos/state", data=np.zeros((3, 9))),
        "long": lambda file: file.create_dataset("episode_0/infos/state", (10**9, 2), "f8", chunks=True),
    }.items():
        shutil.copytree(poles, name)
        with h5py.File(f"{name}/data/main_data.hdf5", "a") as file:
            del file["episode_0/infos/state"]
            change(file)
    settings = shutil.copytree(poles, tmp_path / "red") / "settings.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "id": RED}))
    return tmp_path


def test_a_command_ends_with_a_sentence(poles, stranger, capsys):
    before = sorted(path.name for path in stranger.iterdir())
    for arguments, message in (
        ("train pipe", "pipe must be a regular file. Received a pipe"),
        ("train red.yaml", "`run_name`"),
        (f"check {ID} --reward pipe.json", "pipe.json must be a regular file. Received a pipe"),
        (f"check {ID} --reward deep.json", "at most 32 levels"),
        (f"check {ID} --reward list.json", "must have a mapping such as"),
        (f"check {ID} --reward red.json --out out", "which does not exist"),
        (f"program verify /dev/zero {ID}", "/dev/zero must be a regular file. Received a device"),
        (f"fit {poles} empty.db --out out", "empty.db is not a file of answers"),
        (f"fit {poles} view.db --out out", "view.db is not a file of answers: it has more in it"),
        (f"fit {poles} types.db --out out", "types.db is damaged"),
        (f"fit {poles} path.db --out out", "The answers must be about the dataset"),
        ("label red --labeler ground_truth --out new.db", "[/bad]"),
        ("label wide --labeler ground_truth --out new.db", "must have states of the shape (2,)"),
        (f"check {ID} --rollouts long --out out --reward own_things:mean_pixel", "more in 'state' than the file has"),
    ):
        error = refused(capsys, *arguments.split()).splitlines()[-1]
        assert message in error
        assert not re.search(r"[\x00-\x1f]", error)
        assert sorted(path.name for path in stranger.iterdir()) == before
    assert not (stranger / "empty.db").stat().st_size
