"""The Ray actor, one per worker. The driver's side is `ray_channel.RayChannel`."""

import contextlib
import os
import pickle
import platform
import queue
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import vlmrm_gym
from vlmrm_gym.scoring.worker import picklable, serve


@dataclass(frozen=True)
class Place:
    """Where an actor runs."""

    node_id: str
    host: str
    pid: int
    log: str | None
    """The file with its standard error; None if there is no such file."""


class ScoringActor:
    """A worker, on a thread of its own: `put` brings its messages, `get` takes its replies.

    Args:
        sys_path: The driver's `sys.path`; entries missing here are appended.
        environment: Environment variables to set.
        driver_versions: What `versions` returned on the driver.
    """

    def __init__(
        self, sys_path: Sequence[str], environment: Mapping[str, str], driver_versions: Mapping[str, str]
    ) -> None:
        os.environ.update(environment)
        sys.path.extend(path for path in sys_path if path not in sys.path)
        self._messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, args=(driver_versions,), daemon=True).start()

    def place(self) -> Place:
        """Where this runs."""
        import ray  # deferred: this file must be importable without Ray

        log = None
        with contextlib.suppress(OSError):
            log = os.readlink("/proc/self/fd/2")
        return Place(ray.get_runtime_context().get_node_id(), socket.gethostname(), os.getpid(), log)

    def put(self, message: bytes) -> None:
        """Pass on a message. Ray keeps the order of these calls."""
        self._messages.put(message)

    def get(self, patience: float) -> list[bytes]:
        """Take all pickled replies, once one is more than progress, or after some seconds."""
        until, taken = time.monotonic() + patience, list[bytes]()
        urgent = False
        while not (urgent and self._replies.empty()):
            try:
                kind, payload = self._replies.get(timeout=0.0 if urgent else max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            taken.append(pickle.dumps((kind, payload), protocol=5))
            urgent |= kind not in ("progress", "drawn")
        return taken

    def _serve(self, driver_versions: Mapping[str, str]) -> None:
        def reply(kind: str, payload: Any) -> None:
            self._replies.put((kind, payload))

        try:
            for difference in compare_versions(driver_versions, versions()):
                reply("warning", difference)
            serve(lambda: pickle.loads(self._messages.get()), reply)
        except BaseException as error:
            reply("error", picklable(_explain(error)))
        reply("end", "has ended.")


def _explain(error: BaseException) -> BaseException:
    """The error, or what to do if a node cannot import the reward."""
    if not isinstance(error, ImportError) and not isinstance(error.__cause__, ImportError):
        return error
    explained = RuntimeError(
        f"`reward` cannot be imported on node {socket.gethostname()}: {error}. Install it there, or send the "
        'folder that it is in: call ray.init(runtime_env={"working_dir": FOLDER}) before making environments.'
    )
    explained.__cause__ = error
    return explained


def versions() -> dict[str, str]:
    """Local versions of Python, this package, and the packages that rewards depend on."""
    found = {"Python": platform.python_version(), "vlmrm_gym": vlmrm_gym.__version__}
    for package in ("mujoco", "numpy", "open_clip_torch", "torch"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def compare_versions(driver: Mapping[str, str], node: Mapping[str, str]) -> list[str]:
    """Warnings about versions on this node that differ from the driver's.

    Raises:
        RuntimeError: The minor version of Python, or the version of this package, differs.
    """
    minor = [versions["Python"].rpartition(".")[0] for versions in (driver, node)]
    if minor[0] != minor[1] or driver["vlmrm_gym"] != node["vlmrm_gym"]:
        raise RuntimeError(
            f"The nodes of the Ray cluster must have the driver's version of Python and of vlmrm_gym. Node "
            f"{socket.gethostname()} has Python {node['Python']} and vlmrm_gym {node['vlmrm_gym']}, the driver has "
            f"Python {driver['Python']} and vlmrm_gym {driver['vlmrm_gym']}. Use one image for all."
        )
    return [
        f"A node of the Ray cluster has {name} {node.get(name, '(none)')}, the driver {version}: rewards may differ."
        for name, version in driver.items()
        if name not in ("Python", "vlmrm_gym") and node.get(name) != version
    ]


def read_tail(path: str, num_bytes: int) -> str:
    """The end of a file on this node."""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - num_bytes))
        return file.read().decode(errors="replace").strip()
