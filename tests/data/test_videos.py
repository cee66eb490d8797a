"""Videos with a plot of the reward."""

import imageio.v3 as iio
import numpy as np
import pytest

from vlmrm_gym.data.frames import read_layout
from vlmrm_gym.data.videos import PLOT_HEIGHT, save_video

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # imageio-ffmpeg leaves pipes to the collector


def test_frames_of_an_mp4_keep_their_size_where_it_is_odd(tmp_path, rng):
    save_video(tmp_path / "agent.mp4", list(rng.integers(0, 256, (2, 41, 201, 3), dtype=np.uint8)), [0.1, 0.2])
    assert iio.imread(tmp_path / "agent.mp4").shape == (2, 41 + PLOT_HEIGHT + 1, 202, 3)
    assert read_layout(tmp_path / "agent.mp4") == ((202, 41 + PLOT_HEIGHT + 1), (201, 41))


def test_bad_arguments(tmp_path):
    for name, frames, rewards, message in (
        ("agent.avi", 1, 1, r"`path` must end in \.mp4 or \.gif"),
        ("agent.gif", 2, 1, "Received 2 and 1"),
        ("agent.gif", 0, 0, "at least one"),
    ):
        with pytest.raises(ValueError, match=message):
            save_video(tmp_path / name, [np.zeros((8, 8, 3), dtype=np.uint8)] * frames, [0.0] * rewards)
