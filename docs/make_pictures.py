"""Make the pictures of the worlds and of the poses again: `python docs/make_pictures.py`."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from vlmrm_gym.states.cameras import PAPER_CAMERA
from vlmrm_gym.states.classic_control import MountainCarRenderer
from vlmrm_gym.states.mujoco import MuJoCoRenderer
from vlmrm_gym.tasks.humanoid import textured_model
from vlmrm_gym.tasks.humanoid_body import plain_model
from vlmrm_gym.tasks.humanoid_poses import ARMS, LEGS, TASK_POSES, pose

FOLDER = Path(__file__).parent


def grid(frames: Sequence[np.ndarray], columns: int) -> Image.Image:
    """Frames in rows."""
    blank = np.full_like(frames[0], 255)
    padded = [*frames, *[blank] * (-len(frames) % columns)]
    rows = [np.concatenate(padded[i : i + columns], axis=1) for i in range(0, len(padded), columns)]
    return Image.fromarray(np.concatenate(rows))


def labelled(frame: np.ndarray, text: str) -> np.ndarray:
    """A frame with a caption in its lower left corner."""
    image = Image.fromarray(frame)
    ImageDraw.Draw(image).text((6, frame.shape[0] - 16), text, fill="white", stroke_width=2, stroke_fill="black")
    return np.asarray(image)


def humanoids(states: Sequence[np.ndarray], size: int, textured: bool) -> np.ndarray:
    """What the paper's camera sees, in the faithful quality: uint8 (N, size, size, 3)."""
    model = textured_model() if textured else plain_model()
    renderer = MuJoCoRenderer(model, 2 * size, 2 * size, camera=PAPER_CAMERA, quality="faithful")
    frames = renderer.render(np.stack(states))
    renderer.close()
    return np.stack([np.asarray(Image.fromarray(frame).resize((size, size), Image.Resampling.BOX)) for frame in frames])


if __name__ == "__main__":
    states = [pose(legs, arms) for legs, arms in TASK_POSES.values()]
    for textured, name in ((True, "textured"), (False, "plain")):
        frames = humanoids(states, 220, textured)
        tiles = [labelled(frame, task) for frame, task in zip(frames, TASK_POSES, strict=True)]
        grid(tiles, 4).save(FOLDER / f"humanoid_{name}.jpg", quality=88)
    positions = np.array([[-0.52], [0.1], [0.45]])
    cars = [MountainCarRenderer(200, 300, textured=textured).render(positions) for textured in (True, False)]
    grid([frame for frames in cars for frame in frames], 3).save(FOLDER / "mountain_car.jpg", quality=88)
    library = [(legs, "loose") for legs in LEGS] + [("stand", arms) for arms in ARMS]
    frames = humanoids([pose(*names) for names in library], 150, textured=True)
    tiles = [
        labelled(frame, legs if arms == "loose" else arms) for frame, (legs, arms) in zip(frames, library, strict=True)
    ]
    grid(tiles, 9).save(FOLDER / "poses.jpg", quality=85)
