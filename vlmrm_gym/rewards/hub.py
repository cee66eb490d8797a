"""Rewards and agents on Hugging Face's hub: folders, with a card that says what was measured. None is executed."""

import json
import re
import shutil
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vlmrm_gym._util.errors import InputError, say_once
from vlmrm_gym._util.untrusted import read_json
from vlmrm_gym._util.validation import short_repr, truncate
from vlmrm_gym.rewards.sources import reachable_hub

PREFIX = "hf-hub:"
"""Begins the name of a reward on the hub: "hf-hub:organisation/name@commit"."""
FILE = "reward.json"
"""The mapping form of a reward, in the folder that it was saved to."""
CONFIG = "config.yaml"
"""The settings of a run, in its folder."""
POLICY = "best.zip"
_OF_REWARD = r"reward\.json|[^/]*\.safetensors|[^/]*\.png"
_OF_RUN = r"config\.yaml|best\.zip|versions\.json|evaluation\.json|evaluation\.mp4"
_PARTS = {FILE: _OF_REWARD, CONFIG: rf"{_OF_RUN}|((heads|pictures)/)?({_OF_REWARD})"}
"""The files of a reward; and of an agent, with the reward that it has learned, and what its settings name in folders.

All other files stay where they are."""
MAX_BYTES = 2**29
"""Of all files of a reward, or of an agent."""


@contextmanager
def _asking(name: str) -> Any:
    """Raise what the hub answers, or that it does not, as an InputError."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        with reachable_hub():
            yield
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = truncate(" ".join(str(error).split()), 500)
        raise InputError(f"`reward`: the hub does not have {name}, or does not answer: {reason}") from error


def download(name: str, main: str = FILE) -> Path:
    """Download a reward, or find it in the cache: the folder that `RewardSpec.save` wrote.

    The name is "hf-hub:organisation/name@commit"; without a commit it is the newest, which is printed. `main` is the
    file that it must have: `FILE` of a reward, `CONFIG` of an agent. An InputError if it does not exist, cannot be
    reached, is no reward, or is too large.
    """
    from huggingface_hub import HfApi, hf_hub_download

    repo, _, revision = name.removeprefix(PREFIX).partition("@")
    with _asking(name):
        info = HfApi().model_info(repo, revision=revision or None, files_metadata=True)
        files = {one.rfilename: one.size or 0 for one in info.siblings or ()}
        taken = [file for file in files if re.fullmatch(_PARTS[main], file)]
        if main not in files:
            has = short_repr(sorted(files)[:5])
            raise InputError(f"{name} must have a {main}, which `vlmrm-gym push` writes. It has {has}.")
        if (size := sum(files[file] for file in taken)) > MAX_BYTES:
            raise InputError(f"`reward`: {name} must have at most {MAX_BYTES:,} bytes. It has {size:,}.")
        if revision != info.sha:
            say_once(f"{name} is {PREFIX}{repo}@{info.sha}. Name it so to get the same reward later.")
        paths = [Path(hf_hub_download(repo, file, revision=info.sha)) for file in taken]
    return paths[taken.index(main)].parent


def download_agent(name: str) -> Path:
    """Download an agent into a folder of this one, `organisation--name--commit`, if it is not there; see `download`."""
    found = download(name, CONFIG)  # in a folder of the cache whose name is the commit
    repo = name.removeprefix(PREFIX).partition("@")[0]
    folder = Path(f"{repo.replace('/', '--')}--{found.name[:8]}")
    if not folder.exists():
        unfinished = folder.with_suffix(".partial")
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(found, unfinished)
        unfinished.replace(folder)
    return folder


def upload(
    folder: Path,
    repo: str,
    *,
    private: bool = False,
    figures: Mapping[str, Any] | None = None,
    policy: Path | None = None,
) -> str:
    """Upload a saved reward, or an agent, with a card. Returns its name, "hf-hub:organisation/name@commit".

    `figures` are what was measured of it, `policy` is the file of an agent. Raises an InputError if the hub refuses it.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    main = FILE if policy is None else CONFIG
    values, api, name = read_json(folder / FILE) if policy is None else {}, HfApi(), f"{PREFIX}{repo}"
    found = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    files = {file: path for file, path in found.items() if re.fullmatch(_PARTS[main], file)}
    files |= {} if policy is None else {POLICY: policy}
    operations = [CommitOperationAdd("README.md", write_card(repo, values, figures or {}).encode())]
    operations += [CommitOperationAdd(file, path) for file, path in files.items()]
    with _asking(name):
        api.create_repo(repo, private=private, exist_ok=True)
        commit = api.create_commit(repo, operations, commit_message="From vlmrm_gym")
    return f"{name}@{commit.oid}"


def write_card(repo: str, values: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    """Write the card of a reward, or without values of an agent: how to use it, and what was measured of it."""
    rows = [f"| {key} | {_as_cell(value)} |" for key, value in values.items() if value is not None]
    lines = ["---", "library_name: vlmrm_gym", "tags: [reward-model, reinforcement-learning, vlmrm_gym]", "---", ""]
    lines += [f"# {repo.rpartition('/')[2]}", ""]
    if values:
        lines += [f"A reward of the kind `{values.get('kind')}`.", "", "```python"]
        lines += ["import vlmrm_gym", "", f'env = vlmrm_gym.VLMReward(env, reward="{PREFIX}{repo}")', "```", ""]
        lines += ["| field | value |", "|---|---|", *rows]
    else:
        lines += ["An agent.", "", "```bash", f"vlmrm-gym evaluate {PREFIX}{repo}", "```"]
    if figures:
        lines += ["", "| measured | |", "|---|---|"]
        lines += [f"| {key} | {_as_cell(value)} |" for key, value in figures.items() if value not in (None, [])]
    return "\n".join(lines) + "\n"


def _as_cell(value: Any) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
    return truncate(" ".join(text.split()).replace("|", "\\|"))
