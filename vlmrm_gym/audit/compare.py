"""Measures all combinations of settings that a check compares, and makes its report."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from vlmrm_gym.audit import exploits
from vlmrm_gym.audit.model_rewards import ModelRewards
from vlmrm_gym.audit.provenance import read_provenance
from vlmrm_gym.audit.results import Choice, Report, Row
from vlmrm_gym.audit.samples import AROUND, GOALS
from vlmrm_gym.audit.scene_check import ROLLOUTS, STEPS, Clock, SceneCheck
from vlmrm_gym.audit.subject import Subject
from vlmrm_gym.rewards.models import unload

if TYPE_CHECKING:
    from vlmrm_gym.cli.check import Check


def compare(command: "Check", subject: Subject, progress: "tqdm[Any]") -> Report:
    """Measure all combinations; the report's sections are about the first one.

    Args:
        command: The settings.
        subject: What is checked.
        progress: Counts the states that are scored.

    Raises:
        InputError: The environment, a model, a camera, a dataset or labels cannot be used.
    """
    clock = Clock()
    progress.total = _expected_states(command, subject)
    rows: list[Row] = []
    sections: dict[str, Any] = {}
    for model in dict.fromkeys(choice.model for choice in subject.choices):
        if rows:
            unload()
        measured, shown = _measure_model(command, subject, model, progress, clock, with_sections=not rows)
        rows += measured
        sections |= shown
    progress.total = progress.n  # it was an estimate
    progress.refresh()
    first = rows[0]
    return Report(
        subject=command.id or str(command.env),
        choice=first.choice,
        measures=first.measures,
        table=highest_auc_first(rows),
        seconds=clock.seconds,
        command=shlex.join(["vlmrm-gym", *sys.argv[1:]]),
        **sections,
    )


def highest_auc_first(rows: Sequence[Row]) -> Sequence[Row]:
    """The table in order; rows with the same AUC in the order of the flags, and those without one last."""
    return sorted(rows, key=lambda row: -1.0 if row.measures.auc is None else row.measures.auc.value, reverse=True)


def _measure_model(
    command: "Check", subject: Subject, model: str, progress: "tqdm[Any]", clock: Clock, *, with_sections: bool
) -> tuple[Sequence[Row], dict[str, Any]]:
    """The rows of one model, and the sections of the first of them. Nothing keeps a reference to the model."""
    with clock.time("model"):
        own = [choice for choice in subject.choices if choice.model == model]
        rewards = ModelRewards(command, own, subject.rewards.get(model))
    rows: list[Row] = []
    sections: dict[str, Any] = {}
    for choices in _by_scene(subject.choices, model):
        with SceneCheck(command, subject, rewards, choices, progress, clock) as check:
            for choice in choices:
                measured = check.measure(choice)
                rows.append(Row(choice=choice, measures=measured.measures))
                if with_sections and not sections:
                    provenance = read_provenance(weights=rewards.weights, seed=command.seed)
                    sections = {**check.sections(measured), "provenance": provenance}
    return rows, sections


def _by_scene(choices: Sequence[Choice], model: str) -> Iterator[Sequence[Choice]]:
    """The combinations with a model, those that share look and cameras together."""
    own = [choice for choice in choices if choice.model == model]
    for look, camera in dict.fromkeys((choice.look, choice.camera) for choice in own):
        yield [choice for choice in own if (choice.look, choice.camera) == (look, camera)]


def _expected_states(command: "Check", subject: Subject) -> int:
    """About how many states will be scored."""
    scenes = len({(choice.model, choice.look, choice.camera) for choice in subject.choices})
    return (
        scenes * (2 * ROLLOUTS * STEPS + AROUND + GOALS) + len(subject.choices) * exploits.EVALUATIONS * command.effort
    )
