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
from typing import Annotated, Any

import numpy as np
import tyro
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray

from vlmrm_gym._util.errors import InputError, as_input_error, said_warnings, say
from vlmrm_gym._util.files import atomic_write_text, output_folder
from vlmrm_gym._util.validation import check_integer
from vlmrm_gym.learning import AnswersFile, Record
from vlmrm_gym.learning.answers import StoredPair
from vlmrm_gym.rewards.learned import Preference
from vlmrm_gym.rewards.sources import default_model
from vlmrm_gym.rewards.specification import check_names, to_mapping
from vlmrm_gym.scoring.options import CameraOption, DeviceOption
from vlmrm_gym.states.states import States
from vlmrm_gym.tools import fit_videos
from vlmrm_gym.tools.cli.label import name_labeler, say_answers
from vlmrm_gym.tools.cli.settings import YAML, parse
from vlmrm_gym.tools.segments import DatasetSegments

FILES = ("head.safetensors", "reward.json", "fit.json")
"""What the command writes."""


@dataclass(frozen=True)
class Fit(CameraOption, DeviceOption):
    """Fit a reward to the answers of `vlmrm-gym label`; or to videos, see `vlmrm-gym fit --videos FOLDER --help`.

        vlmrm-gym fit --videos recordings/ --out kneeling --encoder tiny --env VLMRM/Humanoid-kneel-v0

        vlmrm-gym fit poles answers.db --out upright
        vlmrm-gym check VLMRM/CartPole-v1 --reward upright/reward.json

    All answers in the file count, or those of --labeler. A part is held out: fit.json says how well the reward predicts
    those. If it predicts them no better than chance, no reward is written.

    The folder gets reward.json, for --reward of other commands; head.safetensors, which it names; and fit.json.
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
    """other fields of vlmrm_gym.learning.FitOptions, such as '{epochs: 100, l2: 5}'"""
    seed: int = 0
    """of the networks' weights, and of what is held out"""
    overwrite: bool = False
    """replace earlier results in a folder that exists"""
    trust_code: bool = False
    """run the code that the dataset names, such as its environment"""


def main(arguments: Sequence[str]) -> None:
    """Run the command; with --videos that of `fit_videos`."""
    if any(word.partition("=")[0] == "--videos" for word in arguments):
        return fit_videos.main(arguments)
    _fit(parse(Fit, "fit", arguments))


def fit(dataset: str | Path, answers: str | Path, *, out: str | Path, **settings: Any) -> Preference:
    """Fit a reward to answers about segments of a dataset: `vlmrm-gym fit` as a function.

    The settings are the flags, see `Fit`: `fit("poles", "answers.db", out="upright", ensemble=5)`. An InputError if the
    reward predicts held-out answers no better than chance.

    Returns:
        The reward's specification; the folder has it as reward.json.
    """
    return _fit(Fit(Path(dataset), Path(answers), Path(out), **settings))


def _fit(command: Fit) -> Preference:
    prompt, asked, everything = _read(command.answers, command.labeler)
    records = [record for record in everything if record.answer.preference is not None]
    from tqdm import tqdm

    from vlmrm_gym.learning.fitting import FitOptions, fit_answers
    from vlmrm_gym.scoring.backends import make_scoring_queue
    from vlmrm_gym.scoring.state_encoder import StateEncoder
    from vlmrm_gym.tools.check.results import read_provenance

    kwargs, options = command.reward_kwargs or {}, command.options or {}
    with as_input_error(TypeError):
        check_integer("seed", command.seed, minimum=0)
        check_names("a field of the reward", kwargs, [one.name for one in fields(Preference) if one.init])
        check_names("a field of FitOptions", options, [one.name for one in fields(FitOptions)])
        spec = Preference(**{"prompt": prompt, "model": command.model, "ensemble": command.ensemble, **kwargs})
        options = FitOptions(**{"held_out": command.held_out, "newest_held_out": len(records), **options})
    with (
        output_folder(command.out.resolve(), overwrite=command.overwrite) as folder,
        DatasetSegments(command.dataset, command.camera, trust_code=command.trust_code) as segments,
    ):
        spec, view = spec.with_model(default_model(segments.env)), segments.view
        pairs = [segments.find(one, prompt) for one in asked]
        failures = (DependencyNotInstalled, OSError, RuntimeError)
        with as_input_error(*failures), said_warnings():
            model = spec.build(command.device)
            encoder = StateEncoder(model, view.num_views)
            queue = make_scoring_queue(lambda device: encoder, view.make_renderer)
        with closing(queue), tqdm(unit=" states", file=sys.stderr) as progress:

            def encode(states: States) -> NDArray[np.float32]:
                progress.update(len(states))
                with as_input_error(*failures), said_warnings():
                    return queue.features(states)

            head, verdict, figures = fit_answers(spec, model.fingerprint, pairs, records, encode, options, command.seed)
        head_file, reward_file, figures_file = (folder / name for name in FILES)
        for path in (head_file, reward_file):  # those of an earlier fit
            path.unlink(missing_ok=True)
        figures |= {
            "labelers": Counter(record.labeler for record in records),
            "command": asdict(command),
            "provenance": read_provenance(weights=model.weights, seed=command.seed),
        }
        _write(figures_file, figures)
        if not verdict.accepted:
            raise InputError(f"No reward is written. {verdict.reason} See {figures_file}, and ask about more pairs.")
        spec = replace(spec, head=str(head_file))
        head.save(head_file)
        _write(reward_file, {**to_mapping(spec), "head": head_file.name})  # beside it: the folder may be moved
    say_answers(everything, pairs)
    say(
        f"On {figures['held_out']['answers']} of {len(records)} answers, which were held out: accuracy "
        f"{verdict.held_out_accuracy:.1%}, cross-entropy {verdict.held_out_loss:.3f} ({math.log(2):.3f}: chance)"
    )
    say(f"Written: {', '.join(str(folder / name) for name in FILES)}")
    environment = [segments.id] if segments.id else ["--env", segments.name]
    shown = [] if command.camera is None else ["--camera", json.dumps(segments.camera)]
    say(f"Use it: {shlex.join(['vlmrm-gym', 'check', *environment, '--reward', str(reward_file), *shown])}")
    return spec


def _read(path: Path, labeler: str | None) -> tuple[str, list[StoredPair], list[Record]]:
    """The prompt of a file of answers, the pairs that have a preference in order of their keys, and the records."""
    with as_input_error(OSError), AnswersFile(path, exists=True) as file:
        prompt, pairs, records = file.prompt, {one.pair: one for one in file.pairs()}, file.records()
    names = {record.labeler: name_labeler(record.labeler) for record in records}
    if labeler is not None and labeler not in names.values():
        known = ", ".join(map(repr, names.values()))
        raise InputError(f"`labeler` must be one of {known}, whose answers {path} has. Received {labeler!r}.")
    records = [record for record in records if labeler in (None, names[record.labeler])]
    preferred = sorted({record.pair for record in records if record.answer.preference is not None})
    if prompt is None or not preferred:
        raise InputError(f"{path} has no answers to fit. Ask a labeler: vlmrm-gym label")
    if missing := set(preferred) - set(pairs):
        raise InputError(f"{path} is damaged: it has an answer about a pair that it does not have, {min(missing)!r}.")
    return prompt, [pairs[key] for key in preferred], records


def _write(path: Path, values: Any) -> None:
    atomic_write_text(path, json.dumps(values, indent=2, default=str))
