"""`vlmrm-gym fit --videos`, and `fit_demonstrations`: what they read, say, write and refuse."""

import json
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
from conftest import cartpole_frame
from helpers.commands import refused

import vlmrm_gym
from vlmrm_gym._util.errors import InputError
from vlmrm_gym.tools.cli import main
from vlmrm_gym.tools.cli.dataset import record_dataset
from vlmrm_gym.tools.fit_videos import FILES

SHORT = {"steps": 60, "every": 30}
CARTPOLE = "VLMRM/CartPole-v1"

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # imageio-ffmpeg leaves pipes to the collector


def raising(start=60, count=10, size=1):
    return np.stack([cartpole_frame(angle)[::size, ::size] for angle in np.linspace(start, 0, count)])


@pytest.fixture
def videos(tmp_path):
    folder = tmp_path / "videos"
    folder.mkdir()
    for number in range(3):
        iio.imwrite(folder / f"{number}.mp4", raising(50 + 5 * number, size=1 + number % 2), fps=10, macro_block_size=1)
    (folder / "notes.txt").write_text("")
    return folder


def test_the_command_says_what_it_read_and_measured_and_what_to_do_next(videos, tmp_path, capsys):
    out = tmp_path / "upright"
    flags = ["--encoder", "tiny", "--options", "{steps: 60, every: 30}", "--device", "cpu"]
    main(["fit", "--videos", str(videos), "--out", str(out), "--env", CARTPOLE, "--negatives", "random", *flags])
    said = capsys.readouterr()
    assert sorted(one.name for one in out.iterdir()) == sorted(FILES)
    assert "skipped, as no recordings: notes.txt" in said.err
    assert said.err.count("The recordings have 2 sizes (300 x 200, 600 x 400)") == 1
    assert "1 held-out recordings: rank correlation with time" in said.out
    assert "random behaviour" in said.out
    assert f"vlmrm-gym train {CARTPOLE} --reward {out}/" in said.out
    figures = json.loads((out / "fit.json").read_text())
    assert figures["measures"]["random"] is not None
    negatives = figures["videos"]["negatives"] + figures["videos"]["held_out_negatives"]
    assert sorted(negatives) == sorted(f"random episode {number}" for number in range(6, 12))
    assert "exists. Pass --overwrite" in refused(capsys, "fit", "--videos", videos, "--out", out, *flags)
    main(["score", str(videos / "0.mp4"), "--reward", f"{out}/", "--out", str(tmp_path / "scores")])
    assert (tmp_path / "scores" / "rewards.csv").exists()


def test_episodes_of_our_datasets_are_recordings_and_one_video_holds_nothing_out(tmp_path, capsys):
    poles = record_dataset(CARTPOLE, out=tmp_path / "poles", episodes=1, steps=12)
    reward = vlmrm_gym.fit_demonstrations(poles, encoder="tiny", device="cpu", options=SHORT)
    said = capsys.readouterr()
    assert "No recording was held out, so these figures flatter: pass at least two." in said.err
    assert reward.build("cpu").head.network.frames == 12
    reward.save(tmp_path / "kept")
    assert vlmrm_gym.load_reward(tmp_path / "kept").measure == "step"


@pytest.mark.slow
def test_what_negatives_show_is_no_progress(tmp_path):
    """Poles that lean to the other side: without them the network has seen none, and takes them for the way's end."""
    left = np.stack([cartpole_frame(angle) for angle in np.linspace(-70, -20, 10)])
    settings = {"encoder": "tiny", "device": "cpu", "options": {"steps": 800}}
    parts = []
    for negatives in (None, [left[::2], left[::3]]):
        videos = [raising(start) for start in (40, 50, 60)]
        out = tmp_path / str(len(parts))
        vlmrm_gym.fit_demonstrations(videos, negatives=negatives, measure="place", out=out, **settings)
        place = vlmrm_gym.Demonstrations.load(out).build("cpu")
        assert place(raising(45))[-1] > 0.8
        parts.append(place(left[1:-1:2]))
        held_out = json.loads((out / "fit.json").read_text())["measures"]["negatives"]
        assert held_out is None if negatives is None else held_out < 0.2
    assert parts[0].min() > 0.5
    assert np.abs(parts[1]).max() < 0.2


@pytest.mark.parametrize(
    ("videos", "settings", "rule"),
    [
        ([], {}, "`videos` must have at least one recording. Received none"),
        ([np.zeros((5, 8, 8, 3))], {}, r"`videos`: recording 0 must be a file.*Received float64"),
        ([raising()[:1]], {}, "recording 0 must have at least two frames. Received 1"),
        ([raising(), raising()[[0] * 5]], {}, "recording 1 must show something that moves. Received 5 equal frames"),
        (["no such folder"], {}, "There is no file or folder no such folder"),
        ([raising()], {"encoder": "tinny"}, "`model` must be"),
        ([raising()], {"seed": -1}, "`seed` must be"),
        ([raising()], {"options": {"stepps": 1}}, "`stepps` is not a field of VideoFitOptions. Did you mean `steps`"),
        ([raising()], {"options": {"steps": 0}}, "`steps` must be"),
        ([raising()], {"options": {"held_out": 2}}, "`held_out` must be"),
        ([raising()], {"env": "VLMRM/CartPoll-v1"}, "Did you mean"),
        ([raising()], {"negatives": Path("nowhere")}, "nowhere"),
        ([raising()], {"negatives": "random"}, "`negatives` of random behaviour need `env`"),
    ],
)
def test_bad_input_is_a_sentence(videos, settings, rule, tmp_path):
    with pytest.raises(InputError, match=rule):
        vlmrm_gym.fit_demonstrations(videos, **{"encoder": "tiny", "device": "cpu", **settings}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
