"""Draw pictures of a task's goal, as `--goal-images` takes them.

python benchmarks/goal_pictures.py VLMRM/CartPole-v1 runs/goals --count 3
"""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import imageio.v3 as iio
import tyro

from vlmrm_gym.envs.make import find_task, make_base_env
from vlmrm_gym.states import StateView
from vlmrm_gym.tasks.known_states import clear_goals


def main(
    id: Annotated[str, tyro.conf.Positional],
    folder: Annotated[Path, tyro.conf.Positional],
    count: int = 3,
    seed: int = 0,
) -> None:
    """Draw `count` states of the goal, by the task's own camera: FOLDER/0.png and so on."""
    task = find_task(id)
    if task is None:
        raise SystemExit(f"{id} is not of this package.")
    folder.mkdir(parents=True, exist_ok=True)
    goals = clear_goals(task.make_states(), count, seed)
    with (
        closing(make_base_env(task, task.episode_length)) as env,
        closing(StateView(env, task.camera, pin=False)) as view,
    ):
        for number, frame in enumerate(view.draw(goals)):
            iio.imwrite(folder / f"{number}.png", frame)


if __name__ == "__main__":
    tyro.cli(main)
