"""Connects to a Ray cluster, which several vector environments share, and what its nodes have."""

import atexit
import logging
import os
import signal
import socket
import threading
import time
import weakref
from collections.abc import Mapping
from importlib import metadata
from typing import Any, ClassVar

from gymnasium.error import DependencyNotInstalled

from vlmrm_gym._util import __version__
from vlmrm_gym._util.system import usable_cores
from vlmrm_gym.scoring.options import ScoringOptions

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT = 10.0  # seconds for a TCP connection to the head of a cluster
HEAD_TIMEOUT = 2.0  # seconds for one to the head of a cluster that we started
EXIT_TIMEOUT = 2.0  # seconds to wait for scorers at interpreter exit

# Ray's own restarts do not do the same as `RemoteScorer`. An actor that Ray restarts has neither its reward nor its
# renderer, whose size only a loaded reward knows; calls that Ray retries go to the same actor, while other workers are
# free, without a count of the deaths over one batch; and an actor that hangs, or is stopped, is not restarted at all.
_RESTARTS = {"max_restarts": 0, "max_task_retries": 0}
_RESERVED = (*_RESTARTS, "max_concurrency", "concurrency_groups", "lifetime", "name", "namespace", "get_if_exists")


def import_ray() -> Any:
    """Import the module `ray`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Actors without a GPU keep the node's CUDA_VISIBLE_DEVICES; ours get their device explicitly.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise DependencyNotInstalled('backend="ray" needs Ray: pip install "vlmrm-gym[ray]"') from error
    atexit.unregister(_stop_all)
    atexit.register(_stop_all)  # after Ray's own exit handler, so that it runs before
    return ray


def _stop_all() -> None:
    for scorer in list(Cluster.scorers):
        scorer.abort()
    until = time.monotonic() + EXIT_TIMEOUT
    while Cluster.newest is not None and Cluster.newest.num_shares and time.monotonic() < until:
        time.sleep(0.02)


class Cluster:
    """The connection to Ray: that of `ray.init`, or ours, to `RAY_ADDRESS` or a local cluster.

    Every worker has a share of it. Ours ends with the last one.
    """

    scorers: ClassVar["weakref.WeakSet[Any]"] = weakref.WeakSet()
    """Scorers that are aborted when the interpreter exits, before the connection ends."""
    newest: ClassVar["Cluster | None"] = None
    _lock = threading.RLock()

    def __init__(self, ray: Any) -> None:
        self.ray, self.num_shares = ray, 0
        self._is_ours = not ray.is_initialized()
        self.is_local = self._is_ours and _connect(ray)
        """Whether we have started it, on this machine."""
        self._connection = _worker_id(ray)

    @classmethod
    def connect(cls) -> "Cluster":
        """Take a share of the connection, which is made if there is none."""
        ray = import_ray()
        with cls._lock:
            newest = cls.newest
            if newest is None or not ray.is_initialized() or newest._connection != _worker_id(ray):
                newest = cls.newest = cls(ray)
            return newest.share()

    @property
    def is_connected(self) -> bool:
        """Whether Ray is connected. Most Ray calls would otherwise start a new cluster."""
        return self.ray.is_initialized() and self is Cluster.newest

    def share(self) -> "Cluster":
        """Take another share."""
        with Cluster._lock:
            self.num_shares += 1
        return self

    def close(self) -> None:
        """Release a share."""
        with Cluster._lock:
            self.num_shares -= 1
            if not self.num_shares and self._is_ours and self.is_connected:
                self.ray.shutdown()

    def alive(self) -> list[Mapping[str, Any]]:
        """List the nodes that are alive."""
        return [node for node in self.ray.nodes() if node["Alive"]]

    def describe(self) -> str:
        """Describe the nodes that are alive, and what they have."""
        nodes = [(node["NodeManagerHostname"], node["Resources"]) for node in self.alive()]
        each = [f"{name} ({has.get('CPU', 0):g} CPUs, {has.get('GPU', 0):g} GPUs)" for name, has in nodes]
        return f"Nodes alive: {', '.join(each) or 'none'}."

    def why_dead(self) -> str:
        """Say why a cluster that we started has died; "" if it lives, or others run it and may add nodes."""
        if not self.is_connected:
            return "The connection to the Ray cluster was closed by ray.shutdown(). Make environments again."
        if not self.is_local:
            return ""
        dead = "The Ray cluster that vlmrm_gym started on this machine has died: {}. Make environments again."
        try:
            _reach(self.ray.get_runtime_context().gcs_address, HEAD_TIMEOUT)
        except OSError as error:
            return dead.format(f"its head does not answer ({error})")
        return "" if self.alive() else dead.format("its only node is gone")

    def actor_options(self, options: ScoringOptions) -> dict[str, Any]:
        """Make the options of the actors: the user's override the defaults."""
        chosen = options.ray_options or {}
        if reserved := [name for name in _RESERVED if name in chosen]:
            raise ValueError(
                f"`ray_options` must leave {', '.join(_RESERVED)} to vlmrm_gym, which replaces dead actors by itself. "
                f"Received {reserved[0]!r}."
            )
        if options.devices is not None:
            raise ValueError(
                f'`devices` is for backend="process". Received {options.devices!r} with backend="ray", which assigns '
                'GPUs itself: pass ray_options={"num_gpus": 1}, or a fraction for several workers on each GPU.'
            )
        has_gpus = any(node["Resources"].get("GPU", 0) for node in self.alive())
        wants_gpu = options.device.startswith("cuda") or (options.device == "auto" and has_gpus)
        # In a local cluster that we started, any number of workers may share the CPUs, as processes do.
        defaults = {"num_cpus": 0 if self.is_local else 1, "num_gpus": int(wants_gpu)}
        return {**defaults, **chosen, **_RESTARTS}

    def check_room(self, actor_options: Mapping[str, Any]) -> None:
        """Raise ValueError if no node, idle or busy, could have an actor; only warn if the cluster can grow."""
        needs = {"CPU": actor_options["num_cpus"], "GPU": actor_options["num_gpus"]}
        needs |= {"memory": actor_options.get("memory"), **(actor_options.get("resources") or {})}
        needs = {name: amount for name, amount in needs.items() if amount}
        nodes = [node["Resources"] for node in self.alive()]
        if any(all(node.get(name, 0) >= amount for name, amount in needs.items()) for node in nodes):
            return
        largest = {name: max((node.get(name, 0) for node in nodes), default=0) for name in needs}
        message = f"No node of the Ray cluster has {needs} for a scoring actor. The most that one has is {largest}."
        if not self._can_grow():
            raise ValueError(f"`ray_options` must ask for what a node has. {message} Ask for less, or add a node.")
        logger.warning("%s Waiting for the autoscaler.", message)

    def _can_grow(self) -> bool:
        """Tell whether an autoscaler or Kubernetes provides the nodes; they then have named types."""
        try:
            from ray.autoscaler.v2.sdk import get_cluster_status

            status = get_cluster_status(self.ray.get_runtime_context().gcs_address)
            nodes = (*status.active_nodes, *status.idle_nodes)
            return any(node.ray_node_type_name not in ("", f"node_{node.node_id}") for node in nodes)
        except Exception:  # a developer API that other versions of Ray may lack
            return False


def choose_device(device: str, num_gpus: float) -> str:
    """Choose the device on every node: "cpu" or "cuda", which is the GPU that Ray has assigned."""
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(
            f'`device` must be "auto", "cpu" or "cuda" with backend="ray", which assigns GPUs itself. '
            f"Received {device!r}."
        )
    if (device == "cpu" and num_gpus) or (device == "cuda" and not num_gpus):
        raise ValueError(
            f'`device` and `ray_options["num_gpus"]` must agree. Received {device=!r} and num_gpus={num_gpus}.'
        )
    return "cuda" if num_gpus else "cpu"


def versions() -> dict[str, str]:
    """The versions of this package here, and of those that rewards depend on. Ray compares Python's and its own."""
    packages = ("mujoco", "numpy", "open_clip_torch", "torch")
    return {"vlmrm_gym": __version__} | {package: metadata.version(package) for package in packages}


def compare_versions(driver: Mapping[str, str], node: Mapping[str, str]) -> list[str]:
    """Make warnings about versions here that differ from the driver's; a RuntimeError if this package's do."""
    differing = [name for name in driver if node[name] != driver[name]]
    host = f"Node {socket.gethostname()} of the Ray cluster"
    found = [f"{host} has {name} {node[name]}, the driver {driver[name]}" for name in differing]
    if "vlmrm_gym" in differing:
        raise RuntimeError(f"{found[0]}. Use one image for all.")
    return [f"{one}: rewards may differ." for one in found]


def _worker_id(ray: Any) -> str:
    """The ID of this process in a cluster, another one for each connection."""
    return ray.get_runtime_context().get_worker_id()


def _connect(ray: Any) -> bool:
    """Connect to the cluster at RAY_ADDRESS, or start a local one; returns whether it is local."""
    address = os.environ.get("RAY_ADDRESS", "") or "local"
    options: dict[str, Any] = {"address": address, "logging_level": logging.ERROR, "log_to_driver": False}
    if address == "local":
        options |= {"include_dashboard": False, "num_cpus": usable_cores()}
    usual = signal.getsignal(signal.SIGTERM)
    try:
        if address != "local":
            _reach(address, CONNECT_TIMEOUT)  # Ray would try for minutes
        ray.init(**options)
    except OSError as error:
        if address == "local":  # such as a full disk
            raise
        raise ConnectionError(
            f"The Ray cluster at RAY_ADDRESS={address!r} cannot be reached: {error}. Start it with `ray start --head`, "
            "or unset RAY_ADDRESS to start a local one."
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, usual)  # Ray replaces it
    return address == "local"


def _reach(address: str, timeout: float) -> None:
    """Raise OSError if nothing answers at an address; "auto" is a file on this machine, and not tried."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout).close()
