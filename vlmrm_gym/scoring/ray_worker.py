"""The driver's side of a Ray worker. The actor's side is `ray_actor.ScoringActor`."""

import contextlib
import itertools
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
from vlmrm_gym.scoring.restarts import LOG_TAIL_BYTES, WorkerDied
from vlmrm_gym.scoring.scorer import Batch
from vlmrm_gym.scoring.timeouts import Timeouts
from vlmrm_gym.scoring.watchdog import Watchdog
from vlmrm_gym.scoring.worker import Answer, WorkerInfo

logger = logging.getLogger(__name__)

TICK = 0.2
"""Seconds between checks for aborted scoring."""
PROGRESS_INTERVAL = 1.0
"""Seconds of silence after which an actor is asked for its progress."""
WARN_AFTER = 2.0
"""Seconds that an actor waits for a node, after its placement timeout, before a warning is logged."""
AHEAD = 0.1
"""Seconds of work queued at an actor."""
MAX_IN_FLIGHT = 64
"""Maximum number of batches queued at an actor."""
KILL_TIMEOUT = 1.0
"""Seconds before an actor on this node is killed by a signal."""
LOG_TIMEOUT = 30.0
"""Seconds to read the log on the node of a dead actor."""


class RayWorker:
    """A `Worker` that is a Ray actor.

    Args:
        cluster: The cluster.
        options: Ray options of the actor.
        make_reward: A pickled function that makes the reward model.
        environment: Environment variables of the actor.
        timeouts: Time without progress after which the actor is killed.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: Mapping[str, Any],
        make_reward: bytes,
        environment: Mapping[str, str],
        timeouts: Timeouts,
    ) -> None:
        self._cluster, self._ray = cluster, cluster.ray
        self._runtime_env = options.get("runtime_env")
        self._watchdog = Watchdog(timeouts)
        self._progress_interval = min(PROGRESS_INTERVAL, self._watchdog.shortest_limit() / 4)
        self._killed = False
        if not cluster.is_connected:
            raise RuntimeError(
                "The connection to the Ray cluster was closed by ray.shutdown(). Make environments again."
            )
        self._actor = actor_class(self._ray, options).remote()
        self._place: Place | None = None
        self._place_ref = self._actor.place.remote()
        self._calls = itertools.count()
        self._ready_ref = self._actor.load.remote(
            next(self._calls), make_reward, list(sys.path), dict(environment), versions()
        )
        self._outbox: list[bytes] = []
        """Pickled batches to send in one call: a Ray call costs more than a small batch."""
        self._scoring: deque[tuple[Any, int]] = deque()
        """Unanswered calls, with their numbers of batches."""
        self._answers: deque[Answer | BaseException] = deque()
        self._seconds_per_batch, self._last_answer = math.inf, 0.0
        self._progress_ref: Any = None
        self._progress_asked = 0.0
        self._progress: dict[str, int] = {}

    @property
    def max_in_flight(self) -> int:
        """2, or as many as the actor scores in `AHEAD` seconds; they share calls. Batches do not depend on it."""
        return max(2, min(MAX_IN_FLIGHT, int(AHEAD / self._seconds_per_batch)))

    def wait_until_available(self, timeout: float | None) -> bool:
        """Whether the actor runs or has died; False while it waits for a place in the cluster."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        waited_since, warned = time.monotonic(), timeout is not None
        while not self._killed and self._cluster.is_connected:
            if self._has_place(min(TICK, max(0.0, until - time.monotonic()))):
                return True
            now = time.monotonic()
            if now >= until:
                return False
            if not warned and now - waited_since > WARN_AFTER:
                warned = True
                logger.warning("The Ray cluster has no room for a scoring actor. Waiting for a node.")
        return not self._killed  # without a connection, `receive` raises

    def wait_until_ready(self) -> WorkerInfo:
        """Wait for the model."""
        info = self._wait(self._ready_ref)
        self._watchdog.loaded = True
        if isinstance(info, BaseException):
            raise info
        return info

    def set_renderer(self, renderer: bytes) -> None:
        """Send the pickled renderer."""
        if self._cluster.is_connected:
            self._actor.set_renderer.remote(next(self._calls), renderer)

    def send(self, batch: Batch) -> None:
        """Send a batch."""
        self._outbox.append(pickle.dumps((batch.keys, batch.states, batch.output), protocol=5))
        if not self._scoring:
            self._send_outbox()

    def receive(self) -> Answer:
        """Wait for the next answer."""
        if not self._answers:
            self._send_outbox()  # queued behind the batches in progress
            if not self._scoring:
                raise WorkerDied("The connection to the Ray cluster was closed.")
            ref, count = self._scoring[0]
            answer = self._wait(ref)
            self._scoring.popleft()
            self._watchdog.num_answered += count
            self._measure(count)
            try:
                answers = [answer] * count if isinstance(answer, BaseException) else pickle.loads(answer)
            except Exception as error:  # of a class that only the node has
                answers = [error] * count
            self._answers.extend(answers)
        next_answer = self._answers.popleft()
        if isinstance(next_answer, BaseException):
            raise next_answer
        return next_answer

    def _send_outbox(self) -> None:
        if self._outbox and self._cluster.is_connected:
            self._watchdog.num_sent += len(self._outbox)
            # One argument per batch: Ray sends up to 100 KB in the call, larger arguments through its object store.
            self._scoring.append((self._actor.score.remote(next(self._calls), *self._outbox), len(self._outbox)))
            self._outbox = []

    def _measure(self, count: int) -> None:
        """Update the estimate of seconds per batch, from the time between answers."""
        now = time.monotonic()
        seconds, self._last_answer = (now - self._last_answer) / count, now
        self._seconds_per_batch = min(seconds, 2 * self._seconds_per_batch)

    def kill(self) -> None:
        """End blocked calls within a tick. `reap` kills the actor, because garbage collection must not call Ray."""
        self._killed = True

    def reap(self) -> None:
        """Kill the actor."""
        self._killed = True
        if self._cluster.is_connected:
            with contextlib.suppress(Exception):  # the cluster or process is gone
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

    def _wait(self, ref: Any) -> Any:
        """Wait for the answer to a call; raise WorkerDied if the actor dies or makes no progress."""
        errors = self._ray.exceptions
        begun = time.monotonic()
        while not self._killed and self._cluster.is_connected:
            try:
                answer = self._ray.get(ref, timeout=TICK)
            except errors.GetTimeoutError:
                now = time.monotonic()
                self._watch(min(now - begun, 2 * TICK))
                begun = now
            except errors.RayTaskError:
                raise
            except errors.RayError as error:
                raise WorkerDied(f"A scoring actor{self._where()} died: {_explain(error)}") from None
            else:
                self._watchdog.advance(0.0, ("load", "draw", "encode"))
                return answer
        raise WorkerDied("A scoring actor was stopped.")

    def _watch(self, seconds: float) -> None:
        """Account for elapsed time; kill the actor if it made no progress for too long."""
        if not self._has_place(0.0):
            return
        progressed = self._poll_progress()
        if wrong := self._watchdog.advance(seconds, progressed):
            raise WorkerDied(f"{wrong} It runs{self._where()}.")

    def _poll_progress(self) -> list[str]:
        """Poll the actor's progress periodically; returns the stages that made some."""
        now = time.monotonic()
        if self._progress_ref is None:
            if now - self._progress_asked > self._progress_interval:
                self._progress_ref, self._progress_asked = self._actor.progress.remote(), now
            return []
        if not self._ray.wait([self._progress_ref], timeout=0)[0]:
            return []
        before, ref, self._progress_ref = self._progress, self._progress_ref, None
        try:
            self._progress = self._ray.get(ref)
        except self._ray.exceptions.RayError:  # the actor has died; the awaited call raises that
            return []
        self._watchdog.loaded = bool(self._progress["loaded"])
        self._watchdog.num_drawn = self._progress["drawn"]
        return [stage for stage in ("draw", "encode") if self._progress[stage] != before.get(stage)]

    def _has_place(self, timeout: float) -> bool:
        """Whether the actor has been started on a node, waiting at most `timeout` seconds; True also if it has died."""
        if self._place is None and self._ray.wait([self._place_ref], timeout=timeout)[0]:
            with contextlib.suppress(self._ray.exceptions.RayError):  # the next call raises it again
                self._place = self._ray.get(self._place_ref)
            return True
        return self._place is not None

    def _where(self) -> str:
        return "" if self._place is None else f" on {self._place.host} (process {self._place.pid})"


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
        return ray.remote(ScoringActor).options(**options)
    except (TypeError, ValueError) as error:
        raise type(error)(f"`ray_options` must be options of a Ray actor. {error}") from error
