"""Measures the combinations of settings that share an environment, its look, a model and cameras."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from vlmrm_gym.audit.agreement import Agreement
from vlmrm_gym.audit.controls import measure_controls
from vlmrm_gym.audit.exploits import failure, find_exploits
from vlmrm_gym.audit.measure import (
    agreements,
    contact_sheets,
    landscapes,
    median_excess,
    paths_features,
    signal_curves,
    summarise,
)
from vlmrm_gym.audit.model_rewards import ModelRewards
from vlmrm_gym.audit.prompts import Column
from vlmrm_gym.audit.results import AdversarialSearch, Choice, Control, Measures, SignalCurves, Viewpoints
from vlmrm_gym.audit.samples import collect
from vlmrm_gym.audit.scene import Scene
from vlmrm_gym.audit.subject import Subject
from vlmrm_gym.audit.trajectory_search import reach
from vlmrm_gym.audit.viewpoints import compare_viewpoints
from vlmrm_gym.envs.states import TaskStates
from vlmrm_gym.errors import InputError
from vlmrm_gym.rendering import States
from vlmrm_gym.rollouts.play import Rollout, capture_state, constant_actions, play, random_actions, run_actions

if TYPE_CHECKING:
    from vlmrm_gym.cli.check import Check

ROLLOUTS = 8
"""Rollouts of random actions, as many of constant actions, and half as many of a trained run."""
STEPS = 100
"""The most steps of a rollout."""
REACH_ROLLOUTS = 800
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
    """What was measured of one combination."""

    choice: Choice
    column: Column
    measures: Measures
    agreements: Mapping[str, Agreement]
    exploits: AdversarialSearch
    found: NDArray[np.float64]
    """The states of the exploits, float64 (C, S)."""
    signal: SignalCurves
    controls: Sequence[Control]


class SceneCheck:
    """Measures the combinations that share an environment, its look, a model and cameras.

    Args:
        command: The settings.
        subject: What is checked.
        rewards: Those of the model.
        choices: The combinations.
        progress: Counts the states that are scored.
        clock: Measures times.
    """

    def __init__(
        self,
        command: "Check",
        subject: Subject,
        rewards: ModelRewards,
        choices: Sequence[Choice],
        progress: "tqdm[Any]",
        clock: Clock,
    ) -> None:
        self._command, self._rewards, self._progress, self._clock = command, rewards, progress, clock
        self._camera = subject.cameras[choices[0].camera]
        self.notes: list[str] = []
        with ExitStack() as opened:
            self._env = opened.enter_context(closing(subject.make_env(choices[0].look)))
            try:
                self._scene = opened.enter_context(self._make_scene(self._camera))
            except ValueError as error:
                raise InputError(str(error)) from error
            with clock.time("rollouts"):
                rollouts = _play(command, self._scene)
            self._note_blind_cameras(rollouts)
            visited = States.concatenate([rollout.states for rollout in rollouts])
            self._no_search = CHANGING if _changes_scene(rollouts) else NO_STATES
            self._task = None if _changes_scene(rollouts) else subject.task_states(self._env, visited.rows)
            success = _success(command, subject, self._task, rollouts, visited.rows)
            with clock.time("scoring"):
                passed = command.rollouts is not None
                self._samples = collect(
                    self._scene, self._task, rollouts, visited, success, passed=passed, seed=command.seed
                )
            self._opened = opened.pop_all()

    def __enter__(self) -> "SceneCheck":
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def measure(self, choice: Choice) -> "Measured":
        """Measure one combination: all that its row of the table needs."""
        command, samples, scene = self._command, self._samples, self._scene
        column = self._rewards.column(choice, scene.num_views)
        with self._clock.time("agreement"):
            agreed = agreements(samples, column, command.seed)
        signal = signal_curves(samples, column)
        others = self._rewards.controls(choice, scene.num_views)
        black = np.repeat(self._rewards.black, scene.num_views, axis=1)
        controls = measure_controls(samples, column, others, black)
        exploits, found = AdversarialSearch(left_out=self._no_search), np.empty((0, 0))
        if self._task is not None:
            with self._clock.time("search"):
                exploits, found = find_exploits(
                    scene, self._task, column, samples, effort=command.effort, seed=command.seed
                )
        measures = summarise(samples, column, agreed, exploits, signal, controls)
        return Measured(choice, column, measures, agreed, exploits, found, signal, controls)

    def sections(self, measured: "Measured") -> dict[str, Any]:
        """The sections of the report about one combination."""
        scene, samples, column, exploits = self._scene, self._samples, measured.column, measured.exploits
        if self._command.reach and self._task is not None:
            with self._clock.time("reach"):
                exploits = self._reach(self._task, measured)
        with self._clock.time("viewpoints"):
            viewpoints = self._viewpoints(column, exploits, measured.found)
        with self._clock.time("landscape"):
            curves = self._rewards.curves(measured.choice, scene.num_views)
            lines = landscapes(self._task, samples, paths_features(scene, self._task), curves, column)
        with self._clock.time("pictures"):
            sheets = contact_sheets(scene, samples, column)
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

    def _make_scene(self, camera: Any) -> Scene:
        return Scene(self._env, self._rewards.encoder, camera, progress=self._progress.update)

    def _reach(self, task: TaskStates, measured: "Measured") -> AdversarialSearch:
        """The exploits with what a search over actions reached of them."""
        assert self._samples.around is not None
        reached = [
            reach(
                self._env,
                self._scene.view,
                target,
                self._samples.around.states.rows.std(axis=0),
                lambda rows: measured.column(self._scene.features(rows)),
                failure(task),
                steps=STEPS,
                rollouts=REACH_ROLLOUTS * self._command.effort,
                seed=self._command.seed,
                number=number,
            )
            for number, target in enumerate(tqdm(measured.found, desc="reach", unit=" exploits", leave=False))
        ]
        exploits = [
            replace(exploit, reached=reward)
            for exploit, reward in zip(measured.exploits.exploits, reached, strict=True)
        ]
        return replace(measured.exploits, exploits=exploits)

    def _viewpoints(self, column: Column, exploits: AdversarialSearch, found: NDArray[np.float64]) -> Viewpoints:
        return compare_viewpoints(
            self._env,
            self._make_scene,
            self._camera,
            column,
            self._task,
            self._samples,
            found,
            median_excess(exploits) if exploits.knows_success else None,
        )

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


def _play(command: "Check", scene: Scene) -> Sequence[Rollout]:
    """Rollouts of random actions, of constant actions and of a trained run; or those of a dataset."""
    if command.rollouts is not None:
        from vlmrm_gym.datasets.labels import check_environment, read_dataset

        check_environment(command.rollouts, command.id, command.env)
        recorded = read_dataset(command.rollouts)
        scene.env.reset(seed=command.seed)
        scene.view.reset()
        theirs, ours = recorded[0].states.rows.shape[1:], capture_state(scene.view)[0].shape
        if theirs != ours:
            raise InputError(
                f"The dataset {command.rollouts} must have states of the shape {ours}, as this environment has. Theirs "
                f"have {theirs}. Make it again: vlmrm-gym dataset"
            )
        return recorded
    env = scene.env
    played = []
    for i in range(2 * ROLLOUTS):
        rng = np.random.default_rng((command.seed, i))
        behaviour, policy = ("constant", constant_actions) if i % 2 else ("random", random_actions)
        act = policy(env.action_space, rng)
        played.append(play(env, scene.view, act, seed=command.seed + i, steps=STEPS, behaviour=behaviour))
    if command.run is not None:
        act = run_actions(command.run, env, command.id, trust_code=command.trust_code)
        for i in range(ROLLOUTS // 2):
            seed = command.seed + 10_000 + i
            played.append(play(env, scene.view, act, seed=seed, steps=STEPS, behaviour=command.run.name))
    return played


def _changes_scene(rollouts: Sequence[Rollout]) -> bool:
    """Whether a state's scene differs from the renderer's: a state that is made from its numbers would lack that."""
    parts = [states for rollout in rollouts for states in (rollout.initial, rollout.states)]
    return any(change is not None for states in parts for change in states.changes or ())


def _success(
    command: "Check", subject: Subject, task: TaskStates | None, rollouts: Sequence[Rollout], seen: NDArray[Any]
) -> NDArray[np.bool_] | None:
    """Which states of the rollouts succeed, bool (N,): by labels, the task or the environment."""
    if command.labels is not None:
        from vlmrm_gym.datasets.labels import RecordedRollout, read_labels

        recorded = [rollout for rollout in rollouts if isinstance(rollout, RecordedRollout)]
        return np.concatenate(read_labels(command.labels, recorded))
    if task is not None and task.has_success_fn:
        return task.succeeds(seen)
    if subject.success_fn is not None:
        return subject.success_fn(seen)
    if subject.task is not None and subject.task.success_threshold is None:
        return None  # such as the humanoid without a task, which never succeeds
    parts = [rollout.success for rollout in rollouts if rollout.success is not None]
    return np.concatenate(parts) if len(parts) == len(rollouts) else None
