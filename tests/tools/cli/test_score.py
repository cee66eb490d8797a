"""`vlmrm-gym score`: rewards of every frame of a video or of pictures."""

import csv
import json
import os
import shutil
import signal
import struct
import subprocess
import zlib
from pathlib import Path

import imageio.v2 as imageio
import imageio.v3 as iio
import imageio_ffmpeg
import numpy as np
import pytest
from commands import refused
from conftest import TASK_PROMPT, cartpole_frame
from PIL import Image

from vlmrm_gym import CLIPReward
from vlmrm_gym._util.errors import InputError
from vlmrm_gym.data.frames import TimedFrame, batch, open_frames
from vlmrm_gym.data.videos import LINE_HEIGHT, MAX_SIDE, MIN_WIDTH, PLOT_HEIGHT, drawn_size, save_video
from vlmrm_gym.rewards.encoder import FrameEncoder
from vlmrm_gym.tools.cli import main
from vlmrm_gym.tools.cli.score import FILES, score

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # imageio-ffmpeg leaves pipes to the collector

OTHER = "the cart is at the left end of the track"
BASELINE = "a pole on a cart"
TINY = ["--model", "tiny", "--prompt", TASK_PROMPT]


@pytest.fixture(scope="module")
def frames():
    """Three sights of cart-pole, uint8 (3, 100, 150, 3)."""
    return np.stack([cartpole_frame(angle)[::4, ::4] for angle in (-50, 0, 20)])


@pytest.fixture
def pictures(frames, tmp_path):
    """A folder of pictures whose order by number is not that by letter."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, frame in zip((1, 2, 10), frames, strict=True):
        Image.fromarray(frame).save(folder / f"frame_{number}.png")
    (folder / "notes.txt").write_text("not a picture")
    return folder


@pytest.fixture
def video(frames, tmp_path):
    path = tmp_path / "pole.mp4"
    imageio.mimwrite(path, list(frames.repeat(2, axis=0)), fps=4, macro_block_size=2)
    return path


def run_ffmpeg(*arguments):
    subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", *map(str, arguments)], check=True)


def read_table(folder: Path) -> list[dict[str, str]]:
    with (folder / "rewards.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def column(rows, name):
    return [float(row[name]) for row in rows]


def test_pictures_get_the_rewards_of_every_prompt_and_alpha(pictures, frames, capsys):
    flags = ["--prompt", TASK_PROMPT, "--prompt", OTHER, "--baseline", BASELINE, "--alpha", "0", "0.5", "--fps", "2"]
    main(["score", str(pictures), "--model", "tiny", *flags])
    folder = pictures.with_name("pictures_scores")
    rows = read_table(folder)
    assert [row["file"] for row in rows] == ["frame_1.png", "frame_2.png", "frame_10.png"]
    assert [(row["frame"], float(row["seconds"])) for row in rows] == [("0", 0.0), ("1", 0.5), ("2", 1.0)]
    for prompt in (TASK_PROMPT, OTHER):
        for alpha in (0.0, 0.5):
            expected = CLIPReward("tiny", prompt=prompt, baseline=BASELINE, alpha=alpha)(frames)
            np.testing.assert_allclose(column(rows, f"{prompt} (alpha {alpha})"), expected, atol=1e-5)
    assert "(frame 1, 0.50 s)" in capsys.readouterr().out
    assert iio.imread(folder / "rewards.png").shape[2] == 4
    drawn = iio.imread(folder / "rewards.mp4")
    width, height = drawn_size(100, 150)
    assert drawn.shape == (3, height + PLOT_HEIGHT + 3 * LINE_HEIGHT, width, 3)


def test_a_video_is_encoded_once_for_all_prompts(video, monkeypatch):
    encoded, encode = [], FrameEncoder.encode
    monkeypatch.setattr(FrameEncoder, "encode", lambda self, batch: encoded.append(len(batch)) or encode(self, batch))
    main(["score", str(video), *TINY, "--prompt", OTHER, "--no-video", "--batch-size", "4"])
    assert encoded == [4, 2]
    rows = read_table(video.with_name("pole_scores"))
    assert column(rows, "seconds") == [0, 0.25, 0.5, 0.75, 1, 1.25]
    expected = CLIPReward("tiny", prompt=TASK_PROMPT)(iio.imread(video))
    np.testing.assert_allclose(column(rows, TASK_PROMPT), expected, atol=1e-5)
    assert not video.with_name("pole_scores").joinpath("rewards.mp4").exists()


@pytest.mark.parametrize("name", ["agent.mp4", "agent.gif"])
def test_the_strip_of_our_videos_is_not_scored(name, frames, tmp_path, capsys):
    path = tmp_path / name
    save_video(path, list(frames), [0.9, 0.1, 0.5], title="a plot that would be scored")
    main(["score", str(path), *TINY])
    assert "the strip below the frames is left out. Frames of 150 x 100 are scored" in capsys.readouterr().err
    scores = column(read_table(tmp_path / "agent_scores"), TASK_PROMPT)
    reward = CLIPReward("tiny", prompt=TASK_PROMPT)
    np.testing.assert_allclose(scores, reward(iio.imread(path)[:, :100]), atol=1e-5)
    np.testing.assert_allclose(scores, reward(frames), atol=0.1)  # compressed
    scored_again = open_frames(tmp_path / "agent_scores" / "rewards.mp4")
    width, height = drawn_size(100, 150)
    assert [one.frame.shape for one in scored_again.frames()] == [(height, width, 3)] * 3


def test_videos_that_were_scaled_or_are_of_others_are_scored_whole(video, frames, tmp_path):
    ours, other = tmp_path / "agent.mp4", tmp_path / "other.mp4"
    save_video(ours, list(frames), [0.9, 0.1, 0.5])
    run_ffmpeg("-i", ours, "-vf", "scale=74:86", other)
    opened = open_frames(other)
    assert "its size has changed since, from 150 x 172 to 74 x 86. Whole pictures" in opened.note
    assert [one.frame.shape for one in opened.frames()] == [(86, 74, 3)] * 3
    for comment in ("a holiday", '{"vlmrm_gym": {"video_size": [150, 100], "frame_size": [150, 101]}}'):
        run_ffmpeg("-y", "-i", video, "-c", "copy", "-metadata", f"comment={comment}", other)
        opened = open_frames(other)
        assert opened.note is None
        assert [one.frame.shape for one in opened.frames()] == [(100, 150, 3)] * 6


def test_each_picture_of_a_variable_frame_rate_is_there_once_at_its_own_time(tmp_path):
    """Ten pictures in three seconds, each brighter than the one before."""
    seconds = [0, 0.12, 0.2, 1, 1.12, 1.2, 2, 2.12, 2.92, 3]
    lines = ["ffconcat version 1.0"]
    for number, until in enumerate([*seconds[1:], None]):
        Image.new("RGB", (64, 48), (25 * number,) * 3).save(tmp_path / f"{number}.png")
        lines += [f"file {number}.png", *([] if until is None else [f"duration {until - seconds[number]:.2f}"])]
    (tmp_path / "list.txt").write_text("\n".join(lines))
    video = tmp_path / "video.mp4"
    run_ffmpeg("-f", "concat", "-i", tmp_path / "list.txt", "-fps_mode", "vfr", "-pix_fmt", "yuv420p", video)
    out = score(video, reward=lambda frames: frames.mean((1, 2, 3)), out=tmp_path / "out")
    rows = read_table(out)
    assert column(rows, "seconds") == pytest.approx(seconds)
    np.testing.assert_allclose([float(list(row.values())[-1]) for row in rows], 25 * np.arange(10), atol=4)


def test_what_would_take_memory_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    """Its header says how many pixels it has."""
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("it was decoded"))
    chunks = [b"IHDR" + struct.pack(">IIBBBBB", 16_000, 4_000, 8, 2, 0, 0, 0), b"IDAT" + zlib.compress(bytes(9))]
    content = [struct.pack(">I", len(one) - 4) + one + struct.pack(">I", zlib.crc32(one)) for one in chunks]
    (tmp_path / "large.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(content))
    source = ["-f", "lavfi", "-i", "color=size=8192x4112:rate=1", "-frames:v", "1"]
    run_ffmpeg(*source, "-c:v", "mjpeg", "-pix_fmt", "yuvj420p", tmp_path / "large.avi")
    for name, size in (("large.png", "16000 x 4000"), ("large.avi", "8192 x 4112")):
        with pytest.raises(InputError, match=rf"at most 33,554,432 pixels\. Received {size}"):
            open_frames(tmp_path / name)


def test_control_characters_do_not_reach_the_terminal(pictures, frames, capsys):
    """Neither those of a prompt, nor those of the file names in errors; and those before the damaged one stay."""
    damaged = pictures / "z\x9b31m.png"
    Image.fromarray(frames[0]).save(damaged)
    damaged.write_bytes(damaged.read_bytes()[:200])
    prompt = "\x1b]0;a title\x07 a \x1b[31mpole"
    flags = ["score", str(pictures), "--model", "tiny", "--prompt", prompt, "--no-video", "--batch-size", "1"]
    with pytest.raises(SystemExit, match="2"):
        main(flags)
    assert len(read_table(pictures.with_name("pictures_scores"))) == 3
    damaged.unlink()
    main([*flags, "--overwrite"])
    output = "".join(capsys.readouterr())
    assert "z\\x9b31m.png cannot be read" in output
    assert '"\\x1b]0;a title\\x07 a \\x1b[31mpole": min ' in output
    assert not {"\x07", "\x1b", "\x9b"} & set(output.replace("\x1b[A", ""))  # tqdm's cursor


@pytest.mark.filterwarnings("ignore:The bundled model does not know")
def test_texts_that_a_spreadsheet_would_compute_or_that_are_no_texts_are_escaped_in_the_table(pictures, frames):
    """Pictures of different sizes, without times, are scored as they are."""
    Image.fromarray(frames[2][:60]).save(pictures / "frame_10.png")
    (pictures / "frame_1.png").rename(pictures / "=1+1.png")
    (pictures / "frame_2.png").rename(pictures / os.fsdecode(b"\xff.png"))
    prompts = ["=1+1", "+1", "-1", "@SUM(A1)", "1+1"]
    flags = [word for prompt in prompts for word in ("--prompt", prompt)]
    main(["score", str(pictures), "--no-video", "--model", "tiny", *flags])
    rows = read_table(pictures.with_name("pictures_scores"))
    assert list(rows[0]) == ["frame", "seconds", "file", "'=1+1", "'+1", "'-1", "'@SUM(A1)", "1+1"]
    assert [row["file"] for row in rows] == ["'=1+1.png", "frame_10.png", r"\udcff.png"]
    assert [row["seconds"] for row in rows] == [""] * 3
    expected = CLIPReward("tiny", prompt="1+1")(frames[2:, :60])[0]
    assert column(rows, "1+1")[1] == pytest.approx(expected, abs=1e-5)


def test_after_ctrl_c_the_table_and_the_video_have_what_was_scored(video, monkeypatch, capsys):
    encode, calls = CLIPReward.encode, []

    def interrupted(self, frames):
        calls.append(len(frames))
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return encode(self, frames)

    monkeypatch.setattr(CLIPReward, "encode", interrupted)
    with pytest.raises(SystemExit) as raised:
        main(["score", str(video), *TINY, "--batch-size", "2"])
    assert raised.value.code == 130
    assert "rewards of the first 4 frames" in capsys.readouterr().err
    folder = video.with_name("pole_scores")
    assert len(read_table(folder)) == len(iio.imread(folder / "rewards.mp4")) == 4


def test_bad_settings_end_with_a_sentence(pictures, in_folder, capsys):
    for flags, message in (
        ([], "`prompt` must be given"),
        (["--prompt", "a", "--prompt", "a"], "Each `prompt` must be a different one. Received 'a', 'a'"),
        (["--prompt", "a", "--alpha", "0.5"], "`alpha` above 0 needs a `baseline`"),
        (["--reward", "a:b", "--reward", "a:b"], "Each `reward` must be a different one"),
        (["--reward", "clip", "--reward-kwargs", "3"], "`reward_kwargs` must be a mapping"),
        (["--prompt", "a", "--reward-kwargs", "{a: 1}"], "`reward_kwargs` needs a `reward`"),
        (["--prompt", "a", "--fps", "0"], "`fps` must be a finite number above 0"),
        (["--prompt", "a", "--out", "."], "`out` must be a folder of its own"),
        (["--prompt", "a", "--out", "pictures", "--overwrite"], "`out` must be a folder of its own"),
    ):
        assert message in refused(capsys, "score", "pictures", *flags)
        assert not Path("pictures_scores").exists()


def test_inputs_that_cannot_be_scored_end_with_a_sentence(frames, video, pictures, tmp_path, monkeypatch, capsys):
    """Also lists and scripts, which refer to other files."""
    monkeypatch.chdir(tmp_path)
    Image.fromarray(frames[0]).save("other.png")
    Path("empty").mkdir()
    os.mkfifo("pipe.mp4")
    os.mkfifo("pipe.png")
    Path("list.mp4").write_text("ffconcat version 1.0\nfile other.png\n")
    Path("list.m3u8").write_text("#EXTM3U\n#EXTINF:1,\nother.png\n#EXT-X-ENDLIST\n")
    Path("script.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n")
    Path("text.mp4").write_text("not a video")
    Image.fromarray(np.zeros((4, 4), np.uint16)).save("deep.png")
    for name, message in (
        ("absent.mp4", "There is no file or folder"),
        ("empty", "empty must have videos ("),
        ("pipe.mp4", "must be a regular file. Received a pipe"),
        ("pipe.png", "must be a regular file. Received a pipe"),
        ("deep.png", "deep.png must have 8 bits per channel"),
        *((name, f"{name} cannot be read") for name in ("list.mp4", "list.m3u8", "script.png", "text.mp4")),
    ):
        output = refused(capsys, "score", name, "--prompt", "a")
        assert message in output
        assert len(output.splitlines()) == 1
    assert "`fps` is for pictures" in refused(capsys, "score", video, "--prompt", "a", "--fps", "5")
    for reward, message in (
        ({"kind": "preference", "prompt": "a", "model": "tiny"}, "`reward` has no head yet"),
        (
            {"kind": "program", "inputs": "states", "source": "def reward(state):\n    return 1.0"},
            '`inputs="states"` needs states from which frames can be drawn',
        ),
    ):
        Path("reward.json").write_text(json.dumps(reward))
        assert message in refused(capsys, "score", pictures, "--reward", "reward.json")


def test_overwrite_replaces_results_and_nothing_else(pictures, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    for name in (*FILES, "notes.txt"):
        (out / name).write_text("old")
    main(["score", str(pictures), *TINY, "--out", str(out), "--overwrite", "--no-video"])
    assert sorted(path.name for path in out.iterdir()) == ["notes.txt", "rewards.csv", "rewards.png"]
    assert len(read_table(out)) == 3
    assert (out / "notes.txt").read_text() == "old"


def test_batches_and_drawn_sizes_have_limits():
    """Batches are bounded in number and bytes, and of one size; what is drawn has even sides."""
    small, large = (TimedFrame(np.zeros((side, side, 3), np.uint8), None) for side in (2, 4))
    shapes = [len(stack) for stack in batch(iter([small] * 5 + [large] * 3), size=3, max_bytes=96)]
    assert shapes == [3, 2, 2, 1]
    for size in ((64, 64), (2160, 3840), (10_000, 10), (10, 10_000), (401, 601)):
        width, height = drawn_size(*size)
        assert width % 2 == height % 2 == 0
        assert MIN_WIDTH <= width <= MAX_SIDE
        assert 2 <= height <= MAX_SIDE


@pytest.fixture
def videos(frames, tmp_path):
    """A folder of three videos: a pole that rises, one that falls, and one that lies still."""
    folder = tmp_path / "videos"
    folder.mkdir()
    for name, order in (("rise", [0, 2, 1]), ("fall", [1, 2, 0]), ("lie", [0, 0, 0])):
        iio.imwrite(folder / f"{name}.mp4", frames[order], fps=10, macro_block_size=1)
    (folder / "notes.txt").write_text("")
    return folder


def test_several_videos_are_scored_each_for_itself_into_one_table(videos, capsys):
    out = score(videos, prompt=[TASK_PROMPT, OTHER], model="tiny")
    said = capsys.readouterr()
    table = read_table(out)
    assert list(table[0]) == ["video", "frame", "seconds", TASK_PROMPT, OTHER]
    names = [str(videos / f"{name}.mp4") for name in ("fall", "lie", "rise")]
    assert [(row["video"], row["frame"]) for row in table] == [(name, str(i)) for name in names for i in range(3)]
    alone = read_table(score(videos / "rise.mp4", prompt=TASK_PROMPT, model="tiny", out=videos / "alone"))
    own = [float(row[TASK_PROMPT]) for row in table if row["video"] == names[2]]
    np.testing.assert_allclose([float(row[TASK_PROMPT]) for row in alone], own, atol=1e-6)
    assert "skipped, as no recordings: notes.txt" in said.err
    assert sorted(path.name for path in out.iterdir()) == ["rewards.csv", "rewards.png"]
    listed = score([videos / "rise.mp4", videos / "lie.mp4"], prompt=TASK_PROMPT, model="tiny", out=videos / "two")
    assert [row["video"] for row in read_table(listed)] == [names[2]] * 3 + [names[1]] * 3


def test_a_folder_of_pictures_is_one_recording_and_results_inside_of_a_folder_are_not_scored(pictures, videos):
    (pictures / "more").mkdir()
    shutil.copy(pictures / "frame_1.png", pictures / "more")
    for folder, count in ((pictures, 3), (videos, 9)):
        for _ in range(2):
            main(["score", str(folder), *TINY, "--out", str(folder / "scores"), "--overwrite"])
            assert len(read_table(folder / "scores")) == count
            assert (folder / "scores" / "rewards.mp4").is_file() == (folder == pictures)


def test_labels_rank_rewards_by_their_auc(videos, tmp_path, capsys):
    labels = tmp_path / "labels.csv"
    labels.write_text("video,frame,success\nrise,2,1\nrise,0,0\nlie.mp4,,false\nfall,0,TRUE\n")
    score(videos, prompt=[OTHER, TASK_PROMPT], model="tiny", labels=labels)
    first, second, best = capsys.readouterr().out.splitlines()[:3]
    assert first.startswith(f'"{TASK_PROMPT}": AUC 1.000, min')
    assert second.startswith(f'"{OTHER}": AUC ')
    assert best == f'The best by AUC: "{TASK_PROMPT}".'
