"""CLIPReward: frames in, rewards out."""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import overload

import numpy as np
import torch
import torch.nn.functional as F

from vlmrm_gym import tiny
from vlmrm_gym.checks import check_positive_integer, is_number
from vlmrm_gym.rewards import models
from vlmrm_gym.rewards.preprocessing import RESIZE_MODES, ResizeMode
from vlmrm_gym.rewards.regularization import GoalBaseline

Text = str | Sequence[str]


class CLIPReward:
    """Says how well frames match a sentence, by a vision-language model (VLM-RM, arXiv 2310.12921).

    >>> import numpy as np
    >>> reward = CLIPReward(prompt="pole vertically upright on top of the cart")
    >>> reward(np.zeros((2, 400, 600, 3), dtype=np.uint8)).shape
    (2,)

    The default model, "tiny", is bundled. It was trained on the scenes of this package and knows only what its captions
    talk about: good for trying things out, no evidence of zero-shot ability. For anything else name an open_clip model.

    Several prompts (or baselines) count as one: their embeddings are averaged and normalised again. The published code
    does not normalise the average, so that its goal lies inside the unit sphere; ours stays on it, as equation 3 wants.

    Args:
        model: "tiny", "Architecture/pretrained tag" (as in `open_clip.list_pretrained()`), "Architecture/path to a
            checkpoint file", "hf-hub:organisation/repository" or "local-dir:folder". Loaded once per process.
        prompt: What the agent should bring about: a text or a list of texts.
        baseline: The scene without the goal, a text or a list of texts; needed for `alpha` above 0.
        alpha: Strength of the goal-baseline regularisation, from 0 (cosine similarity) to 1.
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1", "mps".
        precision: "auto", "fp32", "bf16" or "fp16"; auto is fp32 on the CPU and fp16 on CUDA.
        batch_size: How many frames are encoded at once; None chooses. It never changes a reward, and is halved, for
            good, when the GPU's memory does not suffice.
        resize_mode: How a frame is brought to the model's size: "squash" (None; as in the paper), "shortest" (crop) or
            "longest" (pad).

    Raises:
        TypeError: A prompt that is no text.
        ValueError: A parameter out of its range; the message names it.
        FileNotFoundError: A checkpoint that does not exist.
        RuntimeError: Weights that cannot be downloaded.
    """

    def __init__(
        self,
        model: str = "tiny",
        *,
        prompt: Text,
        baseline: Text | None = None,
        alpha: float = 0.0,
        device: str = "auto",
        precision: models.Precision = "auto",
        batch_size: int | None = None,
        resize_mode: ResizeMode | None = None,
    ) -> None:
        prompts = _texts("prompt", prompt)
        baselines = None if baseline is None else _texts("baseline", baseline)
        check_alpha(alpha, baselines)
        if baselines is not None and set(baselines) == set(prompts):
            raise ValueError(
                f"`baseline` must differ from `prompt`. Received {baseline!r} for both. "
                "Describe the scene without the goal, or pass baseline=None."
            )
        if batch_size is not None:
            check_positive_integer("batch_size", batch_size)
        if resize_mode is not None and resize_mode not in RESIZE_MODES:
            raise ValueError(
                f"`resize_mode` must be None or one of {', '.join(RESIZE_MODES)}. Received {resize_mode!r}."
            )

        self.model = models.load(model, device, precision)
        self.batch_size = int(batch_size or (64 if self.model.device.type == "cpu" else 256))
        self._preprocess = self.model.preprocessing(resize_mode)
        goal = self._embed("prompt", prompts)
        self._reward = GoalBaseline.between(
            goal, None if baselines is None else self._embed("baseline", baselines), float(alpha)
        )
        if model == "tiny" and not tiny.knows(goal):
            warnings.warn(tiny.UNKNOWN_PROMPT.format(prompt=prompt), stacklevel=2)

    @overload
    def __call__(self, frames: np.ndarray) -> np.ndarray: ...
    @overload
    def __call__(self, frames: torch.Tensor) -> torch.Tensor: ...
    def __call__(self, frames: np.ndarray | torch.Tensor) -> np.ndarray | torch.Tensor:
        """Score frames.

        Args:
            frames: uint8 (B, H, W, 3), RGB, of any height and width.

        Returns:
            float32 (B,), of the same kind as `frames`: NumPy, or torch on the frames' device.

        Raises:
            TypeError: Frames that are no array, or not uint8.
            ValueError: Frames of another shape, or none at all.
            RuntimeError: The model's numbers overflow in the chosen precision.
        """
        check_frames(frames)
        if isinstance(frames, torch.Tensor):
            return self._score(frames).to(frames.device)
        if not frames.flags.writeable or any(stride < 0 for stride in frames.strides):
            frames = frames.copy()  # torch takes neither; MuJoCo's frames are upside down in memory
        return self._score(torch.from_numpy(frames)).cpu().numpy()

    @property
    def size_to_draw(self) -> Callable[[int, int], tuple[int, int]]:
        """From (height, width) of what an environment shows to how large to draw it for this model to look at."""
        return self._preprocess.size_to_draw

    @property
    def slice_size(self) -> int:
        """How many frames are encoded without a look at whether they are still wanted: what a CPU does in a second."""
        if self.model.device.type != "cpu":
            return self.batch_size
        return min(self.batch_size, 2 ** max(0, int(math.log2(4e8 / self.model.image_parameters))))

    def _score(self, frames: torch.Tensor) -> torch.Tensor:
        rewards = torch.empty(len(frames), device=self.model.device)
        start = 0
        while start < len(frames):
            batch = frames[start : start + self.batch_size]
            try:
                images = self._preprocess(batch.to(self.model.device, non_blocking=True))
                rewards[start : start + len(batch)] = self._reward(self.model.encode_image(images))
                start += len(batch)
                continue
            except torch.OutOfMemoryError:
                if len(batch) == 1:
                    raise
            # Not in the handler, where the error still holds on to what the failed attempt had allocated.
            self.batch_size = len(batch) // 2
            torch.cuda.empty_cache()
        if not rewards.isfinite().all():
            raise RuntimeError(f'{self.model.name!r} overflows in {self.model.dtype}. Pass precision="bf16" or "fp32".')
        return rewards

    def _embed(self, parameter: str, texts: Sequence[str]) -> torch.Tensor:
        """The direction of several texts together: float32 (D,), a unit vector."""
        for text in texts:
            tokens, limit = self.model.count_tokens(text), self.model.context_length
            if tokens > limit:
                raise ValueError(
                    f"`{parameter}` must have at most {limit} tokens for {self.model.name!r}. "
                    f"Received {tokens} tokens: {text[:60]!r}... Shorten it."
                )
        return F.normalize(self.model.encode_text(texts).mean(0), dim=0)


def _texts(parameter: str, value: Text) -> list[str]:
    texts = [value] if isinstance(value, str) else list(value) if isinstance(value, Sequence) else None
    if texts is None or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"`{parameter}` must be a text or a list of texts. Received {value!r}.")
    if not texts or not all(text.strip() for text in texts):
        raise ValueError(f"`{parameter}` must not be empty. Received {value!r}. Say what should be seen.")
    return texts


def check_alpha(alpha: float, baseline: object) -> None:
    """Raise a ValueError unless alpha lies in [0, 1], and has the baseline that it needs."""
    if not is_number(alpha) or not 0 <= alpha <= 1:
        raise ValueError(f"`alpha` must be a number from 0 to 1. Received {alpha!r}.")
    if alpha > 0 and baseline is None:
        raise ValueError(
            "`alpha` above 0 needs a `baseline`: the scene without the goal. "
            f"Received alpha={alpha!r} and baseline=None."
        )


def check_frames(frames: object) -> None:
    """Raise a TypeError or ValueError unless frames are uint8 (B, H, W, 3), with B at least 1."""
    rule = "`frames` must be uint8 of shape (B, H, W, 3)"
    if not isinstance(frames, np.ndarray | torch.Tensor):
        raise TypeError(f"{rule}, NumPy or torch. Received {type(frames).__name__}.")
    if frames.dtype not in (np.uint8, torch.uint8):
        raise TypeError(f"{rule}. Received dtype {frames.dtype}. Scale to 0..255 and convert.")
    if frames.ndim != 4 or frames.shape[3] != 3:
        hint = " For one frame, pass frame[None]." if frames.ndim == 3 else " Channels come last."
        raise ValueError(f"{rule}. Received shape {tuple(frames.shape)}.{hint}")
    if 0 in frames.shape:
        raise ValueError(f"{rule}, none of them 0. Received shape {tuple(frames.shape)}.")
