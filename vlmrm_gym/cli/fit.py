"""The command `vlmrm-gym fit`: a reward from answers about pairs of segments of a dataset."""

import json
import math
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import tyro
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray

from vlmrm_gym.cli.answers import name_labeler, say_answers
from vlmrm_gym.cli.segments import DatasetSegments
from vlmrm_gym.cli.settings import YAML, parse, read_yaml
from vlmrm_gym.errors import InputError, as_input_error
from vlmrm_gym.files import atomic_write, atomic_write_text
from vlmrm_gym.folders import output_folder
from vlmrm_gym.preferences import AnswersFile, Pair, Record
from vlmrm_gym.preferences.answers import Asked
from vlmrm_gym.preferences.pairs import agreement, grade_differences
from vlmrm_gym.rewards.default_model import default_model, with_model
from vlmrm_gym.rewards.learned import Preference
from vlmrm_gym.rewards.specification import check_names, to_mapping
from vlmrm_gym.terminal import said_warnings, say
from vlmrm_gym.validation import check_integer

if TYPE_CHECKING:
    from vlmrm_gym.preferences.fitting import Comparisons
    from vlmrm_gym.rewards.preference_model import PreferenceHead

FILES = ("head.safetensors", "reward.json", "fit.json", "calibration.png")
"""What the command writes."""
BINS = 10
"""Of predicted probabilities, in the calibration."""
PAIRS_PER_CALL = 64
"""Pairs that are encoded between two progress reports."""


@dataclass(frozen=True)
class Fit:
    """Fit a reward to the answers of `vlmrm-gym label`.

        vlmrm-gym fit poles answers.db --out upright
        vlmrm-gym check VLMRM/CartPole-v1 --reward upright/reward.json

    All answers in the file count, or those of --labeler. A part is held out: fit.json says how well the reward predicts
    those, and calibration.png how often the second segment is preferred where it predicts that. If it predicts them no
    better than chance, no reward is written.

    The folder gets reward.json, for --reward of other commands; head.safetensors, which it names; fit.json and
    calibration.png.
    """

    dataset: Annotated[Path, tyro.conf.Positional]
    """the folder of the dataset that was labelled"""
    answers: Annotated[Path, tyro.conf.Positional]
    """the file of answers"""
    out: Path
    """the folder to write"""
    labeler: str | None = None
    """whose answers are fitted, as the command's output names it (None: everyone's)"""
    model: str | None = None
    """the vision-language model whose image tower makes the features (None: as in CLIP, by the environment)"""
    ensemble: int = 3
    """number of networks"""
    reward_kwargs: YAML = None
    """other fields of vlmrm_gym.Preference, such as '{hidden_size: 32, precision: fp32}'"""
    held_out: float = 0.2
    """fraction of the pairs whose answers are not fitted"""
    options: YAML = None
    """other fields of vlmrm_gym.preferences.FitOptions, such as '{epochs: 100, l2: 5}'"""
    camera: YAML = None
    """what the reward sees, as in `vlmrm-gym dataset` (None: the dataset's)"""
    seed: int = 0
    """of the networks' weights, and of what is held out"""
    device: str = "auto"
    """where the model runs: auto, cpu, cuda, cuda:1 or mps"""
    overwrite: bool = False
    """replace earlier results in a folder that exists"""
    trust_code: bool = False
    """run the code that the dataset names, such as its environment"""


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    _fit(parse(Fit, "fit", arguments))


def fit(dataset: str | Path, answers: str | Path, *, out: str | Path, **settings: Any) -> Preference:
    """Fit a reward to answers about segments of a dataset: `vlmrm-gym fit` as a function.

    Args:
        dataset: The folder of the dataset.
        answers: The file of answers.
        out: The folder to write.
        settings: The other flags, see `Fit`: `fit("poles", "answers.db", out="upright", ensemble=5)`.

    Returns:
        The reward's specification; the folder has it as reward.json.

    Raises:
        InputError: A setting, the dataset, the answers or the output folder cannot be used, or the reward predicts
            held-out answers no better than chance.
    """
    return _fit(Fit(Path(dataset), Path(answers), Path(out), **settings))


def _fit(command: Fit) -> Preference:
    prompt, asked, everything = _read(command.answers, command.labeler)
    records = [record for record in everything if record.answer.preference is not None]
    from vlmrm_gym.audit.provenance import read_provenance
    from vlmrm_gym.media.drawing import plot_calibration
    from vlmrm_gym.preferences import fitting
    from vlmrm_gym.rewards.preference_model import PreferenceHead

    kwargs, options = (read_yaml(name, getattr(command, name)) or {} for name in ("reward_kwargs", "options"))
    with as_input_error(TypeError):
        check_integer("seed", command.seed, minimum=0)
        check_names("a field of the reward", kwargs, [one.name for one in fields(Preference) if one.init])
        check_names("a field of FitOptions", options, [one.name for one in fields(fitting.FitOptions)])
        spec = Preference(**{"prompt": prompt, "model": command.model, "ensemble": command.ensemble, **kwargs})
        own = {"held_out": command.held_out, "newest_held_out": len(records)}
        options = fitting.FitOptions(**{**own, **options})
    keys = list(asked)
    comparisons = _compare(records, keys, options.held_out, command.seed)
    if (obstacle := fitting.find_obstacle(comparisons, options)) is not None:
        raise InputError(f"{command.answers} cannot be fitted. {obstacle} Ask about more pairs.")
    with (
        output_folder(command.out.resolve(), overwrite=command.overwrite) as folder,
        DatasetSegments(command.dataset, command.camera, trust_code=command.trust_code) as segments,
    ):
        spec = with_model(spec, default_model(segments.env))
        pairs = [segments.find(one, prompt) for one in asked.values()]
        if len(lengths := {len(side) for pair in pairs for side in (pair.first, pair.second)}) > 1:
            raise InputError(f"All segments must have the same length. {command.answers} has {sorted(lengths)}.")
        features, model = _encode(pairs, spec, segments, command.device)
        numbers = {key: number for number, key in enumerate(keys)}
        rows = [numbers[record.pair] for record in records]
        comparisons = replace(comparisons, features=features[rows])
        head = PreferenceHead(
            features.shape[3:],
            ensemble=spec.ensemble,
            hidden_size=spec.hidden_size,
            fingerprint=model.fingerprint,
            prompt=prompt,
            seed=command.seed,
        )
        states = features.reshape(-1, *features.shape[3:])
        loss = fitting.fit(head, comparisons, states, options, command.seed)
        verdict = fitting.judge(head, None, comparisons, options)
        calibration = _calibrate(head, comparisons)
        grades = grade_differences(pairs)
        truth = grades[rows][comparisons.held_out]
        predicted = fitting.predict(head, comparisons.features[comparisons.held_out])
        held_out = {
            "answers": len(truth),
            "accuracy": verdict.held_out_accuracy,
            "accuracy_by_grade": agreement(predicted, truth),
            "cross_entropy": verdict.held_out_loss,
            "cross_entropy_of_chance": math.log(2),
        }
        figures = {
            "accepted": verdict.accepted,
            "held_out": {name: None if math.isnan(figure) else figure for name, figure in held_out.items()},
            "fitted": {"answers": len(records) - len(truth), "cross_entropy": loss},
            "calibration": calibration,
            "labelers": Counter(record.labeler for record in records),
            "reward": to_mapping(spec),
            "options": asdict(options),
            "dataset": str(command.dataset),
            "answers": str(command.answers),
            "segment_length": lengths.pop(),
            "camera": segments.camera,
            "provenance": read_provenance(
                weights=f"{model.model.name}, SHA-256 {model.model.digest}", seed=command.seed
            ),
        }
        head_file, reward_file, figures_file, plot = (folder / name for name in FILES)
        for path in (head_file, reward_file):
            path.unlink(missing_ok=True)
        _write(figures_file, figures)
        atomic_write(plot, lambda path: plot_calibration(path, calibration))
        if not verdict.accepted:
            raise InputError(f"No reward is written. {verdict.reason} See {figures_file}, and ask about more pairs.")
        spec = replace(spec, head=str(head_file))
        head.save(head_file)
        _write(reward_file, {**to_mapping(spec), "head": head_file.name})  # beside it: the folder may be moved
    say_answers(everything, dict(zip(keys, grades.tolist(), strict=True)))
    say(
        f"On {len(truth)} of {len(records)} answers, which were held out: accuracy {verdict.held_out_accuracy:.1%}, "
        f"cross-entropy {verdict.held_out_loss:.3f} ({math.log(2):.3f}: chance)"
    )
    say(f"Written: {', '.join(str(folder / name) for name in FILES)}")
    environment = [segments.id] if segments.id else ["--env", segments.name]
    camera = [] if command.camera is None else ["--camera", json.dumps(segments.camera)]
    say(f"Use it: {shlex.join(['vlmrm-gym', 'check', *environment, '--reward', str(reward_file), *camera])}")
    return spec


def _read(path: Path, labeler: str | None) -> tuple[str, dict[str, Asked], list[Record]]:
    """The prompt of a file of answers, the pairs that have a preference by their keys, and a labeler's records."""
    with as_input_error(OSError), AnswersFile(path, exists=True) as file:
        prompt, pairs, records = file.prompt, {one.pair: one for one in file.asked()}, file.records()
    names = {record.labeler: name_labeler(record.labeler) for record in records}
    if labeler is not None and labeler not in names.values():
        known = ", ".join(map(repr, names.values()))
        raise InputError(f"`labeler` must be one of {known}, whose answers {path} has. Received {labeler!r}.")
    records = [record for record in records if labeler in (None, names[record.labeler])]
    asked = sorted({record.pair for record in records if record.answer.preference is not None})
    if prompt is None or not asked:
        raise InputError(f"{path} has no answers to fit. Ask a labeler: vlmrm-gym label")
    if missing := set(asked) - set(pairs):
        raise InputError(f"{path} is damaged: it has an answer about a pair that it does not have, {min(missing)!r}.")
    return prompt, {key: pairs[key] for key in asked}, records


def _compare(records: Sequence[Record], keys: Sequence[str], held_out: float, seed: int) -> "Comparisons":
    """The answers, without features yet. All those about a pair are held out, or none."""
    from vlmrm_gym.preferences.fitting import Comparisons

    order = np.random.default_rng(seed).permutation(len(keys))
    held = {keys[i] for i in order[: round(held_out * len(keys))]}
    return Comparisons(
        features=np.empty((len(records), 0), dtype=np.float32),
        preferences=np.array([record.answer.preference for record in records], dtype=np.float32),
        confidences=np.array([record.answer.confidence for record in records], dtype=np.float32),
        held_out=np.array([record.pair in held for record in records]),
    )


def _encode(
    pairs: Sequence[Pair], spec: Preference, segments: DatasetSegments, device: str
) -> tuple[NDArray[np.float32], Any]:
    """The features of pairs, float32 (N, 2, T, V, D), and the model that made them."""
    from tqdm import tqdm

    from vlmrm_gym.rendering.states import States
    from vlmrm_gym.rewards.state_reward import StateReward
    from vlmrm_gym.scoring.backends import make_scoring_queue

    parts = []
    with as_input_error(DependencyNotInstalled, OSError, RuntimeError), said_warnings():
        model = spec.build(device)
        reward = StateReward(model, segments.view.num_views, return_features=True)
        scorer = make_scoring_queue(lambda device: reward, segments.view.make_renderer)
        with closing(scorer), tqdm(total=len(pairs), unit=" pairs", file=sys.stderr) as progress:
            for start in range(0, len(pairs), PAIRS_PER_CALL):
                some = pairs[start : start + PAIRS_PER_CALL]
                states = States.concatenate([side.states for pair in some for side in (pair.first, pair.second)])
                features = scorer.features(states)
                parts.append(features.reshape(len(some), 2, -1, *features.shape[1:]))
                progress.update(len(some))
    return np.concatenate(parts), model


def _calibrate(head: "PreferenceHead", comparisons: "Comparisons") -> list[dict[str, float]]:
    """Of the held-out answers in each bin of predictions: the mean prediction, the mean answer, and how many."""
    from vlmrm_gym.preferences.fitting import predict

    answers, found = comparisons[comparisons.held_out & (comparisons.confidences > 0)], []
    predicted = 0.5 * (1 + np.tanh(predict(head, answers.features) / 2))  # the sigmoid
    bins = np.minimum((predicted * BINS).astype(int), BINS - 1)
    for number in np.unique(bins):
        rows = bins == number
        means = (np.average(one[rows], weights=answers.confidences[rows]) for one in (predicted, answers.preferences))
        found.append({**dict(zip(("predicted", "answered"), map(float, means), strict=True)), "count": int(rows.sum())})
    return found


def _write(path: Path, values: Any) -> None:
    atomic_write_text(path, json.dumps(values, indent=2, default=str))
