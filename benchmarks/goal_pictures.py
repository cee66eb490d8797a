"""Draw the goal pictures of the results, as a user would take three photos: all that is not the goal differs.

python benchmarks/goal_pictures.py runs/goals
"""

import sys
from contextlib import closing
from pathlib import Path

import imageio.v3 as iio
import numpy as np

from vlmrm_gym.envs.make import make_base_env
from vlmrm_gym.states import StateView
from vlmrm_gym.tasks import REGISTERED

STATES = {
    "VLMRM/CartPole-v1": [[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]],
    "VLMRM/MountainCarContinuous-v0": [[0.45], [0.5], [0.55]],
}
"""An upright pole with the cart at the left, in the middle and at the right; the car at the flag, and a little further.
"""

for name, states in STATES.items():
    task = REGISTERED[name]
    folder = Path(sys.argv[1]) / name.removeprefix("VLMRM/")
    folder.mkdir(parents=True, exist_ok=True)
    with closing(make_base_env(task, task.episode_length)) as env, closing(StateView(env)) as view:
        for number, frame in enumerate(view.draw(np.array(states))):
            iio.imwrite(folder / f"{number}.png", frame)
