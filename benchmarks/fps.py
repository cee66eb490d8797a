"""Scored transitions per second, by stage, compared with the pipeline of the published VLM-RM code.

    python benchmarks/fps.py
    python benchmarks/fps.py --model ViT-B-32 --num-envs 2 --no-reference   # a slow model wants few environments
    python benchmarks/fps.py --env VLMRM/CartPole-v1 --json cartpole.json
    python benchmarks/fps.py --backend ray --no-reference                   # workers are actors of a Ray cluster
    python benchmarks/fps.py --views only                                   # two views against one
    python benchmarks/fps.py --sparse only                                  # some of the states against all
    python benchmarks/fps.py --bf16 only                                    # bfloat16 against float32

Rates are frames/s; every transition has one frame. With a set of cameras (`--camera`) they are states/s. Each row runs
in a fresh process, after an untimed warm-up pass (OpenGL contexts, textures, allocators, threads). Actions are random
and drawn beforehand.

- physics: whole episodes of the vector environment without rewards, including resets.
- rendering: the queue and its workers render precomputed states; nothing is encoded.
- physics + rendering: whole episodes of `VLMRewardVectorEnv`, rendered at their end; nothing is encoded.
- bare encode_image: open_clip's network on preprocessed float tensors, in one process with all threads.
- CLIPReward: from uint8 frames on the model's device to rewards, alternating with bare encode_image.
- scoring: the queue and its workers score frames that the workers already have.
- end to end: whole episodes, from the first step to the last reward.
- reference pipeline: rollouts of 50 steps; see `reference_pipeline.py`. Tries one rollout with each of several numbers
  of environments (one process each), then times the fastest for as long as the other rows. Ratios are relative to it.

Share of stages: the end-to-end rate relative to the rate that physics, rendering and scoring allow with the same
workers. On a CPU they share the cores: 1 / (1/physics + 1/rendering + 1/scoring). On a GPU: the slowest stage.

Two views / one view: humanoids drawn from the front and from a side ("front-side"), and from the front. The two
alternate; the ratio is that of the times of a state, by the medians. Rates are of states, with one reward each.

bf16 / fp32: whole episodes, in turns; as above. The largest difference is that of the rewards of one episode's states.
Only where the processor multiplies bfloat16.

Some states / all states: whole episodes with and without `score_every`, in turns; as above.

Ray / processes: with `--backend ray`, whole episodes are also scored by as many worker processes. The two alternate;
the ratio is that of the medians.

Memory: bytes per pending transition, one step before the end of an episode. Peaks are resident memory (VmHWM; Linux
only); shared libraries count in every process.

Architectures without a tag, such as ViT-B-32, get random weights, which are as fast as trained ones and need no
download.
"""

import json
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym
import tyro
from fps_machine import difference, has_bfloat16, machine
from fps_stages import (
    Args,
    Encoding,
    MakeReward,
    Measured,
    encoding,
    find_model,
    make_stand_in,
    physics,
    reference_pipeline,
    states_ready,
    whole_episodes,
)
from turns import in_turns

from vlmrm_gym._util.system import usable_cores
from vlmrm_gym._util.validation import check_choice, check_integer, check_positive_integer
from vlmrm_gym.tasks import TASKS

ROUNDS = 3
"""Turns, where two ways are compared."""
TWO_VIEWS = "front-side"
"""The camera of the rows of two views."""
SPARSE: dict[str, dict[str, Any]] = {
    "all states": {},
    "every 2nd state": {"score_every": 2},
    "every 4th state": {"score_every": 4},
}


@dataclass(frozen=True)
class Row:
    section: str
    what: str
    value: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without a target."""
        if self.at_least is None and self.at_most is None:
            return None
        return (self.at_least or 0.0) <= self.value <= (self.at_most or float("inf"))

    def __str__(self) -> str:
        bound = f">= {self.at_least:g}" if self.at_least else f"<= {self.at_most:g}" if self.at_most else ""
        verdict = {None: "", True: "yes", False: "NO"}[self.met]
        figure = f"{self.value:,.2f}" if self.section == "ratios" else f"{self.value:,.0f}"
        return f"  {self.what:<62}{figure:>10}  {bound:<8}{verdict}".rstrip()


def all_rows(args: Args, do: Callable[..., Any]) -> list[Row]:
    """Measure all rows. `do(what, function, *arguments)` calls a function in a fresh process."""
    stand_in: MakeReward = do("the model's batch size", make_stand_in, args)
    many, one = (f"{n} worker{'s' * (n != 1)}" for n in (args.num_workers, 1))
    if args.views == "only":
        return compare_views(args, do, stand_in, many)
    if args.sparse == "only":
        return compare_sparse(args, do, many)
    if args.bf16 == "only":
        return compare_precisions(args, do, many)
    encoded: Encoding = do("encode_image and CLIPReward", encoding, args)
    rates: dict[str, float] = {}

    def rate(what: str, function: Callable[..., Measured], *arguments: Any) -> Measured:
        measured = do(what, function, args, *arguments)
        rates[what] = measured.rate
        return measured

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
    if args.backend == "ray":
        medians, ratio = compare_backends(args, do, many)
        rates, ratios = rates | medians, [*ratios, ratio]
    memory = [Row("memory", "bytes for each transition that waits", ours.pending, at_most=256)]
    memory += peak_rows(f"end to end, {many}", "workers", ours.peaks)
    if args.reference and args.is_humanoid:
        theirs, trials, name = best_reference_pipeline(args, do, stand_in().batch_size)
        rates |= {**trials, f"{name}: physics + rendering": theirs.before_scoring, f"{name}: end to end": theirs.rate}
        drawn = f"physics + rendering, {many}"
        ratios.append(Row("ratios", f"{drawn} / reference pipeline", rates[drawn] / theirs.before_scoring, 15.0))
        ratios += [Row("ratios", f"{name} / reference pipeline", rates[name] / theirs.rate, 10.0) for name in ends]
        memory.append(Row("memory", f"{name}: bytes for each transition that waits", theirs.pending))
        memory += peak_rows(name, "environments' processes", theirs.peaks)
    views = compare_views(args, do, stand_in, many) if args.views == "also" and args.is_humanoid else []
    sparse = compare_sparse(args, do, many) if args.sparse == "also" else []
    bf16 = compare_precisions(args, do, many) if args.bf16 == "also" and has_bfloat16() else []
    others = [*views, *sparse, *bf16]
    return [*(Row("frames/s", name, value) for name, value in rates.items()), *others, *ratios, *memory]


def median_rates(do: Callable[..., Any], ways: dict[str, tuple[Any, ...]]) -> dict[str, float]:
    """Median rates of functions, each given with its arguments, that take turns."""
    measured = in_turns({name: partial(do, name, *way) for name, way in ways.items()}, ROUNDS)
    return {name: statistics.median(one.rate for one in own) for name, own in measured.items()}


def compare_backends(args: Args, do: Callable[..., Any], many: str) -> tuple[dict[str, float], Row]:
    """Whole episodes with Ray actors and with worker processes."""
    ways = {"Ray": args, "processes": replace(args, backend="process")}
    rates = median_rates(
        do,
        {
            f"end to end, {many}, {name} in turns": (whole_episodes, way, args.reward, args.num_workers)
            for name, way in ways.items()
        },
    )
    ray, processes = rates.values()
    return rates, Row("ratios", f"Ray / processes: end to end, {many}", ray / processes, 0.9)


def compare_views(args: Args, do: Callable[..., Any], stand_in: MakeReward, many: str) -> list[Row]:
    """Rendering, and whole episodes, of states with two views and with one."""
    ways = {"two views": replace(args, camera=TWO_VIEWS), "one view": replace(args, camera=None)}
    stages = {
        "rendering": (2.0, lambda way: (states_ready, way, stand_in, args.num_workers, False)),
        "end to end": (1.97, lambda way: (whole_episodes, way, args.reward, args.num_workers)),
    }
    rates, ratios = [], []
    for stage, (at_most, call) in stages.items():
        turns = {f"{stage}, {many}, {name} in turns": call(way) for name, way in ways.items()}
        medians = median_rates(do, turns)
        rates += [Row("frames/s", name, value) for name, value in medians.items()]
        two, one = medians.values()
        ratios.append(Row("ratios", f"time of two views / one view: {stage}", one / two, at_most=at_most))
    return rates + ratios


def compare_sparse(args: Args, do: Callable[..., Any], many: str) -> list[Row]:
    """Whole episodes of which all states are scored, or some."""
    call = whole_episodes, args, args.reward, args.num_workers, False
    medians = median_rates(do, {f"end to end, {many}, {name} in turns": (*call, own) for name, own in SPARSE.items()})
    rates = dict(zip(SPARSE, medians.values(), strict=True))
    every = rates.pop("all states")
    goal = {"every 4th state": 2.2}
    ratios = [
        Row("ratios", f"transitions/s: {name} / all states", own / every, goal.get(name)) for name, own in rates.items()
    ]
    return [*(Row("frames/s", name, value) for name, value in medians.items()), *ratios]


def compare_precisions(args: Args, do: Callable[..., Any], many: str) -> list[Row]:
    """Whole episodes in bfloat16 and in float32."""
    ways = [replace(args, precision=name) for name in ("bf16", "fp32")]
    call = {
        f"end to end, {many}, {way.precision} in turns": (whole_episodes, way, way.reward, way.num_workers)
        for way in ways
    }
    medians = median_rates(do, call)
    bf16, fp32 = medians.values()
    largest, span, correlation = do("rewards in both precisions", difference, *ways)
    ratios = {
        f"bf16 / fp32: end to end, {many}": bf16 / fp32,
        "bf16 and fp32: largest difference of a reward, in 0.0001": 1e4 * largest,
        "their range in fp32, in 0.0001": 1e4 * span,
        "1 - their correlation, in 0.0001": 1e4 * (1 - correlation),
    }
    rows = {"frames/s": medians, "ratios": ratios}
    return [Row(section, name, value) for section, own in rows.items() for name, value in own.items()]


def best_reference_pipeline(
    args: Args, do: Callable[..., Any], batch_size: int
) -> tuple[Measured, dict[str, float], str]:
    """The reference pipeline at its fastest number of environments, the rates of all trials, and the row's name."""
    cores = usable_cores()
    numbers = dict.fromkeys(args.reference_envs or (max(1, cores // 2), cores, 2 * cores, 4 * cores))
    names = {number: f"reference pipeline, {number} process{'es' * (number != 1)}" for number in numbers}
    trials: dict[int, Measured] = {
        number: do(f"{name}, one rollout", reference_pipeline, args, batch_size, number, 0.0)
        for number, name in names.items()
    }
    best = max(numbers, key=lambda number: trials[number].rate)
    measured = do(names[best], reference_pipeline, args, batch_size, best, args.seconds)
    return measured, {f"{name}, one rollout": trials[number].rate for number, name in names.items()}, names[best]


def peak_rows(what: str, children: str, peaks: tuple[float, ...]) -> list[Row]:
    rows = [Row("memory", f"{what}: peak of the process that steps, MB", peaks[0])] if peaks else []
    if peaks[1:]:
        rows.append(Row("memory", f"{what}: peaks of the {children}, sum, MB", sum(peaks[1:])))
    return rows


def main(args: Args) -> None:
    check_choice("env", args.env, [task.id for task in TASKS if task.prompt])
    check_positive_integer("num_envs", args.num_envs)
    if args.views == "only" and not args.is_humanoid:
        raise ValueError(f"`views` is for humanoids. Received {args.views!r} for {args.env}.")
    check_integer("num_workers", args.num_workers, minimum=int(args.backend == "ray"))
    if args.size is not None:
        check_positive_integer("size", args.size)
    for number in args.reference_envs:
        check_positive_integer("reference_envs", number)
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
    if args.reference and not args.is_humanoid:
        print(f"\nThe reference pipeline runs the humanoid only, not {args.env}.")
    if args.json:
        settings = {name: str(value) if name == "json" else value for name, value in asdict(args).items()}
        figures = [{**asdict(row), "met": row.met} for row in rows]
        args.json.write_text(json.dumps({"settings": settings, "machine": about, "rows": figures}, indent=2))


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=__doc__))
    except (gym.error.Error, ValueError, FileNotFoundError) as error:
        sys.exit(str(error))
