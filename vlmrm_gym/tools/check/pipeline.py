"""`audit` measures all candidates, and makes a report that shows the first one."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
from tqdm import tqdm

from vlmrm_gym._util.errors import InputError, as_input_error
from vlmrm_gym.data.metrics import auc, best_threshold, threshold_errors
from vlmrm_gym.data.trajectory import Trajectory
from vlmrm_gym.rewards.model import Features
from vlmrm_gym.rewards.models import unload
from vlmrm_gym.states import States
from vlmrm_gym.states.states import side_by_side
from vlmrm_gym.tasks.known_states import TaskStates
from vlmrm_gym.tools.check import exploits
from vlmrm_gym.tools.check.measures import Agreement, Control, Interval, best_control, chance_limit, measure_agreement
from vlmrm_gym.tools.check.results import (
    AdversarialSearch,
    Candidate,
    ContactSheet,
    Landscape,
    MeasuredCandidate,
    Measures,
    Report,
    read_provenance,
)
from vlmrm_gym.tools.check.rewards import EncodedRewards, Reward, Scene, alpha_curves, control_rewards, encoder_key
from vlmrm_gym.tools.check.samples import Samples, collect, count_states, play_rollouts
from vlmrm_gym.tools.check.settings import AuditSettings

SHEET = 12
"""Frames of a contact sheet."""
AROUND = "states around the goal"
NO_STATES = (
    "There was no search: it needs states that can be made and drawn. That works for this package's environments and "
    "for MuJoCo environments that Gymnasium's renderer draws."
)
ORDERED = (
    "The reward of a state depends on those of its episode before it: it was measured on the rollouts only, and no "
    "states were made."
)
CHANGING = (
    "There was no search: the environment changes its scene (positions, sizes or colours of bodies, for example), so "
    "what a made state would look like is unknown."
)


def audit(settings: AuditSettings, candidates: Sequence[Candidate], *, progress: "tqdm[Any]", command: str) -> Report:
    """Measure all candidates, from `find_candidates`; the report's sections are about the first one.

    `progress` counts the states that are scored; `command` makes the report again. An environment, a model, a camera or
    rollouts that cannot be used are an `InputError`.
    """
    begun = time.perf_counter()
    progress.total = estimate_states(candidates)
    reports: list[Report] = []
    for scenes in _group(candidates):
        if reports:
            unload()
        specs = {id(one.reward): one.reward for scene in scenes for one in scene}
        rewards = EncodedRewards(list(specs.values()), settings.device)
        for scene in scenes:
            reports += _audit_scene(settings, rewards, scene, progress, with_sections=not reports)
        del rewards  # nothing keeps a reference to the model while the next one is loaded
    progress.total = progress.n
    progress.refresh()
    rows = [MeasuredCandidate(candidate=report.candidate, measures=report.measures) for report in reports]
    rows.sort(key=lambda row: -1.0 if row.measures.auc is None else row.measures.auc.value, reverse=True)
    return replace(reports[0], table=rows, seconds=time.perf_counter() - begun, command=command)


def estimate_states(candidates: Sequence[Candidate]) -> int:
    """Estimate how many states a check of candidates scores."""
    return sum(map(len, _group(candidates))) * count_states() + len(candidates) * exploits.EVALUATIONS


def _group(candidates: Sequence[Candidate]) -> list[list[list[Candidate]]]:
    """Group the candidates by encoder, and within that by render style and cameras."""
    groups: dict[object, dict[object, list[Candidate]]] = {}
    for one in candidates:
        groups.setdefault(encoder_key(one.reward), {}).setdefault((one.textured, one.camera_name), []).append(one)
    return [list(scenes.values()) for scenes in groups.values()]


def _audit_scene(
    settings: AuditSettings,
    rewards: EncodedRewards,
    candidates: Sequence[Candidate],
    progress: "tqdm[Any]",
    *,
    with_sections: bool,
) -> list[Report]:
    seed = settings.seed
    with ExitStack() as opened:
        env = opened.enter_context(closing(settings.make_env(candidates[0].textured)))
        with as_input_error():
            scene = opened.enter_context(closing(Scene(env, rewards.encoder, candidates[0].camera, progress.update)))
        rollouts = play_rollouts(settings, scene)
        _check_camera(scene, rollouts)
        visited = States.concatenate([rollout.states for rollout in rollouts])
        # A state made from its numbers would lack what differs from the renderer's scene.
        is_changing = any(change is not None for rollout in rollouts for change in rollout.with_initial.changes or ())
        obstacle = ORDERED if rewards.encoder.ordered else CHANGING if is_changing else ""
        task = None if obstacle else settings.task_states(env, visited.rows)
        samples = collect(settings, scene, task, rollouts)
        black = scene.black(visited[:1])
        reports: list[Report] = []
        for candidate in candidates:
            view = partial(rewards.view, combine_views=candidate.combine_views, num_views=scene.num_views)
            reward = view(candidate.reward)
            agreed = agreements(samples, reward, seed)
            others = {name: view(spec) for name, spec in control_rewards(candidate.reward).items()}
            measured = controls(samples, reward, others, black)
            searched = AdversarialSearch(left_out=obstacle or NO_STATES)
            if task is not None:
                searched = exploits.find_exploits(scene, task, reward, samples, seed=seed)
            sections: dict[str, Any] = {}
            if with_sections and not reports:
                curves = {label: view(spec) for label, spec in alpha_curves(candidate.reward).items()}
                sections["landscapes"] = landscapes(scene, task, samples, curves, reward)
                sections["sheets"] = contact_sheets(scene, samples, reward)
                sections["provenance"] = read_provenance(weights=rewards.encoder.weights, seed=seed)
            report = Report(
                subject=settings.name,
                candidate=candidate,
                measures=summarise(samples, reward, agreed, searched, measured, settings.threshold),
                agreements=agreed,
                exploits=searched,
                controls=measured,
                notes=[note for note in (obstacle if rewards.encoder.ordered else "", candidate.note) if note],
                **sections,
            )
            reports.append(report)
    return reports


def _check_camera(scene: Scene, rollouts: Sequence[Trajectory]) -> None:
    ends = [rollout.with_initial[np.array([0, -1])] for rollout in rollouts]
    frames = scene.draw(States.concatenate(ends)).astype(np.int16)
    if np.abs(frames - frames[:1]).max() <= 2:
        raise InputError(
            f"All frames are alike: the first and last ones of {len(rollouts)} rollouts do not differ. The camera "
            "must see what the agent moves. Choose another --camera."
        )


def agreements(samples: Samples, reward: Reward, seed: int) -> Mapping[str, Agreement]:
    """Agreement with success, by where the states are from; empty if success is unknown."""
    return {
        name: measure_agreement(reward(own.features), own.success, groups=groups, seed=seed)
        for name, own, groups in (("rollouts", samples.visited, samples.groups), (AROUND, samples.around, None))
        if own is not None and own.success is not None
    }


def controls(
    samples: Samples, reward: Reward, prompts: Mapping[str, Reward], black: Features | None
) -> Sequence[Control]:
    """Measure rewards that should be at chance. Empty if success is unknown, or the same for all states.

    They are those of other `prompts`, by their names, and of `black`: the features of a black frame, float32 (1, V, D).
    """
    labelled = samples.labelled
    if labelled.success is None or not labelled.has_both:
        return []
    features, success = labelled.features, labelled.success
    groups = samples.groups if labelled is samples.visited else np.arange(len(labelled))
    rewards = {name: other(features) for name, other in prompts.items()}
    if black is not None:
        rewards["successes replaced by a black frame"] = np.where(success, reward(black)[0], reward(features))
    return [
        Control(name=name, auc=auc(values, success), chance=chance_limit(success, groups, len(rewards)))
        for name, values in rewards.items()
    ]


def landscapes(
    scene: Scene, task: TaskStates | None, samples: Samples, curves: Mapping[str, Reward], main: Reward
) -> Sequence[Landscape]:
    """Rewards along the task's lines of states; along the first rollout of each behaviour if there are none.

    `curves` are the lines of plots of one path, by label; `main` makes those of plots with a line for each path.
    """
    plots: dict[str, Landscape] = {}
    for path in [] if task is None else task.paths():
        features = scene.features(States(path.states))
        if path.line is None:
            lines = {label: curve(features) for label, curve in curves.items()}
            goal = task.succeeds(path.states) if task is not None and samples.knows_success else None
        else:
            earlier = plots[path.title].curves if path.title in plots else {}
            lines, goal = {**earlier, path.line: main(features)}, None
        plots[path.title] = Landscape(
            title=path.title, axis=path.axis, positions=path.positions, curves=lines, goal=goal
        )
    sources = [rollout.source for rollout in samples.rollouts]
    for source in [] if plots else dict.fromkeys(sources):
        own = samples.visited[np.flatnonzero(samples.groups == sources.index(source))]
        title, positions = f"Along a rollout: {source} actions", np.arange(1.0, len(own) + 1)
        lines = {label: curve(own.features) for label, curve in curves.items()}
        plots[title] = Landscape(title=title, axis="step", positions=positions, curves=lines, goal=own.success)
    return list(plots.values())


def contact_sheets(scene: Scene, samples: Samples, reward: Reward) -> Sequence[ContactSheet]:
    """Collect the frames with the highest and with the lowest rewards."""
    every = samples.visited[np.arange(0, len(samples.visited), 5)] if samples.around is None else samples.around
    order = np.argsort(-reward(every.features), kind="stable")
    sheets = []
    for title, numbers in {"Highest rewards": order[:SHEET], "Lowest rewards": order[::-1][:SHEET]}.items():
        shown = every[numbers]
        frames = side_by_side(scene.draw(shown.states))
        sheets.append(ContactSheet(title=title, frames=frames, rewards=reward(shown.features), success=shown.success))
    return sheets


def summarise(
    samples: Samples,
    reward: Reward,
    agreed: Mapping[str, Agreement],
    found: AdversarialSearch,
    measured_controls: Sequence[Control],
    threshold: float | Literal["auto"] | None = None,
) -> Measures:
    """Summarise the numbers of one combination of settings. There are none without successes and failures."""
    labelled, success = samples.labelled, samples.labelled.success
    if success is None or not labelled.has_both:
        return Measures()
    name, rewards = AROUND if labelled is samples.around else "rollouts", reward(labelled.features)
    excess = false_positives = misses = None
    if found.knows_success and found.excess is not None and found.median_success is not None:
        distance = found.median_success - np.median(rewards[~success])
        excess = float(found.excess / distance) if distance > 0 else None
    if threshold is not None:
        threshold = best_threshold(rewards, success) if threshold == "auto" else threshold
        false_positives, misses = threshold_errors(rewards, success, threshold)
    return Measures(
        states=name,
        auc=agreed[name].auc or Interval(0.5, 0.5, 0.5),  # without one, all rewards are alike
        epic=agreed[name].epic,
        control_auc=best_control(measured_controls),
        exploit_excess=excess,
        threshold=threshold,
        false_positives=false_positives,
        misses=misses,
    )
