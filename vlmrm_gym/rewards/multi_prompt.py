"""MultiPromptReward: many prompts scored on the same image embeddings."""

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from vlmrm_gym.rewards.base import RenderSize
from vlmrm_gym.rewards.clip import CLIPReward, as_tensor, check_frames
from vlmrm_gym.rewards.specification import CLIP


class MultiPromptReward:
    """Several CLIP rewards of one model: the image tower encodes each frame once for all of them.

    >>> import numpy as np
    >>> from vlmrm_gym import CLIP
    >>> reward = MultiPromptReward([CLIP(prompt="an upright pole"), CLIP(prompt="a pole that has fallen over")])
    >>> reward(np.zeros((3, 400, 600, 3), dtype=np.uint8)).shape
    (3, 2)

    Args:
        specs: The rewards. `model`, `precision`, `resize_mode` and `batch_size` must be the same in all of them.
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1", "mps".

    Raises:
        TypeError: The model's name is not a string.
        ValueError: No specification, different models or settings of the image tower, unknown model or device, or a
            prompt longer than the model's context.
        FileNotFoundError: The checkpoint does not exist.
        RuntimeError: The weights cannot be downloaded.
    """

    multi_view = False

    def __init__(self, specs: Sequence[CLIP], device: str = "auto") -> None:
        towers = {(spec.model, spec.precision, spec.resize_mode, spec.batch_size) for spec in specs}
        if len(towers) != 1:
            raise ValueError(
                "`specs` must have one `model`, `precision`, `resize_mode` and `batch_size`. "
                f"Received {sorted(towers, key=repr)}. Make one MultiPromptReward for each."
            )
        rewards = [cast(CLIPReward, spec.build(device)) for spec in specs]
        self._encoder, self._heads = rewards[0], [reward.head for reward in rewards]

    @property
    def batch_size(self) -> int:
        """Maximum number of frames encoded at once."""
        return self._encoder.batch_size

    @property
    def render_size(self) -> RenderSize:
        """From (height, width) of an environment's own frames to the size at which the model needs them."""
        return self._encoder.render_size

    @property
    def microbatch_size(self) -> int:
        """Frames of about one second of work on a CPU, a whole batch on a GPU."""
        return self._encoder.microbatch_size

    def __call__(self, frames: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Score frames.

        Args:
            frames: uint8 (B, H, W, 3), RGB, of any height and width, NumPy or torch.

        Returns:
            float32 (B, len(specs)).

        Raises:
            TypeError: Frames are not an array, or not uint8.
            ValueError: Frames have another shape, or there are none.
            RuntimeError: The model overflows in the chosen precision.
        """
        check_frames(frames)
        features = self._encoder.encode(as_tensor(frames))
        return torch.stack([head(features) for head in self._heads], dim=1).cpu().numpy()
