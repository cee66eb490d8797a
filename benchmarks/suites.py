"""Frames a second of MuJoCo suites, drawn by the environments themselves and from their states.

    python benchmarks/suites.py

Needs requirements/suites.txt. Milliseconds of processor time, so that other processes matter little; OpenGL in
software, frames of 192 x 192 pixels. LP_NUM_THREADS=0 keeps it to one thread.
"""

import argparse
import importlib
import time
import warnings
from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np

from vlmrm_gym.states import States, StateView

SIZE = {"width": 192, "height": 192}
CAMERA = {"render_kwargs": {**SIZE, "camera_id": 0}}
ENVIRONMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "Meta-World/MT1 drawer-close-v3": ("metaworld", {**SIZE, "seed": 0}),
    "Meta-World/MT1 push-v3": ("metaworld", {**SIZE, "seed": 0}),
    "dm_control/cartpole-swingup-v0": ("shimmy", CAMERA),
    "dm_control/walker-walk-v0": ("shimmy", CAMERA),
    "dm_control/quadruped-escape-v0": ("shimmy", CAMERA),
    "FetchReach-v4": ("gymnasium_robotics", SIZE),
    "HandReach-v3": ("gymnasium_robotics", SIZE),
    "PointMaze_UMaze-v3": ("gymnasium_robotics", SIZE),
    "AdroitHandDoor-v1": ("gymnasium_robotics", SIZE),
}


def make(env_id: str) -> gym.Env:
    """An environment of a suite."""
    package, kwargs = ENVIRONMENTS[env_id]
    module = importlib.import_module(package)
    if package == "gymnasium_robotics":
        gym.register_envs(module)
    name, _, task = env_id.partition(" ")
    keywords: Any = kwargs | ({"env_name": task} if task else {})
    return gym.make(name, render_mode="rgb_array", **keywords)


def measure(env_id: str, number: int) -> tuple[str, dict[str, float]]:
    """What is captured, and milliseconds of processor time a step, a captured state and a frame."""
    env = make(env_id)
    env.reset(seed=0)
    seconds = {"step": 0.0, "capture": 0.0}
    captured = []
    view = StateView(env)
    view.reset()
    for _ in range(number + 2):  # the first two are drawn both ways
        action, start = env.action_space.sample(), time.process_time()
        env.step(action)
        stepped = time.process_time()
        captured.append(view.capture())
        seconds["step"] += stepped - start
        if len(captured) > 2:
            seconds["capture"] += time.process_time() - stepped
    rows, changes = zip(*captured[2:], strict=True)
    stored = any(change is not None and change.frame is not None for change in changes)
    if not stored:
        for quality in ("fast", "faithful"):
            with closing(StateView(env, quality=quality)) as drawn:  # pyright: ignore[reportArgumentType]
                renderer = drawn.make_renderer(lambda height, width: (height, width))
                states = States(np.stack(rows), changes)
                states[:1].draw(renderer)
                start = time.process_time()
                states.draw(renderer)
                seconds[quality] = time.process_time() - start
                renderer.close()
    env.render()
    start = time.process_time()
    for _ in range(number):
        env.render()
    seconds["own"] = time.process_time() - start
    view.close()
    env.close()
    return "frames" if stored else "states", {name: 1000 * value / number for name, value in seconds.items()}


def main() -> None:
    """Print a row for each environment."""
    parser = argparse.ArgumentParser(description="Frames a second of MuJoCo suites.")
    parser.add_argument("--number", type=int, default=50, help="states of each environment")
    number = parser.parse_args().number
    warnings.simplefilter("ignore")
    for env_id in ENVIRONMENTS:
        try:
            kind, milliseconds = measure(env_id, number)
        except (ImportError, AssertionError, AttributeError) as error:
            print(f"{env_id}: {error!r}")
            continue
        print(env_id, kind, {name: round(value, 2) for name, value in milliseconds.items()}, flush=True)


if __name__ == "__main__":
    main()
