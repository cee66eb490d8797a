"""Vision-language models: the bundled one and any of open_clip's, loaded once per process and device.

Imports open_clip only for its models. `Preprocessing` turns frames into the input of their image towers.
"""

import hashlib
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Literal

import torch
import torch.nn.functional as F
from gymnasium.error import DependencyNotInstalled

from vlmrm_gym.rewards import sources, tiny
from vlmrm_gym.rewards.clip import Precision, ResizeMode
from vlmrm_gym.rewards.devices import resolve_device
from vlmrm_gym.rewards.distance import FEATURES, PREPROCESSING, DistanceNetwork

MIN_RENDER_SIZE = 192
"""Below this many pixels, renders lose thin objects, such as a humanoid's arms."""


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """Turns frames of any size into the input of one image tower, of `height` times `width` pixels.

    `mean` and `std` are per channel, of pixel values from 0 to 1. The interpolation is antialiased. "squash" stretches
    the frame to the tower's size, as VLM-RM does; "shortest" keeps the aspect ratio and crops the centre, as open_clip
    does for most models; "longest" keeps it and pads with black.
    """

    height: int
    width: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    resize_mode: ResizeMode = "squash"

    def __call__(self, frames: torch.Tensor) -> torch.Tensor:
        """Frames, uint8 (B, H, W, 3), on the device that computes, to float32 (B, 3, height, width), channels last."""
        pixels = self.fit(frames.permute(0, 3, 1, 2)).to(torch.float32)  # a view: (B, 3, H, W), channels last
        scale, shift = _scale_and_shift(self.mean, self.std, frames.device)
        return pixels.mul_(scale).add_(shift)

    def render_size(self, height: int, width: int) -> tuple[int, int]:
        """The size at which to render an environment whose own frames are (height, width), so that `fit` scales down.

        The aspect ratio is kept. For a small tower, frames are rendered larger than its input: resizing antialiases.
        """
        ratios = self.height / height, self.width / width
        ratio = min(ratios) if self.resize_mode == "longest" else max(ratios)
        ratio *= math.ceil(MIN_RENDER_SIZE / max(self.height, self.width))
        return round(height * ratio), round(width * ratio)

    def fit(self, images: torch.Tensor) -> torch.Tensor:
        """Resize images to the tower's size: uint8 (B, 3, H, W) to (B, 3, height, width).

        On the CPU pixels stay uint8, as in Pillow, which the models were trained with; this is ten times as fast as
        resizing floats. On other devices the result is rounded to the same values, as float32.
        """
        images = self._resize(images, *self._scaled(*images.shape[-2:]))
        down, right = self.height - images.shape[-2], self.width - images.shape[-1]
        top, left = _before(down), _before(right)
        return F.pad(images, (left, right - left, top, down - top))  # negative padding crops

    def _scaled(self, height: int, width: int) -> tuple[int, int]:
        """The size of a frame, (height, width), before it is cropped or padded; rounded as open_clip does."""
        if self.resize_mode == "squash":
            return self.height, self.width
        if self.resize_mode == "shortest" and self.height == self.width:  # torchvision's `Resize`, which truncates
            short = min(height, width)
            return self.height * height // short, self.width * width // short
        ratios = height / self.height, width / self.width
        ratio = min(ratios) if self.resize_mode == "shortest" else max(ratios)
        return max(1, round(height / ratio)), max(1, round(width / ratio))

    def _resize(self, images: torch.Tensor, height: int, width: int) -> torch.Tensor:
        if images.shape[-2:] == (height, width):
            return images
        if images.device.type != "cpu":
            images = images.to(torch.float32)
        images = F.interpolate(images, size=(height, width), mode=self.interpolation, antialias=True)
        return images if images.dtype == torch.uint8 else images.round_().clamp_(0, 255)


def _before(missing: int) -> int:
    """Pixels to pad at the top or left, of all that are missing; negative: to crop. Rounded as torchvision does."""
    return missing // 2 if missing > 0 else round(missing / 2)


@cache
def _scale_and_shift(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[torch.Tensor, ...]:
    """(x / 255 - mean) / std as x * scale + shift: float32 (3, 1, 1) each, sent to the device once."""
    scale = [1 / (255 * s) for s in std]
    shift = [-m / s for m, s in zip(mean, std, strict=True)]
    return tuple(torch.tensor(values, device=device).view(3, 1, 1) for values in (scale, shift))


_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, eq=False)
class VisionLanguageModel:
    """A model with its tokenizer, preprocessing, device and precision. Copies and pickles refer to it: see `load`."""

    name: str
    network: Any  # open_clip.CLIP or CustomTextCLIP, or the bundled model's
    tokenizer: Any
    squash: Preprocessing
    device: torch.device
    precision: Precision
    identity: str
    """What fingerprints of features say of it: its name, unless that is a path."""

    def __reduce__(self) -> tuple[Any, ...]:
        return load, (self.name, str(self.device), self.precision)

    def preprocessing(self, resize_mode: ResizeMode | None = None) -> Preprocessing:
        """This model's preprocessing; frames are squashed, as in the paper, unless `resize_mode` is given."""
        return replace(self.squash, resize_mode=resize_mode or "squash")

    @torch.inference_mode()
    def encode_image(self, images: torch.Tensor) -> torch.Tensor:
        """Unit vectors of preprocessed images: float32 (B, 3, H, W) to float32 (B, D)."""
        return F.normalize(self.network.encode_image(images.to(self.dtype)).float(), dim=-1)

    @torch.inference_mode()
    def encode_text(self, texts: Sequence[str]) -> torch.Tensor:
        """Unit vectors of texts, float32 (len(texts), D), each through the model's own tokenizer."""
        tokens = self.tokenizer(list(texts)).to(self.device)
        return F.normalize(self.network.encode_text(tokens).float(), dim=-1)

    @cached_property
    def feature_size(self) -> int:
        """Width of the vectors, D."""
        return FEATURES if self.tokenizer is None else self.encode_text(["a frame"]).shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return _DTYPES[self.precision]

    @cached_property
    def digest(self) -> str:
        """The first 12 hexadecimal digits of the SHA-256 of all weights, as they are loaded in this precision."""
        sha256 = hashlib.sha256()
        for name, weights in sorted(self.network.state_dict().items()):
            sha256.update(name.encode())
            sha256.update(weights.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return sha256.hexdigest()[:12]

    @cached_property
    def image_parameters(self) -> int:
        """Number of parameters of the image tower."""
        return sum(parameter.numel() for parameter in self.network.visual.parameters())

    def count_tokens(self, text: str) -> int:
        """Number of tokens of a text, start and end tokens included."""
        if hasattr(self.tokenizer, "tokenizer"):  # an HFTokenizer
            return len(self.tokenizer.tokenizer(self.tokenizer.clean_fn(text)).input_ids)
        return len(self.tokenizer.encode(text)) + 2


_loading = threading.Lock()


def load(name: str, device: str = "auto", precision: Precision = "auto") -> VisionLanguageModel:
    """Load a model, or return the one already loaded in this process. See `CLIP` for the names, and what is raised.

    The precision "auto" is float32 on the CPU and float16 on CUDA, which has 3 mantissa bits more than bfloat16.
    """
    source, target = sources.parse_model_name(name), resolve_device(device)
    if precision == "auto":
        precision = "fp16" if target.type == "cuda" else "fp32"
    with _loading:
        return _load(source, target, precision)


def unload() -> None:
    """Forget the models that `load` keeps for the next call. Rewards that use one keep it in memory."""
    with _loading:
        _load.cache_clear()


@cache
def _load(source: sources.ModelSource, device: torch.device, precision: Precision) -> VisionLanguageModel:
    identity = source.name
    if source.name == "tiny":
        network, tokenizer, cfg = tiny.load(_DTYPES[precision])
    elif source.architecture == sources.CNN:
        network, tokenizer, cfg, identity = _load_cnn(source, precision)
    else:
        network, tokenizer, cfg = _load_open_clip(source, precision)
    network.to(device).eval().requires_grad_(False)
    network.visual.to(memory_format=torch.channels_last)  # convolutions run up to twice as fast
    return VisionLanguageModel(source.name, network, tokenizer, make_preprocessing(cfg), device, precision, identity)


def make_preprocessing(cfg: Mapping[str, Any]) -> Preprocessing:
    """Make the preprocessing that open_clip's terms describe; frames are squashed."""
    height, width = (cfg["size"], cfg["size"]) if isinstance(cfg["size"], int) else cfg["size"]
    interpolation = "bilinear" if cfg["interpolation"] == "bilinear" else "bicubic"
    mean, std = tuple(cfg["mean"]), tuple(cfg["std"])
    return Preprocessing(height=height, width=width, mean=mean, std=std, interpolation=interpolation)


def _load_cnn(source: sources.ModelSource, precision: Precision) -> tuple[Any, None, Mapping[str, Any], str]:
    """The image tower in a file of `DistanceNetwork`, which knows no texts, its preprocessing and its identity."""
    file = DistanceNetwork.load(str(source.local))
    if file.cnn is None:
        raise ValueError(f"`model`: {source.local} has no image tower. Its features are of model={file.model!r}.")
    return file.cnn.to(_DTYPES[precision]), None, PREPROCESSING, file.fingerprint.partition(",")[0]


def _load_open_clip(source: sources.ModelSource, precision: Precision) -> tuple[Any, Any, Mapping[str, Any]]:
    """A network of open_clip, its tokenizer, and its preprocessing in open_clip's terms."""
    open_clip = sources.import_open_clip()
    with sources.reachable_hub():
        if source.pretrained and not source.local:
            try:
                open_clip.download_pretrained(open_clip.get_pretrained_cfg(source.architecture, source.pretrained))
            except Exception as error:
                raise sources.cannot_download(source, "weights", error) from error
        try:
            network: Any = open_clip.create_model(
                source.architecture,
                pretrained=source.pretrained,
                precision=precision,
                require_pretrained=True,
                force_quick_gelu=source.quick_gelu,
                force_preprocess_cfg=dict(source.preprocessing),
            )
        except (ImportError, MemoryError, OSError):
            raise
        except Exception as error:
            raise sources.loading_error(source, error) from error
        return network, _load_tokenizer(source), open_clip.get_model_preprocess_cfg(network)


def _load_tokenizer(source: sources.ModelSource) -> Any:
    open_clip = sources.import_open_clip()
    text_cfg = (open_clip.get_model_config(source.architecture) or {}).get("text_cfg", {})
    if (text_cfg.get("tokenizer_kwargs") or {}).get("trust_remote_code"):
        raise ValueError(
            f"`model`: the tokenizer of {source.name!r} asks to execute code of its own "
            "(trust_remote_code), which is refused. Choose another model."
        )
    folder = source.folder
    try:
        if source.pretrained and folder and "hf_tokenizer_name" in text_cfg and (folder / "tokenizer.json").is_file():
            return open_clip.tokenizer.HFTokenizer(
                str(folder),
                context_length=text_cfg.get("context_length", 77),
                tokenizer_mode=text_cfg.get("tokenizer_mode"),
                **text_cfg.get("tokenizer_kwargs", {}),
            )
        return open_clip.get_tokenizer(source.architecture)
    except ImportError as error:
        raise DependencyNotInstalled(
            f"The tokenizer of {source.name!r} needs a package: `pip install transformers sentencepiece`."
        ) from error
    except Exception as error:
        raise sources.cannot_download(source, "tokenizer", error) from error
