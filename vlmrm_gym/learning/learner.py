"""PreferenceLearner learns a head while an agent collects episodes. Needs no RL library."""

import io
import json
import zipfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.files import atomic_write
from vlmrm_gym._util.untrusted import check_archive, parse_json, unpack_arrays
from vlmrm_gym._util.validation import check_choice, check_integer, check_positive_integer
from vlmrm_gym.data.episode_log import EpisodeLog
from vlmrm_gym.data.store import find_featured
from vlmrm_gym.learning import fitting
from vlmrm_gym.learning.answers import AnswersFile, ask
from vlmrm_gym.learning.fitting import Comparisons, FitOptions, Verdict, judge
from vlmrm_gym.learning.labelers import resolve_labeler
from vlmrm_gym.learning.pairs import (
    Answer,
    Pair,
    agreement,
    answer_differences,
    digest_states,
    grade_differences,
    grade_of_task,
)
from vlmrm_gym.rewards.combination import find_rewards
from vlmrm_gym.rewards.current_head import CurrentHead
from vlmrm_gym.rewards.learned import Preference
from vlmrm_gym.rewards.preference_model import PreferenceHead
from vlmrm_gym.states.states import States
from vlmrm_gym.tasks import REGISTERED

Sampling = Literal["uniform", "disagreement"]
POOL = 4
"""Segments that a round draws from the log for each pair: to choose pairs from, and to standardise heads with."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Round:
    """Pairs that were asked in one round, their answers, and the verdict on the head fitted to them."""

    number: int
    """From 1."""
    pairs: Sequence[Pair]
    answers: Sequence[Answer | None]
    """The answers; None where a pair was skipped, or the budget is used up."""
    verdict: Verdict
    """Whether there is a new head, and why."""
    scalars: dict[str, float]
    """Figures to log, by name."""


class PreferenceLearner:
    """Learns the head of vector environments from preferences between segments of their episode log.

    The caller of `run_round` relabels the replay buffer afterwards: `buffer.relabel(envs.head)`.

    Args:
        envs: Vector environments with a `Preference` that is yet to be learned, alone or in a sum.
        labeler: Answers pairs; as for `resolve_labeler`.
        segment_length: States of a segment, T, whose rewards add up.
        sampling: How pairs are chosen: "uniform", or "disagreement": of many candidates those about which the networks
            disagree most.
        candidates: Candidates for each pair.
        half_life: Steps after which a state's weight in sampling has halved. None: all weigh the same.
        fit: How heads are fitted.
        answers: File of answers, so that nothing is asked twice: an `AnswersFile` or a path; None: in memory.
        grade: How near states are to the goal, from float64 (N, S) to (N,), for labelers that ask no one, and for
            figures. None: the grade of the task's record, if it has one.
        seed: Of pairs and weights.

    Attributes:
        answers: The `AnswersFile`. Whoever is done with the learner may close it.
        comparisons: The answered comparisons; None before the first.
        num_rounds: Number of rounds so far.
        num_questions: Number of pairs asked so far.

    Raises:
        ValueError: `envs` have another reward, or a parameter is out of its range.
        TypeError: `labeler` is none.
    """

    def __init__(
        self,
        envs: Any,
        labeler: Any,
        *,
        segment_length: int = 1,
        sampling: Sampling = "disagreement",
        candidates: int = 10,
        half_life: int | None = None,
        fit: FitOptions | None = None,
        answers: AnswersFile | str | Path | None = None,
        grade: Callable[[NDArray[np.float64]], Any] | None = None,
        seed: int = 0,
    ) -> None:
        featured = find_featured(envs)
        learned = [] if featured is None else [one for one in find_rewards(featured.reward) if one.learns]
        if featured is None or not learned or not isinstance(specification := learned[0], Preference):
            raise ValueError(
                "`envs` must be vector environments with a reward that is yet to be learned: pass "
                f"reward=vlmrm_gym.Preference(prompt=...) where they are made. Received {envs}."
            )
        check_positive_integer("segment_length", segment_length)
        check_positive_integer("candidates", candidates)
        check_positive_integer("half_life", 1 if half_life is None else half_life)
        check_choice("sampling", sampling, get_args(Sampling))
        check_integer("seed", seed, minimum=0)
        self.labeler, self.specification = resolve_labeler(labeler), specification
        self.newest: CurrentHead = featured.head
        self.log: EpisodeLog = featured.episode_log
        self.segment_length, self.fit_options = segment_length, fit or FitOptions()
        self.answers = (
            answers if isinstance(answers, AnswersFile) else AnswersFile(answers, prompt=self.specification.prompt)
        )
        self._sampling, self._candidates, self._half_life, self._seed = sampling, candidates, half_life, seed
        self._scorer, self._rng = featured.scorer, np.random.default_rng(seed)
        spec = getattr(featured, "spec", None)
        task = None if spec is None else REGISTERED.get(spec.id)
        look = {} if task is None or spec is None else {name: spec.kwargs.get(name) for name in task.kwargs}
        assert self.specification.prompt is not None
        views = f"{'' if spec is None else spec.id} {look or ''} {featured.views}"
        drawn = {"draw": self._scorer.frames, "grade": grade or grade_of_task(task), "views": views}
        self._make_pair = partial(Pair, prompt=self.specification.prompt, **drawn)
        self.comparisons: Comparisons | None = None
        self.num_rounds = self.num_questions = 0
        if self.specification.init is not None and self.head is None:
            shape = self.newest.part_features(np.zeros((1, *self._scorer.info.feature_shape), np.float32)).shape[1:]
            self.newest.replace(fitting.make_head(self.specification, shape, self.newest.fingerprint, seed))

    @property
    def head(self) -> PreferenceHead | None:
        """The newest head; None: there is none yet."""
        return self.newest.part

    def run_round(self, count: int, progress: Callable[[str], None] | None = None) -> Round:
        """Ask about pairs, fit a head to all answers so far, and use it from now on if it is no worse.

        Args:
            count: Number of pairs.
            progress: See `ask`.

        Raises:
            ValueError: `count` is not an integer of at least 1; or the log has too few states, or no episode as long as
                a segment.
            Exception: Whatever the labeler raises. The answers so far are in their file, and the next call asks about
                the same pairs.
        """
        check_positive_integer("count", count)
        before = self._rng.bit_generator.state
        try:
            pairs, features, logged = self._choose(count)
            answers = ask(self.labeler, pairs, self.answers, progress=progress)
        except BaseException:
            self._rng.bit_generator.state = before
            raise
        comparisons = self.comparisons = self._add(features, answers)
        answered = self.answers.answered(self.labeler.answer_key)  # not all, if the budget is used up
        self.num_rounds += 1
        self.num_questions += sum(pair.key in answered for pair in pairs)
        scalars = {"questions": float(self.num_questions), "answers": float(len(comparisons))}
        verdict, truth = self._learn(comparisons, logged, scalars), grade_differences(pairs)
        scalars |= {"answer_accuracy": agreement(answer_differences(answers), truth)}
        scalars |= {"head_version": float(self.newest.version), "accepted": float(verdict.accepted)}
        scalars |= {"held_out_loss": verdict.held_out_loss, "held_out_accuracy": verdict.held_out_accuracy}
        if self.head is not None:
            scalars["head_accuracy"] = agreement(fitting.predict(self.head, features), truth)
        scalars = {name: value for name, value in scalars.items() if not np.isnan(value)}
        return Round(number=self.num_rounds, pairs=pairs, answers=answers, verdict=verdict, scalars=scalars)

    def _choose(self, count: int) -> tuple[list[Pair], NDArray[np.float32], NDArray[np.float32]]:
        """Choose pairs: returns them, their features (count, 2, T, V, D), and features of logged states (N, V, D)."""
        length = self.segment_length
        available = sum(max(0, len(episode) - length + 1) for episode in self.log.episodes)
        if available and 2 * count > available:
            raise ValueError(
                f"A round must have at most half as many pairs as the log has segments of {length}, {available}. "
                f"Received {count} pairs. Ask about fewer, or later."
            )
        pool = self.log.sample(POOL * count, length, seed=self._rng, half_life=self._half_life)
        keys = [digest_states(segment.states) for segment in pool]
        features = self._scorer.features(States.concatenate([segment.states for segment in pool]))
        features = self.newest.part_features(features)
        features = features.reshape(len(pool), length, *features.shape[1:])
        sides = np.arange(2 * count).reshape(count, 2)
        if self._sampling == "disagreement" and self.head is not None:
            first = self._rng.integers(len(pool), size=self._candidates * count)
            second = (first + self._rng.integers(1, len(pool), size=len(first))) % len(pool)
            known: dict[str, int] = {}  # a segment may have been drawn twice
            where = np.array([known.setdefault(key, i) for i, key in enumerate(keys)])
            candidates = np.unique(np.sort(where[np.stack([first, second], axis=1)]), axis=0)
            order = np.argsort(-fitting.disagreement(self.head, features[candidates]), kind="stable")
            sides = candidates[order[:count]]
        # One order of every two sides: a pair that comes again the other way round is not asked again.
        sides = np.array([sorted(two, key=keys.__getitem__) for two in sides.tolist()])
        pairs = [self._make_pair(first=pool[i], second=pool[k]) for i, k in sides.tolist()]
        return pairs, features[sides], features.reshape(-1, *features.shape[2:])

    def _add(self, features: NDArray[np.float32], answers: Sequence[Answer | None]) -> Comparisons:
        """All comparisons with those of a round, of which some are held out."""
        held_out = self._rng.random(len(answers)) < self.fit_options.held_out
        rows = [i for i, answer in enumerate(answers) if answer is not None]
        new = Comparisons.of(features[rows], [answer for answer in answers if answer is not None], held_out[rows])
        return new if self.comparisons is None else self.comparisons + new

    def _learn(self, comparisons: Comparisons, logged: NDArray[np.float32], scalars: dict[str, float]) -> Verdict:
        """Fit a head to all comparisons, and publish it if it is no worse than the one before."""
        if (obstacle := fitting.find_obstacle(comparisons, self.fit_options)) is not None:
            rest = "There is no head yet." if self.head is None else "The old head stays."
            return Verdict(False, f"{obstacle} {rest}")
        seed = self._seed + self.num_rounds
        new = fitting.make_head(self.specification, logged.shape[1:], self.newest.fingerprint, seed)
        scalars["loss"] = fitting.fit(new, comparisons, logged, self.fit_options, seed)
        scalars["disagreement"] = float(fitting.disagreement(new, comparisons.features).mean())
        verdict = judge(new, self.head, comparisons, self.fit_options)
        if verdict.accepted:
            self.newest.replace(new)
        return verdict

    def save(self, file: str | Path | IO[bytes]) -> None:
        """Write the state of the learner, atomically to a path or into an open file.

        That is comparisons, head, generator and log. Answers that are not fitted yet are in their own file only.
        """
        if isinstance(file, str | Path):
            atomic_write(Path(file), self._write)
        else:
            self._write(file)

    def _write(self, file: Path | IO[bytes]) -> None:
        known = {"num_rounds": self.num_rounds, "num_questions": self.num_questions, "version": self.newest.version}
        known |= {"generator": self._rng.bit_generator.state, **self._identity}
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("learner.json", json.dumps(known))
            if self.head is not None:
                archive.writestr("head.safetensors", self.head.to_bytes())
            if self.comparisons is not None:
                with archive.open("comparisons.npz", "w", force_zip64=True) as member:
                    np.savez(member, **vars(self.comparisons))  # pyright: ignore[reportArgumentType]
            with archive.open("log.npz", "w", force_zip64=True) as member:
                self.log.save(member)

    @property
    def _identity(self) -> dict[str, Any]:
        """Values that a saved learner and the one that loads it must share."""
        values = {"prompt": self.specification.prompt, "segment_length": self.segment_length}
        return {**values, "fingerprint": self.newest.fingerprint}

    def load(self, file: str | Path | IO[bytes]) -> None:
        """Continue from a saved learner. Call this before the environments step: the head makes their rewards.

        Raises a ValueError, and changes nothing, if it is damaged, or of another prompt, segment length or model.
        """
        try:
            with open(file, "rb") if isinstance(file, str | Path) else nullcontext(file) as opened:
                check_archive(opened, opened.seek(0, io.SEEK_END))
                archive = zipfile.ZipFile(opened)
                parts = {name: archive.read(name) for name in archive.namelist()}
            known = parse_json(parts["learner.json"])
            for name, value in self._identity.items():
                if known[name] != value:
                    raise ValueError(f"its {name} is {known[name]!r}, and here it is {value!r}")
            num_rounds, num_questions, version = (known[name] for name in ("num_rounds", "num_questions", "version"))
            generator = np.random.default_rng()
            generator.bit_generator.state = known["generator"]
            comparisons = head = None
            if "head.safetensors" in parts:
                head = PreferenceHead.from_bytes(parts["head.safetensors"])
            if "comparisons.npz" in parts:
                comparisons = Comparisons(**unpack_arrays(io.BytesIO(parts["comparisons.npz"])))
            self.log.load(io.BytesIO(parts["log.npz"]))
        except FileNotFoundError:
            raise
        except Exception as error:  # zipfile raises many of damaged files
            name = repr(str(file)) if isinstance(file, str | Path) else "`file`"
            raise ValueError(
                f"{name} must be what PreferenceLearner.save wrote here: {str(error).rstrip('.')}."
            ) from error
        self.num_rounds, self.num_questions = num_rounds, num_questions
        self.newest.restore(head, version)
        self.comparisons, self._rng = comparisons, generator
