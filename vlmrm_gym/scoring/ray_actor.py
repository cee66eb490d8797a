"""The Ray actor, one per worker. The driver's side is `ray_worker.RayWorker`."""

import asyncio
import contextlib
import os
import pickle
import platform
import socket
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import vlmrm_gym
from vlmrm_gym.rewards.state_reward import StateReward
from vlmrm_gym.scoring.local import LocalScorer
from vlmrm_gym.scoring.scorer import Batch, Values
from vlmrm_gym.scoring.worker import Answer, WorkerInfo, collect_warnings, load_reward, make_answer, picklable


@dataclass(frozen=True)
class Place:
    """Where an actor runs."""

    node_id: str
    host: str
    pid: int
    log: str | None
    """The file with its standard error; None if there is no such file."""


class ScoringActor:
    """Draws on one thread and encodes on another; its event loop stays free to report progress.

    Ray may reorder the calls of an asynchronous actor, so calls whose order matters are numbered. Exceptions are
    returned, with the traceback as a note, because Ray would wrap raised ones.
    """

    def __init__(self) -> None:
        self._drawing = ThreadPoolExecutor(1)  # also loads the model: CUDA and OpenGL stay on one thread
        self._progress = {"loaded": 0, "drawn": 0, "draw": 0, "encode": 0}
        self._reward: StateReward | None = None
        self._scorer: LocalScorer | None = None
        self._warned: deque[str] = deque()
        self._failure: BaseException | None = None
        self._next_call = 0
        self._early: dict[int, asyncio.Future[None]] = {}
        """Calls that arrived before their turn, by number."""

    async def place(self) -> Place:
        """Where this runs."""
        log = None
        with contextlib.suppress(OSError):
            log = os.readlink("/proc/self/fd/2")
        return Place(_node_id(), socket.gethostname(), os.getpid(), log)

    async def load(
        self,
        number: int,
        make_reward: bytes,
        sys_path: Sequence[str],
        environment: Mapping[str, str],
        driver_versions: Mapping[str, str],
    ) -> Any:
        """Make the reward model.

        Args:
            number: Of the call, from 0.
            make_reward: A pickled function.
            sys_path: The driver's `sys.path`; entries missing here are appended.
            environment: Environment variables to set.
            driver_versions: What `versions` returned on the driver.

        Returns:
            A `WorkerInfo`, or an exception.
        """
        return await self._run(number, self._load, make_reward, sys_path, environment, driver_versions)

    async def set_renderer(self, number: int, renderer: bytes) -> BaseException | None:
        """Receive the pickled renderer; returns an exception or None."""
        return await self._run(number, self._set_renderer, renderer)

    async def score(self, number: int, *messages: bytes) -> bytes | BaseException:
        """Score batches.

        Args:
            number: Of the call, from 0.
            messages: The pickled fields of each batch.

        Returns:
            A pickled list with an `Answer` or an exception for each batch; an exception if there is no reward model.
        """
        futures = await self._run(number, self._submit, messages)
        if isinstance(futures, BaseException):
            return futures
        return pickle.dumps([await _answer(future, self._warned) for future in futures], protocol=5)

    async def progress(self) -> dict[str, int]:
        """Progress counter of each stage."""
        return dict(self._progress)

    async def _run(self, number: int, function: Any, *arguments: Any) -> Any:
        """Run a function on the drawing thread, in the order of the numbers."""
        loop = asyncio.get_running_loop()
        if number != self._next_call:
            turn = self._early[number] = loop.create_future()
            await turn
        result = loop.run_in_executor(self._drawing, function, *arguments)
        self._next_call += 1
        if (turn := self._early.pop(self._next_call, None)) is not None:
            turn.set_result(None)
        try:
            return await result
        except BaseException as error:
            return picklable(error)

    def _load(
        self,
        make_reward: bytes,
        sys_path: Sequence[str],
        environment: Mapping[str, str],
        driver_versions: Mapping[str, str],
    ) -> WorkerInfo:
        os.environ.update(environment)
        sys.path.extend(path for path in sys_path if path not in sys.path)
        try:
            differing = compare_versions(driver_versions, versions())
            self._reward, info = load_reward(pickle.loads(make_reward))
            self._warned = collect_warnings()
        except BaseException as error:
            self._failure = error
            if not isinstance(error, ImportError) and not isinstance(error.__cause__, ImportError):
                raise
            self._failure = RuntimeError(
                f"`reward` cannot be imported on node {socket.gethostname()}: {error}. Install it there, or send the "
                'folder that it is in: call ray.init(runtime_env={"working_dir": FOLDER}) before making environments.'
            )
            raise self._failure from error
        self._progress["loaded"] = 1
        return replace(info, warnings=[*differing, *info.warnings])

    def _set_renderer(self, renderer: bytes) -> None:
        if self._reward is not None:
            self._scorer = LocalScorer(self._reward, pickle.loads(renderer), self._count)

    def _submit(self, messages: Sequence[bytes]) -> "list[Future[Values]]":
        if self._scorer is None:
            raise self._failure or RuntimeError("This actor has no renderer.")
        futures = []
        for message in messages:
            futures.append(self._scorer.submit(Batch(*pickle.loads(message))))
            self._count("drawn")
        return futures

    def _count(self, stage: str) -> None:
        self._progress[stage] += 1


async def _answer(future: "Future[Values]", warned: deque[str]) -> Answer | BaseException:
    try:
        return make_answer(await asyncio.wrap_future(future), warned)
    except BaseException as error:
        return picklable(error)


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


def _node_id() -> str:
    import ray  # deferred: this file must be importable without Ray

    return ray.get_runtime_context().get_node_id()
