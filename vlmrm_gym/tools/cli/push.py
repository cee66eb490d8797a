"""The command `vlmrm-gym push`: a saved reward, or an agent, goes to Hugging Face's hub."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from vlmrm_gym._util.errors import InputError, say
from vlmrm_gym._util.untrusted import read_json
from vlmrm_gym.rewards import hub
from vlmrm_gym.tools.cli.settings import parse
from vlmrm_gym.tools.train.run_folder import RunFolder


@dataclass(frozen=True)
class Push:
    """Upload a saved reward, or an agent, to Hugging Face's hub, with a card of what was measured.

        vlmrm-gym fit --videos recordings/ --out kneeling
        vlmrm-gym push kneeling/ organisation/kneeling
        vlmrm-gym train VLMRM/Humanoid-kneel-v0 --reward hf-hub:organisation/kneeling@COMMIT
        vlmrm-gym push runs/RUN organisation/kneeling-agent
        vlmrm-gym evaluate hf-hub:organisation/kneeling-agent

    Log in before: `hf auth login`. The card has the figures of fit.json, or those of --check; of an agent those of
    `vlmrm-gym evaluate`.
    """

    folder: Annotated[Path, tyro.conf.Positional]
    """a folder with a reward.json: of `vlmrm-gym fit` or `reward.save(folder)`; or that of a run: its best policy and
    its settings"""
    repo: Annotated[str, tyro.conf.Positional]
    """organisation/name"""
    check: Path | None = None
    """the folder of a `vlmrm-gym check` of the reward, whose figures go on the card"""
    private: bool = False
    """whether only its owners see it, if it is new"""


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    command = parse(Push, "push", arguments)
    name = push(command.folder, command.repo, check=command.check, private=command.private)
    is_run = (command.folder / hub.CONFIG).is_file()
    say(f"Use it: vlmrm-gym evaluate {name}" if is_run else f"Use it: --reward {name}")


def push(folder: str | Path, repo: str, *, check: str | Path | None = None, private: bool = False) -> str:
    """Upload a saved reward, or an agent: `vlmrm-gym push` as a function.

    Returns:
        Its name, "hf-hub:organisation/name@commit".
    """
    folder = Path(folder)
    figures: dict[str, Any] = {}
    if (folder / hub.CONFIG).is_file():
        if check is not None:
            raise InputError(f"`check` is for rewards. Received {check} for {folder}, a run. Leave it out.")
        policy = RunFolder.open(folder).policy("best")
        if (folder / "evaluation.json").is_file():
            figures = read_json(folder / "evaluation.json")
        return hub.upload(folder, repo, private=private, figures=figures, policy=policy)
    if not (folder / hub.FILE).is_file():
        raise InputError(f"{folder} must have a {hub.FILE}. Save a reward to it: reward.save(folder).")
    if check is not None:
        table = read_json(Path(check) / "measures.json")["table"]
        figures = {name: value for name, value in table[0]["measures"].items() if isinstance(value, int | float)}
    elif (folder / "fit.json").is_file():
        figures = read_json(folder / "fit.json").get("measures", {})
    return hub.upload(folder, repo, private=private, figures=figures)
