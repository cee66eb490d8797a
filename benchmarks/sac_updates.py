"""Updates/s and steps/s of `examples/sac_continuous.py` on one core, beside those of another commit.

    python benchmarks/sac_updates.py
    python benchmarks/sac_updates.py --against c408045
    python benchmarks/sac_updates.py --against c408045 --env-id VLMRM/MountainCarContinuous-v0
    python benchmarks/sac_updates.py --against HEAD~1 --options no_bfloat16      # the present file in float32

Runs the program itself, with its settings for the task, and watches the calls of its replay buffer and of its policy.
An update is one gradient step: a batch is sampled, losses and gradients are computed, parameters and target networks
are changed. Steps are those of a training after learning has started: physics, rendering, scoring, and the updates that
belong to them.

Both commits take turns, each turn in a new process with one thread on one core. Rates are per second of the process's
CPU time, which other programs on the machine disturb less than the clock; without workers, everything runs in that
process. Medians over the rounds. The other commit's program runs with that commit's library (`git archive`).
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import tyro

ROOT = Path(__file__).parent.parent


class Watch:
    """Counts steps and updates and adds up the CPU time of updates, until enough steps have been taken."""

    def __init__(self, steps: int) -> None:
        self.enough, self.steps, self.updates, self.update_seconds = steps, 0, 0, 0.0
        self.began: float | None = None
        self.updates_began: float | None = None

    def add(self, *transitions: Any) -> None:
        """At every step, with what `ReplayBuffer.add` takes."""
        self.steps += int(transitions[-1]["_task_reward"].sum())

    def sample(self, batch_size: int) -> None:
        """At the start of every update."""
        self.updates_began = time.process_time() if self.updates_began is None else self.updates_began
        self.updates += 1

    def act(self, observations: Any) -> None:
        """When the policy acts, which is when the updates of a step have ended. The first updates do not count."""
        if self.updates_began is None:
            return
        now = time.process_time()
        self.update_seconds, self.updates_began = self.update_seconds + now - self.updates_began, None
        if self.began is None:
            self.steps, self.updates, self.update_seconds, self.began = 0, 0, 0.0, now
        elif self.steps >= self.enough:
            print(json.dumps([self.updates / self.update_seconds, self.steps / (now - self.began)]), flush=True)
            os._exit(0)


def watched(method: Any, callback: Any) -> Any:
    """The method, with a callback before it."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        callback(*args)
        return method(self, *args, **kwargs)

    return call


def take_turn(env_id: str, steps: int, core: int, options: tuple[str, ...]) -> None:
    """Train on one core, print updates/s and steps/s, and exit."""
    os.sched_setaffinity(0, {core})
    import gymnasium as gym
    import sac_continuous

    from vlmrm_gym.replay import ReplayBuffer

    names = vars(sac_continuous)
    args = names.get("default_args", names.get("args_for"))(env_id)  # the latter was its name before 0.2.0
    args = replace(
        args,
        runs_folder=Path(tempfile.mkdtemp()),
        device="cpu",
        learning_starts=2 * args.num_envs * gym.spec(env_id).kwargs["episode_length"],
        total_timesteps=1_000_000,
        selection_frequency=1_000_000,
        checkpoint_frequency=1_000_000,
        **{option.removeprefix("no_"): not option.startswith("no_") for option in options},
    )
    watch = Watch(steps)
    for owner, name in ((ReplayBuffer, "add"), (ReplayBuffer, "sample"), (sac_continuous.Agent, "act")):
        setattr(owner, name, watched(getattr(owner, name), getattr(watch, name)))
    sac_continuous.main(args)


def main(
    against: str | None = None,
    env_id: str = "VLMRM/Humanoid-stand-v0",
    rounds: int = 3,
    steps: int = 1_600,
    core: int = 0,
    options: tuple[str, ...] = (),
    turn: bool = False,
) -> None:
    """Compare commits.

    Args:
        against: The other commit; None: measure the present file only.
        env_id: The task, an ID of this package with continuous actions.
        rounds: Number of turns of each commit.
        steps: Steps of a turn, after learning has started; whole episodes of all environments.
        core: The core to run on.
        options: Switches of the present file to turn on, or off with "no_" before them.
        turn: Take one turn, with the program and library in `PYTHONPATH`. The benchmark starts itself so.
    """
    if turn:
        take_turn(env_id, steps, core, options)
    for name, value in (("rounds", rounds), ("steps", steps)):
        if value < 1:
            sys.exit(f"`{name}` must be at least 1. Received {value}.")
    with tempfile.TemporaryDirectory() as folder:
        trees = {"this": ROOT}
        if against is not None:
            trees[against] = Path(folder)
            archive = subprocess.run(["git", "-C", str(ROOT), "archive", against], capture_output=True)
            if archive.returncode:
                sys.exit(f"`against` must be a commit of {ROOT}. Received {against!r}: {archive.stderr.decode()}")
            subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        rates: dict[str, list[list[float]]] = {name: [] for name in trees}
        for _ in range(rounds):
            for name, tree in trees.items():
                command = [sys.executable, __file__, "--turn", "--env-id", env_id, "--steps", str(steps)]
                command += ["--core", str(core), *(["--options", *options] if name == "this" and options else [])]
                path = os.pathsep.join([str(tree), str(tree / "examples")])
                environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
                done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
                rates[name].append(json.loads(done.stdout.splitlines()[-1]))
    print(f"{env_id}, CPU time of one core, medians of {rounds} turns\n| | updates/s | steps/s |\n|---|---|---|")
    medians = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in rates.items()}
    for name, (updates, environment_steps) in medians.items():
        print(f"| {name} | {updates:.1f} | {environment_steps:.1f} |")
    if against is not None:
        print("| ratio |" + "".join(f" {a / b:.2f} |" for a, b in zip(medians["this"], medians[against], strict=True)))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
