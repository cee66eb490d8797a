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
from numpy.typing import ArrayLike, NDArray
from tqdm import tqdm

from vlmrm_gym._util.errors import InputError, as_input_error, said_warnings, say
from vlmrm_gym._util.files import atomic_write_text, output_folder
from vlmrm_gym._util.validation import check_integer
from vlmrm_gym.learning import AnswersFile, Pair, Record
from vlmrm_gym.learning.answer_table import make_pairs, make_records, read_table
from vlmrm_gym.learning.answers import StoredPair
from vlmrm_gym.rewards.learned import Preference
from vlmrm_gym.rewards.sources import default_model
from vlmrm_gym.rewards.specification import check_names, save_reward
from vlmrm_gym.scoring.options import CameraOption, DeviceOption
from vlmrm_gym.states import StateView
from vlmrm_gym.states.states import States
from vlmrm_gym.tools import fit_videos
from vlmrm_gym.tools.cli.label import name_labeler, say_answers
from vlmrm_gym.tools.cli.settings import YAML, OutputFlags, make_renderer_of, parse
from vlmrm_gym.tools.segments import DatasetSegments

if TYPE_CHECKING:
    from vlmrm_gym.learning.fitting import FitOptions

FILES = ("head.safetensors", "reward.json", "fit.json")
"""What the command writes."""


@dataclass(frozen=True)
class Fit(OutputFlags, CameraOption, DeviceOption):
    """Fit a reward to the answers of `vlmrm-gym label`; or to videos, see `vlmrm-gym fit --videos --help`.

        vlmrm-gym fit --videos recordings/ --out kneeling --encoder tiny --env VLMRM/Humanoid-kneel-v0

        vlmrm-gym fit poles answers.db --out upright
        vlmrm-gym fit poles preferences.csv --prompt "an upright pole" --out upright
        vlmrm-gym check VLMRM/CartPole-v1 --reward upright/reward.json

    All answers in the file count, or those of --labeler. A part is held out: fit.json says how well the reward predicts
    those. If it predicts them no better than chance, no reward is written.

    The folder gets reward.json, for --reward of other commands; head.safetensors, which it names; and fit.json.
    """

    dataset: Annotated[Path, tyro.conf.Positional]
    """the folder of the dataset that was labelled"""
    answers: Annotated[Path, tyro.conf.Positional]
    """the file of answers; or a CSV file with the columns first_episode, first_step, second_episode, second_step, steps
    and preference: 0 if the first segment is closer to the goal, 1 if the second is, or between"""
    out: Path
    """the folder to write"""
    prompt: str | None = None
    """what the answers of a CSV file are about"""
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
    trust_code: bool = False
    """run the code that the dataset names, such as its environment"""


def main(arguments: Sequence[str]) -> None:
    """Run the command; with --videos that of `fit_videos`."""
    if any(word.partition("=")[0] == "--videos" for word in arguments):
        return fit_videos.main(["--help"] if {"-h", "--help"} & {*arguments} else arguments)
    _fit(parse(Fit, "fit", arguments))


def fit(dataset: str | Path, answers: str | Path, *, out: str | Path, **settings: Any) -> Preference:
    """Fit a reward to answers about segments of a dataset: `vlmrm-gym fit` as a function.

    The settings are the flags, see `Fit`: `fit("poles", "answers.db", out="upright", ensemble=5)`. An InputError if the
    reward predicts held-out answers no better than chance.

    Returns:
        The reward's specification; the folder has it as reward.json.
    """
    return _fit(Fit(Path(dataset), Path(answers), Path(out), **settings))


def fit_preferences(
    first: Any, second: Any, preferences: ArrayLike, *, prompt: str, out: str | Path, **settings: Any
) -> Preference:
    """Fit a reward to preferences that exist: of pairs of segments of frames, without asking anyone.

    Args:
        first: Frames of the first segments, uint8 (N, T, H, W, 3).
        second: Frames of the second ones, of the same shape.
        preferences: float (N,): 0 where the first segment is closer to the goal, 1 where the second is, or between.
        prompt: The goal.
        out: The folder to write, see `Fit`.
        settings: Its flags, but for those of datasets: `fit_preferences(a, b, answers, prompt="...", out="r", seed=1)`.

    Returns:
        The reward's specification; the folder has it as reward.json. An InputError if it predicts held-out answers no
        better than chance.
    """
    for name in ("camera", "labeler", "trust_code"):
        if name in settings:
            raise InputError(f"`{name}` is for datasets. Received {settings[name]!r} for frames. Leave it out.")
    with as_input_error(TypeError):
        pairs = make_pairs(first, second, preferences, prompt)
        command = Fit(Path(), Path(), Path(out), prompt=prompt, **settings)
    spec, options = _settings(command, prompt, len(pairs))
    spec = spec.with_model(default_model())  # the file says which: an environment may have another default
    with output_folder(command.out.resolve(), overwrite=command.overwrite) as folder:
        records = make_records(pairs, preferences, "given")
        return _fit_pairs(command, folder, spec, options, pairs, records)


def _fit(command: Fit) -> Preference:
    rows, asked, everything, prompt = [], [], [], command.prompt or ""
    if is_table := command.answers.suffix.lower() == ".csv":
        if not prompt or command.labeler is not None:
            raise InputError("A CSV file needs a `prompt`, and no `labeler`: it does not say them.")
        rows = read_table(command.answers)
    else:
        if prompt:
            raise InputError(f"`prompt` is for CSV files. Received {prompt!r} for {command.answers}, which has one.")
        prompt, asked, everything = _read(command.answers, command.labeler)
    spec, options = _settings(command, prompt, len(rows or everything))
    with (
        output_folder(command.out.resolve(), overwrite=command.overwrite) as folder,
        DatasetSegments(command.dataset, command.camera, trust_code=command.trust_code) as segments,
    ):
        spec = spec.with_model(default_model(segments.env))
        if is_table:
            pairs = [segments.cut(row.first, row.second, prompt) for row in rows]
            everything = make_records(pairs, [row.preference for row in rows], str(command.answers))
            pairs = list({pair.key: pair for pair in pairs}.values())
        else:
            pairs = [segments.find(one, prompt) for one in asked]
        spec = _fit_pairs(command, folder, spec, options, pairs, everything, segments.view)
    environment = [segments.id]
    environment += ["--env-kwargs", json.dumps(segments.env_kwargs)] if segments.env_kwargs else []
    shown = [] if command.camera is None else ["--camera", json.dumps(segments.camera)]
    say(f"Use it: {shlex.join(['vlmrm-gym', 'check', *environment, '--reward', str(folder / FILES[1]), *shown])}")
    return spec


def _settings(command: Fit, prompt: str, count: int) -> tuple[Preference, "FitOptions"]:
    """The reward to fit, and how, of a command with so many answers."""
    from vlmrm_gym.learning.fitting import FitOptions

    kwargs, options = command.reward_kwargs or {}, command.options or {}
    with as_input_error(TypeError):
        check_integer("seed", command.seed, minimum=0)
        check_names("a field of the reward", kwargs, [one.name for one in fields(Preference) if one.init])
        check_names("a field of FitOptions", options, [one.name for one in fields(FitOptions)])
        spec = Preference(**{"prompt": prompt, "model": command.model, "ensemble": command.ensemble, **kwargs})
        return spec, FitOptions(**{"held_out": command.held_out, "newest_held_out": count, **options})


def _fit_pairs(
    command: Fit,
    folder: Path,
    spec: Preference,
    options: "FitOptions",
    pairs: Sequence[Pair],
    everything: Sequence[Record],
    view: StateView | None = None,
) -> Preference:
    """Fit the reward to answers about pairs, and write it. `view` draws their states; None: they are frames."""
    from vlmrm_gym.learning.fitting import fit_answers
    from vlmrm_gym.scoring import make_scoring_queue
    from vlmrm_gym.scoring.state_encoder import StateEncoder
    from vlmrm_gym.tools.check.results import read_provenance

    records = [record for record in everything if record.answer.preference is not None]
    failures = (DependencyNotInstalled, OSError, RuntimeError)
    with as_input_error(*failures), said_warnings():
        model = spec.build(command.device)
        encoder = StateEncoder(model, 1 if view is None else view.num_views)
        queue = make_scoring_queue(lambda device: encoder, make_renderer_of(view))
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
    atomic_write_text(figures_file, json.dumps(figures, indent=2, default=str))
    if not verdict.accepted:
        raise InputError(f"No reward is written. {verdict.reason} See {figures_file}, and ask about more pairs.")
    head.save(head_file)
    spec = replace(spec, head=str(head_file))
    save_reward(spec, folder)
    say_answers(everything, pairs)
    say(
        f"On {figures['held_out']['answers']} of {len(records)} answers, which were held out: accuracy "
        f"{verdict.held_out_accuracy:.1%}, cross-entropy {verdict.held_out_loss:.3f} ({math.log(2):.3f}: chance)"
    )
    say(f"Written: {', '.join(str(folder / name) for name in FILES)}")
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
