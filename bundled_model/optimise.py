"""The optimiser of the training phases."""

import math
from collections.abc import Callable
from typing import Any

import torch
from tqdm import tqdm


def optimise(
    parameters: list[dict[str, Any]],
    steps: int,
    loss_of_step: Callable[[], torch.Tensor],
    description: str,
    learning_rate: float,
) -> None:
    """AdamW with gradient clipping, a linear warm-up of 50 steps and a cosine schedule.

    Args:
        parameters: Parameter groups, as torch takes them; "slower" multiplies a group's learning rate.
        steps: How many steps.
        loss_of_step: Draws a batch and returns its loss, a scalar.
        description: Of the progress bar.
        learning_rate: The highest learning rate.
    """
    groups = [{"lr": learning_rate * group.pop("slower", 1.0), **group} for group in parameters]
    optimiser = torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=0.05, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda i: min(1.0, (i + 1) / 50) * 0.5 * (1 + math.cos(math.pi * i / steps))
    )
    average = 0.0
    for i in (progress := tqdm(range(steps), desc=description, mininterval=10)):
        loss = loss_of_step()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for group in parameters for p in group["params"]], 1.0)
        optimiser.step()
        schedule.step()
        average += (loss.item() - average) / min(i + 1, 50)
        progress.set_postfix(loss=f"{average:.4f}", refresh=False)
