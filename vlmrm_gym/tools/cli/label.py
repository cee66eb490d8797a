"""The command `vlmrm-gym label`: a labeler says which of two segments of a dataset is closer to the goal."""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any

import numpy as np
import tyro
from gymnasium.error import DependencyNotInstalled
from tqdm import tqdm

from vlmrm_gym._util.errors import InputError, as_input_error, printable, say
from vlmrm_gym._util.validation import check_integer, check_positive_integer, truncate
from vlmrm_gym.learning import AnswersFile, Record, ask, resolve_labeler
from vlmrm_gym.learning.labelers import LABELERS
from vlmrm_gym.learning.pairs import Pair, agreement, answer_differences, grade_differences
from vlmrm_gym.scoring.options import CameraOption
from vlmrm_gym.tools.cli.settings import YAML, parse
from vlmrm_gym.tools.segments import DatasetSegments


@dataclass(frozen=True)
class Label(CameraOption):
    """Ask a labeler which of two segments of a dataset is closer to the goal.

        vlmrm-gym label poles --labeler '{kind: ground_truth, mistake_rate: 0.1}' --out answers.db
        vlmrm-gym label poles --labeler human --pairs 50 --segment-length 25 --out answers.db
        vlmrm-gym label ants --labeler my_package.labelers:higher --prompt "an ant on its back" --out answers.db

    DATASET is a folder that `vlmrm-gym dataset` made: its states are drawn when the labeler looks at them. Answers go
    into a file, and nothing in it is asked again: repeat the command after an interruption, with more pairs, or with
    another labeler. `vlmrm-gym fit` makes a reward of them.
    """

    dataset: Annotated[Path, tyro.conf.Positional]
    """the folder of a dataset"""
    labeler: YAML
    """what answers: ground_truth, endpoint or human; one with settings, such as
    '{kind: endpoint, model: gpt-4o-mini, max_calls: 2000}'; or your own "package.module:attribute" """
    out: Path
    """the file of answers; it may exist"""
    prompt: str | None = None
    """the goal (None: the task's own)"""
    pairs: int = 200
    """how many"""
    segment_length: int = 1
    """states of a segment"""
    seed: int = 0
    """of the choice of pairs"""
    trust_code: bool = False
    """run the code that the dataset names, such as its environment"""


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    _label(parse(Label, "label", arguments))


def label(dataset: str | Path, *, labeler: Any, out: str | Path, **settings: Any) -> None:
    """Ask a labeler about pairs of segments of a dataset: `vlmrm-gym label` as a function.

    The labeler is whatever `vlmrm_gym.learning.resolve_labeler` takes, such as `GroundTruthLabeler()`. The other
    settings are the flags, see `Label`: `label("poles", labeler="human", out="answers.db", pairs=50)`. What a labeler
    of one's own raises ends it; the answers so far are in the file.
    """
    _label(Label(Path(dataset), labeler, Path(out), **settings))


def _label(command: Label) -> None:
    with as_input_error(TypeError):
        for name in ("pairs", "segment_length"):
            check_positive_integer(name, getattr(command, name))
        check_integer("seed", command.seed, minimum=0)
        labeler = resolve_labeler(command.labeler)
    with DatasetSegments(command.dataset, command.camera, trust_code=command.trust_code) as segments:
        prompt = command.prompt or (None if segments.task is None else segments.task.prompt)
        if prompt is None:
            raise InputError('`prompt` must be given: what should be seen. Pass --prompt "a text".')
        pairs = segments.sample(command.pairs, command.segment_length, prompt, command.seed)
        with as_input_error(OSError):
            file = AnswersFile(command.out, prompt=prompt)
        with file, tqdm(bar_format="{desc}", file=sys.stderr) as progress:

            def report(line: str) -> None:
                progress.set_description_str(line, refresh=False)
                progress.update()

            try:
                with as_input_error(DependencyNotInstalled, OSError, RuntimeError):
                    ask(labeler, pairs, file, progress=report)
            except BaseException:
                count = len(file.records())
                say(f"{command.out} has {count} answers. The same command asks about the others.", error=True)
                raise
            answered, records = file.answered(labeler.answer_key), file.records()
    say_answers(records, pairs)
    if missing := sum(pair.key not in answered for pair in pairs):
        budget = ", with a higher budget" if hasattr(labeler, "used_up") else ""
        say(f"{missing} of {len(pairs)} pairs are not answered. The same command asks about them{budget}.")
    say(f"Written: {command.out}. A reward of it: vlmrm-gym fit {command.dataset} {command.out} --out FOLDER")


def say_answers(records: Sequence[Record], pairs: Sequence[Pair]) -> None:
    """Print a line for each labeler: how many answers, ties and skips, and how many agree with the pairs' grades."""
    truth = dict(zip([pair.key for pair in pairs], grade_differences(pairs).tolist(), strict=True))
    for labeler in dict.fromkeys(record.labeler for record in records):
        given = [record for record in records if record.labeler == labeler]
        answers = [record.answer for record in given]
        dropped = sum("dropped" in answer.details for answer in answers)
        skipped = sum(answer.preference is None for answer in answers) - dropped
        equal = sum(answer.preference == 0.5 for answer in answers)
        grades = np.array([truth.get(record.pair, np.nan) for record in given])
        parts = [f"{len(given):,} answers, {equal} equal, {skipped} skipped, {dropped} dropped"]
        if not math.isnan(right := agreement(answer_differences(answers), grades)):
            parts.append(f"{right:.1%} of the answers agree with the task's grade")
        say(f"{name_labeler(labeler)}: {', '.join(parts)}")


def name_labeler(labeler: str) -> str:
    """An identity, shortened: the kind, and the settings that are not the kind's defaults, without quotation marks."""
    try:
        settings = json.loads(labeler)
        kind = settings.pop("kind")
        known = fields(resolve_name(LABELERS[kind])) if kind in LABELERS else ()
        defaults = {one.name: one.default_factory() if callable(one.default_factory) else one.default for one in known}
        changed = (f"{name}={value}" for name, value in settings.items() if value != defaults.get(name))
        shown = f"{kind} {', '.join(changed)}"
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        shown = labeler
    return printable(truncate(shown.strip(), 80))
