"""An audit of rewards: all candidates are measured, the first one is shown, and a report is made."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from tqdm import tqdm

from vlmrm_gym.audit import exploits
from vlmrm_gym.audit.provenance import read_provenance
from vlmrm_gym.audit.results import Candidate, Report, Row
from vlmrm_gym.audit.rewards import EncodedRewards, group_by_encoder
from vlmrm_gym.audit.samples import AROUND, GOALS, ROLLOUTS, STEPS
from vlmrm_gym.audit.scene_audit import Clock, SceneAudit
from vlmrm_gym.audit.target import AuditSettings, AuditTarget
from vlmrm_gym.rewards.models import unload
from vlmrm_gym.rewards.specification import RewardSpec


def audit(
    target: AuditTarget,
    candidates: Sequence[Candidate],
    settings: AuditSettings,
    *,
    progress: "tqdm[Any] | None" = None,
    command: str = "",
) -> Report:
    """Measure all candidates; the report's sections are about the first one.

    Args:
        target: What is audited.
        candidates: What is compared, from `find_candidates`.
        settings: How much is searched, and on which rollouts.
        progress: Counts the states that are scored.
        command: What makes the report again, for the report.

    Raises:
        InputError: The environment, a model, a camera or the rollouts cannot be used.
    """
    clock = Clock()
    progress = tqdm(disable=True) if progress is None else progress
    progress.total = _expected_states(candidates, settings)
    rows: list[Row] = []
    sections: dict[str, Any] = {}
    for own in _by_encoder(candidates):
        if rows:
            unload()
        measured, shown = _audit_encoder(target, own, settings, progress, clock, with_sections=not rows)
        rows += measured
        sections |= shown
    progress.total = progress.n  # it was an estimate
    progress.refresh()
    first = rows[0]
    return Report(
        subject=target.name,
        candidate=first.candidate,
        measures=first.measures,
        table=highest_auc_first(rows),
        seconds=clock.seconds,
        command=command,
        **sections,
    )


def highest_auc_first(rows: Sequence[Row]) -> Sequence[Row]:
    """The table in order; rows with the same AUC in the order of the candidates, and those without one last."""
    return sorted(rows, key=lambda row: -1.0 if row.measures.auc is None else row.measures.auc.value, reverse=True)


def _rewards(candidates: Sequence[Candidate]) -> list[RewardSpec]:
    """Each reward once."""
    return [next(own) for _, own in groupby((candidate.reward for candidate in candidates), key=id)]


def _by_encoder(candidates: Sequence[Candidate]) -> Iterator[Sequence[Candidate]]:
    for group in group_by_encoder(_rewards(candidates)):
        yield [candidate for candidate in candidates if candidate.reward in group]


def _audit_encoder(
    target: AuditTarget,
    candidates: Sequence[Candidate],
    settings: AuditSettings,
    progress: "tqdm[Any]",
    clock: Clock,
    *,
    with_sections: bool,
) -> tuple[Sequence[Row], dict[str, Any]]:
    """The rows of one encoder, and the sections of the first of them. Nothing keeps a reference to the model."""
    with clock.time("model"):
        rewards = EncodedRewards(_rewards(candidates), settings.device)
    rows: list[Row] = []
    sections: dict[str, Any] = {}
    for look, camera in dict.fromkeys((candidate.textured, candidate.camera_name) for candidate in candidates):
        own = [candidate for candidate in candidates if (candidate.textured, candidate.camera_name) == (look, camera)]
        with SceneAudit(target, settings, rewards, own[0], progress, clock) as scene:
            for candidate in own:
                measured = scene.measure(candidate)
                rows.append(Row(candidate=candidate, measures=measured.measures))
                if with_sections and not sections:
                    provenance = read_provenance(weights=rewards.weights, seed=settings.seed)
                    sections = {**scene.sections(measured), "provenance": provenance}
    return rows, sections


def _expected_states(candidates: Sequence[Candidate], settings: AuditSettings) -> int:
    """About how many states will be scored."""
    encoders = len(list(_by_encoder(candidates)))
    scenes = encoders * len({(candidate.textured, candidate.camera_name) for candidate in candidates})
    return scenes * (2 * ROLLOUTS * STEPS + AROUND + GOALS) + len(candidates) * exploits.EVALUATIONS * settings.effort
