"""Rewards on Hugging Face's hub: saved folders, with a card that says what was measured. Nothing of it is executed."""

import json
import tempfile
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vlmrm_gym._util.errors import InputError, say_once
from vlmrm_gym._util.untrusted import read_json
from vlmrm_gym._util.validation import short_repr, truncate
from vlmrm_gym.rewards.sources import first_line, reachable_hub

PREFIX = "hf-hub:"
"""Begins the name of a reward on the hub: "hf-hub:organisation/name@commit"."""
FILE = "reward.json"
"""The mapping form of a reward, in the folder that it was saved to."""
_SUFFIXES = (".safetensors", ".png")
MAX_BYTES = 2**29
"""Of all files of a reward."""


@contextmanager
def _asking(name: str) -> Any:
    """Raise what the hub answers, or that it does not, as an InputError."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        with reachable_hub():
            yield
    except RevisionNotFoundError as error:
        raise InputError(f"`reward`: {name} has no such commit, branch or tag.") from error
    except RepositoryNotFoundError as error:
        rule = "does not exist on the hub, or is private: log in with `hf auth login`"
        raise InputError(f"`reward`: {name} {rule}.") from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise InputError(f"`reward`: {name} cannot be read from the hub: {first_line(error)}") from error


def download(name: str) -> Path:
    """Download a reward, or find it in the cache: the folder that `RewardSpec.save` wrote.

    Args:
        name: "hf-hub:organisation/name@commit"; without a commit it is the newest, which is printed.

    Raises:
        InputError: It does not exist, cannot be reached, is no reward, or is too large.
    """
    from huggingface_hub import HfApi, hf_hub_download

    repo, _, revision = name.removeprefix(PREFIX).partition("@")
    with _asking(name):
        info = HfApi().model_info(repo, revision=revision or None, files_metadata=True)
        files = {one.rfilename: one.size or 0 for one in info.siblings or ()}
        taken = list(filter(_is_part, files))
        if FILE not in files:
            has = short_repr(sorted(files)[:5])
            raise InputError(f"`reward`: {name} must have a {FILE}, which `vlmrm-gym push` writes. It has {has}.")
        if (size := sum(files[file] for file in taken)) > MAX_BYTES:
            raise InputError(f"`reward`: {name} must have at most {MAX_BYTES:,} bytes. It has {size:,}.")
        if revision != info.sha:
            say_once(f"{name} is {PREFIX}{repo}@{info.sha}. Name it so to get the same reward later.")
        paths = [Path(hf_hub_download(repo, file, revision=info.sha)) for file in taken]
    return paths[taken.index(FILE)].parent


def _is_part(file: str) -> bool:
    """Tell whether a file is part of a reward: all else stays where it is."""
    return file == FILE or file.endswith(_SUFFIXES)


def upload(folder: Path, repo: str, *, private: bool = False, figures: Mapping[str, Any] | None = None) -> str:
    """Upload a saved reward with a card. Returns its name, "hf-hub:organisation/name@commit".

    `figures` are what was measured of it. Raises an InputError if the hub refuses it.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    values, api, name = read_json(folder / FILE), HfApi(), f"{PREFIX}{repo}"
    files = [path for path in sorted(folder.iterdir()) if _is_part(path.name)]
    with _asking(name), tempfile.TemporaryDirectory() as temporary:
        card = Path(temporary) / "README.md"
        card.write_text(write_card(repo, values, figures or {}), encoding="utf-8")
        api.create_repo(repo, private=private, exist_ok=True)
        operations = [CommitOperationAdd(path.name, str(path)) for path in (*files, card)]
        commit = api.create_commit(repo, operations, commit_message="A reward of vlmrm_gym")
    return f"{name}@{commit.oid}"


def write_card(repo: str, values: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    """Write the card of a reward: its kind and settings, how to use it, and what was measured of it."""
    rows = [f"| {key} | {_as_cell(value)} |" for key, value in values.items() if value is not None]
    lines = ["---", "library_name: vlmrm_gym", "tags: [reward-model, reinforcement-learning, vlmrm_gym]", "---", ""]
    lines += [f"# {repo.rpartition('/')[2]}", "", f"A reward of the kind `{values.get('kind')}`.", "", "```python"]
    lines += ["import vlmrm_gym", "", f'env = vlmrm_gym.VLMReward(env, reward="{PREFIX}{repo}")', "```", ""]
    lines += ["| field | value |", "|---|---|", *rows]
    if figures:
        lines += ["", "| measured | |", "|---|---|"]
        lines += [f"| {key} | {_as_cell(value)} |" for key, value in figures.items() if value not in (None, [])]
    return "\n".join(lines) + "\n"


def _as_cell(value: Any) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
    return truncate(" ".join(text.split()).replace("|", "\\|"))
