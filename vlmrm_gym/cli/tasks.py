"""The command `vlmrm-gym tasks`: a table of the registered tasks, with pictures."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vlmrm_gym.registration import find_task
from vlmrm_gym.tasks import REGISTERED, Task
from vlmrm_gym.terminal import printable
from vlmrm_gym.training.config_types import Cameras, check_cameras
from vlmrm_gym.training.run_folder import RunError
from vlmrm_gym.validation import short_repr, truncate


@dataclass
class Tasks:
    """List the registered IDs and their prompts; with --pictures, render what the model sees.

    For example:

        vlmrm-gym tasks --pictures pictures
        vlmrm-gym tasks --pictures pictures --camera front-side
        vlmrm-gym tasks my_worlds:Mine/Balance-v0 --pictures pictures
    """

    ids: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """only these; module:ID imports the module first (none: all that are registered)"""
    pictures: Path | None = None
    """a folder, for a picture of every task: an initial state, and one in which the task is done"""
    camera: Cameras | None = None
    """for the pictures of MuJoCo's scenes: one camera or several, as in reward.camera of a configuration"""


def list_tasks(command: Tasks) -> None:
    """Run the command.

    Raises:
        RunError: An ID has no record; a camera without pictures, or one that does not exist; or pictures in something
            other than a folder.
    """
    tasks = [_find(id) for id in command.ids] or list(REGISTERED.values())
    if command.camera is not None and command.pictures is None:
        raise RunError("`camera` is for pictures. Pass --pictures FOLDER, too.")
    if command.pictures is not None:
        _check_pictures(command)
        command.pictures.mkdir(parents=True, exist_ok=True)
    table = Table()
    table.add_column("ID", no_wrap=True)
    table.add_column("prompt", min_width=8)
    table.add_column("baseline", min_width=8)
    table.add_column("steps", no_wrap=True)
    if command.pictures:
        table.add_column("picture", overflow="fold")
    for task in tasks:
        row: list[str | Text] = [
            task.id,
            task.prompt or "(yours)",
            task.baseline or "(yours)",
            str(task.episode_length),
        ]
        if command.pictures:
            from PIL import Image

            from vlmrm_gym.cli.task_pictures import draw_task

            picture = command.pictures / f"{task.id.removeprefix('VLMRM/').replace('/', '_')}.png"
            try:
                drawn = draw_task(task, command.camera)
            except ValueError as error:
                raise RunError(str(error)) from error
            Image.fromarray(drawn).save(picture)
            row.append(Text(printable(str(picture))))
        table.add_row(*row)
    console().print(table)


def _find(id: str) -> Task:
    try:
        task = find_task(id)
    except Exception as error:  # importing a module may raise anything
        raise RunError(
            f"The ID {short_repr(id)} cannot be used. Importing it raised {truncate(repr(error))}."
        ) from error
    if task is None:
        raise RunError(
            f"The ID must be one that `vlmrm_gym.tasks.register` knows, or module:ID. Received {short_repr(id)}. "
            "`vlmrm-gym tasks` without an ID lists those of this package."
        )
    return task


def _check_pictures(command: Tasks) -> None:
    """Raise a RunError if the camera cannot be read, or the pictures' path leads through a file."""
    assert command.pictures is not None
    try:
        if command.camera is not None:
            check_cameras(command.camera)
    except ValueError as error:
        raise RunError(str(error)) from error
    for path in (command.pictures, *command.pictures.parents):
        if path.exists() and not path.is_dir():
            raise RunError(f"`pictures` must be a folder. {path} is a file. Choose another.")


def console() -> Console:
    """A console as wide as the terminal, or wide enough where there is none."""
    return Console() if sys.stdout.isatty() else Console(width=10_000)
