"""CLIPReward: the similarity of frames and a prompt as a reward."""

import math
import warnings
from collections.abc import Callable
from typing import Unpack, overload

import numpy as np
import torch
import torch.nn.functional as F

from vlmrm_gym import tiny
from vlmrm_gym.rewards import models
from vlmrm_gym.rewards.clip_options import CLIPFields, CLIPKeywords, Prompt
from vlmrm_gym.rewards.regularization import GoalBaseline
from vlmrm_gym.tiny.scenes import SceneWatch
from vlmrm_gym.validation import truncate


class CLIPReward:
    """Scores how well frames match a prompt, by a vision-language model (VLM-RM, arXiv 2310.12921, equation 3).

    >>> import gymnasium as gym, numpy as np
    >>> env = gym.make("CartPole-v1", render_mode="rgb_array")
    >>> observation, info = env.reset(seed=0)
    >>> reward = CLIPReward(prompt="pole vertically upright on top of the cart")
    >>> reward(np.stack([env.render(), env.render()])).shape
    (2,)

    The default model, "tiny", is bundled and was trained on the scenes of this package: good for trying things out, no
    evidence of zero-shot ability. For any other scene, name an open_clip model: "tiny" warns, once, of prompts and of
    frames that are unlike those of its scenes.

    The image tower (`encode`) is expensive and does not depend on the prompt; the reward is a cheap function of its
    features (`head`): `reward(frames)` is `reward.head(reward.encode(frames))`. Features can be kept and scored with
    the heads of other prompts.

    The embeddings of several prompts (or baselines) are averaged, and the average is normalised: equation 3 assumes
    unit vectors. The published code does not normalise the average.

    Args:
        model: The vision-language model; `CLIP.model` lists the forms. Loaded once per process.
        prompt: The goal: a text or a list of texts.
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1", "mps".
        options: The other fields of `CLIP`, such as `baseline` and `alpha`.

    Attributes:
        model: The `VisionLanguageModel`.
        head: The `GoalBaseline`, from unit vectors, float32 (B, D), to rewards, float32 (B,).

    Raises:
        TypeError: A prompt is not a text or a list of texts.
        ValueError: A parameter is out of its range; the message names it.
        FileNotFoundError: The checkpoint does not exist.
        RuntimeError: The weights cannot be downloaded.
    """

    multi_view = False
    fingerprint: str
    """The model and how frames get its size: heads of other features are refused."""

    def __init__(
        self,
        model: str = CLIPFields.model,
        *,
        prompt: Prompt,
        device: str = "auto",
        **options: Unpack[CLIPKeywords],
    ) -> None:
        given = CLIPFields(model=model, prompt=prompt, **options)
        self.model = models.load(model, device, given.precision)
        self.batch_size = int(given.batch_size or (64 if self.model.device.type == "cpu" else 256))
        self._preprocess = self.model.preprocessing(given.resize_mode)
        self.fingerprint = f"{self.model.name}, {self._preprocess.resize_mode}"
        goal = self._embed("prompt", prompt)
        self.head = GoalBaseline.from_embeddings(
            goal, None if given.baseline is None else self._embed("baseline", given.baseline), given.alpha
        )
        self._watch = SceneWatch() if model == "tiny" else None
        if model == "tiny" and not tiny.in_domain(goal):
            warnings.warn(tiny.OUT_OF_DOMAIN.format(prompt=prompt), stacklevel=2)

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
            TypeError: Frames are not an array, or not uint8.
            ValueError: Frames have another shape, or there are none.
            RuntimeError: The model overflows in the chosen precision.
        """
        check_frames(frames)
        rewards = self.head(self.encode(frames))
        return rewards.to(frames.device) if isinstance(frames, torch.Tensor) else rewards.cpu().numpy()

    @property
    def render_size(self) -> Callable[[int, int], tuple[int, int]]:
        """From (height, width) of an environment's own frames to the size at which this model needs them."""
        return self._preprocess.render_size

    @property
    def microbatch_size(self) -> int:
        """Frames per interruptible slice: about one second of work on a CPU, a whole batch on a GPU."""
        if self.model.device.type != "cpu":
            return self.batch_size
        return min(self.batch_size, 2 ** max(0, int(math.log2(4e8 / self.model.image_parameters))))

    @property
    def feature_size(self) -> int:
        """Width of the embeddings, D."""
        return len(self.head.goal)

    def encode(self, frames: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Image embeddings, which `head` turns into rewards. They do not depend on the prompt.

        Args:
            frames: uint8 (B, H, W, 3), NumPy, or torch on any device.

        Returns:
            Unit vectors, float32 (B, D), on the model's device; D is the model's embedding width.

        Raises:
            RuntimeError: The model overflows in the chosen precision.
        """
        frames, features, start = as_tensor(frames), list[torch.Tensor](), 0
        while start < len(frames):
            batch = frames[start : start + self.batch_size]
            try:
                features.append(self._encode_batch(batch))
                start += len(batch)
                continue
            except RuntimeError as error:
                if len(batch) == 1 or not _is_out_of_memory(error):
                    raise
            # Outside the handler: there, the traceback still references the memory of the failed attempt.
            self.batch_size = len(batch) // 2
            torch.cuda.empty_cache()
        encoded = torch.cat(features)
        if not encoded.isfinite().all():
            raise RuntimeError(f'{self.model.name!r} overflows in {self.model.dtype}. Pass precision="bf16" or "fp32".')
        return encoded

    def _encode_batch(self, frames: torch.Tensor) -> torch.Tensor:
        """Unit vectors of one batch. What it allocates is free again when it fails."""
        features = self.model.encode_image(self._preprocess(frames.to(self.model.device, non_blocking=True)))
        if self._watch is not None:
            self._watch.look()
        return features

    def _embed(self, parameter: str, prompt: Prompt) -> torch.Tensor:
        """The embedding of a text, or the normalised mean of several: a unit vector, float32 (D,)."""
        texts = [prompt] if isinstance(prompt, str) else list(prompt)
        for text in texts:
            tokens, limit = self.model.count_tokens(text), self.model.context_length
            if tokens > limit:
                raise ValueError(
                    f"`{parameter}` must have at most {limit} tokens for {self.model.name!r}. "
                    f"Received {tokens} tokens: {truncate(text, 60)!r}. Shorten it."
                )
        return F.normalize(self.model.encode_text(texts).mean(0), dim=0)


def _is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a GPU's memory did not suffice: for a tensor, or for what CUDA's libraries allocate themselves."""
    signs = "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"
    return isinstance(error, torch.OutOfMemoryError) or any(sign in str(error) for sign in signs)


def as_tensor(frames: np.ndarray | torch.Tensor) -> torch.Tensor:
    """Frames, NumPy or torch, as a tensor that shares their memory where torch can."""
    if isinstance(frames, torch.Tensor):
        return frames
    if not frames.flags.writeable or any(stride < 0 for stride in frames.strides):
        frames = frames.copy()  # torch supports neither; frames of MuJoCo are flipped views
    return torch.from_numpy(frames)


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
