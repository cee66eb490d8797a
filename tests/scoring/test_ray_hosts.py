"""Scoring on Ray across several hosts, for real: each host has its own network, and links and hosts fail."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from train_on_hosts import ENVIRONMENTS, SEED, Rewards

import vlmrm_gym  # noqa: F401  (registers the IDs)
from benchmarks.network_hosts import Host, HostsUnavailable, Network, check_available

pytest.importorskip("ray")

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
# A host that is silent for some 25 seconds is dead, and so is one that a busy machine starves for as long.
QUICK = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "5",
}
OPTIONS = {
    "backend": "ray",
    "num_workers": 2,
    "overlap": True,
    "ray_options": {"num_cpus": 1, "scheduling_strategy": "SPREAD"},
    "worker_timeouts": {"draw": 40, "encode": 40},
}
PATIENCE = 240.0
"""Seconds within which whatever has to happen happens, on a busy machine too."""


@pytest.fixture
def network() -> Iterator[Network]:
    try:
        check_available()
    except HostsUnavailable as error:
        pytest.skip(str(error))
    with Network() as network:
        yield network


def make_cluster(network: Network, *names: str) -> list[Host]:
    """The head, whose CPUs are for the training alone, and hosts that score, two actors at the most."""
    head, *others = [network.add_host(name) for name in ("head", *names)]
    head.start_ray(num_cpus=0, env=QUICK)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda host: host.start_ray(num_cpus=2, head=head, env=QUICK), others))
    return [head, *others]


def wait_for(condition: Callable[[], object], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, f"waited in vain for {what}"
        time.sleep(0.1)


def actors(host: Host) -> int:
    """How many actors live on a host: Ray gives their processes the name of their class."""
    script = "for file in /proc/[0-9]*/cmdline; do head -c 80 $file | tr '\\0' ' '; echo; done"
    commands = host.run(["bash", "-c", script])
    return sum(line.startswith("ray::ScoringActor") for line in commands.splitlines())


class Training:
    """`train_on_hosts.py` on a host."""

    def __init__(self, head: Host, folder: Path, options: dict[str, Any]) -> None:
        folder.mkdir()
        self.folder, self._output = folder, folder / "output"
        env = {"RAY_ADDRESS": head.ray_address, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
        command = [
            sys.executable,
            str(REPOSITORY / "tests" / "helpers" / "train_on_hosts.py"),
            str(folder),
            json.dumps(options),
        ]
        with self._output.open("w") as output:
            self.process = head.popen(command, env=env, cwd=REPOSITORY, stdout=output, stderr=subprocess.STDOUT)

    @property
    def scored(self) -> int:
        """Transitions that have their reward."""
        text = self._output.read_text()
        assert self.process.poll() is None, text[-4_000:]
        lines = [line for line in text.splitlines() if line.startswith('{"made"') and line.endswith("}")]
        return json.loads(lines[-1])["scored"] if lines else 0

    def wait_for_more(self, count: int) -> None:
        enough = self.scored + count
        try:
            wait_for(lambda: self.scored >= enough, f"{count} more rewards")
        except AssertionError as error:
            error.add_note(self._output.read_text()[-4_000:])
            raise

    def finish(self) -> None:
        """Have it come to an end; every transition then has its reward."""
        (self.folder / "stop").touch()
        assert self.process.wait(PATIENCE) == 0, self._output.read_text()[-4_000:]

    def check_rewards(self) -> None:
        """Nothing lost, nothing doubled, and the values of one process."""
        with np.load(self.folder / "record.npz") as record:
            actions, found = record["actions"], [record[f"arr_{i}"] for i in range(ENVIRONMENTS["num_envs"])]
        envs = gym.make_vec(**ENVIRONMENTS, num_workers=0)
        expected = Rewards(envs.num_envs)
        envs.reset(seed=SEED)
        for action in actions:
            expected.take(envs.step(action)[-1])
        expected.take(envs.flush())
        envs.close()
        assert len(expected) == expected.due
        for own, rewards in zip(found, expected.of_env, strict=True):
            np.testing.assert_allclose(own, rewards, rtol=0, atol=1e-5)


@contextmanager
def training(head: Host, folder: Path, options: dict[str, Any]) -> Iterator[Training]:
    run = Training(head, folder, options)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.wait()


def test_two_trainings_share_a_cluster_and_a_killed_one_leaves_no_actor(network, tmp_path):
    head, *others = make_cluster(network, "a", "b")
    options = {**OPTIONS, "num_workers": 1}
    with training(head, tmp_path / "one", options) as one, training(head, tmp_path / "other", options) as other:
        for run in (one, other):
            run.wait_for_more(400)
        wait_for(lambda: [actors(host) for host in (head, *others)] == [0, 1, 1], "an actor on each host")
        os.kill(child_of(other.process), signal.SIGKILL)
        wait_for(lambda: sum(map(actors, others)) == 1, "the end of the killed training's actors")
        one.wait_for_more(200)
        one.finish()
    one.check_rewards()
    wait_for(lambda: sum(map(actors, others)) == 0, "the end of all actors")


def test_rewards_survive_a_cut_link_a_killed_host_and_a_cluster_without_workers(network, tmp_path):
    head, a, b = make_cluster(network, "a", "b")
    with training(head, tmp_path / "run", OPTIONS) as run:
        run.wait_for_more(400)
        wait_for(lambda: [actors(host) for host in (a, b)] == [1, 1], "an actor on each host")
        a.cut_link()
        run.wait_for_more(600)
        b.kill()
        c = network.add_host("c")
        c.start_ray(num_cpus=2, head=head, env=QUICK)
        run.wait_for_more(600)
        a.restore_link()
        run.wait_for_more(200)
        wait_for(lambda: actors(c) == 2 and not actors(a), "both actors on the new host, and none that was cut off")
        run.finish()
    run.check_rewards()
    wait_for(lambda: actors(c) == 0, "the end of all actors")


def child_of(process: subprocess.Popen) -> int:
    """The command that `Host.popen` started: the process that enters the host's namespaces has it as its child."""
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
