"""Analyse the states that a trained humanoid of `examples/sac_continuous.py` visits: success conditions and rewards.

    python benchmarks/humanoid_agent.py runs/VLMRM_Humanoid-arms-raised-v0__sac_continuous__1__1700000000

Plays episodes with the best policy and reports on their states, without the first 20 steps of each: which success
conditions hold, where the torso leans, and the rewards of successful states, failed states and the library's pose for
the task, seen from several sides. `--picture` draws the failure with the highest reward from the first side, from all
sides.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import imageio.v3 as iio
import numpy as np
import tyro

import vlmrm_gym
from vlmrm_gym.data.metrics import auc
from vlmrm_gym.states.cameras import PAPER_CAMERA
from vlmrm_gym.states.mujoco import MuJoCoRenderer
from vlmrm_gym.tasks import HUMANOID_PROMPTS, humanoid_success
from vlmrm_gym.tasks.humanoid import textured_model
from vlmrm_gym.tasks.humanoid_body import Body, plain_model
from vlmrm_gym.tasks.humanoid_poses import TASK_POSES, pose

sys.path.insert(0, str(Path(__file__).parent.parent))
from bundled_model.agent_states import sac_continuous, visited


def main(
    run: Annotated[Path, tyro.conf.Positional],
    episodes: int = 8,
    azimuths: tuple[float, ...] = (180.0, 135.0, 90.0),
    picture: Path | None = None,
) -> None:
    """Check and score an agent's states.

    Args:
        run: The run's folder.
        episodes: Number of episodes.
        azimuths: Sides to look from, in degrees; 180 is the front.
        picture: File for a failure, seen from all sides.
    """
    saved = json.loads((run / "result.json").read_text())["args"]
    args = sac_continuous.Args(**{key: saved[key] for key in ("env_id", "textured", "model")})
    task = args.env_id.removeprefix("VLMRM/Humanoid-").removesuffix("-v0")
    states = visited(run, episodes, seed=0, deterministic=True)[20 * episodes :]
    body, success = Body(states), humanoid_success.succeeds(task, states)
    margins = humanoid_success.SUCCESS_CRITERIA[task](body)
    spine = body.direction("torso", 2)
    degrees = np.rad2deg(np.arcsin([body.ahead(spine), body.leftward(spine)])).mean(1)
    print(f"{task}: {success.mean():.0%} of {len(states)} states succeed")
    print("conditions hold: " + ", ".join(f"{name} {(margin >= 0).mean():.0%}" for name, margin in margins.items()))
    print(f"the torso leans {degrees[0]:+.0f} degrees ahead, {degrees[1]:+.0f} to its left, on average")
    print("| azimuth | reward of successes | of failures | AUC | of the library's pose |\n|---|---|---|---|---|")
    rewards = {azimuth: score(args, task, azimuth, states) for azimuth in azimuths}
    for azimuth, own in rewards.items():
        ideal = score(args, task, azimuth, pose(*TASK_POSES[task])[None])
        rank = f"{auc(own, success):.2f}" if 0 < success.mean() < 1 else "-"
        means = [f"{own[which].mean():.3f}" if which.any() else "-" for which in (success, ~success)]
        print(f"| {azimuth:.0f} | {means[0]} | {means[1]} | {rank} | {ideal[0]:.3f} |")
    if picture is not None:
        best = np.where(success, -np.inf, rewards[azimuths[0]]).argmax()
        print(f"in {picture}: rewards " + ", ".join(f"{own[best]:.2f}" for own in rewards.values()))
        views = [draw(args, azimuth, states[best][None], 480, 480) for azimuth in azimuths]
        iio.imwrite(picture, np.concatenate(views, axis=2)[0], quality=90)


def score(args: sac_continuous.Args, task: str, azimuth: float, states: np.ndarray) -> np.ndarray:
    """Rewards of states seen from one side, float32 (N,)."""
    reward = vlmrm_gym.CLIPReward(args.model, prompt=str(HUMANOID_PROMPTS[task]))
    return np.asarray(reward(draw(args, azimuth, states, *reward.render_size(480, 480))))


def draw(args: sac_continuous.Args, azimuth: float, states: np.ndarray, height: int, width: int) -> np.ndarray:
    """Frames of states seen from one side, uint8 (N, height, width, 3)."""
    model = textured_model() if args.textured else plain_model()
    renderer = MuJoCoRenderer(model, height, width, camera={**PAPER_CAMERA, "azimuth": azimuth}, quality="fast")
    frames = renderer.render(states)
    renderer.close()
    return frames


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
