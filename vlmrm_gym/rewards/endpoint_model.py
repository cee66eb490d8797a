"""`EndpointReward`: asks a server about the states that it has not been asked about."""

import hashlib
import os
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym.endpoint.messages import encode
from vlmrm_gym.endpoint.scores import ScoresFile
from vlmrm_gym.endpoint.session import Asked, Session
from vlmrm_gym.endpoint.settings import EndpointSettings
from vlmrm_gym.errors import InputError, as_input_error
from vlmrm_gym.rewards.base import RenderSize, Rewards, fixed_size
from vlmrm_gym.rewards.endpoint_questions import make_options, make_question
from vlmrm_gym.validation import short_repr

_MANY = 10
"""Answers that cannot be read that are an error, if they are more than a tenth."""


@cache
def _open_scores(path: Path | None, process: int) -> ScoresFile:
    """One file for all rewards of a process; a fork opens its own."""
    return ScoresFile(path)


class EndpointReward:
    """Scores states by asking a server. Answers and budget are shared by all equal ones in this process.

    Args:
        settings: Whom to ask. Its fields that decide answers tell those of different rewards apart.
        prompt, classes, every, size, answers: As those of `Endpoint`.

    Raises:
        DependencyNotInstalled, FileNotFoundError, ValueError: As `Endpoint.build`.
    """

    multi_view = True

    def __init__(
        self,
        settings: EndpointSettings,
        *,
        prompt: str,
        classes: int | None,
        every: int,
        size: tuple[int, int] | None,
        answers: str | None,
    ) -> None:
        self._settings, self._prompt, self._classes, self._size = settings, prompt, classes, size
        self._answers, self.every = answers, every
        self._identity = settings.identity
        self._options = make_options(classes)
        path = None if answers is None else Path(answers).absolute()
        self._scores = _open_scores(path, os.getpid())
        self._session = Session(settings, self._scores.budget(settings))
        self._num_answers = self._num_unreadable = 0
        self.microbatch_size = 4 * settings.concurrency
        self.batch_size = self.microbatch_size * every

    @property
    def render_size(self) -> RenderSize:
        """The size at which the model is shown states: the environment's own by default."""
        return fixed_size(self._size)

    def __call__(self, frames: NDArray[np.uint8]) -> Rewards:
        """Score states.

        Args:
            frames: uint8 (B, V, H, W, 3), RGB.

        Returns:
            float32 (B,), from 0 to 1.

        Raises:
            InputError: The budget is used up, the server fails, or its answers cannot be read.
        """
        keys = [self._make_key(views) for views in frames]
        with self._scores.asking, as_input_error(ConnectionError, RuntimeError):
            known = self._scores.find(keys)
            if new := {key: views for key, views in zip(keys, frames, strict=True) if key not in known}:
                known |= self._ask(new)
        rewards = (known[key] for key in keys)
        return np.array([0.0 if reward is None else reward for reward in rewards], dtype=np.float32)

    def _make_key(self, views: NDArray[np.uint8]) -> str:
        digest = hashlib.sha256(f"{self._identity}{views.shape}".encode())
        digest.update(views.tobytes())
        return digest.hexdigest()

    def _ask(self, new: dict[str, NDArray[np.uint8]]) -> dict[str, float | None]:
        """Ask about states by their keys: their rewards, None where an answer cannot be read."""
        keys, found, text = list(new), dict[str, float | None](), ""

        def prepare(key: str) -> Callable[[Asked], tuple[float | None, Asked]]:
            return lambda asked: (self._estimate(new[key], asked), asked)

        for number, (reward, asked) in self._session.answer(keys, lambda: self._session.calls(1), prepare):
            self._scores.write(keys[number], self._identity, reward, asked.details)
            found[keys[number]] = reward
            self._num_answers += 1
            if reward is None:
                self._num_unreadable += 1
                text = asked.details["texts"][-1]
        if None in found.values():
            self._report_unreadable(text)
        if missing := len(new) - len(found):
            kept = "in memory" if self._answers is None else f"in {self._answers}"
            raise InputError(
                f"{self._settings.used_up}: {missing} of {len(new)} states were not asked about. The answers so far "
                f"are kept {kept}. Pass a higher budget to go on."
            )
        return found

    def _estimate(self, views: NDArray[np.uint8], asked: Asked) -> float | None:
        question = make_question(self._prompt, [encode(view) for view in views], self._classes)
        return self._session.estimate(question, asked, self._options)

    def _report_unreadable(self, text: str) -> None:
        """Warn of answers that cannot be read, or raise an InputError if there are many."""
        said = (
            f"{self._num_unreadable} of {self._num_answers} answers of {self._settings.model} are none of "
            f"{', '.join(self._options.values)}, such as {short_repr(text)}."
        )
        if self._num_unreadable >= max(_MANY, self._num_answers / 10):
            raise InputError(f"{said} Choose another `model`, or let it answer at length by `request`.")
        warnings.warn(f"{said} The reward of such a state is 0.", stacklevel=2)
