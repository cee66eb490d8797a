"""The ten wishes of a new user, each the first block of its page, run with an installed package. `make build` calls it.

python tests/repository/ten_wishes.py    # by the interpreter of an environment with the package and its extra "train"
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
WISHES = {
    "my environment, a sentence, Stable-Baselines3": ("own_environment", ""),
    "goal photos": ("goal_images", ""),
    "a mix with my own reward; success that ends the episode; progress": ("combining_rewards", ""),
    "a PPO file, a loop of my own": ("deferred_scoring", ""),
    "is my prompt any good": ("check", ""),
    "my videos and datasets": ("datasets", "--model tiny"),
    "people, or a server, compare": (
        "preferences",
        "--labeler ground_truth --preferences.total 40 --preferences.pairs 20 --total-timesteps 3000",
    ),
    "save and share": ("sharing", ""),
}
"""The wish, its page, and flags that make its command short: a scripted labeler instead of a person."""
VIDEO = """
import imageio.v3 as iio, numpy as np
iio.imwrite("walk.mp4", np.random.default_rng(0).integers(0, 255, (10, 64, 64, 3), dtype=np.uint8), fps=10)
"""
MOST_LINES = 5


def first_block(page: str) -> tuple[str, str]:
    """Language and code of the first block of a page."""
    found = re.search(r"^```(python|bash)\n(.*?)^```", (GUIDES / f"{page}.md").read_text(), re.M | re.S)
    assert found is not None, page
    return found[1], found[2]


def command_of(page: str, flags: str) -> list[str]:
    """What a user would type.

    Raises:
        AssertionError: The page begins with more than a command or five lines of Python.
    """
    language, code = first_block(page)
    if language == "python":
        lines = [line for line in code.splitlines() if line and not line.startswith(("import ", "from "))]
        assert len(lines) <= MOST_LINES, f"{page}: {len(lines)} lines"
        return [sys.executable, "-c", code]
    program, *words = shlex.split(code.splitlines()[0])
    return [str(Path(sys.executable).parent / program), *words, *flags.split()]


def main() -> None:
    """Run all of them, each in a folder of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for wish, (page, flags) in WISHES.items():
        with tempfile.TemporaryDirectory() as folder:
            command, started = command_of(page, flags), time.monotonic()
            subprocess.run([sys.executable, "-c", VIDEO], cwd=folder, env=environment, check=True)
            ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
            if ran.returncode:
                sys.exit(f"{wish} ({page}.md): {command}\n{ran.stdout[-2000:]}\n{ran.stderr[-4000:]}")
            print(f"{time.monotonic() - started:5.0f} s  {wish} ({page}.md)", flush=True)


if __name__ == "__main__":
    main()
