"""How many transitions a second get their reward, stage by stage, beside the way of VLM-RM's published code.

    python benchmarks/fps.py
    python benchmarks/fps.py --model ViT-B-32 --num-envs 2 --no-reference     # larger models want fewer environments
    python benchmarks/fps.py --env VLMRM/CartPole-v1 --json cartpole.json

Rates are frames/s: one frame is one transition. Every row runs in a fresh process, after an untimed pass, which pays for
OpenGL contexts, textures, allocators and threads. Actions are random and prepared beforehand.

    physics              the vector environment without rewards, whole episodes, resets included
    rendering            the queue and its workers drawing states that are ready; a stand-in for the model sees shapes
    physics + rendering  whole episodes with that stand-in
    bare encode_image    open_clip's network on ready float tensors, with all threads, in one process
    CLIPReward           uint8 frames that are ready on the model's device to rewards, in turns with bare encode_image
    scoring              the queue and its workers scoring with the model, frames drawn beforehand
    end to end           whole episodes, from the first step to the last reward's arrival

Share of stages: the end-to-end rate over that of the stages physics, rendering and scoring; on a CPU they share the
cores, so this is 1 / (1/physics + 1/rendering + 1/scoring); on a GPU, the slowest of the three. The stages have as many
workers as the end-to-end row.

Memory: bytes in `pending_bytes` per transition that waits, one step before the second episodes or later ones end. Peaks
are resident (VmHWM, Linux only); what processes share, such as libraries, counts in each.

Models named by an architecture alone, such as ViT-B-32, get random weights, which are as fast as trained ones and need
no download.
"""

import itertools
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# Every process that is spawned imports this file, the reference way's environments too, and their memory is measured:
# what is heavy is imported in functions.

REFERENCE_STEPS = 50
"""Of a rollout of the reference way; its frames' memory grows with it, its rate does not."""


@dataclass(frozen=True)
class Args:
    env: str = "VLMRM/Humanoid-stand-v0"
    """a registered VLMRM ID; the reference way is there for the humanoid only"""
    num_envs: int = 16
    """environments that are stepped together"""
    num_workers: int = 2
    """processes that draw and score; 0 does it in the one that steps"""
    model: str = "tiny"
    """as in CLIPReward, or an open_clip architecture without a tag, which gets random weights"""
    device: str = "auto"
    """where the model runs"""
    size: int | None = None
    """height of the drawings in pixels, the width follows; None: what the model asks for"""
    seconds: float = 8.0
    """about how long each row is timed; never less than a whole episode of all environments"""
    reference: bool = True
    """measure the reference way too"""
    reference_envs: int | None = None
    """its environments, one process each; its rate depends on the cores that they occupy, so None is one per core, but
    no more than num_envs"""
    seed: int = 0
    """of environments and actions"""
    json: Path | None = None
    """file for the figures"""


def rate(run: Callable[[int], int], seconds: float) -> float:
    """Frames/s of `run`, which makes as many passes as it is told and returns the number of frames."""
    run(1)
    passes = 1
    while True:
        start = time.perf_counter()
        frames = run(passes)
        took = time.perf_counter() - start
        if passes > 1 or round(seconds / took) < 2:
            return frames / took
        passes = round(seconds / took)


def make_envs(args: Args, make_reward: Callable[..., Any], **options: Any) -> Any:
    """A `VLMRewardVectorEnv` that has been reset, with a reward model instead of `CLIPReward`; and its actions."""
    from unittest.mock import patch

    import gymnasium as gym

    from vlmrm_gym import vector

    with patch.object(vector, "CLIPReward", make_reward):
        envs = gym.make_vec(args.env, args.num_envs, model=args.model, device=args.device, **options)
    envs.action_space.seed(args.seed)
    envs.reset(seed=args.seed)
    return envs, [envs.action_space.sample() for _ in range(get_task(args).episode_length)]


def get_task(args: Args) -> Any:
    from vlmrm_gym.tasks import TASKS

    return next(task for task in TASKS if task.id == args.env)


def the_reward(args: Args) -> Callable[..., Any]:
    """Makes the real reward model, from what `CLIPReward` takes."""
    from draw_only import DrawnAtHeight

    from vlmrm_gym import CLIPReward

    return CLIPReward if args.size is None else partial(DrawnAtHeight, args.size)


def physics(args: Args, stand_in: Callable[..., Any]) -> float:
    envs, actions = make_envs(args, stand_in)

    def run(rollouts: int) -> int:
        for _, action in itertools.product(range(rollouts), (*actions, actions[0])):  # the last one only resets
            envs.env.step(action)
        return rollouts * args.num_envs * len(actions)

    try:
        return rate(run, args.seconds)
    finally:
        envs.close()


def record(args: Args, stand_in: Callable[..., Any]) -> tuple[Any, Any]:
    """What draws the environments' states, and the states (B, ...) of an episode of each."""
    import numpy as np

    from vlmrm_gym.rendering import VectorScene

    envs, actions = make_envs(args, stand_in)
    try:
        scene = VectorScene(envs.env, get_task(args).options.get("camera"))
        states = []
        for action in actions:
            _, _, terminations, truncations, infos = envs.env.step(action)
            states.append(scene.capture(terminations | truncations, infos)[0])
        return scene.make_renderer(stand_in().size_to_draw), np.concatenate(states)
    finally:
        envs.close()


def draw_states(args: Args, workers: int, stand_in: Callable[..., Any]) -> float:
    return with_states(args, workers, stand_in, stand_in, lambda renderer: renderer)


def score_frames(args: Args, workers: int, stand_in: Callable[..., Any]) -> float:
    from draw_only import ReadyFrames

    real = partial(the_reward(args), args.model, prompt=get_task(args).prompt)
    return with_states(args, workers, stand_in, real, ReadyFrames)


def with_states(
    args: Args,
    workers: int,
    stand_in: Callable[..., Any],
    make_reward: Callable[..., Any],
    make_renderer: Callable[[Any], Any],
) -> float:
    """Frames/s of the queue and its workers when states are ready."""
    import numpy as np

    from vlmrm_gym.scoring import Request, start_scoring

    renderer, states = record(args, stand_in)
    queue = start_scoring(
        make_reward,
        lambda _: make_renderer(renderer),
        num_workers=workers,
        devices=None,
        device=args.device,
        max_pending_bytes=2**30,
    )
    a_pass = np.resize(states, (max(1, workers) * queue.batch_size, *states.shape[1:]))

    def run(passes: int) -> int:
        requests = [Request(a_pass) for _ in range(passes)]
        for request in requests:
            queue.submit(request)
        for request in requests:
            if error := request.error():
                raise error
        return passes * len(a_pass)

    try:
        return rate(run, args.seconds)
    finally:
        queue.close()


@dataclass(frozen=True)
class Encoding:
    rates: dict[str, float]
    ratio: float
    """Of `CLIPReward` on frames of the model's own size to bare `encode_image`."""
    size_to_draw: Callable[[int, int], tuple[int, int]]
    batch_size: int
    device: str


def encoding(args: Args) -> Encoding:
    """Bare `encode_image` and `CLIPReward` in turns, in one process; medians over the rounds."""
    import numpy as np
    import torch
    from draw_only import DrawOnly

    from vlmrm_gym.rewards import sources

    score = the_reward(args)(args.model, prompt=get_task(args).prompt, device=args.device)
    model, batch = score.model, score.batch_size
    architecture = sources.find(args.model).architecture
    bare = with_random_weights(architecture, device=model.device, precision=model.precision).eval()
    renderer, states = record(args, partial(DrawOnly, score.size_to_draw, batch))
    drawn = renderer.render(states[:1]).shape[1:3]
    renderer.close()
    look = model.preprocessing()
    images = torch.randn(batch, 3, look.height, look.width, device=model.device, dtype=model.dtype)

    @torch.inference_mode()
    def encode() -> None:
        bare.encode_image(images)

    functions: dict[str, Callable[[], object]] = {"bare encode_image": encode}
    rng = np.random.default_rng(args.seed)
    for size in dict.fromkeys(((look.height, look.width), drawn)):
        frames = torch.from_numpy(rng.integers(0, 256, (batch, *size, 3), dtype=np.uint8)).to(model.device)
        functions["CLIPReward, {}x{} frames".format(*size)] = partial(score, frames)
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    began = time.perf_counter()
    for turn in itertools.count(-1):  # the first is not counted
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if model.device.type == "cuda":
                torch.cuda.synchronize()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
        if turn >= 2 and time.perf_counter() - began > args.seconds * len(functions):
            break
    rates = {f"{name}, batch {batch}": batch / statistics.median(taken) for name, taken in seconds.items()}
    first, own, *_ = rates.values()
    return Encoding(rates, own / first, score.size_to_draw, batch, model.device.type)


@dataclass(frozen=True)
class Rollouts:
    rate: float
    rate_of_frames: float | None = None
    """The reference way's, of physics and rendering."""
    bytes_per_step: float = 0.0
    peak: float | None = None
    """In MB, of the process that steps."""
    children_peak: tuple[float, ...] = ()
    """In MB, of its workers or its environments' processes."""


def rollouts(args: Args, make_reward: Callable[..., Any], workers: int, overlap: bool) -> Rollouts:
    envs, actions = make_envs(args, make_reward, num_workers=workers, overlap=overlap)

    def run(rollouts: int) -> int:
        told = 0
        for _, action in itertools.product(range(rollouts), (*actions, actions[0])):  # the last one only resets
            told += count(envs.step(action)[4]["vlm_rewards"])
        told += count(envs.flush()["vlm_rewards"])
        if told != (expected := rollouts * args.num_envs * len(actions)):
            raise RuntimeError(f"{told} rewards arrived for {expected} transitions.")
        return told

    try:
        frames_per_second = rate(run, args.seconds)
        for action in actions[:-1]:
            envs.step(action)
        pending = envs.pending_bytes / (args.num_envs * (len(actions) - 1))
        return Rollouts(frames_per_second, None, pending, *peaks())
    finally:
        envs.close()


def count(rewards: Iterable[Any]) -> int:
    return sum(len(episode) for episode in rewards if episode is not None)


def reference(args: Args, batch_size: int) -> Rollouts:
    from reference_way import ReferenceWay

    from vlmrm_gym.scoring.start import usable_cores

    num_envs = args.reference_envs or min(args.num_envs, usable_cores())
    frames = num_envs * REFERENCE_STEPS
    way = ReferenceWay(
        num_envs,
        episode_length=REFERENCE_STEPS,
        prompt=get_task(args).prompt,
        model=args.model,
        device=args.device,
        batch_size=max(size for size in range(1, batch_size + 1) if frames % size == 0),
        seed=args.seed,
    )
    try:
        way.rollout()
        done = [way.rollout()]
        while sum(one.seconds_physics_and_rendering + one.seconds_scoring for one in done) < args.seconds:
            done.append(way.rollout())
        drawing = sum(one.seconds_physics_and_rendering for one in done)
        scoring = sum(one.seconds_scoring for one in done)
        total, pending = len(done) * frames, done[0].pending_bytes / frames
        return Rollouts(total / (drawing + scoring), total / drawing, pending, *peaks())
    finally:
        way.close()


def peaks() -> tuple[float | None, tuple[float, ...]]:
    """Peak resident memory of this process and of each of its children, in MB; nothing where there is no /proc."""
    if not Path("/proc/self/task").is_dir():
        return None, ()

    def peak(process: str) -> float:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
        return int(found[1]) * 1024 / 1e6 if found else 0.0

    children = [child for task in Path("/proc/self/task").iterdir() for child in (task / "children").read_text().split()]
    return peak("self"), tuple(peak(child) for child in children)


def machine(args: Args) -> dict[str, str]:
    from importlib.metadata import version

    import torch

    import vlmrm_gym
    from vlmrm_gym.rendering.opengl import make_context
    from vlmrm_gym.scoring.start import usable_cores

    cpuinfo = Path("/proc/cpuinfo")
    cpu = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    about = {"CPU": f"{cpu[1] if cpu else platform.processor()}, {usable_cores()} cores usable"}
    if torch.cuda.is_available():
        about["GPU"] = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    if get_task(args).world == "Humanoid":
        context = make_context(16, 16)
        with context.as_current():
            from OpenGL import GL

            about["OpenGL"] = bytes(GL.glGetString(GL.GL_RENDERER)).decode()
        context.free()
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "mujoco", "gymnasium"))
    about["versions"] = f"Python {platform.python_version()}, {packages}, vlmrm_gym {vlmrm_gym.__version__}"
    git = ("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*")
    try:
        about["commit"] = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        about["commit"] = "not a checkout"
    return about


def with_random_weights(architecture: str, **options: Any) -> Any:
    import logging

    import open_clip

    logging.disable()  # it warns that the weights are random
    return open_clip.create_model(architecture, load_weights=False, **options)


def named(model: str, folder: str) -> str:
    """The model's name for `CLIPReward`; an architecture without a tag gets random weights, in a file."""
    import open_clip
    import torch

    if model not in open_clip.list_models():
        return model
    weights = Path(folder) / "weights.pt"
    torch.save(with_random_weights(model).state_dict(), weights)
    return f"{model}/{weights}"


@dataclass(frozen=True)
class Row:
    what: str
    value: float
    form: str
    target: tuple[str, float] | None = None
    """">=" or "<=", and a number."""

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        sign, bound = self.target
        return self.value >= bound if sign == ">=" else self.value <= bound

    def __str__(self) -> str:
        told = "" if self.target is None else f"{self.target[0]} {self.target[1]:g}: {'yes' if self.met else 'NO'}"
        return f"  {self.what:<52}{self.value:>10{self.form}}   {told}".rstrip()


def place(workers: int) -> str:
    return f"{workers} worker{'s' * (workers > 1)}" if workers else "no worker"


def measure(args: Args, do: Callable[..., Any]) -> dict[str, list[Row]]:
    """All rows, by section. `do(what, function, *arguments)` calls a function in a fresh process."""
    from draw_only import DrawOnly

    workers, real = args.num_workers, the_reward(args)
    rates: dict[str, float] = {}
    ratios: list[Row] = []

    def timed(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        result = do(what, function, args, *arguments)
        rates[what] = result if isinstance(result, float) else result.rate
        return result

    encoded: Encoding = do("encode_image and CLIPReward", encoding, args)
    stand_in = partial(DrawOnly, encoded.size_to_draw, encoded.batch_size)
    timed("physics", physics, stand_in)
    for n in dict.fromkeys((workers, 1)):
        timed(f"rendering, {place(n)}", draw_states, n, stand_in)
    for n in dict.fromkeys((workers, 1)):
        timed(f"physics + rendering, {place(n)}", rollouts, stand_in, n, False)
    rates |= encoded.rates
    timed(f"scoring, {place(workers)}", score_frames, workers, stand_in)

    stages = [rates[what] for what in ("physics", f"rendering, {place(workers)}", f"scoring, {place(workers)}")]
    gpu = encoded.device != "cpu"
    possible = min(stages) if gpu else 1 / sum(1 / one for one in stages)
    ends: dict[str, Rollouts] = {}
    for n, overlap in dict.fromkeys(((workers, False), (workers, True), (0, False))):
        what = f"end to end, {place(n)}{', overlap' * overlap}"
        ends[what] = timed(what, rollouts, real, n, overlap)

    for what, one in ends.items():
        if place(workers) in what:
            bound = None if gpu and "overlap" not in what else (">=", 0.9 if gpu else 0.85)
            ratios.append(Row(f"share of stages: {what}", one.rate / possible, ".2f", bound))
