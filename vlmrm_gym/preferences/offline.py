"""Fits a head to answers that a file has, with no environment that learns: `vlmrm-gym fit`."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.errors import InputError
from vlmrm_gym.preferences import fitting
from vlmrm_gym.preferences.answers import Record
from vlmrm_gym.preferences.fitting import Comparisons, FitOptions, Verdict
from vlmrm_gym.preferences.pairs import Pair, agreement, grade_differences
from vlmrm_gym.rewards.learned import Preference
from vlmrm_gym.rewards.preference_model import PreferenceHead
from vlmrm_gym.states.states import States

PAIRS_PER_CALL = 64
"""Pairs whose states are encoded together."""


def fit_answers(
    spec: Preference,
    fingerprint: str,
    pairs: Sequence[Pair],
    records: Sequence[Record],
    encode: Callable[[States], NDArray[np.float32]],
    options: FitOptions,
    seed: int,
) -> tuple[PreferenceHead, Verdict, dict[str, Any]]:
    """Fit a head to answers that have a preference, about pairs of segments of one length.

    All answers about a pair are held out, or none. `encode` makes features, float32 (N, V, D), of N states; the model's
    `fingerprint` goes into the head.

    Returns:
        The head; whether it predicts the held-out answers better than chance; and figures that JSON can hold.
    """
    numbers = {pair.key: number for number, pair in enumerate(pairs)}
    rows = np.array([numbers[record.pair] for record in records])
    order = np.random.default_rng(seed).permutation(len(pairs))
    asked = Comparisons(
        features=np.empty((len(records), 0), dtype=np.float32),
        preferences=np.array([record.answer.preference for record in records], dtype=np.float32),
        confidences=np.array([record.answer.confidence for record in records], dtype=np.float32),
        held_out=np.isin(rows, order[: round(options.held_out * len(pairs))]),
    )
    if (obstacle := fitting.find_obstacle(asked, options)) is not None:
        raise InputError(f"The answers cannot be fitted. {obstacle} Ask about more pairs.")
    if len(lengths := {len(side) for pair in pairs for side in (pair.first, pair.second)}) > 1:
        raise InputError(f"All segments must have the same length. Received answers about {sorted(lengths)} states.")
    parts = [_encode(pairs[i : i + PAIRS_PER_CALL], encode) for i in range(0, len(pairs), PAIRS_PER_CALL)]
    features = np.concatenate(parts)
    comparisons = replace(asked, features=features[rows])
    shape = features.shape[3:]
    head = PreferenceHead(
        shape,
        ensemble=spec.ensemble,
        hidden_size=spec.hidden_size,
        fingerprint=fingerprint,
        prompt=str(spec.prompt),
        seed=seed,
    )
    loss = fitting.fit(head, comparisons, features.reshape(-1, *shape), options, seed)
    verdict = fitting.judge(head, None, comparisons, options)
    held_out = comparisons[comparisons.held_out]
    said = fitting.predict(head, held_out.features)
    measured = {
        "answers": len(held_out),
        "accuracy": verdict.held_out_accuracy,
        "accuracy_by_grade": agreement(said, grade_differences(pairs)[rows][comparisons.held_out]),
        "cross_entropy": verdict.held_out_loss,
        "cross_entropy_of_chance": math.log(2),
    }
    figures = {
        "accepted": verdict.accepted,
        "held_out": {name: None if math.isnan(figure) else figure for name, figure in measured.items()},
        "fitted": {"answers": len(records) - len(held_out), "cross_entropy": loss},
        "segment_length": lengths.pop(),
    }
    return head, verdict, figures


def _encode(pairs: Sequence[Pair], encode: Callable[[States], NDArray[np.float32]]) -> NDArray[np.float32]:
    """The features of N pairs, float32 (N, 2, T, V, D)."""
    features = encode(States.concatenate([side.states for pair in pairs for side in (pair.first, pair.second)]))
    return features.reshape(len(pairs), 2, -1, *features.shape[1:])
