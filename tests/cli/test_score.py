"""`vlmrm-gym score`: rewards of every frame of a video or of pictures."""

import csv
import json
import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import imageio.v2 as imageio
import imageio.v3 as iio
import imageio_ffmpeg
import numpy as np
import pytest
from conftest import TASK_PROMPT, cartpole_frame
from PIL import Image

from vlmrm_gym import CLIPReward
from vlmrm_gym.cli import main
from vlmrm_gym.cli.score import FILES, score
from vlmrm_gym.errors import InputError
from vlmrm_gym.media.drawing import LINE_HEIGHT, MAX_SIDE, MIN_WIDTH, PLOT_HEIGHT, drawn_size
from vlmrm_gym.media.frames import TimedFrame, batch, open_frames
from vlmrm_gym.media.videos import save_video

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # imageio-ffmpeg leaves pipes to the collector

OTHER = "the cart is at the left end of the track"
BASELINE = "a pole on a cart"


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
    encoded = []
    encode = CLIPReward.encode
    monkeypatch.setattr(CLIPReward, "encode", lambda self, batch: encoded.append(len(batch)) or encode(self, batch))
    main(
        [
            "score",
            str(video),
            "--prompt",
            TASK_PROMPT,
            "--model",
            "tiny",
            "--prompt",
            OTHER,
            "--no-video",
            "--batch-size",
            "4",
        ]
    )
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
    main(["score", str(path), "--model", "tiny", "--prompt", TASK_PROMPT])
    assert "the strip below the frames is left out. Frames of 150 x 100 are scored" in capsys.readouterr().err
    scores = column(read_table(tmp_path / "agent_scores"), TASK_PROMPT)
    reward = CLIPReward("tiny", prompt=TASK_PROMPT)
    np.testing.assert_allclose(scores, reward(iio.imread(path)[:, :100]), atol=1e-5)
    np.testing.assert_allclose(scores, reward(frames), atol=0.1)  # compressed
    scored_again = open_frames(tmp_path / "agent_scores" / "rewards.mp4")
    width, height = drawn_size(100, 150)
    assert [one.frame.shape for one in scored_again.frames()] == [(height, width, 3)] * 3


@pytest.mark.filterwarnings("ignore:The bundled model does not know this scene")  # with its plot
def test_a_video_whose_strip_was_scaled_is_scored_whole_with_a_note(frames, tmp_path, capsys):
    path, small = tmp_path / "agent.mp4", tmp_path / "small.mp4"
    save_video(path, list(frames), [0.9, 0.1, 0.5])
    run_ffmpeg("-i", path, "-vf", "scale=74:86", small)
    main(["score", str(small), "--model", "tiny", "--prompt", TASK_PROMPT, "--no-video"])
    assert "its size has changed since, from 150 x 172 to 74 x 86. Whole pictures" in capsys.readouterr().err
    scores = column(read_table(tmp_path / "small_scores"), TASK_PROMPT)
    np.testing.assert_allclose(scores, CLIPReward("tiny", prompt=TASK_PROMPT)(iio.imread(small)), atol=1e-5)


@pytest.mark.parametrize(
    "comment",
    [
        "a holiday",
        '{"vlmrm_gym": {"video_size": [150, 100], "frame_size": [150, 101]}}',
        '{"vlmrm_gym": {"video_size": [150, 100], "frame_size": [150, 0]}}',
    ],
)
def test_videos_of_others_are_scored_whole(comment, video, tmp_path):
    commented = tmp_path / "commented.mp4"
    run_ffmpeg("-i", video, "-c", "copy", "-metadata", f"comment={comment}", commented)
    for path in (video, commented):
        opened = open_frames(path)
        assert opened.note is None
        assert [one.frame.shape for one in opened.frames()] == [(100, 150, 3)] * 6


@pytest.mark.parametrize("suffix", ["mp4", "webm"])
def test_each_picture_of_a_variable_frame_rate_is_there_once_at_its_own_time(suffix, tmp_path):
    """Ten pictures in three seconds, each brighter than the one before."""
    seconds = [0, 0.12, 0.2, 1, 1.12, 1.2, 2, 2.12, 2.92, 3]
    lines = ["ffconcat version 1.0"]
    for number, until in enumerate([*seconds[1:], None]):
        Image.new("RGB", (64, 48), (25 * number,) * 3).save(tmp_path / f"{number}.png")
        lines += [f"file {number}.png", *([] if until is None else [f"duration {until - seconds[number]:.2f}"])]
    (tmp_path / "list.txt").write_text("\n".join(lines))
    video = tmp_path / f"video.{suffix}"
    run_ffmpeg("-f", "concat", "-i", tmp_path / "list.txt", "-fps_mode", "vfr", "-pix_fmt", "yuv420p", video)
    out = score(video, reward=lambda frames: frames.mean((1, 2, 3)), out=tmp_path / "out")
    rows = read_table(out)
    assert column(rows, "seconds") == pytest.approx(seconds)
    np.testing.assert_allclose([float(list(row.values())[-1]) for row in rows], 25 * np.arange(10), atol=4)


def test_a_video_is_read_to_its_end_however_slowly(tmp_path):
    """ffmpeg reports its progress every half a second, in the log that the times of pictures are read from."""
    path, times = tmp_path / "video.mp4", []
    imageio.mimwrite(path, [np.full((64, 64, 3), number, np.uint8) for number in range(100)], fps=10)
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits for the time of a picture"))
    signal.alarm(30)
    try:
        for one in open_frames(path).frames():
            time.sleep(0.7 if len(times) in (1, 50) else 0)
            times.append(one.seconds)
    finally:
        signal.alarm(0)
    assert times == pytest.approx(np.arange(100) / 10)


@pytest.mark.parametrize("sides", [(16_000, 16_000), (100, 400_000)])
def test_pictures_that_would_take_memory_are_refused_before_they_are_decoded(sides, tmp_path, monkeypatch):
    """A picture, and a video: their headers say how many pixels they have."""
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("it was decoded"))
    width, height = sides
    chunks = [b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), b"IDAT" + zlib.compress(bytes(9))]
    picture = tmp_path / "large.png"
    content = [struct.pack(">I", len(one) - 4) + one + struct.pack(">I", zlib.crc32(one)) for one in chunks]
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(content))
    with pytest.raises(
        InputError, match=f"at most 33,554,432 pixels. Received {width} x {height}|Image size .* exceeds limit"
    ):
        open_frames(picture)


def test_a_video_that_would_take_memory_is_refused_before_it_is_decoded(tmp_path):
    video = tmp_path / "large.avi"
    source = ["-f", "lavfi", "-i", "color=size=8192x4112:rate=1", "-frames:v", "1"]
    run_ffmpeg(*source, "-c:v", "mjpeg", "-pix_fmt", "yuvj420p", video)
    started = time.monotonic()
    with pytest.raises(InputError, match=r"at most 33,554,432 pixels\. Received 8192 x 4112"):
        list(open_frames(video).frames())
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("list.mp4", "ffconcat version 1.0\nfile other.png\n", "cannot be read"),
        ("list.m3u8", "#EXTM3U\n#EXTINF:1,\nother.png\n#EXT-X-ENDLIST\n", "cannot be read"),
        ("script.png", "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n", "cannot be read"),
        ("pipe.mp4", None, "must be a regular file. Received a pipe"),
        ("pipe.png", None, "must be a regular file. Received a pipe"),
    ],
)
def test_a_file_refers_to_nothing_outside_itself_and_is_no_pipe(name, content, message, frames, tmp_path, capsys):
    Image.fromarray(frames[0]).save(tmp_path / "other.png")
    if content is None:
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(SystemExit, match="2"):
        main(["score", str(tmp_path / name), "--prompt", "a"])
    assert message in capsys.readouterr().err


def test_control_characters_do_not_reach_the_terminal(pictures, frames, capsys):
    """Neither those of a prompt, nor those of the file names in errors."""
    damaged = pictures / "z\x9b31m.png"
    Image.fromarray(frames[0]).save(damaged)
    damaged.write_bytes(damaged.read_bytes()[:200])
    prompt = "\x1b]0;a title\x07 a \x1b[31mpole"
    with pytest.raises(SystemExit, match="2"):
        main(["score", str(pictures), "--model", "tiny", "--prompt", prompt, "--no-video"])
    damaged.unlink()
    main(["score", str(pictures), "--model", "tiny", "--prompt", prompt, "--no-video", "--overwrite"])
    output = "".join(capsys.readouterr())
    assert "z\\x9b31m.png cannot be read" in output
    assert '"\\x1b]0;a title\\x07 a \\x1b[31mpole": from' in output
    assert not {"\x07", "\x1b", "\x9b"} & set(output.replace("\x1b[A", ""))  # tqdm's cursor


def test_texts_that_a_spreadsheet_would_compute_are_quoted_in_the_table(pictures):
    (pictures / "frame_1.png").rename(pictures / "=1+1.png")
    prompts = ["=1+1", "+1", "-1", "@SUM(A1)", "1+1"]
    main(
        [
            "score",
            str(pictures),
            "--no-video",
            "--model",
            "tiny",
            *(word for prompt in prompts for word in ("--prompt", prompt)),
        ]
    )
    rows = read_table(pictures.with_name("pictures_scores"))
    assert list(rows[0]) == ["frame", "seconds", "file", "'=1+1", "'+1", "'-1", "'@SUM(A1)", "1+1"]
    assert [row["file"] for row in rows] == ["'=1+1.png", "frame_2.png", "frame_10.png"]


@pytest.mark.filterwarnings("ignore:The bundled model does not know this scene")  # one is cut
def test_pictures_of_different_sizes_are_scored_as_they_are(pictures, frames):
    small = frames[1][:60]
    Image.fromarray(small).save(pictures / "frame_2.png")
    main(["score", str(pictures), "--model", "tiny", "--prompt", TASK_PROMPT])
    rows = read_table(pictures.with_name("pictures_scores"))
    assert [row["seconds"] for row in rows] == [""] * 3
    assert column(rows, TASK_PROMPT)[1] == pytest.approx(
        CLIPReward("tiny", prompt=TASK_PROMPT)(small[None])[0], abs=1e-5
    )


def test_after_ctrl_c_the_table_has_what_was_scored(video, monkeypatch, capsys):
    encode, calls = CLIPReward.encode, []

    def interrupted(self, frames):
        calls.append(len(frames))
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return encode(self, frames)

    monkeypatch.setattr(CLIPReward, "encode", interrupted)
    with pytest.raises(SystemExit) as raised:
        main(["score", str(video), "--model", "tiny", "--prompt", TASK_PROMPT, "--batch-size", "2"])
    assert raised.value.code == 130
    assert "rewards of the first 4 frames" in capsys.readouterr().err
    folder = video.with_name("pole_scores")
    assert len(read_table(folder)) == len(iio.imread(folder / "rewards.mp4")) == 4


@pytest.mark.parametrize("batch_size", ["1", "64"])
def test_a_damaged_picture_is_named_and_those_before_it_stay(batch_size, pictures, capsys):
    damaged = pictures / "frame_10.png"
    damaged.write_bytes(damaged.read_bytes()[:200])
    with pytest.raises(SystemExit, match="2"):
        main(
            [
                "score",
                str(pictures),
                "--model",
                "tiny",
                "--prompt",
                TASK_PROMPT,
                "--batch-size",
                batch_size,
                "--no-video",
            ]
        )
    assert f"{damaged} cannot be read" in capsys.readouterr().err
    assert len(read_table(pictures.with_name("pictures_scores"))) == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "`prompt` must be given"),
        (["--prompt", " "], "`prompt` must not be empty"),
        (["--prompt", "a", "--prompt", "a"], "Each `prompt` must be a different one. Received 'a', 'a'"),
        (["--prompt", "a", "--alpha", "0.5"], "`alpha` above 0 needs a `baseline`"),
        (["--prompt", "a", "--fps", "0"], "`fps` must be a finite number above 0"),
        (["--prompt", "a", "--out", "taken"], "Pass --overwrite"),
        (["--prompt", "a", "--out", "file"], "`out` must be a folder"),
        (["--prompt", "a", "--out", "pictures", "--overwrite"], "`out` must be a folder of its own"),
    ],
)
def test_bad_settings_end_with_a_sentence(flags, message, pictures, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("taken").mkdir()
    Path("file").touch()
    with pytest.raises(SystemExit, match="2"):
        main(["score", "pictures", *flags])
    assert message in capsys.readouterr().err
    assert not Path("pictures_scores").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.mp4", None, "There is no file or folder"),
        ("text.mp4", b"not a video", "text.mp4 cannot be read"),
        ("empty.mp4", b"", "empty.mp4 cannot be read"),
        ("text.png", b"not a picture", "text.png cannot be read"),
        ("folder/notes.txt", b"", "must have pictures"),
    ],
)
def test_unreadable_inputs_end_with_a_sentence(name, content, message, tmp_path, capsys):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SystemExit, match="2"):
        main(["score", str(path.parent if path.parent != tmp_path else path), "--model", "tiny", "--prompt", "a"])
    output = capsys.readouterr().err
    assert message in output
    assert len(output.splitlines()) == 1


def test_more_input_that_is_refused(pictures, video):
    with pytest.raises(InputError, match="`fps` is for pictures"):
        open_frames(video, 5.0)
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(pictures / "deep.png")
    with pytest.raises(InputError, match=r"deep\.png must have 8 bits per channel"):
        list(open_frames(pictures).frames())


def test_overwrite_replaces_results_and_nothing_else(pictures, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    for name in (*FILES, "notes.txt"):
        (out / name).write_text("old")
    main(
        [
            "score",
            str(pictures),
            "--model",
            "tiny",
            "--prompt",
            TASK_PROMPT,
            "--out",
            str(out),
            "--overwrite",
            "--no-video",
        ]
    )
    assert sorted(path.name for path in out.iterdir()) == ["notes.txt", "rewards.csv", "rewards.png"]
    assert len(read_table(out)) == 3
    assert (out / "notes.txt").read_text() == "old"


def test_batches_are_bounded_in_number_and_bytes_and_of_one_size():
    small, large = (TimedFrame(np.zeros((side, side, 3), np.uint8), None) for side in (2, 4))
    shapes = [len(stack) for stack in batch(iter([small] * 5 + [large] * 3), size=3, max_bytes=96)]
    assert shapes == [3, 2, 2, 1]


@pytest.mark.parametrize("size", [(64, 64), (2160, 3840), (10_000, 10), (10, 10_000), (401, 601)])
def test_drawn_sizes_are_even_and_within_limits(size):
    width, height = drawn_size(*size)
    assert width % 2 == height % 2 == 0
    assert MIN_WIDTH <= width <= MAX_SIDE
    assert 2 <= height <= MAX_SIDE


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ({"kind": "preference", "prompt": "a", "model": "tiny"}, "`reward` has no head yet"),
        (
            {"kind": "program", "inputs": "states", "source": "def reward(state):\n    return 1.0"},
            '`inputs="states"` needs states from which frames can be drawn',
        ),
    ],
)
def test_a_reward_that_cannot_score_frames_ends_with_a_sentence(reward, message, pictures, tmp_path, capsys):
    (path := tmp_path / "reward.json").write_text(json.dumps(reward))
    with pytest.raises(SystemExit, match="2"):
        main(["score", str(pictures), "--reward", str(path)])
    assert message in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="names are text elsewhere")
def test_names_that_are_not_text_are_escaped_in_the_table(pictures):
    source = sorted(pictures.iterdir())[0]
    source.rename(pictures / os.fsdecode(b"\xff.png"))
    main(["score", str(pictures), "--model", "tiny", "--prompt", TASK_PROMPT, "--no-video"])
    assert r"\udcff.png" in {row["file"] for row in read_table(pictures.with_name("pictures_scores"))}
