"""Simulate several hosts on one Linux machine: namespaces connected by a bridge. Needs root and iproute2.

Each host has its own network (10.77.0.1, 10.77.0.2, ...), host name, process IDs, shared memory and `/mnt`; all other
files are the machine's. Nothing is created outside the namespaces: no bridge, no `ip netns`, no file. The kernel
removes everything when the processes end, even if this one is killed.

    with Network() as network:
        head, other = network.add_host("head"), network.add_host("other")
        head.start_ray(num_cpus=1)
        other.start_ray(num_cpus=2, head=head)
        driver = head.popen([sys.executable, "train.py"], env={"RAY_ADDRESS": head.ray_address})
        other.cut_link()

Run a `Network` on the main thread of a process: the kernel ends the hosts with the thread that made them.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

TOOLS = {"unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux", "ip": "iproute2"}
"""Commands, and the Debian package that each comes with."""
RAY_PORT = 6379
RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # a head would ask for the token in ~/.ray, if there is one; other nodes send none
}
RAY_START_TIMEOUT = 120.0
"""Seconds; `ray start` takes about 5 on a machine that has nothing else to do."""


class HostsUnavailable(RuntimeError):
    """This machine does not support simulated hosts; the message gives the reason."""


def check_available() -> None:
    """Check that `Network` works here.

    Raises:
        HostsUnavailable: No Linux, not root, a missing command, or namespaces or bridges that are not permitted.
    """
    if sys.platform != "linux":
        raise HostsUnavailable(f"Network namespaces need Linux. Found {sys.platform}.")
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            raise HostsUnavailable(f"The command `{tool}` is missing: apt-get install {package}.")
    if os.geteuid() != 0:
        raise HostsUnavailable("Network namespaces need root.")
    try:
        with Network() as network:
            network.add_host("probe")
    except (OSError, subprocess.CalledProcessError) as error:
        raise HostsUnavailable(f"Network namespaces or bridges are not permitted here: {error}") from error


class _Namespace:
    """A process that holds Linux namespaces open; everything in them ends with it."""

    def __init__(self, kinds: Sequence[str], setup: str) -> None:
        # `setpriv` and --kill-child end it with this process, and bash waits for orphans as an init process has to.
        begin = ["setpriv", "--pdeathsig", "KILL", "unshare", *(f"--{kind}" for kind in kinds)]
        script = f"set -e; {setup}; echo ready; sleep infinity & wait"
        self._process = subprocess.Popen(
            [*begin, "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            _, error = self._process.communicate()
            raise OSError(error.strip())
        self.init = int(Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text())
        """Process ID of the namespace's first process."""

    def enter(self, kinds: Sequence[str]) -> list[str]:
        return ["nsenter", "--target", str(self.init), *(f"--{kind}" for kind in kinds), "--"]

    def kill(self) -> None:
        """Kill all processes in it and wait for them to end."""
        with suppress(ProcessLookupError):
            os.kill(self.init, signal.SIGKILL)
        self._process.kill()
        self._process.communicate()


class Host:
    """A host of a `Network`.

    Args:
        network: The network.
        name: Its host name.
        number: Its number in the network, from 1.
    """

    _KINDS = ("net", "mount", "uts", "ipc")

    def __init__(self, network: "Network", name: str, number: int) -> None:
        self.name, self.address, self.ray_address = name, f"10.77.0.{number}", f"10.77.0.{number}:{RAY_PORT}"
        self._network, self._link = network, f"link{number}"
        own_folders = "mount -t tmpfs tmpfs /dev/shm; mount -t tmpfs tmpfs /mnt"
        self._namespace = _Namespace(self._KINDS, f"hostname {name}; ip link set lo up; {own_folders}")
        pair = f"ip link add {self._link} type veth peer name eth0 netns {self._namespace.init}"
        network.run(f"{pair}; ip link set {self._link} master bridge0 up")
        self.run(["bash", "-ec", f"ip address add {self.address}/24 dev eth0; ip link set eth0 up"])

    def popen(self, command: Sequence[str], *, env: Mapping[str, str] | None = None, **kwargs: Any) -> subprocess.Popen:
        """Start a command on this host, as `subprocess.Popen` does; `env` is added to this process's environment."""
        environment = {**os.environ, **RAY_ENVIRONMENT, **(env or {})}
        return subprocess.Popen([*self._namespace.enter([*self._KINDS, "pid"]), *command], env=environment, **kwargs)

    def run(self, command: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 60.0) -> str:
        """Run a command on this host and return what it prints.

        Raises:
            OSError: It failed; the message has what it printed.
            TimeoutExpired: It took longer.
        """
        process = self.popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            output, _ = process.communicate(timeout=timeout)
        finally:
            process.kill()
        if process.returncode:
            raise OSError(f"{' '.join(command)} on {self.name} ended with {process.returncode}: {output}")
        return output

    def start_ray(self, *, num_cpus: int, head: "Host | None" = None, env: Mapping[str, str] | None = None) -> None:
        """Make this host a node of Ray: the head of a new cluster, or one that joins `head`'s.

        Args:
            num_cpus: How many CPUs it offers.
            head: The cluster's head; None: this one.
            env: Environment variables of Ray's processes, such as `RAY_health_check_period_ms`.
        """
        place = ["--temp-dir=/mnt/ray", f"--port={RAY_PORT}", "--include-dashboard=false"]
        role = ["--head", *place] if head is None else [f"--address={head.ray_address}"]
        size = [f"--num-cpus={num_cpus}", "--object-store-memory=100000000", f"--node-ip-address={self.address}"]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *role, *size, "--disable-usage-stats"]
        self.run(command, env=env, timeout=RAY_START_TIMEOUT)

    def cut_link(self) -> None:
        """Cut the network link: packets to and from this host are dropped silently."""
        self._network.run(f"ip link set {self._link} down")

    def restore_link(self) -> None:
        """Restore the network link."""
        self._network.run(f"ip link set {self._link} up")

    def kill(self) -> None:
        """Simulate a power failure: cut the link, then kill all processes, so peers see no closed sockets."""
        self._network.run(f"ip link set {self._link} down")  # first, so that peers do not see sockets close
        self._namespace.kill()

    def traffic(self) -> tuple[int, int]:
        """Bytes that this host has sent and received, Ethernet headers included."""
        (link,) = json.loads(self._network.run(f"ip -s -json link show {self._link}"))
        counters = link["stats64"]
        return counters["rx"]["bytes"], counters["tx"]["bytes"]  # seen from the other end of the link

    def stop(self) -> None:
        """End all its processes."""
        self._namespace.kill()


class Network:
    """A bridge and its hosts. A context manager: leaving it stops all hosts."""

    def __init__(self) -> None:
        self._hosts: list[Host] = []
        # Without STP a link works as soon as it is up.
        self._switch = _Namespace(["net"], "ip link add bridge0 type bridge stp_state 0; ip link set bridge0 up")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for host in self._hosts:
            host.stop()
        self._switch.kill()

    def add_host(self, name: str) -> Host:
        """Add a host and connect it."""
        self._hosts.append(host := Host(self, name, len(self._hosts) + 1))
        return host

    def run(self, script: str) -> str:
        """Run shell commands in the bridge's network and return what they print.

        Raises:
            OSError: One failed; the message has what it printed.
        """
        command = [*self._switch.enter(["net"]), "bash", "-ec", script]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60.0)
        if done.returncode:
            raise OSError(f"{script}: {done.stderr.strip()}")
        return done.stdout
