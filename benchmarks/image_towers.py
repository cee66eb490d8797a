"""Images/s of open_clip's image towers on this machine's GPU, or CPU: the ceiling of any reward that uses them.

    python benchmarks/image_towers.py --models ViT-B-32 ViT-L-14 ViT-bigG-14

Random weights, which are as fast as trained ones, are made on the device: ViT-bigG-14 takes 10 GB there at first. The
fastest of seven batches counts, since other programs only slow them down.
"""

import logging
import time

import open_clip
import torch
import tyro


def images_per_second(model: str, device: str, dtype: torch.dtype, batch_size: int) -> float:
    """Of `encode_image` on preprocessed images that are on the device."""
    with torch.device(device):
        network = open_clip.create_model(model, load_weights=False, device=device)
    assert isinstance(network, open_clip.CLIP)
    height, width = open_clip.get_model_preprocess_cfg(network)["size"]
    network.eval().to(dtype)
    images = torch.randn(batch_size, 3, height, width, device=device, dtype=dtype)
    seconds = []
    with torch.inference_mode():
        for _ in range(9):
            start = time.perf_counter()
            network.encode_image(images)
            if device == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
    return batch_size / min(seconds[2:])


def main(models: tuple[str, ...] = ("ViT-B-32", "ViT-L-14"), batch_size: int = 256) -> None:
    """Print a line for each model and precision.

    Args:
        models: Architectures of open_clip.
        batch_size: Images at once.
    """
    logging.disable()  # open_clip warns about missing weights
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(torch.cuda.get_device_name() if device == "cuda" else "CPU", f"torch {torch.__version__}", sep=", ")
    for model in models:
        for dtype in (torch.float16, torch.bfloat16) if device == "cuda" else (torch.float32,):
            rate = images_per_second(model, device, dtype, batch_size)
            print(f"{model:<14} {str(dtype).removeprefix('torch.'):<9} {rate:>8,.0f} images/s", flush=True)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
