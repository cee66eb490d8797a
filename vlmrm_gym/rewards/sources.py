"""Model names: parsing them into architecture and weights, and error messages for models that do not load."""

import difflib
import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv, VectorEnv

from vlmrm_gym._util.errors import say_once
from vlmrm_gym._util.validation import short_repr, truncate
from vlmrm_gym.infos import SCENE_KEY

_OPENAI: Mapping[str, str] = {
    "ViT-B/32": "ViT-B-32",
    "ViT-B/16": "ViT-B-16",
    "ViT-L/14": "ViT-L-14",
    "ViT-L/14@336px": "ViT-L-14-336",
    "openai/clip-vit-base-patch32": "ViT-B-32",
    "openai/clip-vit-base-patch16": "ViT-B-16",
    "openai/clip-vit-large-patch14": "ViT-L-14",
    "openai/clip-vit-large-patch14-336": "ViT-L-14-336",
}
"""Architectures of the names that OpenAI's package and its repositories on Hugging Face have."""
CNN = "cnn:"
"""Begins the name of an image tower that was learned from videos: "cnn:path/to/head.safetensors"."""
CONNECTION_SECONDS = 3
"""How long Hugging Face's server may take to answer before only its cache on this machine is used."""


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from, in open_clip's terms."""

    name: str
    """The user's model name, with paths made absolute."""
    architecture: str
    """The name of an architecture, "hf-hub:..." or "local-dir:..."."""
    pretrained: str | None = None
    """A tag or a file; None if the architecture implies the weights."""
    local: Path | None = None
    """The checkpoint file or folder, if on this machine."""
    version: tuple[float, int] | None = None
    """Modification time and size of local files, so that changed files are loaded again."""
    quick_gelu: bool = False
    """Whether the weights need QuickGELU, the activation of OpenAI's models."""
    preprocessing: tuple[tuple[str, Any], ...] = ()
    """Settings of open_clip's PreprocessCfg that the weights need and open_clip does not infer."""

    @property
    def folder(self) -> Path | None:
        """The checkpoint's folder, if on this machine."""
        return self.local.parent if self.local and self.pretrained else self.local


def import_open_clip() -> Any:
    """The package open_clip. Its import takes seconds, and 0.25 GB: the bundled model does without."""
    import vlmrm_gym.rewards.devices  # noqa: F401 (before torchvision is imported)

    # isort: split
    import open_clip

    return open_clip


def parse_model_name(name: str) -> ModelSource:
    """Parse a model name; loads nothing. A ValueError if it is unknown, a FileNotFoundError for a missing file."""
    if name == "tiny":
        return ModelSource(name, f"local-dir:{Path(__file__).with_name('tiny')}")
    if name.startswith("hf-hub:"):
        return ModelSource(name, name)
    if name.startswith(CNN):
        file = _local(name.removeprefix(CNN))
        if not file.is_file():
            raise FileNotFoundError(f"`model`: the file {str(file)!r} does not exist. Received {name!r}.")
        return ModelSource(f"{CNN}{file}", CNN, local=file, version=_version(file))
    if name.startswith("local-dir:"):
        folder = _local(name.removeprefix("local-dir:"))
        if not (folder / "open_clip_config.json").is_file():
            raise FileNotFoundError(
                f"`model`: a local-dir must be a folder with an open_clip_config.json and weights. Received {name!r}."
            )
        name = f"local-dir:{folder}"
        return ModelSource(name, name, local=folder, version=_version(*folder.iterdir()))

    open_clip = import_open_clip()
    name = f"{_OPENAI[name]}/openai" if name in _OPENAI else name
    architecture, _, pretrained = name.partition("/")
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    if tags and not pretrained:
        pretrained = next((tag for tag in reversed(tags) if tag.startswith("laion2b")), tags[0])
        say_once(f"`model`: {name!r} names no weights. Those of {(name := f'{architecture}/{pretrained}')!r} are used.")
    if architecture not in open_clip.list_models():
        raise ValueError(
            '`model` must be "tiny", "Architecture/pretrained tag", "Architecture/path to a checkpoint file", "hf-hub:'
            f'organisation/repository" or "local-dir:folder". Received {short_repr(name)}. '
            f"{_nearest('architecture', architecture, ['tiny', *open_clip.list_models()])}"
        )
    if cfg := open_clip.get_pretrained_cfg(architecture, pretrained):
        # open_clip only warns if the architecture's activation is not the one that the weights were trained with.
        return ModelSource(name, architecture, pretrained, quick_gelu=bool(cfg.get("quick_gelu")))
    file = _local(pretrained)
    if pretrained and file.is_file():
        preprocessing = _preprocessing_of(architecture, pretrained, tags)
        return ModelSource(
            f"{architecture}/{file}", architecture, str(file), file, _version(file), preprocessing=preprocessing
        )
    if file.suffix or "/" in pretrained:
        raise FileNotFoundError(
            f"`model`: the checkpoint file {pretrained!r} does not exist. Received {short_repr(name)}. "
            'For a folder with an open_clip_config.json pass model="local-dir:that/folder".'
        )
    raise ValueError(
        f"`model` must name weights of {architecture}: a pretrained tag or a checkpoint file. Received "
        f"{short_repr(name)}. {_nearest('tag', pretrained, tags)}"
    )


def _preprocessing_of(architecture: str, file: str, tags: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    """The preprocessing of an architecture's published weights: a bare file does not contain it.

    Warns if there are several, or several activations: rewards of the wrong one look like any other.
    """
    open_clip = import_open_clip()
    published = [open_clip.get_pretrained_cfg(architecture, tag) for tag in tags]
    keys = "mean", "std", "interpolation"
    known = list(dict.fromkeys(tuple((key, cfg[key]) for key in keys if key in cfg) for cfg in published))
    is_quick = open_clip.get_model_config(architecture).get("quick_gelu")
    differing = ["means and stds"] if len(known) > 1 else []
    differing += ["activations"] if not is_quick and any(cfg.get("quick_gelu") for cfg in published) else []
    if differing:
        warnings.warn(
            f"`model`: weights of {architecture} come with different {' and '.join(differing)}, and a file does not "
            "say which it needs. open_clip's default is used. If yours, such as OpenAI's, were trained with QuickGELU, "
            f'pass model="{architecture}-quickgelu/{file}"; if something else differs, put the file into a folder with '
            'its open_clip_config.json and pass model="local-dir:that/folder".',
            stacklevel=3,
        )
    return known[0] if len(known) == 1 else ()


def loading_error(source: ModelSource, error: Exception) -> Exception:
    """The exception to raise when open_clip could not create the model."""
    if any(sign in str(error) for sign in ("ownload", "HF Hub", "Required pretrained")) and not source.local:
        return cannot_download(source, "weights", error)  # open_clip wraps the causes
    what = source.local or "that was downloaded (usually to ~/.cache/huggingface: delete it there)"
    return ValueError(
        f"`model`: the checkpoint {what} is damaged, or is not of this architecture. "
        f"Received {short_repr(source.name)}. {first_line(error)}"
    )


def cannot_download(source: ModelSource, what: str, error: Exception) -> RuntimeError:
    """The exception to raise when weights or tokenizer cannot be downloaded."""
    problem = f"`model`: the {what} of {source.name!r} could not be downloaded ({first_line(error)})."
    if source.local:
        return RuntimeError(f"{problem} Put its files (tokenizer.json, tokenizer_config.json) into {source.folder}.")
    origin, usage = source.architecture.removeprefix("hf-hub:"), "local-dir:that/folder"
    if source.pretrained:
        open_clip, architecture = import_open_clip(), source.architecture
        cfg = open_clip.get_pretrained_cfg(architecture, source.pretrained)
        if source.quick_gelu and f"{architecture}-quickgelu" in open_clip.list_models():
            architecture += "-quickgelu"
        origin, usage = cfg.get("hf_hub", "").rstrip("/") or cfg["url"], f"{architecture}/path/to/that/file"
    return RuntimeError(
        f"{problem} Hugging Face's server must answer within {CONNECTION_SECONDS} s. On a machine with a network, "
        f"fetch them from {origin!r} (`hf download` does for Hugging Face), copy them to this one, and pass "
        f'model="{usage}", or copy the whole cache folder, usually ~/.cache/huggingface. model="tiny" is bundled and '
        "needs no network."
    )


@contextmanager
def reachable_hub() -> Iterator[None]:
    """In this block Hugging Face's library uses its cache only, if its server, which it tries for a minute, is away."""
    from huggingface_hub import constants

    offline = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = offline or not _answers(constants.ENDPOINT)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = offline


def _answers(address: str) -> bool:
    """Tell whether a server answers, with any status."""
    from huggingface_hub.utils import get_session

    answers = []

    def ask() -> None:
        with suppress(Exception):
            answers.append(get_session().head(address, timeout=CONNECTION_SECONDS))

    asking = threading.Thread(target=ask, daemon=True)  # finding the address of a name knows no time limit
    asking.start()
    asking.join(CONNECTION_SECONDS)
    return bool(answers)


def _local(path: str) -> Path:
    return Path(os.path.expanduser(path)).absolute()  # of an unknown user, `Path.expanduser` raises a RuntimeError


def _version(*files: Path) -> tuple[float, int]:
    stats = [file.stat() for file in files]
    return max(stat.st_mtime for stat in stats), sum(stat.st_size for stat in stats)


def _nearest(kind: str, unknown: str, known: Sequence[str]) -> str:
    lower = {name.lower(): name for name in known}
    near = [lower[name] for name in difflib.get_close_matches(unknown.lower(), lower, n=4, cutoff=0.4)]
    return f"Nearest {kind}s: {', '.join(near or known[:4]) or 'none are published'}."


def first_line(error: Exception) -> str:
    """The first line of an error, or its name if it has no text."""
    return truncate(next(iter(str(error).strip().splitlines()), type(error).__name__))


PUBLISHED = "ViT-B-32/laion2b_s34b_b79k"
_ORIGINALS = ("CartPole-v1", "MountainCarContinuous-v0", "Humanoid-v4", "Humanoid-v5")
"""Gymnasium's IDs of the scenes that the bundled model knows."""


def default_model(env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any] | None = None) -> str:
    """The model for an environment: "tiny" for this package's own and their originals, else `PUBLISHED`.

    Of environments in other processes, their metadata or spec say what they are. None: that is not known.
    """
    base: Any = None if env is None else env.unwrapped
    every = [one.unwrapped for one in base.envs] if isinstance(base, SyncVectorEnv) else [base]
    return "tiny" if base is not None and all(map(_is_known, every)) else PUBLISHED


def _is_known(base: Any) -> bool:
    path: str = base.metadata.get(SCENE_KEY) or f"{type(base).__module__}:{type(base).__qualname__}"
    specs = [gym.registry[id] for id in _ORIGINALS if id in gym.registry]
    is_original = path in [spec.entry_point for spec in specs] or (base.spec is not None and base.spec.id in _ORIGINALS)
    return is_original or path.startswith("vlmrm_gym.tasks.")


def announced(model: str) -> str:
    """A default, of which a line says, once in a process, if it has to be downloaded."""
    if model == PUBLISHED:
        say_once(
            f'`model` is {PUBLISHED} here: the bundled one, "tiny", knows the scenes of this package only. The weights '
            '(605 MB) are downloaded once. Name another model, or "tiny", to do without.'
        )
    return model
