"""The command `vlmrm-gym tasks`: a table of the registered tasks, with pictures."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from numpy.typing import NDArray
from PIL import Image
from rich.table import Table

from vlmrm_gym._util.errors import InputError, as_input_error
from vlmrm_gym._util.files import make_folder
from vlmrm_gym._util.validation import short_repr
from vlmrm_gym.envs.make import make_base_env
from vlmrm_gym.scoring.options import CameraOption
from vlmrm_gym.states import StateView, choose_cameras, is_drawn_from_states
from vlmrm_gym.tasks import REGISTERED, Task
from vlmrm_gym.tools.cli.settings import PlainConsole, parse
from vlmrm_gym.tools.environments import find_named_task


@dataclass(frozen=True)
class Tasks(CameraOption):
    """List the registered IDs and their prompts; with --pictures, render what the model sees, or sees from --camera.

    For example:

        vlmrm-gym tasks --pictures pictures
        vlmrm-gym tasks --pictures pictures --camera front-side
        vlmrm-gym tasks my_worlds:Mine/Balance-v0 --pictures pictures
    """

    ids: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """only these; module:ID imports the module first (none: all that are registered)"""
    pictures: Path | None = None
    """a folder, for a picture of every task: an initial state, and one in which the task is done"""


def main(arguments: Sequence[str]) -> None:
    """Print the table, and draw the pictures."""
    command = parse(Tasks, "tasks", arguments)
    tasks = [_find(id) for id in command.ids] or list(REGISTERED.values())
    if command.camera is not None and command.pictures is None:
        raise InputError("`camera` is for pictures. Pass --pictures FOLDER, too.")
    table = Table()
    table.add_column("ID", no_wrap=True)
    table.add_column("prompt", min_width=8)
    table.add_column("baseline", min_width=8)
    table.add_column("steps", no_wrap=True)
    if command.pictures is not None:
        make_folder(command.pictures, name="pictures")
        table.add_column("picture", overflow="fold")
    for task in tasks:
        row = [task.id, task.prompt or "(yours)", task.baseline or "(yours)", str(task.episode_length)]
        if command.pictures is not None:
            picture = command.pictures / f"{task.id.removeprefix('VLMRM/').replace('/', '_')}.png"
            with as_input_error():
                drawn = draw_task(task, command.camera)
            Image.fromarray(drawn).save(picture)
            row.append(str(picture))
        table.add_row(*row)
    PlainConsole().print(table)


def _find(id: str) -> Task:
    if (task := find_named_task(id)) is None:
        raise InputError(
            f"The ID must be one that `vlmrm_gym.tasks.register` knows. Received {short_repr(id)}. `vlmrm-gym tasks` "
            "without an ID lists those of this package."
        )
    return task


def draw_task(task: Task, camera: Any = None) -> NDArray[np.uint8]:
    """Draw an initial state, and to the right a goal state if the task has one: uint8 (H, W or 2 W, 3).

    The V views of several cameras are side by side, and the goal state is below: uint8 (H or 2 H, V W, 3).
    """
    with ExitStack() as opened:
        env = opened.enter_context(closing(make_base_env(task, task.episode_length)))
        env.reset(seed=0)
        has_camera = camera is not None and choose_cameras(env, camera) is not None
        scene = opened.enter_context(closing(StateView(env, camera if has_camera else task.camera, "faithful")))
        states, known = [scene.capture()[0]], task.make_states() if is_drawn_from_states(env) else None
        if known is not None and (goal := known.example_goal()) is not None:
            states.append(goal)
        return np.concatenate(list(scene.draw(np.stack(states))), axis=0 if scene.num_views > 1 else 1)
