"""Compare the rendering qualities "fast" and "faithful": speed, pixel error, reward correlation.

    python benchmarks/rendering.py

Renders humanoid states from the bundled model's test distribution with the paper's camera in both qualities. Pixel
error: mean absolute difference, in grey levels of 255, at the size in the second column. Reward correlation: Pearson's,
between the bundled model's rewards of both, for each task's prompt, at the model's input size.
Classic control has one quality, so only frames/s are reported.
"""

import sys
import time
from pathlib import Path

import numpy as np
import tyro
from tqdm import tqdm

from vlmrm_gym import CLIPReward
from vlmrm_gym.states import Renderer
from vlmrm_gym.states.cameras import PAPER_CAMERA
from vlmrm_gym.states.classic_control import CartPoleRenderer, MountainCarRenderer
from vlmrm_gym.states.mujoco import MuJoCoRenderer
from vlmrm_gym.tasks import HUMANOID_PROMPTS
from vlmrm_gym.tasks.humanoid import textured_model
from vlmrm_gym.tasks.humanoid_body import plain_model

sys.path.insert(0, str(Path(__file__).parent.parent))
from bundled_model.domains import DOMAINS


def draw(renderer: Renderer, states: np.ndarray) -> tuple[np.ndarray, float]:
    """Render states; returns frames and frames/s."""
    renderer.render(states[:2])
    frames, seconds = [], 0.0
    for batch in np.array_split(states, max(1, len(states) // 20)):
        start = time.perf_counter()
        frames.append(renderer.render(batch))
        seconds += time.perf_counter() - start
    renderer.close()
    return np.concatenate(frames), len(states) / seconds


def main(states: int = 300) -> None:
    """Compare rendering qualities.

    Args:
        states: Number of states to render.
    """
    sample = DOMAINS["humanoid"].sample_states(states, np.random.default_rng(30_000))
    rewards = {task: CLIPReward("tiny", prompt=str(prompt)) for task, prompt in HUMANOID_PROMPTS.items()}
    looked_at = rewards["stand"].render_size(480, 480)[0]
    print(f"{'humanoid':10} {'size':>5} {'faithful/s':>11} {'fast/s':>8} {'ratio':>6} {'pixel error':>12}")
    lines = []
    for name, model in (("textured", textured_model()), ("plain", plain_model())):
        for size in (looked_at, 224):
            drawn = {
                quality: draw(MuJoCoRenderer(model, size, size, camera=PAPER_CAMERA, quality=quality), sample)
                for quality in tqdm(("faithful", "fast"), leave=False)
            }
            (faithful, slow), (fast, quick) = drawn["faithful"], drawn["fast"]
            error = np.abs(faithful.astype(np.int16) - fast).mean()
            print(f"{name:10} {size:5} {slow:11.1f} {quick:8.1f} {quick / slow:6.1f} {error:12.2f}")
            if size == looked_at:
                for task, reward in rewards.items():
                    correlation = np.corrcoef(reward(faithful), reward(fast))[0, 1]
                    lines.append(f"{name:10} {task:15} {correlation:.3f}")
    print("\nreward correlation of faithful and fast\n" + "\n".join(lines))
    print("\nclassic control, frames/s at 192x288")
    classic = {
        "cart-pole": CartPoleRenderer(192, 288),
        "mountain car, textured": MountainCarRenderer(192, 288, textured=True),
        "mountain car, plain": MountainCarRenderer(192, 288, textured=False),
    }
    for name, renderer in classic.items():
        domain = DOMAINS[name.partition(",")[0].replace("-", "")]
        print(f"{name:24} {draw(renderer, domain.sample_states(2000, np.random.default_rng(0)))[1]:8.0f}")


if __name__ == "__main__":
    tyro.cli(main)
