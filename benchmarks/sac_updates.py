r"""Updates/s and steps/s of `examples/sac_continuous.py` on one core, with several flags, or beside another commit.

    python benchmarks/sac_updates.py
    python benchmarks/sac_updates.py --against c408045
    python benchmarks/sac_updates.py --variant= --variant="--no-bfloat16"
    python benchmarks/sac_updates.py --env-id VLMRM/Humanoid-kneel-v0 --steps 3200 \
        --variant="--camera front-side" --variant="--camera front-side --score-every 4"

Runs the program itself, with its settings for the task, and watches the calls of its replay buffer and of its policy.
An update is one gradient step: a batch is sampled, losses and gradients are computed, parameters and target networks
are changed. Steps are those of a training after learning has started: physics, rendering, scoring, and the updates that
belong to them.

The variants take turns, each turn in a new process with one thread on one core. Rates are per second of the process's
CPU time, which other programs on the machine disturb less than the clock; without workers, everything runs in that
process. Medians over the rounds, and their ratios to the first row's: the other commit's, whose program runs with that
commit's library (`git archive`), or the first variant's.
"""

import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import tyro
from turns import in_turns

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


def take_turn(env_id: str, steps: int, core: int, flags: str) -> None:
    """Train on one core, print updates/s and steps/s, and exit."""
    os.sched_setaffinity(0, {core})
    import gymnasium as gym
    import sac_continuous

    from vlmrm_gym import ReplayBuffer

    names = vars(sac_continuous)
    args = names.get("default_args", names.get("args_for"))(env_id)  # the latter was its name before 0.2.0
    args = tyro.cli(sac_continuous.Args, args=shlex.split(flags), default=args)
    episode_length = args.episode_length or gym.spec(env_id).kwargs["episode_length"]
    args = replace(
        args,
        runs_folder=Path(tempfile.mkdtemp()),
        device="cpu",
        learning_starts=2 * args.num_envs * episode_length,
        total_timesteps=1_000_000,
        selection_frequency=1_000_000,
        checkpoint_frequency=1_000_000,
    )
    watch = Watch(steps)
    for owner, name in ((ReplayBuffer, "add"), (ReplayBuffer, "sample"), (sac_continuous.Agent, "act")):
        setattr(owner, name, watched(getattr(owner, name), getattr(watch, name)))
    sac_continuous.main(args)


def main(
    variant: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    against: str | None = None,
    env_id: str = "VLMRM/Humanoid-stand-v0",
    rounds: int = 3,
    steps: int = 1_600,
    core: int = 0,
    turn: str | None = None,
) -> None:
    """Compare flags, or commits.

    Args:
        variant: Flags of the program, as one text; may be repeated. Without: no flags.
        against: Another commit, which takes turns with its own settings; None: none.
        env_id: The task, an ID of this package with continuous actions.
        rounds: Number of turns of each variant.
        steps: Steps of a turn, after learning has started; whole episodes of all environments.
        core: The core to run on.
        turn: Take one turn, with these flags, and the program and library in `PYTHONPATH`. The benchmark starts itself
            so.
    """
    if turn is not None:
        take_turn(env_id, steps, core, turn)
    with tempfile.TemporaryDirectory() as folder:
        turns = {} if against is None else {against: (Path(folder), "")}
        turns |= {flags or "this": (ROOT, flags) for flags in variant or ("",)}
        if against is not None:
            archive = subprocess.run(["git", "-C", str(ROOT), "archive", against], stdout=subprocess.PIPE, check=True)
            subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)

        def measure(tree: Path, flags: str) -> list[float]:
            command = [sys.executable, __file__, f"--turn={flags}", "--env-id", env_id, "--steps", str(steps)]
            path = os.pathsep.join([str(tree), str(tree / "examples")])
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
            done = subprocess.run(
                [*command, "--core", str(core)], env=environment, stdout=subprocess.PIPE, check=True, text=True
            )
            return json.loads(done.stdout.splitlines()[-1])

        rates = in_turns({name: partial(measure, *way) for name, way in turns.items()}, rounds)
    print(f"{env_id}, CPU time of one core, medians of {rounds} turns")
    print("| | updates/s | steps/s | updates/s, ratio | steps/s, ratio |\n|---|---|---|---|---|")
    medians = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in rates.items()}
    first = medians[next(iter(medians))]
    for name, median in medians.items():
        ratios = [own / one for own, one in zip(median, first, strict=True)]
        print(f"| {name} | {median[0]:.1f} | {median[1]:.1f} | {ratios[0]:.2f} | {ratios[1]:.2f} |")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
