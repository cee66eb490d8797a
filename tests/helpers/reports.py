"""Reports of checks, made of NumPy: as long as real ones, and one in which nothing was measured."""

import numpy as np

from vlmrm_gym.rewards.clip import CLIP
from vlmrm_gym.tools.check.measures import Control, Interval, measure_agreement
from vlmrm_gym.tools.check.results import (
    AdversarialSearch,
    Candidate,
    ContactSheet,
    Exploit,
    Landscape,
    MeasuredCandidate,
    Measures,
    Report,
)

PROMPT = "a humanoid robot kneeling"


def draw_frames(count: int, side: int, rng: np.random.Generator) -> np.ndarray:
    """Discs before a gradient: uint8 (count, side, side, 3)."""
    y, x = np.mgrid[:side, :side] / side
    frames = np.empty((count, side, side, 3))
    for frame in frames:
        center, radius, color = rng.uniform(0.2, 0.8, 2), rng.uniform(0.05, 0.2), rng.uniform(0, 255, 3)
        frame[:] = 150 + 80 * np.stack([1 - y, 1 - 0.5 * y, 0.6 + 0.4 * x], axis=-1)
        frame[np.hypot(y - center[0], x - center[1]) < radius] = color
    return frames.clip(0, 255).astype(np.uint8)


PROVENANCE = {"Date": "2026-01-02 03:04 +0000", "Weights": "tiny, SHA-256 0123456789ab", "Seed": "0"}


def make_candidate(prompt: str = PROMPT, alpha: float = 0.0, camera: str = "front-side") -> Candidate:
    return Candidate(
        name=prompt,
        reward=CLIP(prompt=prompt, baseline="a humanoid robot", alpha=alpha, model="ViT-bigG-14/laion2b_s39b_b160k"),
        textured=True,
        camera_name=camera,
        camera=None if camera == "own" else camera,
        combine_views="min" if camera == "front-side" else None,
    )


def full_report(prompt: str = PROMPT, *, side: int = 120) -> Report:
    """A report with every section: 5 exploits of 2 views, 2 contact sheets of 24 frames, 12 combinations.

    Frames have `side` x `side` pixels.
    """
    rng = np.random.default_rng(0)
    success = rng.random(2000) < 0.2
    rewards = np.where(success, rng.normal(0.7, 0.08, 2000), rng.normal(0.45, 0.15, 2000))
    failed = {"knees below 0.35 m": 1.2, "feet behind the knees": 0.04}
    exploits = [
        Exploit(
            state=np.zeros(2),
            reward=0.83 - 0.03 * number,
            frames=draw_frames(2, side, rng),
            failed={"torso upright": 6.31 - number, **failed},
        )
        for number in range(5)
    ]
    table = [
        MeasuredCandidate(
            candidate=make_candidate(
                prompt if number < 6 else "kneeling", number % 3 / 2, ("front-side", "own")[number % 2]
            ),
            measures=Measures(
                states="rollouts",
                auc=Interval(0.95 - 0.035 * number, 0.93 - 0.035 * number, 0.97 - 0.035 * number),
                epic=Interval(0.2 + 0.04 * number, 0.18 + 0.04 * number, 0.22 + 0.04 * number),
                control_auc=0.61 if number != 9 else None,
                exploit_excess=0.3 - 0.1 * number,
            ),
        )
        for number in range(12)
    ]
    line, rising = np.linspace(0, 1, 30), np.linspace(0.2, 0.7, 30)
    shown = [
        ("Leaning to a side", {"alpha 0": rising, "alpha 1": rising**2}, line > 0.8),
        ("Height of the knees", {prompt: rising, "kneeling": rising**2}, None),
    ]
    sheets = [("Rollouts", 1, np.arange(24) < 9), ("Rollouts of a run, from two sides", 2, None)]
    known = [("another prompt", 0.61), ("no robot", 0.53)]
    return Report(
        subject="VLMRM/Humanoid-v0",
        candidate=table[0].candidate,
        measures=table[0].measures,
        landscapes=[
            Landscape(title=title, axis="height (m)", positions=line, curves=curves, goal=goal)
            for title, curves, goal in shown
        ],
        agreements={
            "rollouts": measure_agreement(rewards, success, resamples=20),
            "around the poses": measure_agreement(rewards[success], np.ones(success.sum(), dtype=bool)),
        },
        exploits=AdversarialSearch(
            knows_success=True,
            exploits=exploits,
            median_success=0.707,
            true_frames=draw_frames(2, side, rng),
            scored=12_800,
        ),
        controls=[Control(name=name, auc=auc, chance=0.55) for name, auc in known],
        sheets=[
            ContactSheet(
                title=title,
                frames=np.concatenate([draw_frames(24, side, rng)] * views, axis=2),
                rewards=np.sort(rng.uniform(0.2, 0.8, 24))[::-1],
                success=successes,
            )
            for title, views, successes in sheets
        ],
        table=table,
        notes=["The run of seed 3 was left out: it has no videos."],
        seconds=149.0,
        command=f'vlmrm-gym check VLMRM/Humanoid-v0 --prompt "{prompt}" --camera front-side --alpha 0 0.5 1 --out x',
        provenance=PROVENANCE,
    )


def minimal_report() -> Report:
    """A report of an environment whose success is unknown, in which nothing could be measured."""
    candidate = Candidate(
        name="x",
        reward=CLIP(prompt="x", model="tiny"),
        textured=None,
        camera_name="own",
        camera=None,
        combine_views=None,
    )
    return Report(
        subject="Mine-v0",
        candidate=candidate,
        measures=Measures(),
        agreements={},
        exploits=AdversarialSearch(left_out="The states cannot be set, so that none were searched."),
        controls=[],
        command="vlmrm-gym check Mine-v0 --prompt x",
        provenance=PROVENANCE,
    )
