"""Draw the rewards of a prompt, of goal images and of both over known states: docs/landscapes_goals.png.

python docs/make_landscapes.py
"""

from contextlib import closing
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from vlmrm_gym import CLIP
from vlmrm_gym.envs.make import draw_goals, make_base_env
from vlmrm_gym.states import StateView
from vlmrm_gym.tasks import REGISTERED

FILE = Path(__file__).parent / "landscapes_goals.png"
POSES = ("kneel", "splits", "arms-raised")


def rewards_of(prompt: Any, images: Any) -> dict[str, Any]:
    """The models of a prompt, of goal images and of both."""
    specs = {"prompt": {"prompt": prompt}, "goal images": {"goal_images": images}}
    specs["both"] = specs["prompt"] | specs["goal images"]
    return {name: CLIP(model="tiny", **options).build("cpu") for name, options in specs.items()}


figure, axes = plt.subplots(2, 3, figsize=(11, 6), layout="constrained")

task = REGISTERED["VLMRM/CartPole-v1"]
with closing(make_base_env(task, 200)) as env, closing(StateView(env)) as view:
    angles, positions = np.radians(np.linspace(-180, 180, 73)), np.linspace(-2.4, 2.4, 25)
    frames = view.draw(np.array([[x, angle] for x in positions for angle in angles]))
    upright = list(view.draw(np.array([[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])))
    for axis, (name, model) in zip(axes[0], rewards_of(task.prompt, upright).items(), strict=True):
        rewards = np.concatenate([model(part) for part in np.array_split(frames, 20)])
        shown = axis.pcolormesh(np.degrees(angles), positions, rewards.reshape(len(positions), -1), shading="nearest")
        figure.colorbar(shown, ax=axis)
        axis.set(title=f"cart-pole: {name}", xlabel="angle of the pole (degrees)", ylabel="position of the cart (m)")

fractions = np.linspace(0, 1, 31)
for axis, name in zip(axes[1], POSES, strict=True):
    task = REGISTERED[f"VLMRM/Humanoid-{name}-v0"]
    with closing(make_base_env(task, 100)) as env, closing(StateView(env, task.camera)) as view:
        frames = view.draw(task.make_states().on_the_way(fractions))
        for label, model in rewards_of(task.prompt, draw_goals(task, camera=task.camera)).items():
            axis.plot(fractions, model(frames), label=label)
    axis.set(title=f"humanoid: from standing to {name}", xlabel="share of the way", ylabel="reward", ylim=(-0.1, 1.05))
    axis.legend()

figure.savefig(FILE, dpi=90)
