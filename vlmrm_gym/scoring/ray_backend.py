"""The "ray" backend: workers are actors of a Ray cluster."""

import contextlib
import logging
import math
import os
import pickle
import queue
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle

from vlmrm_gym._util.errors import close_on_error
from vlmrm_gym._util.system import usable_cores
from vlmrm_gym.scoring.options import ScoringOptions
from vlmrm_gym.scoring.ray_cluster import Cluster, choose_device, compare_versions, versions
from vlmrm_gym.scoring.remote import LOG_TAIL_BYTES, TICK, RemoteScorer, finish_start
from vlmrm_gym.scoring.scorer import MakeEncoder, MakeRenderer, StartedScorers, thread_env
from vlmrm_gym.scoring.worker import picklable, serve

logger = logging.getLogger(__name__)

PLACEMENT_TIMEOUT = 10.0  # seconds that actors may wait for a place once one has it
PATIENCE = 0.25  # seconds that an actor waits for something to say
WARN_AFTER = 2.0  # seconds that an actor waits for a node before a warning is logged
CHECK_EVERY = 2.0  # seconds between checks that a cluster that we started lives
KILL_TIMEOUT = 1.0  # seconds before an actor on this node is killed by a signal
LOG_TIMEOUT = 10.0  # seconds to read the log on the node of a dead actor


def start(make_encoder: MakeEncoder, make_renderer: MakeRenderer, options: ScoringOptions) -> StartedScorers:
    """Start the actors; wait for the models of those that the cluster has room for."""
    scorers = list[RemoteScorer]()
    with contextlib.closing(Cluster.connect()) as cluster, close_on_error(scorers):
        actor_options = cluster.actor_options(options)
        _actor_class(cluster.ray, actor_options)  # Ray checks them
        device = choose_device(options.device, actor_options["num_gpus"])
        cluster.check_room(actor_options)
        environment = thread_env(max(1, usable_cores() // options.num_workers)) if cluster.is_local else {}
        encoder = cloudpickle.dumps(partial(make_encoder, device=device))
        siblings = set[RayChannel]()
        start_worker = partial(RayChannel, cluster, actor_options, environment, options.timeouts["schedule"], siblings)
        for _ in range(options.num_workers):
            scorers.append(RemoteScorer(start_worker, encoder, options.timeouts))
            Cluster.scorers.add(scorers[-1])
        return finish_start(scorers, _wait_for_places(scorers), make_renderer)


def _wait_for_places(scorers: list[RemoteScorer]) -> list[RemoteScorer]:
    """Wait for actors to be placed; returns the scorers that are, or for which there was no room: at least one."""
    begun, warned = time.monotonic(), False
    while True:
        placed = [scorer for scorer in scorers if scorer.wait_until_placed(TICK / len(scorers))]
        is_late = time.monotonic() - begun > PLACEMENT_TIMEOUT
        if is_late and not warned and len(placed) < len(scorers):
            warned = True
            text = "The Ray cluster runs %d of %d scoring actors so far. The others start when it has room."
            logger.warning(text, len(placed), len(scorers))
        if len(placed) == len(scorers) or (placed and is_late):
            return placed


class _Place(NamedTuple):
    node_id: str
    host: str
    pid: int
    log: str  # the file with its standard error, or ""


class ScoringActor:
    """A worker on a thread of a Ray actor: `put` brings its messages, `get` takes its replies."""

    def __init__(self, sys_path: Sequence[str], environment: Mapping[str, str], driver: Mapping[str, str]) -> None:
        os.environ.update(environment)
        sys.path.extend(path for path in sys_path if path not in sys.path)
        self._messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, args=(driver,), daemon=True).start()

    def place(self) -> _Place:
        """Describe the place where the actor runs."""
        import ray  # deferred: this file must be importable without Ray

        log = ""
        with contextlib.suppress(OSError):
            log = os.readlink("/proc/self/fd/2")
        return _Place(ray.get_runtime_context().get_node_id(), socket.gethostname(), os.getpid(), log)

    def put(self, message: bytes) -> None:
        """Pass on a message. Ray keeps the order of these calls."""
        self._messages.put(message)

    def get(self, patience: float) -> list[bytes]:
        """Take all replies, pickled, once there is one, or after some seconds."""
        replies = list[tuple[str, Any]]()
        with contextlib.suppress(queue.Empty):
            replies.append(self._replies.get(timeout=patience))
            while True:
                replies.append(self._replies.get_nowait())
        return [pickle.dumps(reply, protocol=5) for reply in replies]

    def _serve(self, driver: Mapping[str, str]) -> None:
        try:
            for difference in compare_versions(driver, versions()):
                self._replies.put(("warning", difference))
            serve(lambda: pickle.loads(self._messages.get()), lambda *reply: self._replies.put(reply))
        except BaseException as error:
            explained = error
            if isinstance(error, ImportError) or isinstance(error.__cause__, ImportError):
                explained = RuntimeError(
                    f"`reward` cannot be imported on node {socket.gethostname()}: {error}. Install it there, or send "
                    'the folder that it is in: call ray.init(runtime_env={"working_dir": FOLDER}) before making '
                    "environments."
                )
                explained.__cause__ = error
            self._replies.put(("error", picklable(explained)))
        self._replies.put(("end", "has ended."))


def _read_tail(path: str, num_bytes: int) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - num_bytes))
        return file.read().decode(errors="replace").strip()


def _actor_class(ray: Any, options: Mapping[str, Any]) -> Any:
    try:
        return ray.remote(concurrency_groups={"replies": 1})(ScoringActor).options(**options)
    except (TypeError, ValueError) as error:
        raise type(error)(f"`ray_options` must be options of a Ray actor. {error}") from error


class RayChannel:
    """A `Channel` to a new Ray actor, with a share of the cluster. One call to its `get` is always waiting.

    `siblings` are all channels of the same scorers. While none of them has a place, `schedule` seconds are the limit.
    """

    max_in_flight = 4  # more than of a process: an answer takes a while to arrive; batches do not depend on it

    def __init__(
        self,
        cluster: Cluster,
        options: Mapping[str, Any],
        environment: Mapping[str, str],
        schedule: float | None,
        siblings: "set[RayChannel]",
    ) -> None:
        self._cluster, self._ray, self._schedule, self._siblings = cluster, cluster.ray, schedule, siblings
        self._runtime_env = options.get("runtime_env")
        self._killed, self._failure, self.name = False, "", "A scoring actor"
        self._checked = self._waiting_since = time.monotonic()
        if dead := cluster.why_dead():
            raise RuntimeError(dead)
        self._actor = _actor_class(self._ray, options).remote(list(sys.path), dict(environment), versions())
        self._place: _Place | None = None
        self._place_ref = self._actor.place.remote()
        self._replies: deque[bytes] = deque()
        self._ask()
        cluster.share()
        siblings.add(self)

    def _ask(self) -> None:
        self._replies_ref = self._actor.get.options(concurrency_group="replies").remote(PATIENCE)

    def wait_until_placed(self, timeout: float | None) -> bool:
        """Tell whether the actor runs, has died, or never will; False while it waits for a place in the cluster."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        warned = timeout is not None
        while not self._killed and self._cluster.is_connected and not self._has_failed():
            if self._ray.wait([self._place_ref], timeout=min(TICK, max(0.0, until - time.monotonic())))[0]:
                with contextlib.suppress(self._ray.exceptions.RayError):  # it has died: `get` says so
                    self._place = place = self._ray.get(self._place_ref)
                    self.name = f"A scoring actor on {place.host} (process {place.pid})"
                return True
            now = time.monotonic()
            if now >= until:
                return False
            if not warned and now - self._waiting_since > WARN_AFTER:
                warned, text = True, "The Ray cluster has no room for a scoring actor. Waiting for a node. %s"
                logger.warning(text, self._cluster.describe())
        return not self._killed  # without a connection, `get` says so

    def _has_failed(self) -> bool:
        """Tell whether no reply will come, because a cluster that we started has died, or had no place in time."""
        now = time.monotonic()
        if any(one._place is not None for one in tuple(self._siblings)):
            self._waiting_since = now
        if not self._failure and self._schedule is not None and now - self._waiting_since > self._schedule:
            self._failure = (
                f"The Ray cluster had no room for a scoring actor for {self._schedule:g} seconds. "
                f"{self._cluster.describe()} Free resources, ask for less in `ray_options`, or pass "
                'worker_timeouts={"schedule": seconds}.'
            )
        if not self._failure and now - self._checked > CHECK_EVERY:
            self._failure, self._checked = self._cluster.why_dead(), now
        return bool(self._failure)

    def put(self, message: bytes) -> None:
        """Send a message."""
        if self._cluster.is_connected:
            self._actor.put.remote(message)

    def get(self, timeout: float) -> tuple[str, Any] | None:
        """Receive the next reply, or how the actor died."""
        if not self._replies:
            if self._killed or not self._cluster.is_connected:
                return "end", "was stopped."
            if self._has_failed():
                return "error", RuntimeError(self._failure)
            try:
                self._replies.extend(self._ray.get(self._replies_ref, timeout=timeout))
            except self._ray.exceptions.GetTimeoutError:
                return None
            except self._ray.exceptions.RayError as error:
                return "end", f"died: {error}"
            self._ask()
        if not self._replies:
            return None
        try:
            return pickle.loads(self._replies.popleft())
        except Exception as error:  # of a class that only the node has
            return "error", error

    def log_tail(self) -> str:
        """Read the end of the actor's log, read on its node."""
        place = self._place
        if place is None or not place.log or not self._cluster.is_connected:
            return "(not available)"
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(place.node_id, soft=False)
        read = self._ray.remote(_read_tail).options(
            num_cpus=0, max_retries=0, scheduling_strategy=strategy, runtime_env=self._runtime_env
        )
        try:
            return self._ray.get(read.remote(place.log, LOG_TAIL_BYTES), timeout=LOG_TIMEOUT)
        except self._ray.exceptions.RayError:
            return f"(not available on node {place.host})"

    def kill(self) -> None:
        """End `get` within a tick. `close` kills the actor, because garbage collection must not call Ray."""
        self._killed = True

    def close(self) -> None:
        """Kill the actor, and release the share."""
        if self in self._siblings:
            self._siblings.discard(self)
            with contextlib.suppress(Exception):  # the cluster or process is gone
                self._kill_actor()
            self._cluster.close()

    def _kill_actor(self) -> None:
        """Kill the actor: by a signal if it is on this node and does not respond to Ray, as a stopped process."""
        if not self._cluster.is_connected:
            return
        if not self._cluster.why_dead():  # a dead head would be waited for
            self._ray.kill(self._actor, no_restart=True)
        place, until = self._place, time.monotonic() + KILL_TIMEOUT
        if place is None or place.node_id != self._ray.get_runtime_context().get_node_id():
            return
        while b"ScoringActor" in Path(f"/proc/{place.pid}/cmdline").read_bytes():  # the ID has not been reused
            if time.monotonic() > until:
                return os.kill(place.pid, signal.SIGKILL)
            time.sleep(0.02)
