"""Audits the candidates that share an environment, its look, an encoder and cameras."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from vlmrm_gym.audit.exploits import failure, find_exploits
from vlmrm_gym.audit.measure import (
    agreements,
    contact_sheets,
    controls,
    landscapes,
    signal_curves,
    summarise,
)
from vlmrm_gym.audit.measures.agreement import Agreement
from vlmrm_gym.audit.measures.controls import Control
from vlmrm_gym.audit.results import AdversarialSearch, Candidate, Measures, SignalCurves
from vlmrm_gym.audit.rewards import EncodedRewards, RewardView, alpha_curves, control_rewards
from vlmrm_gym.audit.samples import STEPS, changes_scene, collect, find_success, play_rollouts
from vlmrm_gym.audit.scene import Scene
from vlmrm_gym.audit.target import AuditSettings, AuditTarget
from vlmrm_gym.audit.trajectory_search import search_trajectories
from vlmrm_gym.audit.viewpoints import compare_viewpoints
from vlmrm_gym.envs.states import TaskStates
from vlmrm_gym.errors import InputError
from vlmrm_gym.rendering import States
from vlmrm_gym.rewards.specification import RewardSpec
from vlmrm_gym.rollouts.play import Rollout

TRAJECTORIES = 800
"""Rollouts of a search for the actions that lead to an exploit, for each unit of effort."""
NO_STATES = (
    "There was no search: it needs states that can be made and drawn. That works for this package's environments and "
    "for MuJoCo environments that Gymnasium's renderer draws."
)
CHANGING = (
    "There was no search: the environment changes its scene (positions, sizes or colours of bodies, for example), so "
    "what a made state would look like is unknown."
)


class Clock:
    """Adds up the time of each part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Add the time of a block to a part."""
        begun = time.perf_counter()
        yield
        self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - begun


@dataclass(frozen=True)
class Measured:
    """What was measured of one candidate."""

    candidate: Candidate
    reward: RewardView
    measures: Measures
    agreements: Mapping[str, Agreement]
    exploits: AdversarialSearch
    found: NDArray[np.float64]
    """The states of the exploits, float64 (C, S)."""
    signal: SignalCurves
    controls: Sequence[Control]


class SceneAudit:
    """Audits the candidates that share an environment, its look, an encoder and cameras.

    Args:
        target: What is audited.
        settings: How.
        rewards: Those of the encoder.
        first: One of the candidates.
        progress: Counts the states that are scored.
        clock: Measures times.
    """

    def __init__(
        self,
        target: AuditTarget,
        settings: AuditSettings,
        rewards: EncodedRewards,
        first: Candidate,
        progress: "tqdm[Any]",
        clock: Clock,
    ) -> None:
        self._settings, self._rewards, self._progress, self._clock = settings, rewards, progress, clock
        self._camera = first.camera
        self.notes: list[str] = []
        with ExitStack() as opened:
            self._env = opened.enter_context(closing(target.make_env(first.textured)))
            try:
                self._scene = opened.enter_context(self._make_scene(self._camera))
            except ValueError as error:
                raise InputError(str(error)) from error
            with clock.time("rollouts"):
                rollouts = play_rollouts(target, settings, self._scene)
            self._note_blind_cameras(rollouts)
            visited = States.concatenate([rollout.states for rollout in rollouts])
            self._no_search = CHANGING if changes_scene(rollouts) else NO_STATES
            self._task = (
                None
                if changes_scene(rollouts)
                else target.task_states(self._env, visited.rows, has_labels=settings.labels is not None)
            )
            success = find_success(target, settings, self._task, rollouts, visited.rows)
            with clock.time("scoring"):
                passed = settings.rollouts is not None
                self._samples = collect(
                    self._scene, self._task, rollouts, visited, success, passed=passed, seed=settings.seed
                )
            self._black = self._scene.black(visited[:1])
            self._opened = opened.pop_all()

    def __enter__(self) -> "SceneAudit":
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def measure(self, candidate: Candidate) -> "Measured":
        """Measure one candidate: all that its row of the table needs."""
        settings, samples, scene = self._settings, self._samples, self._scene
        reward = self._view(candidate.reward, candidate)
        with self._clock.time("agreement"):
            agreed = agreements(samples, reward, settings.seed)
        signal = signal_curves(samples, reward)
        others = {name: self._view(spec, candidate) for name, spec in control_rewards(candidate.reward).items()}
        measured_controls = controls(samples, reward, others, self._black)
        exploits, found = AdversarialSearch(left_out=self._no_search), np.empty((0, 0))
        if self._task is not None:
            with self._clock.time("search"):
                exploits, found = find_exploits(
                    scene, self._task, reward, samples, effort=settings.effort, seed=settings.seed
                )
        measures = summarise(samples, reward, agreed, exploits, signal, measured_controls)
        return Measured(candidate, reward, measures, agreed, exploits, found, signal, measured_controls)

    def sections(self, measured: "Measured") -> dict[str, Any]:
        """The sections of the report about one candidate."""
        scene, samples, reward, exploits = self._scene, self._samples, measured.reward, measured.exploits
        if self._settings.trajectory_search and self._task is not None:
            with self._clock.time("trajectory search"):
                exploits = self._search_trajectories(self._task, measured)
        with self._clock.time("viewpoints"):
            viewpoints = compare_viewpoints(
                scene,
                self._make_scene,
                self._camera,
                reward,
                self._task,
                samples,
                measured.found,
                exploits.excess if exploits.knows_success else None,
            )
        with self._clock.time("landscape"):
            specs = alpha_curves(measured.candidate.reward)
            curves = {label: self._view(spec, measured.candidate) for label, spec in specs.items()}
            lines = landscapes(scene, self._task, samples, curves, reward)
        with self._clock.time("pictures"):
            sheets = contact_sheets(scene, samples, reward)
        return {
            "landscapes": lines,
            "agreements": measured.agreements,
            "exploits": exploits,
            "viewpoints": viewpoints,
            "signal": measured.signal,
            "controls": measured.controls,
            "sheets": sheets,
            "notes": self.notes,
        }

    def _view(self, spec: RewardSpec, candidate: Candidate) -> RewardView:
        """A reward with the candidate's combination of views."""
        return self._rewards.view(spec, candidate.combine_views, self._scene.num_views)

    def _make_scene(self, camera: Any) -> Scene:
        return Scene(self._env, self._rewards.encoder, camera, progress=self._progress.update)

    def _search_trajectories(self, task: TaskStates, measured: "Measured") -> AdversarialSearch:
        """The exploits with what a search over actions reached of them."""
        assert self._samples.around is not None
        reached = [
            search_trajectories(
                self._env,
                self._scene.view,
                target,
                self._samples.around.states.rows.std(axis=0),
                lambda rows: measured.reward(self._scene.features(rows)),
                failure(task),
                steps=STEPS,
                rollouts=TRAJECTORIES * self._settings.effort,
                seed=self._settings.seed,
                number=number,
            )
            for number, target in enumerate(tqdm(measured.found, desc="trajectories", unit=" exploits", leave=False))
        ]
        exploits = [
            replace(exploit, reached=reward)
            for exploit, reward in zip(measured.exploits.exploits, reached, strict=True)
        ]
        return replace(measured.exploits, exploits=exploits)

    def _note_blind_cameras(self, rollouts: Sequence[Rollout]) -> None:
        """Note the cameras whose frames are all alike.

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
        self.notes += [f"Camera {view} does not see what changes: its frames are all alike." for view in blind]
