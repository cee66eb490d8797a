"""Rewards on the GPU against those of the CPU, and what happens when its memory runs out."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_check.frames import humanoid_frames
from benchmarks.gpu_check.report import Row
from benchmarks.gpu_check.settings import Settings, random_model
from vlmrm_gym import CLIPReward
from vlmrm_gym.rewards.clip_options import Precision

PROMPT, BASELINE = "a humanoid robot standing up", "a humanoid robot"
LIMITS: dict[Precision, float] = {"fp32": 3e-3, "fp16": 5e-3, "bf16": 3e-2}
"""The largest allowed difference from the CPU's float32 rewards. On a GPU float32 convolutions use TF32."""
MIN_CORRELATION: dict[Precision, float] = {"fp32": 0.9999, "fp16": 0.999, "bf16": 0.98}
"""The least allowed Pearson correlation with them, of the bundled model over the frames of an episode."""


def compare_precisions(settings: Settings) -> Iterator[Row]:
    """Every precision and model, with and without a baseline; batches of other sizes; frames that are on the GPU."""
    frames = humanoid_frames(8 if settings.quick else 64)
    for architecture in ["tiny", *settings.large_models]:
        with random_model(architecture) as model:
            for alpha in (0.0, 0.5):
                options: Any = {"prompt": PROMPT, "baseline": BASELINE, "alpha": alpha}
                expected = CLIPReward(model, device="cpu", precision="fp32", **options)(frames)
                for precision, limit in LIMITS.items():
                    score = CLIPReward(model, device=settings.device, precision=precision, **options)
                    what, rewards = f"{architecture}, {precision}, alpha {alpha:g}", score(frames)
                    yield Row.at_most(f"{what}: largest difference", difference(rewards, expected), limit)
                    if architecture == "tiny":
                        correlation = float(np.corrcoef(rewards, expected)[0, 1])
                        yield Row.holds(
                            f"{what}: correlation", f"{correlation:.6f}", correlation >= MIN_CORRELATION[precision]
                        )
            yield from _compare_inputs(model, architecture, frames, settings)


def _compare_inputs(model: str, architecture: str, frames: np.ndarray, settings: Settings) -> Iterator[Row]:
    """The same frames one by one, and as a tensor on the device, in the default precision."""
    score = CLIPReward(model, prompt=PROMPT, device=settings.device)
    rewards, limit = score(frames), LIMITS[score.model.precision]
    one_by_one = np.concatenate([score(frame[None]) for frame in frames])
    yield Row.at_most(
        f"{architecture}: batch of {len(frames)} against frames alone", difference(rewards, one_by_one), limit
    )
    on_device = score(torch.from_numpy(frames).to(settings.device))
    yield Row.holds(
        f"{architecture}: rewards of a tensor are on", on_device.device, on_device.device == score.model.device
    )
    yield Row.at_most(f"{architecture}: NumPy against a tensor", difference(rewards, on_device.cpu().numpy()), 1e-6)


def run_out_of_memory(settings: Settings) -> Iterator[Row]:
    """Score in one batch what does not fit: the batch is halved until it does, and the rewards are the same."""
    architecture, count = ("tiny", 32) if settings.quick else ("ViT-B-32", 2048)
    with random_model(architecture) as model:
        score = CLIPReward(model, prompt=PROMPT, device=settings.device, batch_size=16)
    look = score.model.preprocessing()
    frames = np.random.default_rng(0).integers(0, 256, (count, look.height, look.width, 3), dtype=np.uint8)
    expected = score(frames)
    score.batch_size = count
    restore = _limit_memory(score, images=count // 2, settings=settings)
    rewards = score(frames)
    halved = score.batch_size
    yield Row.holds(f"{architecture}: batch size of {count} became", halved, halved < count)
    yield Row.at_most("largest difference from batches of 16", difference(rewards, expected), LIMITS["fp16"])
    yield Row.at_most("largest difference of a second pass", difference(score(frames), rewards), 1e-6)
    restore()
    score.batch_size = count
    yield Row.at_most("with all memory again", difference(score(frames), expected), LIMITS["fp16"])
    yield Row.holds("batch size then", score.batch_size, score.batch_size == count)


def _limit_memory(score: CLIPReward, images: int, settings: Settings) -> Any:
    """Leave memory for about so many float32 images; returns what undoes it."""
    if settings.on_gpu:
        look, device = score.model.preprocessing(), score.model.device
        torch.cuda.empty_cache()
        allowed = torch.cuda.memory_reserved(device) + images * 3 * look.height * look.width * 4
        torch.cuda.set_per_process_memory_fraction(
            allowed / torch.cuda.get_device_properties(device).total_memory, device
        )
        return lambda: torch.cuda.set_per_process_memory_fraction(1.0, device)
    # A CPU's memory has no such limit: raise what CUDA's allocator raises.
    network, encode_image = score.model.network, score.model.network.encode_image

    def limited(batch: torch.Tensor) -> torch.Tensor:
        if len(batch) > images:
            raise torch.OutOfMemoryError("limit of this check")
        return encode_image(batch)

    network.encode_image = limited
    return lambda: setattr(network, "encode_image", encode_image)


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """The largest absolute difference; NaN where there is a NaN."""
    return float(np.abs(one.astype(np.float64) - other).max())
