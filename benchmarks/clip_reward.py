"""Throughput of CLIPReward relative to bare `encode_image`.

    python benchmarks/clip_reward.py

Bare: images/s of open_clip's own model on preprocessed float tensors, with the same device, precision and batch size.
Ours: frames/s of `CLIPReward` from uint8 frames in memory to rewards: resizing, normalising, encoding, equation 3. The
two alternate in one process; figures are medians over the rounds. The target is a ratio of at least 0.95 for frames of
the model's input size; larger frames add the resize. A second bare row uses the channels-last memory format, as
`CLIPReward` does, to separate its gain from the preprocessing cost.

Architectures other than "tiny" get random weights, which are as fast as trained ones and need no download.
"""

import json
import platform
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from fps_stages import find_model, ways_to_encode
from turns import median_seconds

from vlmrm_gym import CLIPReward

PROMPT, BASELINE = "pole vertically upright on top of the cart", "pole and cart"


@dataclass
class Args:
    models: tuple[str, ...] = ("tiny", "ViT-B-32")
    """"tiny" or open_clip architectures"""
    batch_size: int = 64
    """frames per batch"""
    rounds: int = 15
    """timed runs of each; they alternate"""
    device: str = "auto"
    """where the models run"""
    frame_sizes: tuple[int, ...] = (480,)
    """sides of square frames to score, besides the model's input size"""
    json: Path | None = None
    """file for the figures"""


def compare(model: str, args: Args) -> list[dict[str, float | str]]:
    with tempfile.TemporaryDirectory() as folder:
        name, options = find_model(model, folder), {"device": args.device, "batch_size": args.batch_size}
        score = CLIPReward(name, prompt=PROMPT, baseline=BASELINE, alpha=0.5, **options)
        ways = ways_to_encode(score, name, [(size, size) for size in args.frame_sizes])
    look, device = score.model.preprocessing(), score.model.device
    images = torch.randn(args.batch_size, 3, look.height, look.width, device=device, dtype=score.model.dtype)
    images = images.to(memory_format=torch.channels_last)
    ways["encode_image, channels last"] = torch.inference_mode()(lambda: score.model.network.encode_image(images))
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    seconds = median_seconds(ways, args.rounds, synchronize)
    rate = {name: args.batch_size / value for name, value in seconds.items()}
    return [
        {"model": model, "what": name, "images_per_second": value, "ratio": value / rate["bare encode_image"]}
        for name, value in rate.items()
    ]


def main(args: Args) -> None:
    rows = [row for model in args.models for row in compare(model, args)]
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"
    print(f"{machine}, {torch.get_num_threads()} threads, torch {torch.__version__}, batch {args.batch_size}\n")
    print(f"{'model':<12}{'':<32}{'images/s':>10}{'of bare':>10}")
    for row in rows:
        print(f"{row['model']:<12}{row['what']:<32}{row['images_per_second']:>10.0f}{row['ratio']:>10.2f}")
    if args.json:
        args.json.write_text(json.dumps({"machine": machine, "torch": torch.__version__, "rows": rows}, indent=2))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
