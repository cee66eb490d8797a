"""Paint the pictures and write them where the package reads them.

`oxipng -o 4 --nx` then makes the files smaller by an eighth; it changes no pixel.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from painting import car, humanoid, mountain

PACKAGE = Path(__file__).parents[1] / "vlmrm_gym"


def paint() -> Iterator[tuple[str, NDArray[np.uint8]]]:
    """Paths of pictures in the package, and the pictures: uint8 (H, W, 3 or 4)."""
    for texture in (humanoid.sky, humanoid.floor, humanoid.shell, humanoid.limb, humanoid.joint, humanoid.head):
        yield f"tasks/textures/{texture.__name__}.png", texture()
    yield "states/mountain/background.png", mountain.background(800, 1200)
    yield "states/mountain/car.png", car.car()


def main() -> None:
    """Paint all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=PACKAGE, help="instead of the package")
    folder: Path = parser.parse_args().folder
    for name, picture in paint():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path, optimize=True)
        print(path)


if __name__ == "__main__":
    main()
