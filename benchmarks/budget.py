"""Estimate the memory and time of a training with a large model; nothing is trained or downloaded.

    python benchmarks/budget.py configs/humanoid_kneel.yaml

Counts parameters and floating-point operations on the model's architecture, without its weights. The rest is
arithmetic: operations / (peak x utilisation), parameters x bytes. It does not replace a measurement.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import open_clip
import torch
import tyro
from torch.utils.flop_counter import FlopCounterMode

import vlmrm_gym  # noqa: F401 (registers the IDs)
from vlmrm_gym.tools.train.config import Config
from vlmrm_gym.tools.train.config_file import read_config_file

HALF, SINGLE = 2, 4
"""Bytes of a float16 and a float32."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """Parameters and operations of an open_clip architecture."""

    parameters: int
    """Both towers."""
    image_parameters: int
    image_flop: int
    """Operations to encode one image; a multiplication and the addition after it are two."""
    activation_numbers: int
    """Peak number of live activations, in the widest layer, for one image."""


def count(architecture: str) -> Model:
    """Count an architecture on PyTorch's meta device, which computes shapes only."""
    config: dict[str, Any] = open_clip.get_model_config(architecture) or {}
    with torch.device("meta"):
        network = open_clip.CLIP(**config)
        vision, size = config["vision_cfg"], config["vision_cfg"]["image_size"]
        with FlopCounterMode(display=False) as counter:
            network.encode_image(torch.empty(1, 3, size, size))
    if vision["patch_size"] is None:  # a residual network: input and output of an operation in the stem
        numbers = 2 * (size // 2) ** 2 * vision["width"]
    else:  # a transformer: the input and output of a block, its MLP before and after GELU
        tokens, mlp = (size // vision["patch_size"]) ** 2 + 1, int(vision["width"] * vision.get("mlp_ratio", 4.0))
        numbers = 2 * tokens * (vision["width"] + mlp)
    return Model(
        parameters=sum(one.numel() for one in network.parameters()),
        image_parameters=sum(one.numel() for one in network.visual.parameters()),
        image_flop=counter.get_total_flops(),
        activation_numbers=numbers,
    )


def buffer_bytes(config: Config) -> int:
    """Size of Stable-Baselines3's replay buffer: two observations, an action, and float32 reward, done and timeout."""
    assert config.env_name is not None
    env = gym.make(config.env_name)
    observation, action = np.asarray(env.observation_space.sample()), np.asarray(env.action_space.sample())
    env.close()
    each = 2 * observation.nbytes + action.nbytes + 3 * SINGLE
    return (config.rl.options.get("buffer_size", 1_000_000)) * each


def main(
    configs: tyro.conf.Positional[tuple[Path, ...]],
    peak_tflops: float = 155.0,
    utilisation: float = 0.4,
    gpus: int | None = None,
) -> None:
    """Print the budget of configuration files.

    Args:
        configs: The files.
        peak_tflops: Peak of one GPU, without sparsity. 155 is NVIDIA's figure for an RTX A6000 in fp16.
        utilisation: The share of the peak that the encoder reaches: an assumption.
        gpus: Number of GPUs that encode; None: one per worker.
    """
    for path in configs:
        config = read_config_file(path).config
        rl, reward = config.rl, config.reward
        model, workers = count((reward.model or "").split("/")[0]), max(1, reward.num_workers)
        frames, batch = rl.n_steps or 0, reward.batch_size or 256
        used = workers if gpus is None else gpus
        seconds = frames * model.image_flop / (used * peak_tflops * 1e12 * utilisation)
        rollout = (rl.train_freq or 1) * config.num_envs
        updates = (frames - (rl.learning_starts or 0)) // rollout * (rl.gradient_steps or 1)
        weights = model.parameters * HALF
        activations = batch * (model.activation_numbers * HALF + 3 * 224 * 224 * (1 + SINGLE + HALF))
        rows = {
            "parameters": f"{model.parameters:,}, of which the image tower {model.image_parameters:,}",
            "download, float32": f"{model.parameters * SINGLE / 1e9:.1f} GB",
            "GPU memory of a worker": f"{weights / 1e9:.1f} GB + {activations / 1e9:.1f} GB for {batch} frames",
            "replay buffer": f"{buffer_bytes(config) / 1e9:.2f} GB",
            "encoding": f"{frames:,} frames x {model.image_flop / 1e9:.1f} GFLOP / "
            f"({used} x {peak_tflops:g} TFLOP/s x {utilisation:g}) = {seconds / 3600:.1f} h",
            "gradient steps": f"{updates:,}",
        }
        print(f"{path}: {config.env_name}, {reward.model}")
        for name, value in rows.items():
            print(f"  {name:24}{value}")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
