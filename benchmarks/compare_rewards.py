"""The largest difference between the rewards of this checkout and of another one.

    python benchmarks/compare_rewards.py /path/to/another/checkout
    python benchmarks/compare_rewards.py /path/to/another/checkout --all   # all kinds with workers too; minutes

Each checkout plays the same cases with the same seeds and actions, in a process of its own, both at the same time:
every registered task; one view, and two of humanoids; scored in this process, and by two workers; each of `KINDS`, and
a single environment. Without `--all` a task has a fifth of the kinds with workers, another task the next fifth.
Features are compared like rewards. The exit status is 1 if a difference is above 1e-5, or a case failed in a checkout.
"""

import sys
import traceback
import warnings
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import tyro
from numpy.typing import NDArray
from processes import start_in_checkout

AT_MOST = 1e-5
NUM_ENVS, EPISODE_LENGTH, STEPS = 2, 10, 16
SIDES = [{"distance": 3.5, "lookat": [0.0, 0.0, 1.0], "elevation": -10.0, "azimuth": angle} for angle in (180.0, 90.0)]
SUBTASKS = """
class Waited:
    def reset(self):
        self.frames = 0

    def __call__(self, frame):
        self.frames += 1
        return self.frames == 4

class Moved:
    def reset(self):
        self.first = None

    def __call__(self, frame):
        self.first = frame.astype(float) if self.first is None else self.first
        return min(0.75, abs(frame - self.first).mean() / 20)
"""
FUNCTION = "import math\ndef reward(frame):\n    return math.sin(10 * frame.mean())"


@dataclass(frozen=True)
class Args:
    other: Annotated[Path, tyro.conf.Positional]
    """the other checkout"""
    all: bool = False
    """score each kind by workers for each task"""
    only: str = ""
    """only cases with this in their names: CartPole, or "2 workers", or sub-tasks"""


def sine(frames: NDArray[np.uint8]) -> NDArray[np.float64]:
    """A callable reward that differs between states that look alike: float64 (B,), -1 to 1."""
    return np.sin(10 * frames.mean((1, 2, 3)))


def product(rewards: NDArray[np.float32]) -> NDArray[np.float32]:
    """A function over views, float32 (B, V) to (B,)."""
    return rewards.prod(1)


def kinds(prompt: str) -> dict[str, dict[str, Any]]:
    """Rewards and ways to score them, as keyword arguments of environments."""
    clip = {"prompt": prompt, "baseline": "a robot", "alpha": 0.5, "model": "tiny"}
    program = {"kind": "program", "source": FUNCTION, "size": [72, 108]}
    return {
        "alpha 0": {**clip, "alpha": 0.0},
        "JSON, alpha 0.5": {"reward": {"kind": "clip", **clip}},
        "callable": {"reward": sine},
        "program": {"reward": program},
        "sub-tasks": {"reward": {**program, "source": SUBTASKS}},
        "alpha 0.5, every 4th": {**clip, "score_every": 4},
        "callable, every 4th": {"reward": sine, "score_every": 4},
        "features, task reward": {**clip, "return_features": True, "task_reward_weight": 0.1},
        "step, task reward": {**clip, "scoring": "step", "task_reward_weight": 0.1},
        "sub-tasks, step": {"reward": {**program, "source": SUBTASKS}, "scoring": "step"},
    }


def cases(everything: bool) -> dict[str, tuple[str, int, dict[str, Any]]]:
    """By name: an ID, a number of environments (0: a single one) and its options."""
    from vlmrm_gym.tasks import TASKS

    found = {}
    seen = [(task, views) for task in TASKS for views in ([None, SIDES] if task.camera else [None])]
    for number, (task, views) in enumerate(seen):
        each = kinds(task.prompt or "a humanoid robot that walks")
        combined = ("min", "mean", product)[number // 2 % 3]
        more = {"episode_length": EPISODE_LENGTH} | ({"camera": views, "combine_views": combined} if views else {})
        for index, (name, options) in enumerate(each.items()):
            case = f"{task.id}, {len(views or [0])} view{'s' * bool(views)}, {name}"
            found[case] = (task.id, NUM_ENVS, {**options, **more})
            if everything or (number + index) % 5 == 0:
                overlap = number % 2 > 0 and "step" not in name
                found[f"{case}, 2 workers{', overlap' * overlap}"] = (
                    task.id,
                    NUM_ENVS,
                    {**options, **more, "num_workers": 2, "overlap": overlap},
                )
            if index == number % 5:
                found[f"{case}, one environment"] = (task.id, 0, {**options, **more})
    return found


def play(id: str, num_envs: int, options: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """What the environments return: rewards of one after the other, and features, if any."""
    env: Any = gym.make_vec(id, num_envs, **options) if num_envs else gym.make(id, **options)
    found: dict[str, list[list[Any]]] = {"rewards": [[] for _ in range(max(1, num_envs))]}
    found["features"] = [[] for _ in found["rewards"]]

    def read(infos: dict[str, Any]) -> None:
        for i in np.flatnonzero(infos["_vlm_rewards"]):
            found["rewards"][i].append(infos["vlm_rewards"][i])
            if "return_features" in options:
                found["features"][i].append(infos["vlm_features"][i])

    late = num_envs and options.get("scoring") != "step"
    with closing(env):
        env.action_space.seed(0)
        env.reset(seed=0)
        for _ in range(STEPS):
            _, rewards, terminated, truncated, infos = env.step(env.action_space.sample())
            if late:
                read(infos)
            else:
                for own, reward in zip(found["rewards"], np.atleast_1d(rewards), strict=True):
                    own.append([reward])
            if not num_envs and (terminated or truncated):
                env.reset()
        if late:
            read(env.flush())
    return {name: np.concatenate([*chain(*own)]) for name, own in found.items() if own[0]}


def play_all(file: str, everything: bool, only: str) -> None:
    """Play all cases with the package in the working directory, and save what it returned."""
    import vlmrm_gym

    assert Path(vlmrm_gym.__file__).parents[1] == Path.cwd()
    warnings.simplefilter("ignore")  # prompts and programs that are only examples
    made = {}
    for name, case in cases(everything).items():
        if only not in name:
            continue
        try:
            made |= {f"{name}: {what}": array for what, array in play(*case).items()}
        except Exception:
            print(f"{Path.cwd()}, {name}:\n{traceback.format_exc()}", file=sys.stderr)
            made[f"{name}: rewards"] = np.array(np.nan)
    np.savez(file, **made)


def difference(own: NDArray[Any], other: NDArray[Any]) -> float:
    """The largest one of two arrays; infinity if they are of two shapes, or one has NaN."""
    if own.shape != other.shape or not own.size:
        return np.inf
    return float(np.nan_to_num(np.abs(own - other), nan=np.inf).max())


def main(args: Args) -> None:
    with TemporaryDirectory() as folder:
        files = [Path(folder) / f"{name}.npz" for name in ("own", "other")]
        trees = Path(__file__).parents[1], args.other
        started = []
        for tree, file in zip(trees, files, strict=True):
            code = f"import compare_rewards as c; c.play_all({str(file)!r}, {args.all}, {args.only!r})"
            started.append(start_in_checkout(tree, code))
        codes = [one.wait() for one in started]
        if any(codes):
            sys.exit("A checkout failed; see above.")
        own, other = (dict(np.load(file)) for file in files)
    empty = np.zeros(0)
    found = {name: difference(own.get(name, empty), other.get(name, empty)) for name in own | other}
    for name, largest in found.items():
        print(f"{largest:.1e}  {name}")
    if not found:
        sys.exit(f"`only` must be part of a case's name. Received {args.only!r}.")
    worst = max(found, key=lambda name: found[name])
    count = sum(array.size for name, array in own.items() if name.endswith("rewards"))
    print(f"\nLargest of {len(found)} cases, {count:,} rewards: {found[worst]:.1e} ({worst})")
    sys.exit(found[worst] > AT_MOST)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
