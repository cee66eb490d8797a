"""Pairs of drawn cart-poles, and the pole's angle as pixels show it."""

import functools

import numpy as np

from vlmrm_gym.data.trajectory import Trajectory
from vlmrm_gym.learning.pairs import Pair
from vlmrm_gym.states.states import States
from vlmrm_gym.tasks.cartpole import CartPole

PROMPT = "pole vertically upright on top of the cart"
POLE, AXLE = (202, 152, 101), (129, 132, 203)


def draw_poles(states: States, size=None, views=None) -> np.ndarray:
    """uint8 (T, 1, 200, 300, 3), of rows (position, angle in degrees)."""
    return np.stack([_draw(*row) for row in states.rows.tolist()])[:, None]


@functools.cache
def _open() -> CartPole:
    env = CartPole(render_mode="rgb_array")
    env.reset()
    return env


@functools.cache
def _draw(position: float, angle: float) -> np.ndarray:
    _open().state = np.array([position, 0.0, np.deg2rad(angle), 0.0])
    return _open().render()[::2, ::2]


def measure_angle(frame: np.ndarray) -> float:
    """Degrees from upright of the pole in a picture, uint8 (H, W, 3), from 0 to 180."""

    def centre(color):
        return np.argwhere((frame == np.array(color)).all(-1)).mean(0)

    up, right = (centre(POLE) - centre(AXLE)) * [-1, 1]
    return abs(float(np.rad2deg(np.arctan2(right, up))))


def make_pair(first, second, prompt: str = PROMPT, **fields) -> Pair:
    """Segments of poles with these angles in degrees. Their task rewards are the negated angles."""
    rows = [np.array([[0.0, angle] for angle in np.atleast_1d(angles)]) for angles in (first, second)]
    sides = [Trajectory(states=States(own), task_rewards=-np.abs(own[:, 1])) for own in rows]
    return Pair(first=sides[0], second=sides[1], prompt=prompt, **{"draw": draw_poles, **fields})


def make_pairs(count: int, seed: int = 0, prompt: str = PROMPT) -> list[Pair]:
    """Pairs of single states whose angles differ by at least 5 degrees. `is_second(pair)` is right about them."""
    rng, pairs = np.random.default_rng(seed), []
    while len(pairs) < count:
        first, second = rng.uniform(2, 90, 2).round(2)
        if abs(first - second) >= 5:
            pairs.append(make_pair(first, second, prompt))
    return pairs


def accuracy(model, pairs: list[Pair]) -> float:
    """The fraction of pairs that a model orders by the angles, by its rewards of frames, uint8 (B, 1, H, W, 3)."""
    first, second = (model(np.concatenate([pair.frames[side] for pair in pairs])) for side in (0, 1))
    return float(np.mean((second > first) == [is_second(pair) for pair in pairs]))


def fit_to(pairs: list[Pair], answers: list[float]):
    """A model whose head is fitted to answers about pairs of single states."""
    from vlmrm_gym.learning.fitting import Comparisons, FitOptions, fit
    from vlmrm_gym.rewards.clip import EncoderFields
    from vlmrm_gym.rewards.preference_model import HeadReward, PreferenceHead

    model = HeadReward(EncoderFields(model="tiny"), device="cpu")
    frames = [frames[0, 0] for pair in pairs for frames in pair.frames]
    states = model.encode(np.stack(frames)).numpy()[:, None]  # (2 N, V, D)
    comparisons = Comparisons(
        features=states.reshape(len(pairs), 2, 1, *states.shape[1:]),
        preferences=np.array(answers, dtype=np.float32),
        confidences=np.ones(len(pairs), dtype=np.float32),
        held_out=np.zeros(len(pairs), dtype=bool),
    )
    model.head = PreferenceHead(states.shape[1:])
    fit(model.head, comparisons, states, FitOptions())
    return model


def is_second(pair: Pair) -> float:
    """1.0 if the second pole is nearer to upright, else 0.0."""
    first, second = (abs(side.states.rows[-1, 1]) for side in (pair.first, pair.second))
    return float(second < first)
