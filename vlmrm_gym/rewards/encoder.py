"""The image tower of a vision-language model: frames to features. What CLIP rewards and learned rewards share."""

import math

import numpy as np
import torch
import torch.nn.functional as F

from vlmrm_gym._util.system import in_parts
from vlmrm_gym.rewards import models
from vlmrm_gym.rewards.clip import EncoderFields
from vlmrm_gym.rewards.model import RenderSize, RewardModel
from vlmrm_gym.rewards.sources import announced, default_model
from vlmrm_gym.rewards.tiny.scenes import SceneWatch, distance


class FrameEncoder(RewardModel):
    """Embeds frames. Expensive, and the same for every prompt and every head.

    Without a `model`, as no environment is known here, it is "ViT-B-32/laion2b_s34b_b79k". What it knows of its model
    are properties, so that a subclass may define them anew.
    """

    def __init__(self, fields: EncoderFields, device: str = "auto") -> None:
        self.model = models.load(fields.model or announced(default_model()), device, fields.precision)
        # On a CPU 64 frames take as long as 32, and 60 MB more.
        self.batch_size = int(fields.batch_size or (32 if self.model.device.type == "cpu" else 256))
        self._preprocess = self.model.preprocessing(fields.resize_mode)
        self._watch = SceneWatch() if self.model.name == "tiny" else None

    @property
    def weights(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The model's name and the digest of its weights."""
        return f"{self.model.name}, SHA-256 {self.model.digest}"

    @property
    def fingerprint(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The model, and how frames get its size."""
        return f"{self.model.identity}, {self._preprocess.resize_mode}"

    @property
    def encoder_key(self) -> object:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Equal for the same model on the same device; None for a subclass with an `encode` of its own."""
        kind = type(self)
        same = kind.encode is FrameEncoder.encode and kind.render_size is FrameEncoder.render_size
        return (self.fingerprint, self.model.dtype, str(self.model.device)) if same else None

    @property
    def render_size(self) -> RenderSize:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The size that the model looks at, or one with the environment's aspect ratio."""
        return self._preprocess.render_size

    @property
    def microbatch_size(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Frames per interruptible slice: about one second of work on a CPU, a whole batch on a GPU."""
        if self.model.device.type != "cpu":
            return self.batch_size
        return min(self.batch_size, 2 ** max(0, int(math.log2(4e8 / self.model.image_parameters))))

    def encode(self, frames: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Embeddings of frames, uint8 (B, H, W, 3), NumPy or torch: unit vectors, float32 (B, D), where the model is.

        They do not depend on the prompt. Raises an error for other frames, and a RuntimeError if the model overflows in
        the chosen precision.
        """
        check_frames(frames)
        if isinstance(frames, np.ndarray):
            frames = torch.from_numpy(np.require(frames, requirements=["C", "W"]))  # frames of MuJoCo are flipped views
        features, start = list[torch.Tensor](), 0
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
        if self._watch is None:
            return self.model.encode_image(self._preprocess_all(frames))
        # The bundled model's operations are small: on a CPU each thread had better encode frames of its own.
        parts = in_parts(self._look_at, frames) if self.model.device.type == "cpu" else [self._look_at(frames)]
        features, distances = zip(*parts, strict=True)
        self._watch.look(torch.cat(distances))
        return torch.cat(features)

    @torch.inference_mode()
    def _look_at(self, frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Unit vectors of the bundled model, and how far frames are from known scenes: of none once it has warned."""
        assert self._watch is not None
        features, activations = self.model.network.visual(self._preprocess_all(frames).to(self.model.dtype))
        distances = features.new_empty(0) if self._watch.has_warned else distance(activations)
        return F.normalize(features.float(), dim=-1), distances

    def _preprocess_all(self, frames: torch.Tensor) -> torch.Tensor:
        return self._preprocess(frames.to(self.model.device, non_blocking=True))


def _is_out_of_memory(error: RuntimeError) -> bool:
    """Tell whether a GPU's memory did not suffice: for a tensor, or for what CUDA's libraries allocate themselves."""
    signs = "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"
    return isinstance(error, torch.OutOfMemoryError) or any(sign in str(error) for sign in signs)


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
