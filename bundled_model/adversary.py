"""Humanoid states that fool a reward: states that fail a task and get rewards like those that succeed.

The searches are `bundled_model.evolution` and `vlmrm_gym.tools.check.exploits`; here are the humanoid's poses, how they
mutate, and from where they are looked at. A state is wrong if it fails a condition of success (`humanoid_success`) by
more than half a unit of its margin; what fails by less is a near miss and does not count.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from bundled_model.domains import humanoid
from bundled_model.domains.humanoid_states import LIMBS
from bundled_model.evolution import evolve
from vlmrm_gym.rewards.models import Preprocessing
from vlmrm_gym.states.mujoco import MuJoCoRenderer
from vlmrm_gym.tasks.humanoid_body import Body
from vlmrm_gym.tasks.humanoid_poses import near_poses, on_floor
from vlmrm_gym.tasks.humanoid_success import SUCCESS_CRITERIA, soft_success
from vlmrm_gym.tasks.known_states import NEAR_MISS, worst_margin
from vlmrm_gym.tools.check.exploits import Failures, search

FRONT, SIDE = 180, 90
"""Azimuths of the paper's camera, in front of the robot, and of one at its right."""
_ROOT = slice(3, 7)
"""Where `qpos` keeps the orientation of the torso."""
_POOL = 4
"""How many poses are drawn for each one that a search starts from."""

States = NDArray[np.float64]
"""`qpos`, float64 (N, 24)."""
Encode = Callable[[torch.Tensor], torch.Tensor]
"""Images that fit the image tower, uint8 (N, 3, height, width), to unit vectors, float32 (N, D)."""


def is_wrong(task: str, states: States) -> NDArray[np.bool_]:
    """Whether states fail a condition of a task by more than a near miss: bool (N,)."""
    return _worst(task, states) < -NEAR_MISS


def initial_states(task: str, count: int, rng: np.random.Generator) -> States:
    """Where a search starts: half of them the closest of many poses to the task that are wrong, half any poses."""
    pool = near_poses(_POOL * count, rng)
    pool = pool[is_wrong(task, pool)]
    closeness = soft_success(SUCCESS_CRITERIA[task](Body(pool)).values())
    closest = np.argsort(-closeness, kind="stable")[: count // 2]
    return np.concatenate([pool[closest], near_poses(count - count // 2, rng)])


def mutate(states: States, rng: np.random.Generator) -> States:
    """Change joints, the tilt or whole limbs of every state, within the joints' limits, and put it on the floor."""
    changed, count = states.copy(), len(states)
    scale = np.deg2rad(rng.choice([2.0, 6.0, 15.0, 40.0], count))[:, None]
    chosen = rng.random((count, 17)) < rng.choice([0.1, 0.3, 1.0], count)[:, None]
    changed[:, 7:] += chosen * scale * rng.normal(size=(count, 17))
    for limb in LIMBS:
        swapped = np.flatnonzero(rng.random(count) < 0.08)
        changed[swapped, limb] = states[rng.integers(count, size=len(swapped)), limb]
    tilted = (rng.random((count, 1)) < 0.5) * scale * rng.normal(size=(count, 2))
    changed[:, _ROOT] = _turned(changed[:, _ROOT], tilted)
    return on_floor(changed)


def _turned(quaternions: NDArray[np.float64], tilt: NDArray[np.float64]) -> NDArray[np.float64]:
    """Orientations, float64 (N, 4), turned about the horizontal axes of the world by angles in radians, (N, 2)."""
    (x, y), (w, a, b, c) = tilt.T / 2, quaternions.T
    # The product of (1, x, y, 0), a small turn once normalised, with (w, a, b, c).
    turned = np.stack([w - x * a - y * b, a + x * w + y * c, b - x * c + y * w, c + x * b - y * a], axis=1)
    return turned / np.linalg.norm(turned, axis=1, keepdims=True)


def _worst(task: str, states: States) -> NDArray[np.float64]:
    return worst_margin(SUCCESS_CRITERIA[task](Body(states)).values())


class Views:
    """Renders and encodes humanoid states from several cameras, in several looks. Keeps what it has drawn, if asked.

    Args:
        encode: The image tower.
        preprocessing: Of the image tower.
        keep: Whether `drawn` collects every state and its image.
    """

    def __init__(self, encode: Encode, preprocessing: Preprocessing, *, keep: bool = False) -> None:
        self._encode, self._preprocessing, self._keep = encode, preprocessing, keep
        self._renderers: dict[tuple[str, int], MuJoCoRenderer] = {}
        self.drawn: list[tuple[States, torch.Tensor, torch.Tensor]] = []
        """States, images uint8 (N, 3, height, width) and unit vectors float32 (N, D), batch after batch."""

    def __call__(self, states: States, look: str, azimuth: int) -> NDArray[np.float32]:
        """The image tower's unit vectors of states: float32 (N, D)."""
        if (look, azimuth) not in self._renderers:
            size = self._preprocessing.render_size(*humanoid.SHAPE)
            self._renderers[look, azimuth] = humanoid.renderer(*size, look=look, azimuth=azimuth)
        renderer = self._renderers[look, azimuth]
        vectors = []
        for batch in np.array_split(states, max(1, len(states) // 64)):
            frames = torch.from_numpy(renderer.render(batch))
            images = self._preprocessing.fit(frames.permute(0, 3, 1, 2))
            vectors.append(self._encode(images))
            if self._keep:
                self.drawn.append((batch, images.contiguous(), vectors[-1]))
        return torch.cat(vectors).numpy()

    def lowest(self, goal: NDArray[np.float32], look: str, azimuths: Sequence[int]) -> Callable[[States], np.ndarray]:
        """The reward of states for a goal, a unit vector float32 (D,): the minimum over the views, float32 (N,)."""
        return lambda states: np.min([self(states, look, azimuth) @ goal for azimuth in azimuths], axis=0)

    def close(self) -> None:
        """Free the OpenGL contexts."""
        for renderer in self._renderers.values():
            renderer.close()
        self._renderers.clear()


def search_wrong(
    task: str, reward: Callable[[States], np.ndarray], *, lines: int = 96, rounds: int = 10, seed: int = 0
) -> Failures:
    """Search for states that are wrong for a task and highly rewarded, with an evolution strategy."""
    population = initial_states(task, lines, np.random.default_rng(seed))
    return evolve(reward, lambda states: is_wrong(task, states), population, mutate, rounds=rounds, seed=seed)


def search_wrong_cma(
    task: str, reward: Callable[[States], np.ndarray], *, evaluations: int = 1000, seed: int = 0
) -> Failures:
    """The same by the library's search, CMA-ES: another optimiser, as a cross-check.

    Joints and the tilt of the torso, 19 numbers in units of 11 degrees, vary freely.
    """

    def perturb(states: States, offsets: NDArray[np.float64]) -> States:
        changed, angles = states.copy(), np.deg2rad(11) * offsets
        changed[:, _ROOT] = _turned(states[:, _ROOT], angles[:, :2])
        changed[:, 7:] += angles[:, 2:]
        return on_floor(changed)

    starts = initial_states(task, max(8, evaluations // 10), np.random.default_rng(seed))
    return search(
        reward,
        lambda states: is_wrong(task, states),
        starts,
        perturb,
        dimensions=19,
        evaluations=evaluations,
        seed=seed,
    )
