"""The driver's side of a Ray actor, which is `ray_actor.ScoringActor`."""

import contextlib
import logging
import math
import os
import pickle
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlmrm_gym.scoring.ray_actor import Place, ScoringActor, read_tail, versions
from vlmrm_gym.scoring.ray_cluster import Cluster
from vlmrm_gym.scoring.remote import LOG_TAIL_BYTES, TICK

logger = logging.getLogger(__name__)

PATIENCE = 0.25
"""Seconds after which an actor reports progress, if it has nothing else to say."""
WARN_AFTER = 2.0
"""Seconds that an actor waits for a node before a warning is logged."""
CHECK_EVERY = 2.0
"""Seconds between checks that a cluster that we started lives."""
KILL_TIMEOUT = 1.0
"""Seconds before an actor on this node is killed by a signal."""
LOG_TIMEOUT = 10.0
"""Seconds to read the log on the node of a dead actor."""


class RayChannel:
    """A `Channel` to a new Ray actor. One call to its `get` is always waiting.

    Args:
        cluster: The cluster.
        options: Ray options of the actor.
        environment: Environment variables of the actor.
        schedule: Seconds to wait for a place while no actor of `siblings` has one; None: no limit.
        siblings: All channels of the same scorers.
    """

    max_in_flight = 4
    """More than of a process: an answer takes a while to arrive. Batches do not depend on it."""

    def __init__(
        self,
        cluster: Cluster,
        options: Mapping[str, Any],
        environment: Mapping[str, str],
        schedule: float | None,
        siblings: "set[RayChannel]",
    ) -> None:
        self._cluster, self._ray = cluster, cluster.ray
        self._runtime_env = options.get("runtime_env")
        self._schedule, self._siblings = schedule, siblings
        self._killed, self._failure = False, ""
        self._checked = self._waiting_since = time.monotonic()
        if not cluster.is_connected:
            raise RuntimeError(
                "The connection to the Ray cluster was closed by ray.shutdown(). Make environments again."
            )
        if dead := cluster.why_dead():
            raise RuntimeError(dead)
        self._actor = actor_class(self._ray, options).remote(list(sys.path), dict(environment), versions())
        self._place: Place | None = None
        self._place_ref = self._actor.place.remote()
        self._replies: deque[bytes] = deque()
        self._ask()
        siblings.add(self)

    def _ask(self) -> None:
        self._replies_ref = self._actor.get.options(concurrency_group="replies").remote(PATIENCE)

    @property
    def name(self) -> str:
        """With its node and process, once they are known."""
        place = self._place
        return "A scoring actor" + ("" if place is None else f" on {place.host} (process {place.pid})")

    def wait_until_placed(self, timeout: float | None) -> bool:
        """Whether the actor runs, has died, or never will; False while it waits for a place in the cluster."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        warned = timeout is not None
        while not self._killed and self._cluster.is_connected and not self._has_failed():
            if self._has_place(min(TICK, max(0.0, until - time.monotonic()))):
                return True
            now = time.monotonic()
            if now >= until:
                return False
            if not warned and now - self._waiting_since > WARN_AFTER:
                warned = True
                nodes = self._cluster.nodes()
                logger.warning("The Ray cluster has no room for a scoring actor. Waiting for a node. %s", nodes)
        return not self._killed  # without a connection, `get` says so

    def _has_failed(self) -> bool:
        """Whether no reply will come, because a cluster that we started has died, or had no place in time."""
        now = time.monotonic()
        if any(one._place is not None for one in tuple(self._siblings)):
            self._waiting_since = now
        if not self._failure and self._schedule is not None and now - self._waiting_since > self._schedule:
            self._failure = (
                f"The Ray cluster had no room for a scoring actor for {self._schedule:g} seconds. "
                f"{self._cluster.nodes()} Free resources, ask for less in `ray_options`, or pass "
                'worker_timeouts={"schedule": seconds}.'
            )
        if not self._failure and now - self._checked > CHECK_EVERY:
            self._failure, self._checked = self._cluster.why_dead(), now
        return bool(self._failure)

    def _has_place(self, timeout: float) -> bool:
        """Whether the actor has been started on a node, waiting at most `timeout` seconds; True also if it has died."""
        if self._place is None and self._ray.wait([self._place_ref], timeout=timeout)[0]:
            with contextlib.suppress(self._ray.exceptions.RayError):  # `get` says so
                self._place = self._ray.get(self._place_ref)
            return True
        return self._place is not None

    def put(self, message: bytes) -> None:
        """Send a message."""
        if self._cluster.is_connected:
            self._actor.put.remote(message)

    def get(self, timeout: float) -> tuple[str, Any] | None:
        """The next reply, or how the actor died."""
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
                return "end", f"died: {_explain(error)}"
            self._ask()
        if not self._replies:
            return None
        try:
            return pickle.loads(self._replies.popleft())
        except Exception as error:  # of a class that only the node has
            return "error", error

    def log_tail(self) -> str:
        """The end of the actor's log, read on its node."""
        place = self._place
        if place is None or place.log is None or not self._cluster.is_connected:
            return "(not available)"
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(place.node_id, soft=False)
        read = self._ray.remote(read_tail).options(
            num_cpus=0, max_retries=0, scheduling_strategy=strategy, runtime_env=self._runtime_env
        )
        try:
            return self._ray.get(read.remote(place.log, LOG_TAIL_BYTES), timeout=LOG_TIMEOUT)
        except self._ray.exceptions.RayError:
            return f"(not available: it could not be read on node {place.host})"

    def kill(self) -> None:
        """End `get` within a tick. `close` kills the actor, because garbage collection must not call Ray."""
        self._killed = True

    def close(self) -> None:
        """Kill the actor."""
        self._siblings.discard(self)
        if self._cluster.is_connected:
            with contextlib.suppress(Exception):  # the cluster or process is gone
                if not self._cluster.why_dead():  # a dead head would be waited for
                    self._ray.kill(self._actor, no_restart=True)
                self._kill_on_this_node()

    def _kill_on_this_node(self) -> None:
        """Kill the actor's process by a signal if Ray cannot: a stopped process does not respond to Ray."""
        place = self._place
        if place is None or place.node_id != self._ray.get_runtime_context().get_node_id():
            return
        command, until = Path(f"/proc/{place.pid}/cmdline"), time.monotonic() + KILL_TIMEOUT
        while b"ScoringActor" in command.read_bytes():  # the ID has not been reused
            if time.monotonic() > until:
                return os.kill(place.pid, signal.SIGKILL)
            time.sleep(0.02)


def _explain(error: BaseException) -> str:
    text = str(error)
    if "No module named 'vlmrm_gym'" in text:
        text += "\nInstall vlmrm_gym on every node, from the same clone as on this machine."
    return text


def actor_class(ray: Any, options: Mapping[str, Any]) -> Any:
    """The actor's class with these options.

    Raises:
        TypeError, ValueError: Ray does not accept them.
    """
    try:
        return ray.remote(concurrency_groups={"replies": 1})(ScoringActor).options(**options)
    except (TypeError, ValueError) as error:
        raise type(error)(f"`ray_options` must be options of a Ray actor. {error}") from error
