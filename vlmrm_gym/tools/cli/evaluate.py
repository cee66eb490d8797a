"""The command `vlmrm-gym evaluate`: success, returns and a video of a trained policy."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from vlmrm_gym._util.errors import say
from vlmrm_gym._util.files import atomic_write_text
from vlmrm_gym._util.validation import short_repr
from vlmrm_gym.tools.cli.settings import PlainConsole, parse
from vlmrm_gym.tools.train.checks import read_settings
from vlmrm_gym.tools.train.config_file import Key, read_config_file
from vlmrm_gym.tools.train.run_folder import RunError, RunFolder


@dataclass
class Evaluate:
    """Evaluate a trained policy: success, returns, and a video of the first episode.

        vlmrm-gym evaluate runs/CartPole-v1__DQN__0__1700000000 --episodes 20

    Writes evaluation.json and evaluation.mp4 into the run's folder. Only the weights of a policy are read, no code; but
    read a stranger's config.yaml first, as it names models to download and folders to write to (SECURITY.md).
    """

    run: Annotated[Path, tyro.conf.Positional]
    """the run's folder, or hf-hub:organisation/name@commit, an agent that `vlmrm-gym push` has uploaded"""
    episodes: int = 100
    """number of episodes"""
    policy: str = "best"
    """best (by VLM return; last, if too few episodes were scored), last, or the step of a checkpoint"""
    seed: int = 10_000
    """of the first episode; the others' follow"""
    video: bool = True
    """whether to record a video of the first episode"""
    trust_code: bool = False
    """run the code that the run's configuration names: a reward, its combine_views or an environment, as module:name, a
    text with a colon in env_kwargs, or a runtime_env of Ray"""


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    command = parse(Evaluate, "evaluate", arguments)
    folder = RunFolder.open(command.run)
    for name, least, most in (("episodes", 1, 1_000_000), ("seed", 0, 2**32 - 1)):
        if not least <= (value := getattr(command, name)) <= most:
            raise RunError(f"`{name}` must be from {least} to {most}. Received {short_repr(value)}.")
    changes = {("track",): False, **_newest_reward(folder)}
    config, file = read_settings(folder.config_file, changes, trust_code=command.trust_code)
    policy = folder.policy(command.policy)
    from vlmrm_gym.tools.train import evaluation

    with file.locating():
        model = evaluation.load_policy(config, policy)
        result = evaluation.evaluate(config, model, command.episodes, seed=command.seed)
    summary: dict[str, Any] = {"policy": str(policy.relative_to(folder.path)), "episodes": command.episodes}
    summary |= result.means(config.success_threshold)
    if config.task and not config.has_success:  # its `info["success"]` is always False
        del summary["success"], summary["success_fraction"]
    returns = {"vlm_return": result.vlm_returns, "task_return": result.task_returns}
    if config.reward.name == "ground_truth":  # both are the same
        del returns["vlm_return"], summary["vlm_return"]
    summary |= {f"{name}_std": float(values.std()) for name, values in returns.items()}
    table = Table(title=f"{config.id}, {summary['policy']}, {command.episodes} episodes", show_header=False)
    if "success" in summary:
        table.add_row("success", f"{summary['success']:.0%} of the episodes")
        table.add_row("", f"{summary['success_fraction']:.0%} of the steps")
    for name in returns:
        title = name.replace("vlm", "VLM").replace("_", " ")
        table.add_row(title, f"{summary[name]:.2f} ± {summary[f'{name}_std']:.2f}")
    PlainConsole().print(table)
    atomic_write_text(folder.path / "evaluation.json", json.dumps(summary, indent=2))
    if command.video:
        evaluation.record_video(config, model, folder.path / "evaluation.mp4", seed=command.seed)
        say(f"Video: {folder.path / 'evaluation.mp4'}")


def _newest_reward(folder: RunFolder) -> dict[Key, Any]:
    """Settings for the newest head, if the run has learned its reward; raises a RunError if it has none yet."""
    reward = read_config_file(folder.config_file).config.reward
    if reward.labeler is None:
        return {}
    if not folder.head.exists():
        raise RunError(f"The run {folder.path} has not learned a reward yet: it has no {folder.head.name}. Resume it.")
    from vlmrm_gym.tools.train.preferences import frozen

    return {("reward", "labeler"): None, ("reward", "kwargs"): frozen(reward, folder).kwargs}
