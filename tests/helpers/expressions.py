"""Rewards of `Counting` that are made of others, and what they pay by NumPy."""

import numpy as np
from hypothesis import strategies as st
from reward_models import PixelReward

import vlmrm_gym
from vlmrm_gym import Progress, Success


def value(numbers):
    """A score of the number that a frame encodes, from 0 to 1."""
    return (numbers * 7919 % 101) / 101


class Scored(PixelReward):
    """Each is an encoder of its own, but for those of one `key`."""

    def __init__(self, power=1.0, **settings):
        super().__init__()
        self.power, self.feature_size = power, 1
        vars(self).update(settings)

    def encode(self, frames):
        if self.clip_length > 1:
            pixels = [super(Scored, self).encode(frames[:, k]) for k in range(self.clip_length)]
            weights = np.arange(1, self.clip_length + 1) / self.clip_length
            return sum(weight * value(one) for weight, one in zip(weights, pixels, strict=True)).astype(np.float32)
        return value(super().encode(frames)).astype(np.float32)

    def head(self, features):
        return features[:, 0, 0] ** self.power


class Shared(Scored):
    encoder_key = "shared"


MODELS = {
    "plain": lambda: Scored(2.0),
    "shared": lambda: Shared(1.0),
    "shared, too": lambda: Shared(3.0),
    "window": lambda: Scored(clip_length=3, clip_stride=2),
    "prefix": lambda: Scored(clip_length=4, clip="prefix"),
    "held": lambda: Scored(every=3),
    "function": lambda: brightness,
}
"""Makes the rewards that expressions are made of, by name."""


def brightness(frames):
    return frames.mean((1, 2, 3)) / 255


def scores_of(name, numbers):
    """The scores of an episode of T steps, float64 (T + 1,), of the number before the first action, too."""
    numbers = np.asarray(numbers)
    count, model = len(numbers) - 1, MODELS[name]()
    if name == "function":
        red, green = numbers % 256, numbers // 256
        return (red + green) / 12 / 255
    if name == "held":
        rows = [[0], *([1 + t // 3 * 3] for t in range(count))]
    elif name == "window":
        rows = [[0] * 3, *([max(1, t - 4), max(1, t - 2), t] for t in range(1, count + 1))]
    elif name == "prefix":
        rows = [np.rint(np.linspace(0, t, 4)).astype(int).tolist() for t in range(count + 1)]
    else:
        rows = [[t] for t in range(count + 1)]
    length = len(rows[0])
    weights = np.arange(1, length + 1) / length
    return (value(numbers[np.array(rows)]) @ weights) ** model.power


def evaluate(expression, numbers):
    """What an expression pays for an episode, by definition: float64 (T + 1,), 0 before the first action."""
    kind, *rest = expression
    if kind == "reward":
        return scores_of(rest[0], numbers)
    if kind == "sum":
        return sum(weight * evaluate(one, numbers) for weight, one in rest[0]) + rest[1]
    scores = evaluate(rest[0], numbers)
    if kind == "progress":
        return np.concatenate([[0], rest[1] * scores[1:] - scores[:-1]])
    if kind == "best":
        return np.concatenate([[0], np.maximum(0, scores[1:] - np.maximum.accumulate(scores)[:-1])])
    high, run = np.float32(scores) >= np.float32(rest[1]), np.zeros(len(scores), dtype=int)
    for t in range(1, len(scores)):
        run[t] = run[t - 1] + 1 if high[t] else 0
    return (run >= rest[2]).astype(float)


def make_reward(expression, models=None):
    """The reward that an expression describes."""
    models = {name: make() for name, make in MODELS.items()} if models is None else models
    kind, *rest = expression
    if kind == "reward":
        return vlmrm_gym.Sum(terms=[(1.0, models[rest[0]])])
    if kind == "sum":
        return sum((weight * make_reward(one, models) for weight, one in rest[0]), rest[1])
    part = make_reward(rest[0], models)
    if kind == "success":
        return Success(part, threshold=rest[1], hold=rest[2])
    return Progress(part, best=True) if kind == "best" else Progress(part, gamma=rest[1])


leaves = st.sampled_from(list(MODELS)).map(lambda name: ("reward", name))
weights = st.sampled_from([-1.5, -0.25, 0.5, 1.0, 2.0])


def combine(parts):
    """One more level."""
    return st.one_of(
        st.tuples(
            st.just("sum"), st.lists(st.tuples(weights, parts), min_size=1, max_size=3), st.sampled_from([0.0, 0.5])
        ),
        st.tuples(st.just("progress"), parts, st.sampled_from([1.0, 0.9])),
        st.tuples(st.just("best"), parts),
        # Between the values that scores have, so that rounding decides nothing.
        st.tuples(st.just("success"), leaves, st.sampled_from([0.203, 0.453]), st.integers(1, 3)),
    )


expressions = combine(st.one_of(leaves, combine(st.one_of(leaves, combine(leaves)))))
"""Expressions of depth 3 at most."""
