"""Record the videos of the results: episodes of a dataset, cut a few steps after the first success, one for each view.

vlmrm-gym dataset VLMRM/MountainCarContinuous-v0 --policy runs/RUN --episodes 10 --seed 1000 --out runs/cars
python benchmarks/record_videos.py runs/cars runs/cars_videos --after 5
"""

import argparse
from pathlib import Path

import imageio.v3 as iio
import numpy as np

from vlmrm_gym.tools.segments import DatasetSegments

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path, help="a folder of `vlmrm-gym dataset`")
    parser.add_argument("out", type=Path, help="the folder to write")
    parser.add_argument("--after", type=int, default=5, help="steps after the first success")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with DatasetSegments(given.dataset) as segments:
        for number, episode in enumerate(segments.rollouts):
            reached = np.flatnonzero(episode.success == 1)
            if not len(reached):
                print(f"episode {number} never succeeds: left out")
                continue
            frames = segments.draw(episode.with_initial[: reached[0] + given.after + 2])
            for view in range(frames.shape[1]):
                file = given.out / f"episode_{number:02}_view_{view}.mp4"
                iio.imwrite(file, frames[:, view], fps=30, macro_block_size=1)
