"""The connection to a Ray cluster, which several vector environments share."""

import atexit
import functools
import logging
import os
import signal
import socket
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any, ClassVar

from gymnasium.error import DependencyNotInstalled

from vlmrm_gym.cpu import usable_cores

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT = 10.0
"""Seconds for a TCP connection to the head of a cluster."""
HEAD_TIMEOUT = 2.0
"""Seconds for one to the head of a cluster that we started."""
EXIT_TIMEOUT = 2.0
"""Seconds to wait for scorers at interpreter exit."""


def import_ray() -> Any:
    """The module `ray`.

    Raises:
        DependencyNotInstalled: It is missing.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Actors without a GPU keep the node's CUDA_VISIBLE_DEVICES; ours get their device explicitly.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise DependencyNotInstalled('backend="ray" needs Ray: pip install "vlmrm-gym[ray]"') from error
    _register_at_exit()
    return ray


@functools.cache
def _register_at_exit() -> None:
    """Stop scorers before Ray's own exit handler, which was registered earlier and so runs later."""
    atexit.register(_stop_all)


def _stop_all() -> None:
    for scorer in list(Cluster.scorers):
        scorer.abort()
    until = time.monotonic() + EXIT_TIMEOUT
    while Cluster.num_shares and time.monotonic() < until:
        time.sleep(0.02)


class Cluster:
    """A reference-counted share of the connection to Ray. The last one closes it if we opened it.

    Uses the existing connection of `ray.init`, else the cluster at `RAY_ADDRESS`, else a local one.

    Raises:
        ConnectionError: The cluster at `RAY_ADDRESS` cannot be reached.
    """

    scorers: ClassVar["weakref.WeakSet[Any]"] = weakref.WeakSet()
    """Scorers that are aborted when the interpreter exits, before the connection ends."""
    num_shares = 0
    """Number of shares currently held."""
    _lock = threading.RLock()
    _connection = ""
    _is_ours = False
    _is_local = False

    def __init__(self) -> None:
        self.ray = import_ray()
        self._released = False
        cls = Cluster
        with cls._lock:
            is_ours = not self.ray.is_initialized()
            is_local = is_ours and _connect(self.ray)
            self._connection = self.ray.get_runtime_context().get_worker_id()
            if self._connection != cls._connection:  # shares of an earlier connection no longer count
                cls._connection, cls.num_shares = self._connection, 0
                cls._is_ours, cls._is_local = is_ours, is_local
            cls.num_shares += 1
            self.is_local = cls._is_local
            """Whether we started it on this machine."""

    @property
    def is_connected(self) -> bool:
        """Whether Ray is connected. Most Ray calls would otherwise start a new cluster."""
        return self.ray.is_initialized() and self._connection == Cluster._connection

    def nodes(self) -> str:
        """Which nodes are alive, and what they have, for messages."""
        alive = [
            f"{node['NodeManagerHostname']} ({node['Resources'].get('CPU', 0):g} CPUs, "
            f"{node['Resources'].get('GPU', 0):g} GPUs)"
            for node in self.ray.nodes()
            if node["Alive"]
        ]
        return f"Nodes alive: {', '.join(alive) or 'none'}."

    def why_dead(self) -> str:
        """What a cluster that we started has died of; "" if it lives, or others run it and may add nodes."""
        if not self.is_local or not self.is_connected:
            return ""
        host, _, port = self.ray.get_runtime_context().gcs_address.rpartition(":")
        dead = "The Ray cluster that vlmrm_gym started on this machine has died: {}. Make environments again."
        try:
            socket.create_connection((host, int(port)), HEAD_TIMEOUT).close()
        except OSError as error:
            return dead.format(f"its head does not answer ({error})")
        return "" if any(node["Alive"] for node in self.ray.nodes()) else dead.format("its only node is gone")

    def close(self) -> None:
        """Release the share."""
        with Cluster._lock:
            if self._released:
                return
            self._released = True
            if self._connection != Cluster._connection:
                return
            Cluster.num_shares -= 1
            if Cluster.num_shares == 0 and Cluster._is_ours and self.is_connected:
                self.ray.shutdown()

    def check_resources(self, actor_options: Mapping[str, Any]) -> None:
        """Check that some node, idle or busy, has the resources of an actor; only warn if the cluster can grow.

        Raises:
            ValueError: No node has them, and the cluster cannot grow.
        """
        needs = {"CPU": actor_options["num_cpus"], "GPU": actor_options["num_gpus"]}
        needs |= {"memory": actor_options.get("memory"), **(actor_options.get("resources") or {})}
        if accelerator := actor_options.get("accelerator_type"):
            needs[f"accelerator_type:{accelerator}"] = 0.001  # as Ray does
        needs = {name: amount for name, amount in needs.items() if amount}
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        if any(all(node.get(name, 0) >= amount for name, amount in needs.items()) for node in nodes):
            return
        largest = {name: max((node.get(name, 0) for node in nodes), default=0) for name in needs}
        message = f"No node of the Ray cluster has {needs} for a scoring actor. The most that one has is {largest}."
        if not self._can_grow():
            raise ValueError(f"`ray_options` must ask for what a node has. {message} Ask for less, or add a node.")
        logger.warning("%s Waiting for the autoscaler.", message)

    def _can_grow(self) -> bool:
        """Whether an autoscaler or Kubernetes provides the nodes; they then have named types."""
        try:
            from ray.autoscaler.v2.sdk import get_cluster_status

            status = get_cluster_status(self.ray.get_runtime_context().gcs_address)
            nodes = [*status.active_nodes, *status.idle_nodes]
            return bool(status.pending_launches or status.pending_nodes) or any(
                node.ray_node_type_name not in ("", f"node_{node.node_id}") for node in nodes
            )
        except Exception:  # a developer API that other versions of Ray may lack
            return False


def _connect(ray: Any) -> bool:
    """Connect to the cluster at RAY_ADDRESS, or start a local one; returns whether it is local."""
    address = os.environ.get("RAY_ADDRESS", "")
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address and address != "local":
        _check_reachable(address)
        options["address"] = address
    else:
        options |= {"address": "local", "include_dashboard": False, "num_cpus": usable_cores()}
    usual = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**options)
    except ConnectionError as error:
        raise ConnectionError(f"The Ray cluster at RAY_ADDRESS={address!r} cannot be reached: {error}") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, usual)  # Ray replaces it
    return options["address"] == "local"


def _check_reachable(address: str) -> None:
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        return  # "auto", which is a file on this machine
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT).close()
    except OSError as error:
        raise ConnectionError(
            f"The Ray cluster at RAY_ADDRESS={address!r} cannot be reached: {error}. Start it with `ray start --head`, "
            "or unset RAY_ADDRESS to start a local one."
        ) from error
