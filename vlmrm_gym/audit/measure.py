"""The numbers and the plots of one reward, from the states that a check has scored."""

from collections.abc import Mapping, Sequence

import numpy as np

from vlmrm_gym.audit.measures.agreement import Agreement, measure_agreement
from vlmrm_gym.audit.measures.bootstrap import Interval
from vlmrm_gym.audit.measures.controls import Control, best_control, chance_limit
from vlmrm_gym.audit.results import AdversarialSearch, ContactSheet, Landscape, Measures
from vlmrm_gym.audit.rewards import RewardView
from vlmrm_gym.audit.samples import Samples
from vlmrm_gym.audit.scene import Scene
from vlmrm_gym.envs.states import TaskStates
from vlmrm_gym.metrics import auc
from vlmrm_gym.rendering.renderer import side_by_side
from vlmrm_gym.rewards.heads import Features

SHEET = 12
"""Frames of a contact sheet."""


def agreements(samples: Samples, reward: RewardView, seed: int) -> Mapping[str, Agreement]:
    """Agreement with success, by where the states are from; empty if success is unknown."""
    measured = {}
    if samples.visited.success is not None:
        rewards = reward(samples.visited.features)
        measured["rollouts"] = measure_agreement(rewards, samples.visited.success, groups=samples.groups, seed=seed)
    if samples.around is not None and samples.around.success is not None:
        measured["states around the goal"] = measure_agreement(
            reward(samples.around.features), samples.around.success, seed=seed
        )
    return measured


def controls(
    samples: Samples, reward: RewardView, prompts: Mapping[str, RewardView], black: Features | None
) -> Sequence[Control]:
    """The controls of one reward. Empty if success is unknown, or the same for all states.

    Args:
        samples: The states.
        reward: The reward that is checked.
        prompts: The rewards of other prompts, by what they are called.
        black: The features of a black frame from every camera, float32 (1, V, D); None if the reward sees no frame.
    """
    labelled, visited = samples.labelled, samples.visited
    if labelled.success is None or not labelled.has_both:
        return []
    features, success = labelled.features, labelled.success
    groups = samples.groups if labelled is visited else np.arange(len(labelled))
    unrelated = "An unrelated prompt should not separate successes from failures this well."
    rewards = [(name, unrelated, other(features), success, groups) for name, other in prompts.items()]
    if black is not None:
        explanation = "A black frame should not score above failures as reliably as a success does."
        blackened = np.where(success, reward(black)[0], reward(features))
        rewards.append(("successes replaced by a black frame", explanation, blackened, success, groups))
    if visited.success is not None and visited.has_both:
        explanation = "Frozen frames should carry no information about when a rollout succeeds."
        frozen = reward(samples.first)[samples.groups]
        rewards.append(("rollouts frozen at their first frame", explanation, frozen, visited.success, samples.groups))
    return [
        Control(name=name, explanation=why, auc=auc(values, labels), chance=chance_limit(labels, own, len(rewards)))
        for name, why, values, labels, own in rewards
    ]


def landscapes(
    scene: Scene,
    task: TaskStates | None,
    samples: Samples,
    curves: Mapping[str, RewardView],
    main: RewardView,
) -> Sequence[Landscape]:
    """Rewards along the task's lines of states; along the first rollout of each behaviour if there are none.

    Args:
        scene: Encodes states.
        task: The states of the task; None if states cannot be made.
        samples: The rollouts.
        curves: The rewards of plots with a line for each alpha, by label.
        main: The reward of plots with a line for each path.
    """
    plots: dict[str, Landscape] = {}
    for path in [] if task is None else task.paths():
        features = scene.features(path.states)
        lines = {label: curve(features) for label, curve in curves.items()}
        goal = task.succeeds(path.states) if task is not None and samples.knows_success else None
        if path.line is not None:
            earlier = plots[path.title].curves if path.title in plots else {}
            lines, goal = {**earlier, path.line: main(features)}, None
        plots[path.title] = Landscape(
            title=path.title, axis=path.axis, positions=path.positions, curves=lines, goal=goal
        )
    behaviours = [rollout.behaviour for rollout in samples.rollouts]
    for behaviour in [] if plots else dict.fromkeys(behaviours):
        title, own = f"Along a rollout: {behaviour} actions", samples.groups == behaviours.index(behaviour)
        plots[title] = Landscape(
            title=title,
            axis="step",
            positions=np.arange(1.0, own.sum() + 1),
            curves={label: curve(samples.visited.features[own]) for label, curve in curves.items()},
            goal=None if samples.visited.success is None else samples.visited.success[own],
        )
    return list(plots.values())


def contact_sheets(scene: Scene, samples: Samples, reward: RewardView) -> Sequence[ContactSheet]:
    """The frames with the highest and with the lowest rewards."""
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
    reward: RewardView,
    agreed: Mapping[str, Agreement],
    exploits: AdversarialSearch,
    measured_controls: Sequence[Control],
) -> Measures:
    """The numbers of one combination of settings."""
    name = "states around the goal" if samples.labelled is samples.around else "rollouts"
    best = agreed.get(name) if samples.labelled.has_both else None
    return Measures(
        states=None if best is None else name,
        auc=None if best is None else best.auc or Interval(0.5, 0.5, 0.5),  # without one, all rewards are alike
        epic=None if best is None else best.epic,
        control_auc=best_control(measured_controls),
        exploit_excess=_excess(samples, reward, exploits),
    )


def _excess(samples: Samples, reward: RewardView, exploits: AdversarialSearch) -> float | None:
    labelled, success = samples.labelled, exploits.median_success
    if not exploits.knows_success or exploits.excess is None or success is None:
        return None
    assert labelled.success is not None
    if labelled.success.all():
        return None
    distance = success - np.median(reward(labelled.features)[~labelled.success])
    return float(exploits.excess / distance) if distance > 0 else None
