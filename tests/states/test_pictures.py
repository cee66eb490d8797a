"""The painted pictures of the worlds are files, equal to the pixel to those that every recorded training has seen."""

import hashlib
import tomllib
from pathlib import Path

import numpy as np
import pygame
import pytest
from PIL import Image

import vlmrm_gym
from painting.__main__ import paint
from vlmrm_gym.states.classic_control import PICTURES, MountainCarRenderer
from vlmrm_gym.tasks.humanoid import textured_model

PACKAGE = Path(vlmrm_gym.__file__).parent

TEXTURES = {
    "sky": "4bc486bc4f1eb460",
    "floor": "9476280b63594685",
    "shell": "9f643c15fbd19553",
    "limb": "570a57c5c919841b",
    "joint": "a595766f17f3a4fb",
    "head": "5a2f5e8226a0f06b",
}
"""SHA-256, 16 digits, of what MuJoCo holds: recorded from models whose textures were painted when they were made."""
MOUNTAIN = {"background": "a058599d32d8e6f9", "car": "cc0930b67b377288"}
"""The same of RGBA pixels that were painted at run time."""


def digest(pixels: bytes) -> str:
    return hashlib.sha256(pixels).hexdigest()[:16]


def test_textures_and_the_mountain_are_those_that_were_painted():
    model, found = textured_model(), {}
    for name in TEXTURES:
        index = model.tex(name).id
        size = model.tex_height[index] * model.tex_width[index] * model.tex_nchannel[index]
        found[name] = digest(model.tex_data[model.tex_adr[index] :][:size].tobytes())
    assert found == TEXTURES
    pictures = {name: pygame.image.load(PICTURES / f"{name}.png") for name in MOUNTAIN}
    assert {name: digest(pygame.image.tobytes(one, "RGBA")) for name, one in pictures.items()} == MOUNTAIN


def test_a_frame_at_the_size_of_the_picture_is_the_picture_but_for_the_car():
    (frame,) = MountainCarRenderer(800, 1200, textured=True).render([(0.0,)])
    picture = np.asarray(Image.open(PICTURES / "background.png"))
    columns = np.flatnonzero((frame != picture).any(axis=(0, 2)))
    assert 730 < columns.min() < columns.max() < 870  # the car is 100 pixels long, at 1200 * 2 / 3
    np.testing.assert_array_equal(frame[:, :730], picture[:, :730])


@pytest.mark.slow
def test_painting_again_gives_the_files():
    """Within one level: another processor may round another way."""
    painted = dict(paint())
    for name, picture in painted.items():
        differences = np.abs(picture.astype(int) - np.asarray(Image.open(PACKAGE / name)))
        assert differences.max() <= 1, name
    files = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.png")}
    assert painted.keys() == files


def test_the_wheel_has_the_pictures_and_all_other_files_that_are_not_python():
    text = (PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8")
    patterns = tomllib.loads(text)["tool"]["setuptools"]["package-data"]["vlmrm_gym"]
    installed = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    files = {path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert files <= installed
