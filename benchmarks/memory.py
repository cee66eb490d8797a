"""Memory of the process that steps and of two workers after scoring, and the time from start to the first reward.

    python benchmarks/memory.py
    python benchmarks/memory.py --package /path/to/another/checkout   # before a change, and after it: in one run

Plays one episode of each humanoid, seen by two cameras and scored by the bundled model. Per process, in MB:

- RSS: all resident pages. Those of shared libraries count in every process. Peak: the highest so far.
- PSS: as RSS, but a page that n processes share counts 1/n in each: the sum over processes is what they really take.
  Other processes of the machine that have loaded torch make it smaller.
- private: pages that no other process has.

Seconds: from the start of Python until the rewards of the first episodes are there. Linux only.
"""

import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from processes import descendants, memory, start_in_checkout

FIELDS = {"RSS": ("Rss",), "PSS": ("Pss",), "private": ("Private_Clean", "Private_Dirty")}
SCRIPT = """
import sys
import gymnasium as gym, vlmrm_gym
steps, workers = map(int, sys.argv[1:])
envs = gym.make_vec(
    "VLMRM/Humanoid-kneel-v0", 4, num_workers=workers, episode_length=steps, camera="front-side", combine_views="min"
)
envs.reset(seed=0)
for _ in range(steps):
    infos = envs.step(envs.action_space.sample())[-1]
assert infos["_vlm_rewards"].all()
print("scored", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Args:
    package: tuple[Path, ...] = (Path(__file__).parent.parent,)
    """checkouts to measure, in turns"""
    rounds: int = 3
    """of each checkout"""
    num_workers: int = 2
    """worker processes; 0 scores in the process that steps"""
    steps: int = 200
    """of an episode"""


def read(pid: int) -> dict[str, float]:
    """RSS, its peak, PSS and private memory of a process, in MB."""
    sizes = {
        name: int(kb) for name, kb in re.findall(r"(\w+): +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text())
    }
    found = {name: sum(sizes[field] for field in fields) * 1024 / 1e6 for name, fields in FIELDS.items()}
    return {**found, "peak RSS": memory("VmHWM", pid)}


def measure(package: Path, args: Args) -> dict[str, dict[str, float]]:
    """One run: the memory of each process by its name, and the seconds."""
    begun = time.monotonic()
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with start_in_checkout(package, SCRIPT, str(args.steps), str(args.num_workers), **pipes) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "scored\n":
            raise SystemExit("The run failed; see above.")
        seconds = time.monotonic() - begun
        found = {"stepping": read(process.pid)}
        found |= {f"worker {number}": read(pid) for number, pid in enumerate(descendants(process.pid), 1)}
        process.communicate("")
    return {**found, "time": {"seconds": seconds}}


def main(args: Args) -> None:
    """Measure, and print a row for each process: medians over the rounds."""
    runs = [(package, measure(package, args)) for _ in range(args.rounds) for package in args.package]
    print("| checkout | process | RSS | peak RSS | PSS | private | seconds to the first rewards |")
    print("|---|---|---|---|---|---|---|")
    for package in args.package:
        own = [found for measured, found in runs if measured == package]
        seconds = sorted(found["time"]["seconds"] for found in own)[len(own) // 2]
        for name in [name for name in own[0] if name != "time"]:
            columns = ("RSS", "peak RSS", "PSS", "private")
            cells = [sorted(found[name][column] for found in own)[len(own) // 2] for column in columns]
            row = [package.resolve().name, name, *(f"{cell:.0f}" for cell in cells), f"{seconds:.1f}"]
            print("|", " | ".join(row), "|")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
