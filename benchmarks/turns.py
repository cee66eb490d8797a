"""Ways of doing the same, measured in turns: other load on the machine affects all of them equally."""

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from tqdm import tqdm

Result = TypeVar("Result")


def in_turns(ways: Mapping[str, Callable[[], Result]], rounds: int) -> dict[str, list[Result]]:
    """What each way returns in each round."""
    results: dict[str, list[Result]] = {name: [] for name in ways}
    for _ in tqdm(range(rounds), leave=False, disable=None):
        for name, way in ways.items():
            results[name].append(way())
    return results


def median_seconds(
    functions: Mapping[str, Callable[[], object]], rounds: int, synchronize: Callable[[], None] = lambda: None
) -> dict[str, float]:
    """Median seconds of each function, after two rounds that do not count. On a GPU `synchronize` waits for it."""

    def measure(function: Callable[[], object]) -> float:
        start = time.perf_counter()
        function()
        synchronize()
        return time.perf_counter() - start

    seconds = in_turns({name: partial(measure, function) for name, function in functions.items()}, rounds + 2)
    return {name: statistics.median(values[2:]) for name, values in seconds.items()}
