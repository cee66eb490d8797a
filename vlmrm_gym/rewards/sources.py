"""Model names: parsing them into architecture and weights, and error messages for models that do not load."""

import difflib
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmrm_gym.terminal import say_once
from vlmrm_gym.validation import short_repr, truncate

NAME_FORMS = (
    '"tiny", "Architecture/pretrained tag", "Architecture/path to a checkpoint file", '
    '"hf-hub:organisation/repository" or "local-dir:folder"'
)
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
CONNECTION_SECONDS = 3
"""How long Hugging Face's server may take to answer before only its cache on this machine is used."""


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from, in open_clip's terms.

    Attributes:
        name: The user's model name, with paths made absolute.
        architecture: The name of an architecture, "hf-hub:..." or "local-dir:...".
        pretrained: A tag or a file; None if the architecture implies the weights.
        local: The checkpoint file or folder, if on this machine.
        version: Modification time and size of local files, so that changed files are loaded again.
        quick_gelu: Whether the weights need QuickGELU, the activation of OpenAI's models.
        preprocessing: Settings of open_clip's PreprocessCfg that the weights need and open_clip does not infer.
    """

    name: str
    architecture: str
    pretrained: str | None = None
    local: Path | None = None
    version: tuple[float, int] | None = None
    quick_gelu: bool = False
    preprocessing: tuple[tuple[str, Any], ...] = ()

    @property
    def file(self) -> Path | None:
        """The checkpoint file, if the name has one."""
        return self.local if self.pretrained else None


def import_open_clip() -> Any:
    """The package open_clip. Its import takes seconds, and 0.25 GB: the bundled model does without."""
    import vlmrm_gym.rewards.triton  # noqa: F401 (before torchvision is imported)

    # isort: split
    import open_clip

    return open_clip


def parse_model_name(name: str) -> ModelSource:
    """Parse a model name; nothing is loaded.

    Raises:
        ValueError: Unknown architecture or tag.
        FileNotFoundError: The file or folder does not exist.
    """
    if name == "tiny":
        return ModelSource(name, f"local-dir:{Path(__file__).parents[1] / 'tiny'}")
    if name.startswith("hf-hub:"):
        _check_repository(name)
        return ModelSource(name, name)
    if name.startswith("local-dir:"):
        folder = Path(name.removeprefix("local-dir:")).expanduser().absolute()
        if not (folder / "open_clip_config.json").is_file():
            raise FileNotFoundError(
                f"`model`: a local-dir must be a folder with an open_clip_config.json and weights. Received {name!r}."
            )
        name = f"local-dir:{folder}"
        return ModelSource(name, name, local=folder, version=_version(*folder.iterdir()))

    open_clip = import_open_clip()
    name = f"{_OPENAI[name]}/openai" if name in _OPENAI else name
    architecture, _, pretrained = name.partition("/")
    if not pretrained and (tags := open_clip.list_pretrained_tags_by_model(architecture)):
        pretrained = next((tag for tag in reversed(tags) if tag.startswith("laion2b")), tags[0])
        say_once(f"`model`: {name!r} names no weights. Those of {(name := f'{architecture}/{pretrained}')!r} are used.")
    if architecture not in open_clip.list_models():
        raise ValueError(
            f"`model` must be {NAME_FORMS}. Received {short_repr(name)}. "
            f"{_nearest('architecture', architecture, ['tiny', *open_clip.list_models()])}"
        )
    if cfg := open_clip.get_pretrained_cfg(architecture, pretrained):
        # open_clip only warns if the architecture's activation is not the one that the weights were trained with.
        return ModelSource(name, architecture, pretrained, quick_gelu=bool(cfg.get("quick_gelu")))
    file = Path(pretrained).expanduser().absolute()
    if pretrained and file.is_file():
        known = _published_preprocessing(architecture)
        quick = [bool(cfg.get("quick_gelu")) for cfg in _published(architecture)]
        if any(quick) and not open_clip.get_model_config(architecture).get("quick_gelu"):
            warnings.warn(
                f"`model`: weights of {architecture} come with different activations, and a file does not say which it "
                "needs. GELU is used; if yours, such as OpenAI's, were trained with QuickGELU, pass "
                f'model="{architecture}-quickgelu/{pretrained}".',
                stacklevel=2,
            )
        if len(known) > 1:
            warnings.warn(
                f"`model`: weights of {architecture} come with different means and stds, and a file does not say which "
                "it needs. open_clip's default is used; if yours differ, put the file into a folder with its "
                'open_clip_config.json and pass model="local-dir:that/folder".',
                stacklevel=2,
            )
        return ModelSource(
            f"{architecture}/{file}",
            architecture,
            str(file),
            local=file,
            version=_version(file),
            preprocessing=known[0] if len(known) == 1 else (),
        )
    if file.suffix or "/" in pretrained:
        raise FileNotFoundError(
            f"`model`: the checkpoint file {pretrained!r} does not exist. Received {short_repr(name)}. "
            'For a folder with an open_clip_config.json pass model="local-dir:that/folder".'
        )
    raise ValueError(
        f"`model` must name weights of {architecture}: a pretrained tag or a checkpoint file. Received "
        f"{short_repr(name)}. {_nearest('tag', pretrained, open_clip.list_pretrained_tags_by_model(architecture))}"
    )


def _check_repository(name: str) -> None:
    from huggingface_hub.utils import HFValidationError, validate_repo_id  # deferred: few need it

    repository = name.removeprefix("hf-hub:")
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ValueError(
            '`model`: an hf-hub model must be "hf-hub:organisation/repository", such as '
            f'"hf-hub:laion/CLIP-ViT-B-32-laion2B-s34B-b79K". Received {short_repr(name)}. {_first_line(error)}'
        ) from None


def loading_error(source: ModelSource, error: Exception) -> Exception:
    """The exception to raise when open_clip could not create the model."""
    if source.local:
        return ValueError(
            f"`model`: the checkpoint {source.local} is damaged, or is not of this architecture. "
            f"Received {short_repr(source.name)}. {_first_line(error)}"
        )
    if any(sign in str(error) for sign in ("ownload", "HF Hub", "Required pretrained")):  # open_clip wraps the causes
        return cannot_download(source, "weights", error)
    return ValueError(
        f"`model`: the downloaded weights of {source.name!r} are damaged. Delete them from the cache, usually "
        f"~/.cache/huggingface, and try again. {_first_line(error)}"
    )


def cannot_download(source: ModelSource, what: str, error: Exception) -> RuntimeError:
    """The exception to raise when weights or tokenizer cannot be downloaded."""
    open_clip, architecture = import_open_clip(), source.architecture
    usage = 'model="local-dir:that/folder"'
    if source.pretrained:
        cfg = open_clip.get_pretrained_cfg(architecture, source.pretrained)
        origin = cfg.get("hf_hub", "").rstrip("/") or cfg.get("url", "")
        if source.quick_gelu and f"{architecture}-quickgelu" in open_clip.list_models():
            architecture += "-quickgelu"
        if len(_published_preprocessing(architecture)) <= 1:
            usage = f'model="{architecture}/path/to/that/file"'
    else:
        origin = architecture.removeprefix("hf-hub:")
    return RuntimeError(
        f"`model`: the {what} of {source.name!r} could not be downloaded ({_first_line(error)}). Hugging Face's server "
        f"must answer within {CONNECTION_SECONDS} s. On a machine with a network, fetch them from {origin!r} (`hf "
        f"download` does for Hugging Face), copy them to this one, and pass {usage}, or copy the whole cache "
        'folder, usually ~/.cache/huggingface. model="tiny" is bundled and needs no network.'
    )


def tokenizer_missing(source: ModelSource, error: Exception) -> RuntimeError:
    """The exception to raise when a local checkpoint lacks its tokenizer, and it cannot be downloaded."""
    folder = source.file.parent if source.file else source.local
    return RuntimeError(
        f"`model`: the tokenizer of {source.name!r} is not on this machine and could not be downloaded "
        f"({_first_line(error)}). Put its files (tokenizer.json, tokenizer_config.json) into {folder}."
    )


def _published_preprocessing(architecture: str) -> list[tuple[tuple[str, Any], ...]]:
    """The distinct preprocessing settings of an architecture's published weights; a bare file does not contain them."""
    keys = "mean", "std", "interpolation"
    configs = _published(architecture)
    return list(dict.fromkeys(tuple((key, cfg[key]) for key in keys if key in cfg) for cfg in configs))


def _published(architecture: str) -> list[Mapping[str, Any]]:
    """What open_clip knows of each of an architecture's published weights."""
    open_clip = import_open_clip()
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    return [open_clip.get_pretrained_cfg(architecture, tag) for tag in tags]


@contextmanager
def reachable_hub() -> Iterator[None]:
    """In this block Hugging Face's library uses its cache only, if its server cannot be reached now.

    It tries for a minute otherwise, and prints a line for each time.
    """
    from huggingface_hub import constants

    offline = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = offline or not _answers(constants.ENDPOINT)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = offline


def _answers(address: str) -> bool:
    """Whether a server answers, with any status."""
    from huggingface_hub.utils import get_session

    answers = []

    def ask() -> None:
        with suppress(Exception):
            answers.append(get_session().head(address, timeout=CONNECTION_SECONDS))

    asking = threading.Thread(target=ask, daemon=True)  # finding the address of a name knows no time limit
    asking.start()
    asking.join(CONNECTION_SECONDS)
    return bool(answers)


def _version(*files: Path) -> tuple[float, int]:
    stats = [file.stat() for file in files]
    return max(stat.st_mtime for stat in stats), sum(stat.st_size for stat in stats)


def _nearest(kind: str, unknown: str, known: Sequence[str]) -> str:
    lower = {name.lower(): name for name in known}
    near = [lower[name] for name in difflib.get_close_matches(unknown.lower(), lower, n=4, cutoff=0.4)]
    return f"Nearest {kind}s: {', '.join(near or known[:4]) or 'none are published'}."


def _first_line(error: Exception) -> str:
    return truncate(next(iter(str(error).strip().splitlines()), type(error).__name__))
