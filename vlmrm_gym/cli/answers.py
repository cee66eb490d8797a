"""What the commands `vlmrm-gym label` and `fit` say of a file of answers."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pkgutil import resolve_name

import numpy as np

from vlmrm_gym.preferences import Record
from vlmrm_gym.preferences.labelers import LABELERS
from vlmrm_gym.preferences.pairs import agreement, answer_differences
from vlmrm_gym.terminal import printable, say
from vlmrm_gym.validation import truncate


def say_answers(records: Sequence[Record], truth: Mapping[str, float]) -> None:
    """Print a line for each labeler: how many answers, ties and skips, and how many agree with the ground truth.

    Args:
        records: Of a file of answers.
        truth: By how much the grades of the second segment add up to more, by the pair's key.
    """
    for labeler in dict.fromkeys(record.labeler for record in records):
        own = [record for record in records if record.labeler == labeler]
        answers = [record.answer for record in own]
        dropped = sum("dropped" in answer.details for answer in answers)
        skipped = sum(answer.preference is None for answer in answers) - dropped
        equal = sum(answer.preference == 0.5 for answer in answers)
        grades = np.array([truth.get(record.pair, np.nan) for record in own])
        parts = [f"{len(own):,} answers, {equal} equal, {skipped} skipped, {dropped} dropped"]
        if not math.isnan(right := agreement(answer_differences(answers), grades)):
            parts.append(f"{right:.1%} of the answers agree with the task's grade")
        say(f"{name_labeler(labeler)}: {', '.join(parts)}")


def name_labeler(labeler: str) -> str:
    """An identity, shortened: the kind, and the settings that are not the kind's defaults, without quotation marks."""
    try:
        settings = json.loads(labeler)
        kind = settings.pop("kind")
        own = fields(resolve_name(LABELERS[kind])) if kind in LABELERS else ()
        defaults = {one.name: one.default_factory() if callable(one.default_factory) else one.default for one in own}
        given = (f"{name}={value}" for name, value in settings.items() if value != defaults.get(name))
        shown = f"{kind} {', '.join(given)}"
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        shown = labeler
    return printable(truncate(shown.strip(), 80))
