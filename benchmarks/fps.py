"""How many transitions a second get their reward, stage by stage, beside the way of VLM-RM's published code.

    python benchmarks/fps.py
    python benchmarks/fps.py --model ViT-B-32 --num-envs 2 --no-reference   # a slow model wants few environments
    python benchmarks/fps.py --env VLMRM/CartPole-v1 --json cartpole.json

Rates are frames/s; every transition has one frame. Each row runs in a fresh process, after a pass that is not timed: it
pays for OpenGL contexts, textures, allocators and threads. Actions are random and prepared beforehand.

- physics: the vector environment without rewards, whole episodes, their resets included.
- rendering: states are ready; the queue and its workers draw them, and nobody looks.
- physics + rendering: whole episodes of `VLMRewardVectorEnv`, drawn at their end, and nobody looks.
- bare encode_image: open_clip's network on float tensors that are ready, in one process with all threads.
- CLIPReward: from uint8 frames that are ready on the model's device to rewards, in turns with bare encode_image.
- scoring: the queue and its workers score frames that are ready in the workers.
- end to end: whole episodes, from the first step to the arrival of the last reward.
- reference way: rollouts of 50 steps; see `reference_way.py`.

Share of stages: the end-to-end rate in proportion to what physics, rendering and scoring allow, each with the same
workers. On a CPU they share the cores: 1 / (1/physics + 1/rendering + 1/scoring). On a GPU: the slowest of them.

Memory: bytes held for each transition that waits for its reward, one step before an episode's end. Peaks are resident
memory (VmHWM; Linux only); libraries that processes share count in each of them.

Architectures without a tag, such as ViT-B-32, get random weights, which are as fast as trained ones and need no
download.
"""

import json
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import gymnasium as gym
import numpy as np
import tyro
from draw_only import DrawnAtHeight, DrawOnly, ReadyFrames

import vlmrm_gym
from vlmrm_gym.checks import check_choice, check_integer, check_positive_integer
from vlmrm_gym.cores import usable_cores
from vlmrm_gym.rendering import VectorScene
from vlmrm_gym.scoring import Request, start_scoring
from vlmrm_gym.tasks import TASKS, Task

# The reference way's processes import this file, and their memory is measured: torch is imported in functions.

REFERENCE_STEPS = 50
MakeReward = Callable[..., Any]


@dataclass(frozen=True)
class Args:
    env: str = "VLMRM/Humanoid-stand-v0"
    """a registered VLMRM ID; the reference way is there for the humanoid only"""
    num_envs: int = 16
    """environments that are stepped together"""
    num_workers: int = 2
    """processes that draw and score; 0: the one that steps does it"""
    model: str = "tiny"
    """as in CLIPReward, or an open_clip architecture without a tag, which gets random weights"""
    device: str = "auto"
    """where the model runs"""
    size: int | None = None
    """height of the drawings in pixels, the width follows; None: what the model asks for"""
    seconds: float = 8.0
    """about how long each row is timed; episodes are not cut, so it can take longer"""
    reference: bool = True
    """measure the reference way too"""
    reference_envs: int | None = None
    """its environments, each a process; more than there are cores do not raise its rate, so None is one per core, or
    num_envs if that is less"""
    seed: int = 0
    """of environments and actions"""
    json: Path | None = None
    """file for the figures"""

    @property
    def task(self) -> Task:
        """What is registered under the ID."""
        return next(task for task in TASKS if task.id == self.env)

    @property
    def reward(self) -> MakeReward:
        """Makes the reward model from what `CLIPReward` takes."""
        return vlmrm_gym.CLIPReward if self.size is None else partial(DrawnAtHeight, self.size)


@dataclass(frozen=True)
class Measured:
    rate: float
    """Frames/s."""
    before_scoring: float = 0.0
    """Frames/s of physics and rendering; the reference way only."""
    pending: float = 0.0
    """Bytes per transition that waits."""
    peaks: tuple[float, ...] = ()
    """MB, of the process that steps, and of each of its children."""


def measure(run: Callable[[int], int], seconds: float) -> float:
    """Frames/s of `run`, which makes as many passes as it is told, and says how many frames that were."""
    run(1)
    passes = 1
    while True:
        start = time.perf_counter()
        frames = run(passes)
        took = time.perf_counter() - start
        if passes > 1 or round(seconds / took) < 2:
            return frames / took
        passes = round(seconds / took)


def make_envs(args: Args, make_reward: MakeReward, **options: Any) -> tuple[Any, list[Any]]:
    """A `VLMRewardVectorEnv` that has been reset, and an episode's actions; the last only resets."""
    from vlmrm_gym import vector

    with patch.object(vector, "CLIPReward", make_reward):
        envs = gym.make_vec(args.env, args.num_envs, model=args.model, device=args.device, **options)
    envs.action_space.seed(args.seed)
    envs.reset(seed=args.seed)
    return envs, [envs.action_space.sample() for _ in range(args.task.episode_length + 1)]


def physics(args: Args, stand_in: MakeReward) -> Measured:
    envs, actions = make_envs(args, stand_in)

    def run(episodes: int) -> int:
        for action in actions * episodes:
            envs.env.step(action)
        return episodes * args.num_envs * args.task.episode_length

    try:
        return Measured(measure(run, args.seconds))
    finally:
        envs.close()


def whole_episodes(args: Args, make_reward: MakeReward, workers: int, overlap: bool = False) -> Measured:
    envs, actions = make_envs(args, make_reward, num_workers=workers, overlap=overlap)

    def count(infos: dict[str, Any]) -> int:
        return sum(len(rewards) for rewards in infos["vlm_rewards"][infos["_vlm_rewards"]])

    def run(episodes: int) -> int:
        told = sum(count(envs.step(action)[4]) for action in actions * episodes) + count(envs.flush())
        if told != (expected := episodes * args.num_envs * args.task.episode_length):
            raise RuntimeError(f"{told} rewards came for {expected} transitions.")
        return told

    try:
        rate = measure(run, args.seconds)
        waiting = actions[2:]  # all of an episode but its last step
        for action in waiting:
            envs.step(action)
        return Measured(rate, pending=envs.pending_bytes / (len(waiting) * args.num_envs), peaks=peaks())
    finally:
        envs.close()


def record(args: Args, stand_in: MakeReward) -> tuple[Any, Any]:
    """What draws the environments, and the states (B, ...) of an episode of each."""
    envs, actions = make_envs(args, stand_in)
    try:
        scene = VectorScene(envs.env, args.task.options.get("camera"))
        states = []
        for action in actions[:-1]:
            _, _, terminations, truncations, infos = envs.env.step(action)
            states.append(scene.capture(terminations | truncations, infos)[0])
        return scene.make_renderer(stand_in().size_to_draw), np.concatenate(states)
    finally:
        envs.close()


def states_ready(args: Args, stand_in: MakeReward, workers: int, score: bool) -> Measured:
    """The queue and its workers draw states, or score frames that are ready."""
    renderer, states = record(args, stand_in)
    queue = start_scoring(
        partial(args.reward, args.model, prompt=args.task.prompt) if score else stand_in,
        lambda _: ReadyFrames(renderer) if score else renderer,
        num_workers=workers,
        devices=None,
        device=args.device,
        max_pending_bytes=2**30,
    )
    batches = np.resize(states, (max(1, workers) * queue.batch_size, *states.shape[1:]))

    def run(passes: int) -> int:
        requests = [Request(batches) for _ in range(passes)]
        for request in requests:
            queue.submit(request)
        for request in requests:
            if error := request.error():
                raise error
        return passes * len(batches)

    try:
        return Measured(measure(run, args.seconds))
    finally:
        queue.close()


@dataclass(frozen=True)
class Encoding:
    rates: dict[str, float]
    ratio: float
    """Of `CLIPReward` on frames of the model's own size to bare encode_image."""
    stand_in: MakeReward
    """Makes a `DrawOnly` that draws what this model would look at."""
    on_gpu: bool


def encoding(args: Args) -> Encoding:
    """Bare encode_image and `CLIPReward` in turns; medians over the rounds."""
    import torch
    from clip_reward import take_turns

    from vlmrm_gym.rewards import sources

    score = args.reward(args.model, prompt=args.task.prompt, device=args.device)
    model, batch = score.model, score.batch_size
    architecture = sources.find(args.model).architecture
    bare = random_network(architecture, device=model.device, precision=model.precision).eval()
    stand_in = partial(DrawOnly, score.size_to_draw, batch)
    renderer, states = record(args, stand_in)
    drawn = renderer.render(states[:1]).shape[1:3]
    renderer.close()
    look = model.preprocessing()
    images = torch.randn(batch, 3, look.height, look.width, device=model.device, dtype=model.dtype)
    functions: dict[str, Callable[[], Any]] = {
        "bare encode_image": torch.inference_mode()(lambda: bare.encode_image(images))
    }
    rng = np.random.default_rng(args.seed)
    for height, width in dict.fromkeys(((look.height, look.width), drawn)):
        pixels = rng.integers(0, 256, (batch, height, width, 3), dtype=np.uint8)
        functions[f"CLIPReward, {height}x{width}"] = partial(score, torch.from_numpy(pixels).to(model.device))
    synchronize = torch.cuda.synchronize if model.device.type == "cuda" else lambda: None
    start = time.perf_counter()
    functions["bare encode_image"]()
    synchronize()
    rounds = max(3, round(args.seconds / (time.perf_counter() - start)))
    seconds = take_turns(functions, rounds, synchronize)
    rates = {f"{name}, batch {batch}": batch / took for name, took in seconds.items()}
    first, own, *_ = rates.values()
    return Encoding(rates, own / first, stand_in, model.device.type != "cpu")


def reference_way(args: Args, batch_size: int) -> Measured:
    from reference_way import ReferenceWay

    num_envs = args.reference_envs or min(args.num_envs, usable_cores())
    frames = num_envs * REFERENCE_STEPS
    way = ReferenceWay(
        num_envs,
        episode_length=REFERENCE_STEPS,
        prompt=str(args.task.prompt),
        model=args.model,
        device=args.device,
        batch_size=max(size for size in range(1, batch_size + 1) if frames % size == 0),
        seed=args.seed,
    )
    try:
        way.rollout()
        drawing = scoring = total = pending = 0.0
        while not total or drawing + scoring < args.seconds:
            times = way.rollout()
            drawing, scoring = drawing + times.seconds_physics_and_rendering, scoring + times.seconds_scoring
            total, pending = total + frames, times.pending_bytes / frames
        return Measured(total / (drawing + scoring), total / drawing, pending, peaks())
    finally:
        way.close()


def peaks() -> tuple[float, ...]:
    """Peak resident memory of this process and of each of its children, in MB; nothing where there is no /proc."""
    if not Path("/proc/thread-self/children").exists():
        return ()
    threads = Path("/proc/self/task").iterdir()
    children = [child for thread in threads for child in (thread / "children").read_text().split()]
    found = [re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{one}/status").read_text()) for one in ("self", *children)]
    return tuple(int(peak[1]) * 1024 / 1e6 for peak in found if peak)


def random_network(architecture: str, **options: Any) -> Any:
    import logging

    import open_clip

    logging.disable()  # it warns that the weights are random
    return open_clip.create_model(architecture, load_weights=False, **options)


def find_model(model: str, folder: str) -> str:
    """The model's name for `CLIPReward`; of an architecture without a tag, after writing random weights."""
    import open_clip
    import torch

    if model not in open_clip.list_models():
        return model
    weights = Path(folder) / "weights.pt"
    torch.save(random_network(model).state_dict(), weights)
    return f"{model}/{weights}"


def machine(args: Args) -> dict[str, str]:
    import torch

    from vlmrm_gym.rendering.opengl import make_context

    cpuinfo = Path("/proc/cpuinfo")
    cpu = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    about = {"CPU": f"{cpu[1] if cpu else platform.processor()}, {usable_cores()} cores"}
    if torch.cuda.is_available():
        about["GPU"] = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    if args.task.world == "Humanoid":
        context = make_context(16, 16)
        with context.as_current():
            from OpenGL import GL

            about["OpenGL"] = bytes(GL.glGetString(GL.GL_RENDERER) or b"").decode()
        context.free()
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "mujoco", "gymnasium"))
    about["versions"] = f"Python {platform.python_version()}, {packages}, vlmrm_gym {vlmrm_gym.__version__}"
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        about["commit"] = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        about["commit"] = "unknown"
    return about


@dataclass(frozen=True)
class Row:
    section: str
    what: str
    value: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None: there is none."""
        if self.at_least is None and self.at_most is None:
            return None
        return (self.at_least or 0.0) <= self.value <= (self.at_most or float("inf"))

    def __str__(self) -> str:
        bound = f">= {self.at_least:g}" if self.at_least else f"<= {self.at_most:g}" if self.at_most else ""
        verdict = {None: "", True: "yes", False: "NO"}[self.met]
        figure = f"{self.value:,.2f}" if self.section == "ratios" else f"{self.value:,.0f}"
        return f"  {self.what:<62}{figure:>10}  {bound:<8}{verdict}".rstrip()


def all_rows(args: Args, do: Callable[..., Any]) -> list[Row]:
    """Measure everything. `do(what, function, *arguments)` calls a function in a fresh process."""
    encoded: Encoding = do("encode_image and CLIPReward", encoding, args)
    stand_in, rates = encoded.stand_in, {}

    def rate(what: str, function: Callable[..., Measured], *arguments: Any) -> Measured:
        measured = do(what, function, args, *arguments)
        rates[what] = measured.rate
        return measured

    many, one = (f"{n} worker{'s' * (n != 1)}" for n in (args.num_workers, 1))
    workers = {many: args.num_workers, one: 1}
    rate("physics", physics, stand_in)
    for name, n in workers.items():
        rate(f"rendering, {name}", states_ready, stand_in, n, False)
    for name, n in workers.items():
        rate(f"physics + rendering, {name}", whole_episodes, stand_in, n)
    rates |= encoded.rates
    rate(f"scoring, {many}", states_ready, stand_in, args.num_workers, True)
    ours = rate(f"end to end, {many}", whole_episodes, args.reward, args.num_workers)
    rate(f"end to end, {many}, overlap", whole_episodes, args.reward, args.num_workers, True)
    if args.num_workers:
        rate("end to end, 0 workers", whole_episodes, args.reward, 0)

    stages = rates["physics"], rates[f"rendering, {many}"], rates[f"scoring, {many}"]
    possible, share = (min(stages), 0.9) if encoded.on_gpu else (1 / sum(1 / stage for stage in stages), 0.85)
    ends = [name for name in rates if name.startswith(f"end to end, {many}")]
    ratios = [Row("ratios", "CLIPReward / bare encode_image, frames of the model's own size", encoded.ratio, 0.95)]
    ratios += [Row("ratios", f"share of stages: {name}", rates[name] / possible, share) for name in ends]
    if many != one:
        for name in ("rendering", "physics + rendering"):
            ratio = rates[f"{name}, {many}"] / rates[f"{name}, {one}"]
            ratios.append(Row("ratios", f"{name}: {many} / {one}", ratio, 1.7 if args.num_workers == 2 else None))
    memory = [Row("memory", "bytes for each transition that waits", ours.pending, at_most=256)]
    memory += peak_rows(f"end to end, {many}", "workers", ours.peaks)
    if args.reference and args.task.world == "Humanoid":
        theirs: Measured = do("reference way", reference_way, args, stand_in().batch_size)
        rates["reference way: physics + rendering"] = theirs.before_scoring
        rates["reference way: end to end"] = theirs.rate
        drawn = f"physics + rendering, {many}"
        ratios.append(Row("ratios", f"{drawn} / reference way", rates[drawn] / theirs.before_scoring, 15.0))
        ratios += [Row("ratios", f"{name} / reference way", rates[name] / theirs.rate, 10.0) for name in ends]
        memory.append(Row("memory", "reference way: bytes for each transition that waits", theirs.pending))
        memory += peak_rows("reference way", "environments' processes", theirs.peaks)
    return [Row("frames/s", name, value) for name, value in rates.items()] + ratios + memory


def peak_rows(what: str, children: str, peaks: tuple[float, ...]) -> list[Row]:
    rows = [Row("memory", f"{what}: peak of the process that steps, MB", peaks[0])] if peaks else []
    if peaks[1:]:
        rows.append(Row("memory", f"{what}: peaks of the {children}, sum, MB", sum(peaks[1:])))
    return rows


def main(args: Args) -> None:
    check_choice("env", args.env, [task.id for task in TASKS if task.prompt])
    check_positive_integer("num_envs", args.num_envs)
    check_integer("num_workers", args.num_workers, least=0)
    for name in ("size", "reference_envs"):
        if (number := getattr(args, name)) is not None:
            check_positive_integer(name, number)
    fresh = ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1)
    with TemporaryDirectory() as folder, fresh:

        def do(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
            print(f"measuring {what} ...", file=sys.stderr, flush=True)
            return fresh.submit(function, *arguments).result()

        about = do("the machine", machine, args)
        rows = all_rows(replace(args, model=do("the model", find_model, args.model, folder)), do)
    print("\n" + "\n".join(f"{name}: {value}" for name, value in about.items()))
    print(f"{args.env}, {args.num_envs} environments, model {args.model}, size {args.size or 'as the model asks for'}")
    for section in dict.fromkeys(row.section for row in rows):
        print(f"\n{section}", *(row for row in rows if row.section == section), sep="\n")
    if args.reference and args.task.world != "Humanoid":
        print(f"\nThe reference way is there for the humanoid only, so not for {args.env}.")
    if args.json:
        settings = {name: str(value) if name == "json" else value for name, value in asdict(args).items()}
        figures = [{**asdict(row), "met": row.met} for row in rows]
        args.json.write_text(json.dumps({"settings": settings, "machine": about, "rows": figures}, indent=2))


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=__doc__))
    except (gym.error.Error, ValueError, FileNotFoundError) as error:
        sys.exit(str(error))
