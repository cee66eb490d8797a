"""Measure the bundled model's warning about frames of unknown scenes: false alarms on its own, and what it detects.

    python -m bundled_model.evaluate_scenes

Own scenes: episodes of all registered IDs, of random, constant and goal behaviour and of any states; each is drawn in a
random look, from a random side of "around", in a random quality and size, and scored in one of the resize modes that
differ, at 480 pixels half of the time as recorded (`scenes.recorded`). Of an episode, about 12 frames are looked at,
the first two among them. Other scenes: environments of Gymnasium, cart-poles in other colours, and pictures; an episode
counts as detected if it would warn.
"""

import os

os.environ.setdefault("MUJOCO_GL", "egl")  # for Gymnasium's own viewers, which the other scenes are drawn with

# isort: split
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
import tyro
from numpy.typing import NDArray

from bundled_model.domains import DOMAINS, humanoid
from bundled_model.scenes import AROUND, RECORDED_SIZE, SIZES, activations, preprocessings, recorded
from vlmrm_gym.data.rollouts import constant_actions, play, random_actions
from vlmrm_gym.rewards.models import Preprocessing
from vlmrm_gym.rewards.tiny import scenes
from vlmrm_gym.states import StateView
from vlmrm_gym.states.classic_control import CartPoleRenderer, MountainCarRenderer
from vlmrm_gym.states.states import Renderer
from vlmrm_gym.tasks import TASKS, Task
from vlmrm_gym.tools.environments import make_unscored_env

BEHAVIOURS = ("random", "constant", "goal", "any")
"""Of episodes: random actions, an action constant for ten steps, goal states, and states of the training data."""
FAITHFUL_SHARE = 0.05
"""Fraction of humanoid episodes drawn in the quality "faithful"."""
GYMNASIUM = (
    *("Pendulum-v1", "Acrobot-v1", "Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Swimmer-v5", "Reacher-v5"),
    *("Pusher-v5", "InvertedPendulum-v5", "InvertedDoublePendulum-v5", "HumanoidStandup-v5"),
)
COLOURS = {"red": (220, 20, 20), "blue": (30, 30, 220), "green": (20, 160, 20), "black": (0, 0, 0), "grey": (128,) * 3}
POLE, CART, BACKGROUND = (202, 152, 101), (0, 0, 0), (255, 255, 255)
"""Colours of cart-pole."""

Frames = NDArray[np.uint8]


def main(episodes: int = 1200, other_episodes: int = 20, seed: int = 50_000, threads: int = 1) -> None:
    """Print both tables.

    Args:
        episodes: Number of episodes of each of the three domains.
        other_episodes: Number of episodes of each other scene.
        seed: Of states, actions and looks; must differ from that of `bundled_model.scenes`.
        threads: Of torch.
    """
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")  # Gymnasium's, about other versions
    rng = np.random.default_rng(seed)
    print(f"{'own scene':15}{'episodes':>9}{'alarms':>8}{'frames':>9}{'unknown':>9}{'farthest':>9}")
    for name in DOMAINS:
        distances = [_distances(*episode, rng) for episode in own_episodes(name, episodes, rng)]
        alarms, every = sum(map(alarmed, distances)), torch.cat(distances)
        figures = f"{len(every):9}{int((every > 1).sum()):9}{float(every.max()):9.2f}"
        print(f"{name:15}{len(distances):9}{alarms:8}{figures}", flush=True)
    print(f"{'other scene':28}{'detected':>9}{'unknown':>9}{'median distance':>16}")
    (squash,) = preprocessings("humanoid")
    for name, make in other_scenes(rng).items():
        distances = [
            torch.cat([scenes.distance(activations(f[None], squash)) for f in make(i)]) for i in range(other_episodes)
        ]
        every = torch.cat(distances)
        figures = f"{(every > 1).float().mean():9.0%}{float(every.median()):16.2f}"
        print(f"{name:28}{sum(map(alarmed, distances)) / len(distances):9.0%}{figures}", flush=True)


def alarmed(distances: torch.Tensor) -> bool:
    """Whether an episode's frames, one after the other, would raise the warning: see `SceneWatch`."""
    unknown = (distances > 1).cumsum(0)
    return bool((unknown >= scenes.MIN_UNKNOWN_SHARE * torch.arange(1, len(unknown) + 1)).any())


def own_episodes(
    name: str, count: int, rng: np.random.Generator
) -> Iterator[tuple[NDArray[np.float64], Renderer, Preprocessing]]:
    """States of each episode, with a renderer that `_distances` closes, and a preprocessing."""
    tasks = [task for task in TASKS if task.env.startswith(f"vlmrm_gym.tasks.{name.replace(' ', '_')}:")]
    for i in range(count):
        task, behaviour = tasks[i % len(tasks)], BEHAVIOURS[i // len(tasks) % len(BEHAVIOURS)]
        pixels = int(rng.choice([size for size, _ in SIZES], p=[share for _, share in SIZES]))
        seen = preprocessings(name)
        yield _states(name, task, behaviour, rng), _renderer(name, pixels, rng), seen[rng.integers(len(seen))]


def _states(name: str, task: Task, behaviour: str, rng: np.random.Generator) -> NDArray[np.float64]:
    if behaviour == "any":
        return DOMAINS[name].sample_states(12, rng)
    if behaviour == "goal":
        goals = task.make_states().goals(12, rng)
        return goals if len(goals) else DOMAINS[name].sample_states(12, rng)
    with closing(make_unscored_env(task.id)) as env, closing(StateView(env)) as view:
        act = (
            random_actions(env.action_space, rng)
            if behaviour == "random"
            else constant_actions(env.action_space, rng, 10)
        )
        rows = play(env, view, act, seed=int(rng.integers(2**31)), steps=task.episode_length).states.rows
    return np.concatenate([rows[:2], rows[2 :: max(1, len(rows) // 10)]])


def _renderer(name: str, pixels: int, rng: np.random.Generator) -> Renderer:
    if name == "cartpole":
        return CartPoleRenderer(pixels, pixels * 3 // 2)
    if name == "mountain car":
        return MountainCarRenderer(pixels, pixels * 3 // 2, textured=bool(rng.integers(2)))
    quality = "faithful" if rng.random() < FAITHFUL_SHARE else "fast"
    return humanoid.renderer(
        pixels, pixels, look=str(rng.choice(humanoid.LOOKS)), azimuth=int(rng.choice(AROUND)), quality=quality
    )


def _distances(
    states: NDArray[np.float64], renderer: Renderer, preprocessing: Preprocessing, rng: np.random.Generator
) -> torch.Tensor:
    with closing(renderer):
        frames = renderer.render(states)
    if frames.shape[1] >= RECORDED_SIZE and preprocessing.resize_mode == "squash" and rng.random() < 0.5:
        frames = recorded(frames, rng)
    return scenes.distance(activations(frames, preprocessing))


def other_scenes(rng: np.random.Generator) -> Mapping[str, Callable[[int], Iterator[Frames]]]:
    """Functions from a seed to the frames of an episode, each uint8 (H, W, 3)."""

    def played(
        id: str, recolour: Callable[[Frames], Frames] = lambda frame: frame
    ) -> Callable[[int], Iterator[Frames]]:
        def episode(seed: int) -> Iterator[Frames]:
            with closing(gym.make(id, render_mode="rgb_array")) as env:
                env.reset(seed=seed)
                env.action_space.seed(seed)
                for step in range(200):
                    _, _, terminated, truncated, _ = env.step(env.action_space.sample())
                    if step < 2 or step % 10 == 0:
                        yield recolour(np.asarray(env.render()))
                    if terminated or truncated:
                        return

        return episode

    def coloured(*changes: tuple[tuple[int, ...], tuple[int, ...]]) -> Callable[[Frames], Frames]:
        def recolour(frame: Frames) -> Frames:
            changed = frame.copy()
            for old, new in changes:
                changed[np.abs(frame.astype(int) - old).sum(-1) < 30] = new
            return changed

        return recolour

    def pictures(draw: Callable[[], Frames]) -> Callable[[int], Iterator[Frames]]:
        return lambda seed: (draw() for _ in range(18))

    def colour() -> Frames:
        return np.full((240, 320, 3), rng.integers(0, 256, 3, dtype=np.uint8))

    return {
        **{id: played(id) for id in GYMNASIUM},
        **{f"cart-pole, pole {name}": played("CartPole-v1", coloured((POLE, to))) for name, to in COLOURS.items()},
        "cart-pole, cart red": played("CartPole-v1", coloured((CART, COLOURS["red"]))),
        "cart-pole, pole red, cart blue": played(
            "CartPole-v1", coloured((CART, COLOURS["blue"]), (POLE, COLOURS["red"]))
        ),
        "cart-pole, grey background": played("CartPole-v1", coloured((BACKGROUND, (200, 200, 200)))),
        "random pixels": pictures(lambda: rng.integers(0, 256, (240, 320, 3), dtype=np.uint8)),
        "black": pictures(lambda: np.zeros((240, 320, 3), dtype=np.uint8)),
        "white": pictures(lambda: np.full((240, 320, 3), 255, dtype=np.uint8)),
        "one colour": pictures(colour),
        "like photographs (1/f)": pictures(lambda: _natural_texture(rng)),
    }


def _natural_texture(rng: np.random.Generator) -> Frames:
    """Noise whose amplitude falls with its frequency, as in photographs."""
    octaves = [
        F.interpolate(torch.from_numpy(rng.normal(size=(1, 3, k, k))), size=(240, 320), mode="bicubic") / k**0.8
        for k in (2, 4, 8, 16, 32, 64, 128)
    ]
    texture = torch.stack(octaves).sum(0)[0].permute(1, 2, 0).numpy()
    scaled = (texture - texture.mean()) / texture.std() * 55 + rng.uniform(80, 180, 3)
    return scaled.clip(0, 255).astype(np.uint8)


if __name__ == "__main__":
    tyro.cli(main)
