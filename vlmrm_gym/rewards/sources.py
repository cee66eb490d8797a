"""Where a model comes from: names to architectures and weights, and errors that say what to do."""

import difflib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import open_clip
from open_clip.pretrained import get_pretrained_cfg

TINY_FOLDER = Path(__file__).parent.parent / "tiny"
NAME_FORMS = (
    '"tiny", "Architecture/pretrained tag", "Architecture/path to a checkpoint file", '
    '"hf-hub:organisation/repository" or "local-dir:folder"'
)


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from, in open_clip's terms.

    Attributes:
        name: What the user wrote, with paths made absolute.
        architecture: The name of an architecture, "hf-hub:..." or "local-dir:...".
        pretrained: A tag or a file; None where the architecture says it.
        local: The checkpoint file or the folder, if on this machine.
        version: Of local files: changes when they do.
        quick_gelu: Whether the weights want the activation of OpenAI's models.
        preprocessing: Settings of open_clip's PreprocessCfg that the weights want and open_clip would not know.
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
        """The checkpoint file, if the user named one."""
        return self.local if self.pretrained else None


def find(name: str) -> ModelSource:
    """Take a model's name apart, without loading anything.

    Raises:
        TypeError: Not a string.
        ValueError: No such architecture or tag.
        FileNotFoundError: A file or folder that does not exist.
    """
    if not isinstance(name, str):
        raise TypeError(f"`model` must be a string: {NAME_FORMS}. Received {name!r}.")
    if name == "tiny":
        return ModelSource(name, f"local-dir:{TINY_FOLDER}", local=TINY_FOLDER)
    if name.startswith("hf-hub:"):
        return ModelSource(name, name)
    if name.startswith("local-dir:"):
        folder = _absolute(name.removeprefix("local-dir:"))
        if not (folder / "open_clip_config.json").is_file():
            raise FileNotFoundError(
                f"`model`: a local-dir must be a folder with an open_clip_config.json and weights. Received {name!r}."
            )
        name = f"local-dir:{folder}"
        return ModelSource(name, name, local=folder, version=_version(*folder.iterdir()))

    architecture, _, pretrained = name.partition("/")
    if architecture not in open_clip.list_models():
        raise ValueError(
            f"`model` must be {NAME_FORMS}. Received {name!r}. "
            f"{_nearest('architecture', architecture, ['tiny', *open_clip.list_models()])}"
        )
    if cfg := get_pretrained_cfg(architecture, pretrained):
        # open_clip only warns when an architecture's activation is not the one its weights were trained with.
        return ModelSource(name, architecture, pretrained, quick_gelu=bool(cfg.get("quick_gelu")))
    file = _absolute(pretrained)
    if pretrained and file.is_file():
        usual = _usual_preprocessing(architecture)
        if len(usual) > 1:
            warnings.warn(
                f"`model`: weights of {architecture} come with different means and stds, and a file does not say which "
                "it wants. open_clip's default is used; if yours differ, put the file into a folder with its "
                'open_clip_config.json and pass model="local-dir:that/folder".',
                stacklevel=2,
            )
        return ModelSource(
            f"{architecture}/{file}",
            architecture,
            str(file),
            local=file,
            version=_version(file),
            preprocessing=usual[0] if len(usual) == 1 else (),
        )
    if file.suffix or "/" in pretrained:
        raise FileNotFoundError(f"`model`: the checkpoint file {pretrained!r} does not exist. Received {name!r}.")
    raise ValueError(
        f"`model` must name weights of {architecture}: a pretrained tag or a checkpoint file. Received {name!r}. "
        f"{_nearest('tag', pretrained, open_clip.list_pretrained_tags_by_model(architecture))}"
    )


def explain(source: ModelSource, error: Exception) -> Exception:
    """What to tell the user when open_clip could not make the model."""
    if source.local:
        return ValueError(
            f"`model`: the checkpoint {source.local} is damaged, or is not of this architecture. "
            f"Received {source.name!r}. {_first_line(error)}"
        )
    if any(sign in str(error) for sign in ("ownload", "HF Hub", "Required pretrained")):  # open_clip wraps the causes
        return cannot_download(source, "weights", error)
    return ValueError(
        f"`model`: the downloaded weights of {source.name!r} are damaged. Delete them from the cache, usually "
        f"~/.cache/huggingface, and try again. {_first_line(error)}"
    )


def cannot_download(source: ModelSource, what: str, error: Exception) -> RuntimeError:
    """What to tell the user when weights or tokenizer are not on this machine and cannot be fetched."""
    architecture, usage = source.architecture, 'model="local-dir:that/folder"'
    if source.pretrained:
        cfg = get_pretrained_cfg(architecture, source.pretrained)
        origin = cfg.get("hf_hub", "").rstrip("/") or cfg.get("url", "")
        if source.quick_gelu and f"{architecture}-quickgelu" in open_clip.list_models():
            architecture += "-quickgelu"
        if len(_usual_preprocessing(architecture)) <= 1:
            usage = f'model="{architecture}/path/to/that/file"'
    else:
        origin = architecture.removeprefix("hf-hub:")
    return RuntimeError(
        f"`model`: the {what} of {source.name!r} could not be downloaded ({_first_line(error)}). On a machine with a "
        f"network, fetch them from {origin!r} (`hf download` does for Hugging Face), copy them to this one, and pass "
        f"{usage}, or copy the whole cache folder, usually ~/.cache/huggingface. "
        'model="tiny" is bundled and needs no network.'
    )


def tokenizer_missing(source: ModelSource, error: Exception) -> RuntimeError:
    """What to tell the user when a checkpoint on this machine comes without its tokenizer."""
    folder = source.file.parent if source.file else source.local
    return RuntimeError(
        f"`model`: the tokenizer of {source.name!r} is not on this machine and could not be downloaded "
        f"({_first_line(error)}). Put its files (tokenizer.json, tokenizer_config.json) into {folder}."
    )


def _usual_preprocessing(architecture: str) -> list[tuple[tuple[str, Any], ...]]:
    """What the published weights of an architecture want, each once; a bare file does not say it."""
    keys = ("mean", "std", "interpolation")
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    wanted = (get_pretrained_cfg(architecture, tag) for tag in tags)
    return list(dict.fromkeys(tuple((key, cfg[key]) for key in keys if key in cfg) for cfg in wanted))


def _absolute(path: str) -> Path:
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:  # ~somebody without a home
        raise FileNotFoundError(f"`model`: {path!r} does not exist. {error}") from error


def _version(*files: Path) -> tuple[float, int]:
    stats = [file.stat() for file in files]
    return max(stat.st_mtime for stat in stats), sum(stat.st_size for stat in stats)


def _nearest(kind: str, unknown: str, known: Sequence[str]) -> str:
    lower = {name.lower(): name for name in known}
    near = [lower[name] for name in difflib.get_close_matches(unknown.lower(), lower, n=4, cutoff=0.4)]
    return f"Nearest {kind}s: {', '.join(near or known[:4]) or 'none are published'}."


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
