"""Fits heads to comparisons (Bradley-Terry), and decides whether a new head replaces the old one."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from vlmrm_gym._util.errors import InputError
from vlmrm_gym._util.validation import check_fraction, check_not_negative
from vlmrm_gym.learning.answers import Record
from vlmrm_gym.learning.pairs import Answer, Pair, agreement, grade_differences
from vlmrm_gym.rewards.clip import check_count, checked
from vlmrm_gym.rewards.learned import Preference
from vlmrm_gym.rewards.preference_model import PreferenceHead
from vlmrm_gym.states.states import States

_SEGMENTS = 128
"""Segments whose states are encoded together."""


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Options of fitting a head to comparisons."""

    epochs: int = field(default=50, metadata={"check": check_count})
    """Passes over the answers."""
    batch_size: int = field(default=64, metadata={"check": check_count})
    """Answers of a gradient step."""
    learning_rate: float = field(default=1e-3, metadata={"check": check_not_negative})
    """Learning rate of Adam."""
    l2: float = field(default=40.0, metadata={"check": check_not_negative})
    """L2 regularisation: half of this times the sum of all squared weights of a network is added to the sum of its
    losses over all answers. So it counts for less, the more answers there are."""
    held_out: float = field(default=0.2, metadata={"check": check_fraction})
    """Fraction of the answers that are not fitted: they decide whether a new head replaces the old one."""
    newest_held_out: int = field(default=100, metadata={"check": check_count})
    """How many of these decide: the newest, since the states that agents visit change."""
    min_answers: int = field(default=10, metadata={"check": check_count})
    """The least number of answers that a head is fitted to."""

    def __post_init__(self) -> None:
        checked(self)
        if self.held_out in (0, 1):
            raise ValueError(f"`held_out` must be between 0 and 1. Received {self.held_out!r}.")


@dataclass(frozen=True, eq=False, kw_only=True)
class Comparisons:
    """Holds N answered comparisons of two segments of T states."""

    features: NDArray[np.float32]
    """float32 (N, 2, T, V, D), of the first and of the second segment."""
    preferences: NDArray[np.float32]
    """float32 (N,): probability that the second is closer to the goal."""
    confidences: NDArray[np.float32]
    """float32 (N,): weights, from 0 to 1."""
    held_out: NDArray[np.bool_]
    """bool (N,): comparisons that are not fitted."""

    @classmethod
    def of(cls, features: NDArray[np.float32], answers: Sequence[Answer], held_out: NDArray[np.bool_]) -> "Comparisons":
        """Make comparisons of answers with a preference, and of the features of their pairs."""
        given = [(answer.preference, answer.confidence) for answer in answers]
        preferences, confidences = np.array(given, dtype=np.float32).reshape(-1, 2).T
        return cls(features=features, preferences=preferences, confidences=confidences, held_out=held_out)

    def __len__(self) -> int:
        return len(self.preferences)

    def __getitem__(self, index: Any) -> "Comparisons":
        return Comparisons(**{name: column[index] for name, column in vars(self).items()})

    def __add__(self, newer: "Comparisons") -> "Comparisons":
        return Comparisons(**{name: np.concatenate([vars(one)[name] for one in (self, newer)]) for name in vars(self)})


def member_logits(head: PreferenceHead, features: torch.Tensor) -> torch.Tensor:
    """Compute each network's log-odds, (E, N), that the second segments are closer: rewards of states add up.

    See Christiano et al. (2017). Features are float32 (N, 2, T, V, D), or (E, N, 2, T, V, D): others for each network.
    """
    rewards = head.members(features.flatten(-5, -3)).unflatten(1, features.shape[-5:-2])
    first, second = rewards.sum(-1).unbind(-1)
    return second - first


@torch.no_grad()
def predict(head: PreferenceHead, features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute a head's log-odds, float32 (N,), that the second segments are closer, of features (N, 2, T, V, D)."""
    return member_logits(head, torch.from_numpy(features)).mean(0).numpy()


@torch.no_grad()
def cross_entropy(head: PreferenceHead, comparisons: Comparisons) -> tuple[float, float]:
    """Measure how well a head, the mean of its networks, predicts answers.

    Returns the cross-entropy in nats, weighted by confidence, of which one must be above 0; and the accuracy on
    answers other than 0.5, NaN if there is none.
    """
    answers, weights = torch.from_numpy(comparisons.preferences), torch.from_numpy(comparisons.confidences)
    logits = torch.from_numpy(predict(head, comparisons.features))
    losses = F.binary_cross_entropy_with_logits(logits, answers, reduction="none")
    decided = answers != 0.5
    right = ((logits > 0) == (answers > 0.5))[decided].float()
    return float((weights * losses).sum() / weights.sum()), float(right.mean())


@torch.no_grad()
def disagreement(head: PreferenceHead, features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute the networks' standard deviation of the probability that the second is closer (B-Pref): float32 (N,)."""
    return member_logits(head, torch.from_numpy(features)).sigmoid().std(0, correction=0).numpy()


def make_head(spec: Preference, shape: Sequence[int], fingerprint: str, seed: int) -> PreferenceHead:
    """Make a head that has not been fitted, of features (V, D)."""
    make = PreferenceHead if spec.init is None else partial(PreferenceHead.starting_from, spec.init)
    sizes = {"ensemble": spec.ensemble, "hidden_size": spec.hidden_size}
    return make(shape, **sizes, fingerprint=fingerprint, prompt=spec.prompt, seed=seed)


def fit(
    head: PreferenceHead, comparisons: Comparisons, logged: NDArray[np.float32], options: FitOptions, seed: int = 0
) -> float:
    """Fit a new head, in place, to the comparisons that are not held out. Returns the loss in the last epoch, in nats.

    Each network goes through them in an order of its own. The loss is the cross-entropy of the answers, soft ones and
    ties included, weighted by their confidences. `logged` are features of states of the log, float32 (N, V, D): the
    head is standardised with them.
    """
    fitted = comparisons[~comparisons.held_out]
    features, answers, weights = map(torch.from_numpy, (fitted.features, fitted.preferences, fitted.confidences))
    states = torch.from_numpy(logged)
    head.scale_features(states)
    optimizer = torch.optim.Adam(head.parameters(), lr=options.learning_rate)
    generator, loss_sum = torch.Generator().manual_seed(seed), 0.0
    for _ in range(options.epochs):
        orders = torch.stack([torch.randperm(len(fitted), generator=generator) for _ in range(head.ensemble)])
        loss_sum = 0.0
        for rows in orders.split(options.batch_size, dim=1):  # (E, B): other comparisons for each network
            logits = member_logits(head, features[rows])
            losses = F.binary_cross_entropy_with_logits(logits, answers[rows], reduction="none")
            penalty = sum(weight.square().sum() for weight in head.weights) * (options.l2 / 2 / len(fitted))
            loss = (weights[rows] * losses).mean(1).sum()
            optimizer.zero_grad()
            (loss + penalty).backward()
            optimizer.step()
            loss_sum += float(loss.detach()) * rows.shape[1] / head.ensemble
    head.standardise(states)
    head.requires_grad_(False)
    return loss_sum / float(weights.sum().clamp_min(1e-9))


class Verdict(NamedTuple):
    """The decision whether a new head replaces the old one, and why."""

    accepted: bool
    reason: str
    """A sentence."""
    held_out_loss: float = np.nan
    """Cross-entropy of the new head on the held-out answers, in nats; NaN if it was not fitted."""
    held_out_accuracy: float = np.nan
    """See `cross_entropy`."""


def find_obstacle(comparisons: Comparisons, options: FitOptions) -> str | None:
    """Say why no head can be fitted to these comparisons; None if one can."""
    count, held_out = len(comparisons), int(comparisons.held_out.sum())
    if count - held_out < options.min_answers or not held_out:
        return f"There are too few answers: {count - held_out} to fit, {held_out} held out."
    for what, rows in (("held-out", comparisons.held_out), ("fitted", ~comparisons.held_out)):
        if not comparisons.confidences[rows].any():
            return f"No {what} answer has a confidence above 0."
    counted = comparisons.preferences[comparisons.confidences > 0]
    if (counted == counted[0]).all():
        return f"All {len(counted)} answers are alike, {counted[0]:g}."
    return None


def judge(new: PreferenceHead, old: PreferenceHead | None, comparisons: Comparisons, options: FitOptions) -> Verdict:
    """Compare heads by cross-entropy on the newest held-out answers: no higher than the old one's, or chance's."""
    held_out = comparisons.held_out & (comparisons.confidences > 0)
    deciding = comparisons[np.flatnonzero(held_out)[-options.newest_held_out :]]
    loss, accuracy = cross_entropy(new, deciding)
    before = math.log(2) if old is None else cross_entropy(old, deciding)[0]
    figures = (
        f"on {len(deciding)} held-out answers its cross-entropy is {loss:.3f}, and that of "
        f"{'chance' if old is None else 'the old head'} {before:.3f}."
    )
    if loss <= before:
        return Verdict(True, f"The new head is used: {figures}", loss, accuracy)
    rest = "There is no head yet." if old is None else "The old head stays."
    return Verdict(False, f"The new head is worse: {figures} {rest}", loss, accuracy)


def fit_answers(
    spec: Preference,
    fingerprint: str,
    pairs: Sequence[Pair],
    records: Sequence[Record],
    encode: Callable[[States], NDArray[np.float32]],
    options: FitOptions,
    seed: int,
) -> tuple[PreferenceHead, Verdict, dict[str, Any]]:
    """Fit a head to answers about pairs of segments of one length: `vlmrm-gym fit`.

    Every answer has a preference. All answers about a pair are held out, or none. `encode` makes features, float32
    (N, V, D), of N states; the model's `fingerprint` goes into the head. Returns the head; whether it predicts the
    held-out answers better than chance; and figures that JSON can hold.
    """
    numbers = {pair.key: number for number, pair in enumerate(pairs)}
    rows = np.array([numbers[record.pair] for record in records])
    order = np.random.default_rng(seed).permutation(len(pairs))
    held_out = np.isin(rows, order[: round(options.held_out * len(pairs))])
    comparisons = Comparisons.of(np.empty((len(records), 0), np.float32), [one.answer for one in records], held_out)
    if (obstacle := find_obstacle(comparisons, options)) is not None:
        raise InputError(f"The answers cannot be fitted. {obstacle} Ask about more pairs.")
    if len(lengths := {len(side) for pair in pairs for side in (pair.first, pair.second)}) > 1:
        raise InputError(f"All segments must have the same length. Received answers about {sorted(lengths)} states.")
    sides = [side.states for pair in pairs for side in (pair.first, pair.second)]
    parts = [encode(States.concatenate(sides[i : i + _SEGMENTS])) for i in range(0, len(sides), _SEGMENTS)]
    features = np.concatenate(parts)
    features = features.reshape(len(pairs), 2, -1, *features.shape[1:])
    comparisons = replace(comparisons, features=features[rows])
    shape = features.shape[3:]
    head = make_head(spec, shape, fingerprint, seed)
    loss = fit(head, comparisons, features.reshape(-1, *shape), options, seed)
    verdict = judge(head, None, comparisons, options)
    held_out = comparisons[comparisons.held_out]
    logits = predict(head, held_out.features)
    measured = {
        "answers": len(held_out),
        "accuracy": verdict.held_out_accuracy,
        "accuracy_by_grade": agreement(logits, grade_differences(pairs)[rows][comparisons.held_out]),
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
