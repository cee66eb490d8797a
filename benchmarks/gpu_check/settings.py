"""What every check is given."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
"""The repository."""


@dataclass(frozen=True)
class Settings:
    """Where to check, and how much.

    Attributes:
        device: "cuda", or "cpu" to run the same code without a GPU.
        num_gpus: How many GPUs the driver reports.
        quick: As little work as exercises the code; for the tests.
    """

    device: str = "cuda"
    num_gpus: int = 1
    quick: bool = False

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU is checked."""
        return self.device == "cuda"

    @property
    def large_models(self) -> list[str]:
        """open_clip architectures to check beside the bundled model."""
        return [] if self.quick else ["ViT-B-32"]


@contextmanager
def random_model(architecture: str) -> Iterator[str]:
    """The name for `CLIPReward` of an architecture with random weights, the same in every process; "tiny" as it is."""
    if architecture == "tiny":
        yield architecture
        return
    import open_clip
    import torch

    torch.manual_seed(0)
    network: Any = open_clip.create_model(architecture, load_weights=False)
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "weights.pt"
        torch.save(network.state_dict(), weights)
        yield f"{architecture}/{weights}"
