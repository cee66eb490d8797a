"""Requirements of the bundled model: cart-pole."""

import json

import numpy as np
import pytest
from conftest import HELD_OUT_FOLDER, TASK_PROMPT, cartpole_frame, embed, similarities
from scipy.stats import spearmanr

from vlmrm_gym import CLIPReward

ANGLES = np.arange(-90, 91, 2)
POSITIONS = np.linspace(-2, 2, 3)
HELD_OUT: dict[str, list[str]] = json.loads((HELD_OUT_FOLDER / "cartpole.json").read_text())


@pytest.fixture(scope="module")
def leaning_frames():
    """uint8 (positions * angles, 400, 600, 3), positions first."""
    return np.stack([cartpole_frame(angle, position) for position in POSITIONS for angle in ANGLES])


@pytest.fixture(scope="module")
def embeddings(leaning_frames):
    """Unit vectors of those frames: (positions, angles, D)."""
    return embed(leaning_frames).reshape(len(POSITIONS), len(ANGLES), -1)


@pytest.fixture(scope="module")
def cart_embeddings():
    """Unit vectors of carts along the track under an upright pole: (47, D)."""
    return embed(np.stack([cartpole_frame(0, position) for position in np.linspace(-2.3, 2.3, 47)]))


def test_task_reward_peaks_upright_and_falls_on_both_sides_also_when_regularised(leaning_frames):
    for alpha in (0.0, 0.5, 1.0):
        reward = CLIPReward("tiny", prompt=TASK_PROMPT, baseline="pole and cart", alpha=alpha)
        rewards = reward(leaning_frames).reshape(len(POSITIONS), len(ANGLES))
        for position, row in zip(POSITIONS, rewards, strict=True):
            rank = spearmanr(row, -abs(ANGLES)).statistic
            print(f"alpha {alpha}, cart at {position:+.0f}: peak at {ANGLES[row.argmax()]}, Spearman {rank:.3f}")
            assert abs(ANGLES[row.argmax()]) <= 2
            assert rank >= 0.95
            for side, sign in ((row[ANGLES <= 0], 1), (row[ANGLES >= 0], -1)):
                assert alpha or spearmanr(side, sign * np.arange(len(side))).statistic >= 0.99


def test_sides(embeddings):
    for verb in ("leaning", "fallen"):
        for side, sign in (("left", -1), ("right", 1)):
            rewards = similarities(embeddings, [f"pole {verb} to the {side}"])[..., 0]
            assert (ANGLES[rewards.argmax(1)] * sign > 10).all()


def understood(kind, embeddings, cart_embeddings):
    """bool (texts,): whether each held-out phrasing of a kind rewards the states it describes."""
    texts = HELD_OUT[kind]
    rewards = similarities(embeddings, texts).mean(0)
    peak = ANGLES[rewards.argmax(0)]
    place = np.linspace(-2.3, 2.3, 47)[similarities(cart_embeddings, texts).argmax(0)]
    rank = np.array([spearmanr(reward, -abs(ANGLES)).statistic for reward in rewards.T])
    return {
        "upright": (abs(peak) <= 2) & (rank >= 0.95),
        "lean_left": peak < -5,
        "lean_right": peak > 5,
        "fallen_left": peak < -45,
        "fallen_right": peak > 45,
        "fallen": (abs(peak) > 60) & (rank <= -0.7),
        "cart_left": place < -0.8,
        "cart_right": place > 0.8,
        "cart_middle": abs(place) < 0.8,
    }[kind]


def test_held_out_prompts_are_understood(embeddings, cart_embeddings):
    """Phrasings that no caption contains; README.md reports the share."""
    right = {kind: understood(kind, embeddings, cart_embeddings) for kind in HELD_OUT if kind != "unrelated"}
    for kind, own in right.items():
        missed = [text for text, ok in zip(HELD_OUT[kind], own, strict=True) if not ok]
        print(f"{kind}: {own.mean():.0%}", *missed, sep="\n    ")
        assert own.mean() >= 0.75, kind
    assert np.concatenate(list(right.values())).mean() >= 0.85
