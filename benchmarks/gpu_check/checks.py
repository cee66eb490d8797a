"""The table of checks, in the order in which they run: the cheap and telling ones first."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module

from benchmarks.gpu_check.report import Row
from benchmarks.gpu_check.settings import Settings


@dataclass(frozen=True)
class Check:
    """One check; its module is imported in the check's own process only."""

    name: str
    title: str
    function: str
    """module:function, of this package; from `Settings` to an iterator of `Row`."""
    limit: float
    """Seconds that it may take."""

    def load(self) -> Callable[[Settings], Iterator[Row]]:
        """The function."""
        module, _, function = self.function.partition(":")
        return getattr(import_module(f"benchmarks.gpu_check.{module}"), function)


CHECKS = (
    Check("machine", "Hardware and versions", "machine:describe", 60),
    Check("drawing", "EGL on the GPU's driver", "drawing:compare_renderers", 150),
    Check("rewards", "Rewards in fp32, fp16 and bf16 against the CPU's", "rewards:compare_precisions", 120),
    Check("memory", "Batches halved when memory runs out", "rewards:run_out_of_memory", 90),
    Check("workers", "One and several workers on one GPU", "workers:one_gpu", 150),
    Check("gpus", "Workers on several GPUs", "workers:several_gpus", 120),
    Check("ray", "Fractional GPUs on Ray", "workers:on_ray", 150),
    Check("compile", "Compiled losses and CUDA graphs", "learning:compare_compiled", 150),
    Check("programs", "Single files and the training command", "learning:run_programs", 240),
    Check("fps-tiny", "fps.py, bundled model", "speed:tiny", 200),
    Check("fps-b32", "fps.py, ViT-B-32 (random weights)", "speed:vit_b_32", 240),
    Check("fps-bigg", "fps.py, ViT-bigG-14 (random weights)", "speed:vit_bigg_14", 420),
)
