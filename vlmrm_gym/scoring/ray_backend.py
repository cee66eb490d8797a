"""The "ray" backend: workers are actors of a Ray cluster."""

import logging
import time
from functools import partial
from typing import Any

import cloudpickle

from vlmrm_gym.closing import Closable, close_on_error
from vlmrm_gym.cpu import usable_cores
from vlmrm_gym.scoring.devices import thread_env
from vlmrm_gym.scoring.ray_channel import RayChannel, actor_class
from vlmrm_gym.scoring.ray_cluster import Cluster
from vlmrm_gym.scoring.remote import TICK, RemoteScorer, finish_start
from vlmrm_gym.scoring.scorer import ScorerOptions, StartedScorers

logger = logging.getLogger(__name__)

PLACEMENT_TIMEOUT = 10.0
"""Seconds that actors may wait for a place once one has it."""

_RESERVED = ("max_restarts", "max_task_retries", "max_concurrency", "concurrency_groups", "lifetime", "name")
_RESERVED = (*_RESERVED, "namespace", "get_if_exists")


def start(options: ScorerOptions) -> StartedScorers:
    """Start the actors; wait for the models of those that the cluster has room for."""
    cluster = Cluster()
    made: list[Closable] = [cluster]  # the newest first
    with close_on_error(made):
        actor_options = _actor_options(cluster, options)
        actor_class(cluster.ray, actor_options)  # Ray checks them
        device = _choose_device(options, actor_options)
        cluster.check_resources(actor_options)
        environment = thread_env(max(1, usable_cores() // options.num_workers)) if cluster.is_local else {}
        make_reward = cloudpickle.dumps(partial(options.make_reward, device=device))
        siblings = set[RayChannel]()
        start_worker = partial(RayChannel, cluster, actor_options, environment, options.timeouts.schedule, siblings)
        scorers, shown = list[RemoteScorer](), dict[str, object]()
        for _ in range(options.num_workers):
            made.insert(0, share := Cluster())
            scorers.append(RemoteScorer(start_worker, make_reward, options.timeouts, shown, share))
            made.insert(0, scorers[-1])
            Cluster.scorers.add(scorers[-1])
        placed = _wait_for_places(scorers)
        started = finish_start(scorers, placed, options.make_renderer)
    cluster.close()  # each scorer holds its own share
    return started


def _actor_options(cluster: Cluster, options: ScorerOptions) -> dict[str, Any]:
    """Options of the actors: the user's override the defaults."""
    if reserved := [name for name in _RESERVED if name in options.backend_options]:
        raise ValueError(
            f"`ray_options` must leave {', '.join(_RESERVED)} to vlmrm_gym, which replaces dead actors by itself. "
            f"Received {reserved[0]!r}."
        )
    if options.devices is not None:
        raise ValueError(
            f'`devices` is for backend="process". Received {options.devices!r} with backend="ray", which assigns GPUs '
            'itself: pass ray_options={"num_gpus": 1}, or a fraction for several workers on each GPU.'
        )
    has_gpus = any(node["Resources"].get("GPU", 0) for node in cluster.ray.nodes() if node["Alive"])
    wants_gpu = options.device.startswith("cuda") or (options.device == "auto" and has_gpus)
    # In a local cluster that we started, any number of workers may share the CPUs, as processes do.
    defaults = {"num_cpus": 0 if cluster.is_local else 1, "num_gpus": int(wants_gpu)}
    return {**defaults, **options.backend_options, "max_restarts": 0, "max_task_retries": 0}


def _choose_device(options: ScorerOptions, actor_options: dict[str, Any]) -> str:
    """The device on every node: "cpu" or "cuda", which is the GPU that Ray has assigned."""
    if options.device not in ("auto", "cpu", "cuda"):
        raise ValueError(
            f'`device` must be "auto", "cpu" or "cuda" with backend="ray", which assigns GPUs itself. '
            f"Received {options.device!r}."
        )
    num_gpus = actor_options["num_gpus"]
    if (options.device == "cpu" and num_gpus) or (options.device == "cuda" and not num_gpus):
        raise ValueError(
            f'`device` and `ray_options["num_gpus"]` must agree. Received device={options.device!r} and '
            f"num_gpus={num_gpus}."
        )
    return "cuda" if num_gpus else "cpu"


def _wait_for_places(scorers: list[RemoteScorer]) -> list[RemoteScorer]:
    """Wait for actors to be placed; returns the scorers that are, or for which there was no room: at least one."""
    begun, warned = time.monotonic(), False
    while True:
        placed = [scorer for scorer in scorers if scorer.wait_until_placed(TICK / len(scorers))]
        waited = time.monotonic() - begun
        if len(placed) == len(scorers):
            return placed
        if waited > PLACEMENT_TIMEOUT and not warned:
            warned = True
            logger.warning(
                "The Ray cluster runs %d of %d scoring actors so far. The others start when it has room.",
                len(placed),
                len(scorers),
            )
        if placed and waited > PLACEMENT_TIMEOUT:
            return placed
