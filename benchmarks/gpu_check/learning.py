"""Compiled losses of the single files, and short trainings with the single files and the training command."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_check.report import Row
from benchmarks.gpu_check.settings import ROOT, Settings

ENV_ID = "VLMRM/MountainCarContinuous-v0"
TRAINING = """
env_name: VLMRM/CartPole-v1
base_path: {folder}/runs
reward:
  device: {device}
rl:
  device: {device}
  n_steps: 1000
  learning_starts: 400
logging:
  checkpoint_freq: 400
"""
"""The configuration of the training command."""
CALLS = 10
"""Of the compiled losses, every other one with the actor's; the first ones warm up and record the CUDA graphs, the
others replay them."""


def compare_compiled(settings: Settings) -> Iterator[Row]:
    """Losses and gradients of the SAC example, compiled as it does, against the eager ones; then updates/s."""
    sys.path.insert(0, str(ROOT / "examples"))
    import sac_continuous

    from vlmrm_gym.replay import Batch

    args = sac_continuous.default_args(ENV_ID)
    envs = sac_continuous.make_envs(args, 1, overlap=False)
    agent = sac_continuous.Agent(envs, args).to(settings.device)
    envs.close()
    batch = Batch(
        torch.randn(256, 2, device=settings.device),
        torch.rand(256, 1, device=settings.device),
        torch.randn(256, 2, device=settings.device),
        torch.rand(256, device=settings.device),
        torch.zeros(256, device=settings.device),
    )
    start = time.perf_counter()
    compiled = _compile(agent.losses, settings)
    apart = 0.0
    for seed in range(CALLS):
        expected, actual = (_gradients(agent, losses, batch, seed) for losses in (agent.losses, compiled))
        apart = max(apart, *(relative_difference(a, b) for a, b in zip(actual, expected, strict=True)))
    yield Row("seconds for compiling and the first calls", f"{time.perf_counter() - start:.0f}")
    yield Row.at_most("losses and gradients, compiled against eager: largest relative difference", apart, 1e-3)
    if settings.on_gpu:
        from torch._dynamo.utils import counters

        skipped = counters["inductor"]["cudagraph_skips"]
        yield Row.holds("CUDA graphs that the compiler skipped", skipped, skipped == 0)
        launches = _graph_launches(lambda: _gradients(agent, compiled, batch, 0))
        yield Row.holds("launches of CUDA graphs in one update", launches, launches > 0)
    count = 5 if settings.quick else 500
    rates = [_updates_per_second(agent, losses, batch, count) for losses in (agent.losses, compiled)]
    yield Row("updates/s (losses and gradients), eager and compiled", f"{rates[0]:.0f}, {rates[1]:.0f}")


def _compile(losses: Callable[..., Any], settings: Settings) -> Callable[..., Any]:
    if not settings.on_gpu:  # traces and differentiates the same graph, without generating code
        return torch.compile(losses, backend="aot_eager", fullgraph=True)
    from torch._inductor import config

    config.fallback_random = True  # draws the eager mode's random numbers, so that results can be compared
    return torch.compile(losses, mode="reduce-overhead")


def _gradients(agent: Any, losses: Callable[..., Any], batch: Any, seed: int) -> list[torch.Tensor]:
    """The losses, then the gradient of every parameter that has one."""
    torch.manual_seed(seed)
    agent.zero_grad()
    values = losses(batch, update_actor=seed % 2 == 0)
    torch.stack(values).sum().backward()
    found = [*values, *(one.grad for one in agent.parameters() if one.grad is not None)]
    return [one.detach().clone() for one in found]  # the next call overwrites the memory of a CUDA graph


def _updates_per_second(agent: Any, losses: Callable[..., Any], batch: Any, count: int) -> float:
    synchronize = torch.cuda.synchronize if batch.rewards.is_cuda else lambda: None
    synchronize()
    start = time.perf_counter()
    for i in range(count):
        agent.zero_grad()
        torch.stack(losses(batch, update_actor=i % 2 == 0)).sum().backward()
    synchronize()
    return count / (time.perf_counter() - start)


def _graph_launches(function: Callable[[], object]) -> int:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        function()
        torch.cuda.synchronize()
    return sum(event.count for event in profiled.key_averages() if "GraphLaunch" in event.key)


def relative_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest absolute difference, in proportion to the largest absolute value of the other."""
    return float((one - other).abs().max() / other.abs().max().clamp_min(1e-6))


def run_programs(settings: Settings) -> Iterator[Row]:
    """Each program as a user starts it, with few steps; the SAC example and the training command are also resumed."""
    steps = {"--total-timesteps": "600" if settings.quick else "1600"}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        options = {"--device": settings.device, "--num-envs": "1", "--eval-episodes": "2", **steps}
        options |= {"--selection-frequency": "500"}
        sac = {**options, "--env-id": ENV_ID, "--learning-starts": "400", "--checkpoint-frequency": "400"}
        sac |= {"--updates-per-step": "0.1" if settings.quick else "0.5", "--runs-folder": f"{folder}/sac"}
        yield _run("examples/sac_continuous.py", folder, "sac_continuous.py", sac, "--no-textured")
        for run in (folder / "sac").glob("*/"):
            longer = {"--resume": str(run), "--total-timesteps": "800" if settings.quick else "2000"}
            yield _run("the same, lengthened", folder, "sac_continuous.py", longer)
        dqn = {**options, "--learning-starts": "200", "--runs-folder": f"{folder}/dqn"}
        yield _run("examples/dqn_cartpole.py", folder, "dqn_cartpole.py", dqn)
        if not settings.quick:
            sb3 = {"--env-id": ENV_ID, "--num-envs": "1", "--total-timesteps": "420"}
            yield _run("examples/sb3_sac.py", folder, "sb3_sac.py", sb3)
            (folder / "train.yaml").write_text(TRAINING.format(device=settings.device, folder=folder))
            yield _run("vlmrm-gym train", folder, "-m", {}, "vlmrm_gym.cli", "train", "train.yaml", "--run-name", "run")
            resume = "--resume", f"{folder}/runs/run", "--rl.n-steps", "1500"
            yield _run("the same, resumed", folder, "-m", {}, "vlmrm_gym.cli", "train", *resume)
        for result in sorted(folder.rglob("result.json")):
            yield Row(f"success in {result.parent.parent.name}", str(json.loads(result.read_text()).get("success")))


def _run(what: str, folder: Path, program: str, options: dict[str, str], *further: str) -> Row:
    """Run an example, or `-m` and a module, in a folder; where it fails, the value is the last line of its output."""
    arguments = [*further, *(text for pair in options.items() for text in pair)]
    command = [sys.executable, program if program == "-m" else str(ROOT / "examples" / program), *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    seconds = f"{time.perf_counter() - start:.0f} s"
    if done.returncode == 0:
        return Row(what, seconds, "ok")
    print(f"{' '.join(command)}\n{done.stdout[-1_000:]}\n{done.stderr[-3_000:]}", file=sys.stderr)
    words = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return Row(what, f"{words[:300]} ({seconds})", "FAIL")
