"""What `benchmarks/fps.py` measures: each function measures one row, in a process of its own."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from processes import descendants, memory
from stubs import BuiltBy, DrawOnly, ReadyFrames, drawn_at_height

import vlmrm_gym
from vlmrm_gym.rewards.clip import Precision
from vlmrm_gym.scoring import Request, make_scoring_queue
from vlmrm_gym.scoring.options import ScoringOptions
from vlmrm_gym.scoring.state_encoder import build_encoder
from vlmrm_gym.states import States, VectorCapture
from vlmrm_gym.tasks import REGISTERED, Task

# Torch is imported inside functions: the reference pipeline's processes import this file, and their memory is measured.

REFERENCE_STEPS = 50
MakeReward = Callable[..., Any]


@dataclass(frozen=True)
class Args:
    env: str = "VLMRM/Humanoid-stand-v0"
    """a registered VLMRM ID; cameras and the reference pipeline are for humanoids only"""
    num_envs: int = 16
    """number of environments"""
    num_workers: int = 2
    """workers that render and score; 0: the main process"""
    backend: Literal["process", "ray"] = "process"
    """worker processes, or Ray actors (of the cluster at RAY_ADDRESS, else of a local one)"""
    model: str = "tiny"
    """as in CLIPReward, or an open_clip architecture without a tag, which gets random weights"""
    device: str = "auto"
    """where the model runs"""
    precision: Precision = "auto"
    """as in CLIPReward"""
    bf16: Literal["also", "only", "off"] = "also"
    """also measure whole episodes in bfloat16 against float32, where the processor has it; or only this"""
    size: int | None = None
    """render height in pixels, keeping the aspect ratio; None: the model's `render_size`"""
    camera: str | None = None
    """humanoids: a camera of the model, or a named set of several, such as front-side; None: the paper's"""
    views: Literal["also", "only", "off"] = "also"
    """humanoids: also measure two views against one; or only this"""
    sparse: Literal["also", "only", "off"] = "also"
    """also measure whole episodes of which some states are scored; or only this"""
    seconds: float = 8.0
    """approximate time per row; episodes are completed, so it can take longer"""
    reference: bool = True
    """also measure the reference pipeline"""
    reference_envs: tuple[int, ...] = ()
    """numbers of environments to try in the reference pipeline; default: 0.5, 1, 2 and 4 per core"""
    seed: int = 0
    """seed of environments and actions"""
    json: Path | None = None
    """file for the figures"""

    @property
    def task(self) -> Task:
        """The registered task."""
        return REGISTERED[self.env]

    @property
    def is_humanoid(self) -> bool:
        """Whether the reference pipeline, which runs the humanoid only, can be compared."""
        return self.env.startswith("VLMRM/Humanoid-")

    @property
    def reward(self) -> MakeReward:
        """Factory of the reward model, with the parameters of `CLIPReward`."""
        make = vlmrm_gym.CLIPReward if self.size is None else partial(drawn_at_height, self.size)
        return partial(make, precision=self.precision)


@dataclass(frozen=True)
class Measured:
    rate: float
    """Frames/s."""
    before_scoring: float = 0.0
    """Frames/s of physics and rendering; the reference pipeline only."""
    pending: float = 0.0
    """Bytes per pending transition."""
    peaks: tuple[float, ...] = ()
    """MB: this process, then each of its descendants."""


def measure(run: Callable[[int], int], seconds: float) -> float:
    """Frames/s of `run`, which maps a number of passes to the number of frames they produced."""
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
    """A `VLMRewardVectorEnv` after `reset`, and the actions of an episode; the last one only resets."""
    reward = BuiltBy(partial(make_reward, args.model, prompt=args.task.prompt))
    options |= {} if args.camera is None else {"camera": args.camera}
    envs = gym.make_vec(args.env, args.num_envs, reward=reward, device=args.device, **options)
    envs.action_space.seed(args.seed)
    envs.reset(seed=args.seed)
    return envs, [envs.action_space.sample() for _ in range(args.task.episode_length + 1)]


def backend_of(args: Args, workers: int) -> dict[str, Any]:
    """Keyword arguments that select the backend; empty without workers."""
    return {"backend": args.backend} if workers else {}


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


def whole_episodes(
    args: Args, make_reward: MakeReward, workers: int, overlap: bool = False, sparse: Mapping[str, Any] | None = None
) -> Measured:
    options = {"num_workers": workers, "overlap": overlap, **backend_of(args, workers), **(sparse or {})}
    envs, actions = make_envs(args, make_reward, **options)

    def count(infos: dict[str, Any]) -> int:
        return sum(len(rewards) for rewards in infos["vlm_rewards"][infos["_vlm_rewards"]])

    def run(episodes: int) -> int:
        rewards = sum(count(envs.step(action)[4]) for action in actions * episodes) + count(envs.flush())
        if rewards != (expected := episodes * args.num_envs * args.task.episode_length):
            raise RuntimeError(f"{rewards} rewards came for {expected} transitions.")
        return rewards

    try:
        rate = measure(run, args.seconds)
        waiting = actions[2:]  # an episode without its last step
        for action in waiting:
            envs.step(action)
        return Measured(rate, pending=envs.pending_bytes / (len(waiting) * args.num_envs), peaks=peaks())
    finally:
        envs.close()


def record(args: Args, stand_in: MakeReward) -> tuple[Any, Any]:
    """The environments' renderer, and the states (B, ...) of one episode of each."""
    envs, actions = make_envs(args, stand_in)
    try:
        scene = VectorCapture(envs.env, AutoresetMode.NEXT_STEP, args.camera or args.task.camera)
        stepped = np.full(args.num_envs, True)  # without the last action, which only resets
        states = [scene.capture(stepped, envs.env.step(action)[4])[0].rows for action in actions[:-1]]
        return scene.make_renderer(stand_in().render_size), np.concatenate(states)
    finally:
        envs.close()


def states_ready(args: Args, stand_in: MakeReward, workers: int, score: bool) -> Measured:
    """The queue and its workers render precomputed states, or score frames that the workers already have."""
    renderer, states = record(args, stand_in)
    build = partial(args.reward, args.model, prompt=args.task.prompt) if score else stand_in
    queue = make_scoring_queue(
        partial(build_encoder, build, getattr(renderer, "num_views", 1)),
        lambda _: ReadyFrames(renderer) if score else renderer,
        ScoringOptions(num_workers=workers, device=args.device, **backend_of(args, workers)),
    )
    batches = np.resize(states, (max(1, workers) * queue.batch_size, *states.shape[1:]))

    def run(passes: int) -> int:
        requests = [Request(States(batches), np.arange(len(batches))) for _ in range(passes)]
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
    """`CLIPReward` on frames of the model's input size, relative to bare encode_image."""
    on_gpu: bool


def make_stand_in(args: Args) -> MakeReward:
    """Factory of a `DrawOnly` with the model's `render_size` and batch size."""
    score = args.reward(args.model, prompt=args.task.prompt, device=args.device)
    return partial(DrawOnly, score.render_size, score.batch_size)


def encoding(args: Args) -> Encoding:
    """Alternate bare encode_image and `CLIPReward`; medians over the rounds."""
    import torch
    from turns import median_seconds

    score = args.reward(args.model, prompt=args.task.prompt, device=args.device)
    renderer, states = record(args, partial(DrawOnly, score.render_size, score.batch_size))
    drawn = renderer.render(states[:1]).shape[-3:-1]
    renderer.close()
    functions = ways_to_encode(score, args.model, [drawn])
    on_gpu = score.model.device.type == "cuda"
    synchronize = torch.cuda.synchronize if on_gpu else lambda: None
    start = time.perf_counter()
    functions["bare encode_image"]()
    synchronize()
    rounds = max(3, round(args.seconds / (time.perf_counter() - start)))
    seconds = median_seconds(functions, rounds, synchronize)
    rates = {f"{name}, batch {score.batch_size}": score.batch_size / took for name, took in seconds.items()}
    first, own, *_ = rates.values()
    return Encoding(rates, own / first, on_gpu)


def ways_to_encode(score: Any, model: str, sizes: Sequence[tuple[int, int]]) -> dict[str, Callable[[], Any]]:
    """Bare encode_image of a model's architecture, and `CLIPReward` on frames of its input size and of these sizes."""
    import torch

    from vlmrm_gym.rewards import sources

    encoder, batch, rng = score.model, score.batch_size, np.random.default_rng(0)
    architecture = sources.parse_model_name(model).architecture
    bare = random_network(architecture, device=encoder.device, precision=encoder.precision).eval()
    look = encoder.preprocessing()
    images = torch.randn(batch, 3, look.height, look.width, device=encoder.device, dtype=encoder.dtype)
    ways: dict[str, Callable[[], Any]] = {}
    ways["bare encode_image"] = torch.inference_mode()(lambda: bare.encode_image(images))
    for height, width in dict.fromkeys([(look.height, look.width), *sizes]):
        frames = torch.from_numpy(rng.integers(0, 256, (batch, height, width, 3), dtype=np.uint8))
        ways[f"CLIPReward, {height}x{width}"] = partial(score, frames.to(encoder.device))
    return ways


def reference_pipeline(args: Args, batch_size: int, num_envs: int, seconds: float) -> Measured:
    from reference_pipeline import ReferencePipeline

    frames = num_envs * REFERENCE_STEPS
    pipeline = ReferencePipeline(
        num_envs,
        episode_length=REFERENCE_STEPS,
        prompt=str(args.task.prompt),
        model=args.model,
        device=args.device,
        batch_size=max(size for size in range(1, batch_size + 1) if frames % size == 0),
        seed=args.seed,
    )
    try:
        if seconds:
            pipeline.rollout()
        drawing = scoring = total = pending = 0.0
        while not total or drawing + scoring < seconds:
            times = pipeline.rollout()
            drawing, scoring = drawing + times.seconds_physics_and_rendering, scoring + times.seconds_scoring
            total, pending = total + frames, times.pending_bytes / frames
        return Measured(total / (drawing + scoring), total / drawing, pending, peaks())
    finally:
        pipeline.close()


def peaks() -> tuple[float, ...]:
    """Peak resident memory in MB of this process and each descendant; empty without /proc."""
    found = list[float]()
    for one in (None, *descendants()):
        with suppress(OSError):  # there is no /proc, or the process has just ended
            found.append(memory("VmHWM", one))
    return tuple(found)


def random_network(architecture: str, **options: Any) -> Any:
    import logging

    import open_clip

    logging.disable()  # open_clip warns about random weights
    return open_clip.create_model(architecture, load_weights=False, **options)


def find_model(model: str, folder: str) -> str:
    """The model's name for `CLIPReward`; writes random weights for an architecture without a tag."""
    import open_clip
    import torch

    if model not in open_clip.list_models():
        return model
    weights = Path(folder) / "weights.pt"
    torch.save(random_network(model).state_dict(), weights)
    return f"{model}/{weights}"
