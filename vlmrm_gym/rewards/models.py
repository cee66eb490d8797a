"""Vision-language models by name: any open_clip model, loaded once per process, ready to encode on its device."""

import difflib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import open_clip
import torch
import torch.nn.functional as F
from gymnasium.error import DependencyNotInstalled
from open_clip.pretrained import get_pretrained_cfg
from open_clip.tokenizer import HFTokenizer, SimpleTokenizer
from open_clip.transform import PreprocessCfg

from vlmrm_gym.rewards.preprocessing import Preprocessing, ResizeMode

Precision = Literal["auto", "fp32", "bf16", "fp16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

TINY_FOLDER = Path(__file__).parent.parent / "tiny"
NAME_FORMS = (
    '"tiny", "Architecture/pretrained tag", "Architecture/path to a checkpoint file", '
    '"hf-hub:organisation/repository" or "local-dir:folder"'
)


@dataclass(frozen=True, eq=False)
class VisionLanguageModel:
    """An open_clip model with what belongs to it: tokenizer, preprocessing, device and number format."""

    name: str
    network: Any  # open_clip.CLIP or CustomTextCLIP
    tokenizer: Any
    preprocess_cfg: PreprocessCfg
    device: torch.device
    dtype: torch.dtype

    def preprocessing(self, resize_mode: ResizeMode | None = None) -> Preprocessing:
        """How frames become this model's input; squashed, as in the paper, unless `resize_mode` says otherwise."""
        cfg = self.preprocess_cfg
        height, width = (cfg.size, cfg.size) if isinstance(cfg.size, int) else cfg.size
        return Preprocessing(
            height=height,
            width=width,
            mean=_three(cfg.mean),
            std=_three(cfg.std),
            interpolation="bilinear" if cfg.interpolation == "bilinear" else "bicubic",
            resize_mode=resize_mode or "squash",
        )

    @torch.inference_mode()
    def encode_image(self, images: torch.Tensor) -> torch.Tensor:
        """Unit vectors of preprocessed images: float32 (B, 3, H, W) to float32 (B, D)."""
        return F.normalize(self.network.encode_image(images.to(self.dtype)).float(), dim=-1)

    @torch.inference_mode()
    def encode_text(self, texts: Sequence[str]) -> torch.Tensor:
        """Unit vectors of texts, float32 (len(texts), D), each through the model's own tokenizer."""
        tokens = self.tokenizer(list(texts)).to(self.device)
        return F.normalize(self.network.encode_text(tokens).float(), dim=-1)

    @property
    def context_length(self) -> int:
        """How many tokens the text tower reads."""
        return self.tokenizer.context_length

    def count_tokens(self, text: str) -> int:
        """How many tokens a text has, those that mark its start and end included."""
        if isinstance(self.tokenizer, SimpleTokenizer):
            return len(self.tokenizer.encode(text)) + 2
        return len(self.tokenizer.tokenizer(self.tokenizer.clean_fn(text)).input_ids)


def load(name: str, device: str = "auto", precision: Precision = "auto") -> VisionLanguageModel:
    """Load a model, or return the one already loaded in this process.

    Args:
        name: "tiny" (bundled), "Architecture/pretrained tag", "Architecture/path to a checkpoint file",
            "hf-hub:organisation/repository" or "local-dir:folder".
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1", "mps".
        precision: "auto" is float32 on the CPU and float16 on CUDA, which is eight times as fine as bfloat16.

    Raises:
        ValueError: Unknown name, precision or unavailable device, or a damaged checkpoint.
        FileNotFoundError: A checkpoint file or folder that does not exist.
        RuntimeError: Weights or tokenizer cannot be downloaded.
    """
    target = resolve_device(device)
    if precision not in PRECISIONS:
        raise ValueError(f"`precision` must be one of {', '.join(PRECISIONS)}. Received {precision!r}.")
    if precision == "auto":
        precision = "fp16" if target.type == "cuda" else "fp32"
    with _loading:
        return _load(name, target, precision)


_loading = threading.Lock()


def resolve_device(device: str) -> torch.device:
    """The device that a name means on this machine.

    Raises:
        ValueError: There is no such device here.
    """
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    available = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        available.append("mps")
    full_name = "cuda:0" if str(device) == "cuda" else str(device)
    if full_name not in available:
        raise ValueError(
            f'`device` must be "auto" or a device of this machine ({", ".join(available)}). Received {device!r}.'
        )
    return torch.device(full_name)


@cache
def _load(name: str, device: torch.device, precision: Literal["fp32", "bf16", "fp16"]) -> VisionLanguageModel:
    source = _parse(name)
    try:
        network: Any = open_clip.create_model(
            source.architecture,
            pretrained=source.pretrained,
            precision=precision,
            device=device,
            require_pretrained=True,
            force_quick_gelu=source.quick_gelu,
            force_preprocess_cfg=source.preprocess_cfg,
        )
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        raise _explain(name, source, error) from error
    network.eval().requires_grad_(False)
    network.visual.to(memory_format=torch.channels_last)  # convolutions run up to twice as fast
    return VisionLanguageModel(
        name=name,
        network=network,
        tokenizer=_load_tokenizer(name, source),
        preprocess_cfg=PreprocessCfg(**open_clip.get_model_preprocess_cfg(network)),
        device=device,
        dtype={"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision],
    )


@dataclass(frozen=True)
class _Source:
    """Where a model comes from, in open_clip's terms."""

    architecture: str  # or "hf-hub:...", "local-dir:..."
    pretrained: str | None = None  # a tag or a file
    file: Path | None = None
    quick_gelu: bool = False
    preprocess_cfg: dict[str, Any] | None = None


def _parse(name: str) -> _Source:
    if not isinstance(name, str):
        raise TypeError(f"`model` must be a string: {NAME_FORMS}. Received {name!r}.")
    if name == "tiny":
        return _Source(f"local-dir:{TINY_FOLDER}")
    if name.startswith("local-dir:"):
        folder = Path(name.removeprefix("local-dir:"))
        if not (folder / "open_clip_config.json").is_file():
            raise FileNotFoundError(
                f"`model`: a local-dir must be a folder with an open_clip_config.json and weights. Received {name!r}."
            )
        return _Source(name)
    if name.startswith("hf-hub:"):
        return _Source(name)

    architecture, _, pretrained = name.partition("/")
    if architecture not in open_clip.list_models():
        raise ValueError(
            f"`model` must be {NAME_FORMS}. Received {name!r}. "
            f"{_nearest('architecture', architecture, ['tiny', *open_clip.list_models()])}"
        )
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    if cfg := get_pretrained_cfg(architecture, pretrained):
        # open_clip only warns when an architecture's activation is not the one its weights were trained with.
        return _Source(architecture, pretrained, quick_gelu=bool(cfg.get("quick_gelu")))
    file = Path(pretrained).expanduser()
    if pretrained and file.is_file():
        return _Source(architecture, str(file), file=file, preprocess_cfg=_usual_preprocessing(architecture, tags))
    if file.suffix or len(file.parts) > 1:
        raise FileNotFoundError(f"`model`: the checkpoint file {pretrained!r} does not exist. Received {name!r}.")
    raise ValueError(
        f"`model` must name weights of {architecture}: a pretrained tag or a checkpoint file. Received {name!r}. "
        f"{_nearest('tag', pretrained, tags)}"
    )


def _usual_preprocessing(architecture: str, tags: Sequence[str]) -> dict[str, Any] | None:
    """What all published weights of an architecture want; a bare file does not say it (SigLIP is not CLIP)."""
    keys = ("mean", "std", "interpolation")
    wanted = {
        tuple((key, cfg[key]) for key in keys if key in cfg)
        for cfg in (get_pretrained_cfg(architecture, tag) for tag in tags)
    }
    return dict(wanted.pop()) if len(wanted) == 1 else None


def _nearest(kind: str, unknown: str, known: Sequence[str]) -> str:
    lower = {name.lower(): name for name in known}
    near = [lower[name] for name in difflib.get_close_matches(unknown.lower(), lower, n=4, cutoff=0.4)] or list(
        known[:4]
    )
    return f"Nearest {kind}s: {', '.join(near) or 'none are published'}."


def _explain(name: str, source: _Source, error: Exception) -> Exception:
    """What to tell the user when open_clip could not make the model."""
    if source.file or source.architecture.startswith("local-dir:"):
        where = source.file or source.architecture.removeprefix("local-dir:")
        return ValueError(
            f"`model`: the checkpoint {where} is damaged, or is not of this architecture. "
            f"Received {name!r}. {_first_line(error)}"
        )
    return _cannot_download(name, source, "weights", error)


def _cannot_download(name: str, source: _Source, what: str, error: Exception) -> RuntimeError:
    if source.pretrained:
        cfg = get_pretrained_cfg(source.architecture, source.pretrained)
        origin = cfg.get("hf_hub", "").rstrip("/") or cfg.get("url", "")
    else:
        origin = source.architecture.removeprefix("hf-hub:")
    usage = f'model="{source.architecture}/path/to/that/file"' if source.pretrained else 'model="local-dir:that/folder"'
    return RuntimeError(
        f"`model`: the {what} of {name!r} could not be downloaded ({_first_line(error)}). On a machine with a network, "
        f"fetch them from {origin!r} (`hf download` does for Hugging Face), copy them to this one, and pass {usage}, "
        'or copy the whole cache folder, usually ~/.cache/huggingface. model="tiny" is bundled and needs no network.'
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]


def _load_tokenizer(name: str, source: _Source) -> Any:
    text_cfg = (open_clip.get_model_config(source.architecture) or {}).get("text_cfg", {}) if source.file else {}
    try:
        if source.file and "hf_tokenizer_name" in text_cfg and (source.file.parent / "tokenizer.json").is_file():
            return HFTokenizer(
                str(source.file.parent),
                context_length=text_cfg.get("context_length", 77),
                tokenizer_mode=text_cfg.get("tokenizer_mode"),
                **text_cfg.get("tokenizer_kwargs", {}),
            )
        return open_clip.get_tokenizer(source.architecture)
    except ImportError as error:
        raise DependencyNotInstalled(
            f"The tokenizer of {name!r} needs a package: `pip install transformers sentencepiece`."
        ) from error
    except Exception as error:
        if source.file:
            raise RuntimeError(
                f"`model`: the tokenizer {text_cfg.get('hf_tokenizer_name')!r} of {name!r} could not be downloaded "
                f"({_first_line(error)}). Put its files (tokenizer.json, tokenizer_config.json) beside the checkpoint, "
                f"into {source.file.parent}."
            ) from error
        raise _cannot_download(name, source, "tokenizer", error) from error


def _three(values: Sequence[float]) -> tuple[float, float, float]:
    red, green, blue = values
    return (red, green, blue)
