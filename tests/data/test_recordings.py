"""Recordings: which files are some, which frames are taken, and where these are in time."""

import imageio.v3 as iio
import numpy as np
import pytest
from gymnasium import spaces
from minari_files import write_minari

from vlmrm_gym._util.errors import InputError
from vlmrm_gym.data import recordings
from vlmrm_gym.data.recordings import find_recordings, of_array

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # imageio-ffmpeg leaves pipes to the collector


def moving(count, height=48, width=64):
    """A white square that goes from the left to the right, uint8 (T, H, W, 3)."""
    frames = np.zeros((count, height, width, 3), dtype=np.uint8)
    for number, frame in enumerate(frames):
        left = round(number / (count - 1) * (width - 16))
        frame[16:32, left : left + 16] = 255
    return frames


def centres(recording):
    """The column of the square in each frame that is taken."""
    return [np.argwhere(one.frame[24, :, 0] > 128).mean() for one in recording.frames()]


@pytest.fixture
def folder(tmp_path):
    """Three kinds of videos, a folder of pictures, and files that are no recordings."""
    iio.imwrite(tmp_path / "a.mp4", moving(12), fps=10, macro_block_size=1)
    iio.imwrite(tmp_path / "b.gif", moving(8), duration=50)
    iio.imwrite(tmp_path / "c.webm", moving(10), fps=25, codec="libvpx", macro_block_size=1)
    (tmp_path / "d").mkdir()
    for number, frame in enumerate(moving(11)):
        iio.imwrite(tmp_path / "d" / f"frame_{number}.png", frame)
    (tmp_path / "notes.txt").write_text("not a video")
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_a_folder_of_mixed_files_has_videos_and_folders_of_pictures_and_says_what_is_skipped(folder):
    found, skipped = find_recordings(folder)
    assert [one.name.removeprefix(f"{folder}/") for one in found] == ["a.mp4", "b.gif", "c.webm", "d"]
    assert [len(one.taken) for one in found] == [12, 8, 10, 11]
    assert skipped == ["empty", "notes.txt"]
    for one in found:
        assert (np.diff(centres(one)) > 0).all()
        np.testing.assert_allclose(one.places, np.linspace(0, 1, len(one.taken)), atol=1e-6)


def test_places_are_those_of_the_times_where_a_video_has_some(folder):
    video = find_recordings(folder / "a.mp4")[0][0]
    times = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 3.0])
    object.__setattr__(video.source, "times", times)
    np.testing.assert_allclose(video.places, times / 3)
    object.__setattr__(video.source, "times", np.full(12, np.nan))
    np.testing.assert_allclose(video.places, np.linspace(0, 1, 12))


def test_of_a_long_recording_frames_at_equal_distances_are_taken(monkeypatch):
    monkeypatch.setattr(recordings, "MAX_FRAMES", 5)
    one = of_array(moving(41), "it")
    assert one.taken.tolist() == [0, 10, 20, 30, 40]
    np.testing.assert_allclose(centres(one), np.array([0, 12, 24, 36, 48]) + 7.5)
    np.testing.assert_allclose(one.places, [0, 0.25, 0.5, 0.75, 1])


def test_frames_of_minari_datasets_are_recordings(tmp_path):
    space = spaces.Dict({"image": spaces.Box(0, 255, (48, 64, 3), np.uint8), "joints": spaces.Box(-1, 1, (2,))})
    both = {"image": moving(6), "joints": np.zeros((6, 2), np.float32)}
    write_minari(tmp_path / "frames" / "data", space["image"], [both["image"]])
    write_minari(tmp_path / "dict" / "data", space, [both])
    write_minari(tmp_path / "joints" / "data", space["joints"], [both["joints"]])
    for kind in ("frames", "dict"):
        (one,), skipped = find_recordings(tmp_path / kind)
        assert (len(one.taken), skipped) == (6, [])
        assert (np.diff(centres(one)) > 0).all()
    with pytest.raises(InputError, match=r"must have observations that are frames.*Episode 0 has \[\(6, 2\)\]"):
        find_recordings(tmp_path / "joints")


def test_what_is_no_recording_is_refused_by_name(folder):
    with pytest.raises(InputError, match=r"empty must have videos .* Received none"):
        find_recordings(folder / "empty")
    with pytest.raises(InputError, match=r"notes.txt cannot be read"):
        find_recordings(folder / "notes.txt")
    with pytest.raises(InputError, match=r"There is no file or folder .*missing"):
        find_recordings(folder / "missing")
    with pytest.raises(TypeError, match=r"`videos`: it must be a file.*Received float64 of shape \(3, 4\)"):
        of_array(np.zeros((3, 4)), "it")
