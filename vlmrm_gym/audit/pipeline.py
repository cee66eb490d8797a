"""An audit of rewards: all candidates are measured, the first one is shown, and a report is made."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import groupby
from typing import Any, Self

import numpy as np
from tqdm import tqdm

from vlmrm_gym.audit import exploits
from vlmrm_gym.audit.measure import agreements, contact_sheets, controls, landscapes, signal_curves, summarise
from vlmrm_gym.audit.provenance import read_provenance
from vlmrm_gym.audit.results import AdversarialSearch, Candidate, Report, Row
from vlmrm_gym.audit.rewards import EncodedRewards, RewardView, alpha_curves, control_rewards, group_by_encoder
from vlmrm_gym.audit.samples import AROUND, GOALS, ROLLOUTS, STEPS, changes_scene, collect, find_success, play_rollouts
from vlmrm_gym.audit.scene import Scene
from vlmrm_gym.audit.target import AuditSettings, AuditTarget
from vlmrm_gym.audit.viewpoints import compare_viewpoints
from vlmrm_gym.errors import InputError, as_input_error
from vlmrm_gym.rendering import States
from vlmrm_gym.rewards.models import unload
from vlmrm_gym.rewards.specification import RewardSpec
from vlmrm_gym.rollouts.play import Rollout

NO_STATES = (
    "There was no search: it needs states that can be made and drawn. That works for this package's environments and "
    "for MuJoCo environments that Gymnasium's renderer draws."
)
CHANGING = (
    "There was no search: the environment changes its scene (positions, sizes or colours of bodies, for example), so "
    "what a made state would look like is unknown."
)


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
    begun = time.perf_counter()
    progress = tqdm(disable=True) if progress is None else progress
    progress.total = _expected_states(candidates, settings)
    reports: list[Report] = []
    for own in _by_encoder(candidates):
        if reports:
            unload()
        reports += _audit_encoder(target, own, settings, progress, with_sections=not reports)
    progress.total = progress.n  # it was an estimate
    progress.refresh()
    rows = [Row(candidate=report.candidate, measures=report.measures) for report in reports]
    seconds = time.perf_counter() - begun
    return replace(reports[0], table=highest_auc_first(rows), seconds=seconds, command=command)


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
    *,
    with_sections: bool,
) -> list[Report]:
    """A report of each candidate of one encoder. Nothing keeps a reference to the model."""
    rewards = EncodedRewards(_rewards(candidates), settings.device)
    reports: list[Report] = []
    for look, camera in dict.fromkeys((candidate.textured, candidate.camera_name) for candidate in candidates):
        own = [candidate for candidate in candidates if (candidate.textured, candidate.camera_name) == (look, camera)]
        with SceneAudit(target, settings, rewards, own[0], progress) as scene:
            for candidate in own:
                report = scene.measure(candidate)
                reports.append(scene.illustrate(report) if with_sections and not reports else report)
    return reports


def _expected_states(candidates: Sequence[Candidate], settings: AuditSettings) -> int:
    """About how many states will be scored."""
    encoders = len(list(_by_encoder(candidates)))
    scenes = encoders * len({(candidate.textured, candidate.camera_name) for candidate in candidates})
    return scenes * (2 * ROLLOUTS * STEPS + AROUND + GOALS) + len(candidates) * exploits.EVALUATIONS * settings.effort


class SceneAudit:
    """Audits the candidates that share an environment, its look, an encoder and cameras.

    Args:
        target: What is audited.
        settings: How.
        rewards: Those of the encoder.
        first: One of the candidates.
        progress: Counts the states that are scored.
    """

    def __init__(
        self,
        target: AuditTarget,
        settings: AuditSettings,
        rewards: EncodedRewards,
        first: Candidate,
        progress: "tqdm[Any]",
    ) -> None:
        self._target, self._settings, self._rewards, self._progress = target, settings, rewards, progress
        with ExitStack() as opened:
            self._env = opened.enter_context(closing(target.make_env(first.textured)))
            with as_input_error():
                self._scene = opened.enter_context(self._make_scene(first.camera))
            rollouts = play_rollouts(target, settings, self._scene)
            self._notes = self._name_blind_cameras(rollouts)
            visited = States.concatenate([rollout.states for rollout in rollouts])
            is_changing = changes_scene(rollouts)
            self._no_search = CHANGING if is_changing else NO_STATES
            self._task = None if is_changing else target.task_states(self._env, visited.rows)
            self._samples = collect(
                self._scene,
                self._task,
                rollouts,
                visited,
                find_success(target, settings, self._task, rollouts, visited.rows),
                knows_success=self._task is not None and self._task.has_success_fn and settings.labels is None,
                passed=settings.rollouts is not None,
                seed=settings.seed,
            )
            self._black = self._scene.black(visited[:1])
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def measure(self, candidate: Candidate) -> Report:
        """Measure one candidate: all that its row of the table needs."""
        settings, samples = self._settings, self._samples
        reward = self._view(candidate.reward, candidate)
        agreed = agreements(samples, reward, settings.seed)
        signal = signal_curves(samples, reward)
        others = {name: self._view(spec, candidate) for name, spec in control_rewards(candidate.reward).items()}
        measured_controls = controls(samples, reward, others, self._black)
        found = AdversarialSearch(left_out=self._no_search)
        if self._task is not None:
            options = {"effort": settings.effort, "seed": settings.seed}
            found = exploits.find_exploits(self._scene, self._task, reward, samples, **options)
        return Report(
            subject=self._target.name,
            candidate=candidate,
            measures=summarise(samples, reward, agreed, found, signal, measured_controls),
            agreements=agreed,
            exploits=found,
            signal=signal,
            controls=measured_controls,
            notes=self._notes,
        )

    def illustrate(self, report: Report) -> Report:
        """The report of a candidate with the sections that only one candidate has."""
        scene, samples, task, candidate = self._scene, self._samples, self._task, report.candidate
        reward, found = self._view(candidate.reward, candidate), report.exploits
        specs = alpha_curves(candidate.reward)
        curves = {label: self._view(spec, candidate) for label, spec in specs.items()}
        return replace(
            report,
            exploits=found,
            viewpoints=compare_viewpoints(scene, self._make_scene, candidate.camera, reward, task, samples, found),
            landscapes=landscapes(scene, task, samples, curves, reward),
            sheets=contact_sheets(scene, samples, reward),
            provenance=read_provenance(weights=self._rewards.weights, seed=self._settings.seed),
        )

    def _view(self, spec: RewardSpec, candidate: Candidate) -> RewardView:
        """A reward with the candidate's combination of views."""
        return self._rewards.view(spec, candidate.combine_views, self._scene.num_views)

    def _make_scene(self, camera: Any) -> Scene:
        return Scene(self._env, self._rewards.encoder, camera, progress=self._progress.update)

    def _name_blind_cameras(self, rollouts: Sequence[Rollout]) -> Sequence[str]:
        """A note for each camera whose frames are all alike.

        Raises:
            InputError: Those of all cameras are.
        """
        ends = [(rollout.initial, rollout.states[len(rollout) - 1 :]) for rollout in rollouts]
        states = States.concatenate([state for both in ends for state in both])
        frames = self._scene.draw(states).astype(np.int16)
        blind = [view for view in range(frames.shape[1]) if np.abs(frames[:, view] - frames[:1, view]).max() <= 2]
        if len(blind) == frames.shape[1]:
            raise InputError(
                f"All frames are alike: the first and last ones of {len(rollouts)} rollouts do not differ. The camera "
                "must see what the agent moves. Choose another --camera."
            )
        return [f"Camera {view} does not see what changes: its frames are all alike." for view in blind]
