"""`Endpoint`, the reward of a vision-language model behind a server. Nothing is asked twice."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrm_gym._util.errors import InputError, as_input_error
from vlmrm_gym._util.validation import UNAFFECTED, check_size, short_repr
from vlmrm_gym.rewards.clip import check_count, check_prompt, check_text, integer, optional
from vlmrm_gym.rewards.endpoint.messages import Message, Options, ask_about, encode
from vlmrm_gym.rewards.endpoint.questioner import Question, Questioner
from vlmrm_gym.rewards.endpoint.scores import ScoresFile
from vlmrm_gym.rewards.endpoint.settings import EndpointSettings
from vlmrm_gym.rewards.model import Features, RewardModel, fixed_size
from vlmrm_gym.rewards.spec import RewardSpec

INTRODUCTION = "You look at a scene, and judge whether a goal is reached. The goal is: {prompt}"
SEVERAL = "\nThe images show the same moment from different sides. Judge by all of them together."
IS_REACHED = "Is the goal reached? Answer with one word and nothing else: yes or no."
RATE = (
    "How near is the goal to being reached? Answer with one digit and nothing else: from 0, nothing of it is reached, "
    "to {top}, it is reached completely."
)


@dataclass(frozen=True, kw_only=True)
class Endpoint(EndpointSettings, RewardSpec):
    """Asks a vision-language model "is this reached?" about all views of a state together.

    The reward is the probability of "yes", by the log probabilities of the answer's token, from 0 to 1. With
    `rating_levels` the model rates how near the goal is, and the reward is the expectation over the digits. If the
    server gives no log probabilities, which the first question shows, it is the mean of `votes` answers. A reply that
    cannot be read is asked for again, once.

    Nothing is asked twice: answers are found again by the frames, the prompt, the model and the settings that affect
    them, as long as this process lives, or in a file (`cache`). So rewards do not depend on when and where states are
    scored. All questions are asked by the process of the environments, whatever `num_workers` says: the budget and
    `concurrency` hold over all environments with an equal reward. With `overlap=True` they step on meanwhile.

    Scoring raises an `InputError` (a ValueError) when the budget is used up, the server cannot be reached or answers
    with an error, or a second reply cannot be read either. What was answered is kept, and the states are scored again
    by the next call.

    >>> import vlmrm_gym
    >>> vlmrm_gym.Endpoint(prompt="The pole is upright.", model="gpt-5", every=10, max_calls=1_000).votes
    5

    Raises:
        TypeError: `prompt` is not a string.
        ValueError: A value is out of its range; the message names the field.
    """

    prompt: str = field(metadata={"check": check_prompt})
    """The goal."""
    rating_levels: int | None = field(default=None, metadata={"check": optional(integer(3, 10))})
    """Levels of a rating, from 3 to 10; None: the model says yes or no."""
    every: int = field(default=1, metadata=UNAFFECTED | {"check": check_count})
    """Ask about every k-th state of an episode, from the first on. The states in between get the reward of the one
    before them: `infos["vlm_scored"]` is False there."""
    size: tuple[int, int] | None = field(default=None, metadata=UNAFFECTED | {"check": check_size})
    """Height and width at which states are drawn, in pixels; None: the environment's own."""
    cache: str | None = field(default=None, metadata=UNAFFECTED | {"check": optional(check_text)})
    """SQLite file that keeps answers, made if there is none; None: in memory. Processes that share it may each ask
    about a state that another is asking about."""
    kind: str = field(default="endpoint", init=False)

    @property
    def in_workers(self) -> bool:
        """False: one budget holds for all."""
        return False

    def build(self, device: str = "auto") -> RewardModel:
        """Open the file of answers, and read the key; asks nothing yet.

        Raises:
            DependencyNotInstalled: The package `httpcore2` is missing.
            ValueError: The environment has no key, or the file is not one of answers.
            FileNotFoundError: The folder of the file does not exist.
        """
        return EndpointReward(self)


@cache
def _open_scores(path: Path | None, process: int) -> ScoresFile:
    """One file for all rewards of a process; a fork opens its own."""
    return ScoresFile(path)


def make_options(rating_levels: int | None) -> Options:
    """The answers, and the reward of each, from 0 to 1: yes and no, or digits."""
    if rating_levels is None:
        return Options({"no": 0.0, "yes": 1.0})
    return Options({str(digit): digit / (rating_levels - 1) for digit in range(rating_levels)})


def make_question(prompt: str, views: Sequence[bytes], rating_levels: int | None) -> list[Message]:
    """Build the question about a state, with a PNG image of each view. `rating_levels`: None asks for yes or no."""
    introduction = INTRODUCTION.format(prompt=prompt) + (SEVERAL if len(views) > 1 else "")
    request = IS_REACHED if rating_levels is None else RATE.format(top=rating_levels - 1)
    return ask_about(introduction, [(f"Image {number}:", view) for number, view in enumerate(views, 1)], request)


class EndpointReward(RewardModel):
    """Scores states by asking a server. Answers and budget are shared by all equal ones in this process."""

    encodes = "views"
    feature_size = 1

    def __init__(self, spec: Endpoint) -> None:
        self._spec, self.every, self.render_size = spec, spec.every, fixed_size(spec.size)
        self._answer_key = spec.answer_key
        self._options = make_options(spec.rating_levels)
        self._scores = _open_scores(None if spec.cache is None else Path(spec.cache).absolute(), os.getpid())
        self._questioner = Questioner(spec, self._scores.budget(spec))
        self.microbatch_size = 4 * spec.concurrency
        self.batch_size = self.microbatch_size * spec.every

    def encode(self, frames: NDArray[np.uint8]) -> Features:
        """Ask about states, uint8 (B, V, H, W, 3), RGB: their rewards as features, float32 (B, 1), from 0 to 1.

        An `InputError` if the budget is used up, the server fails, or an answer cannot be read.
        """
        keys = [self._make_key(views) for views in frames]
        with self._scores.asking, as_input_error(ConnectionError, RuntimeError):
            rewards = self._scores.find(keys)
            if new := {key: views for key, views in zip(keys, frames, strict=True) if key not in rewards}:
                rewards |= self._ask(new)
        return np.array([[rewards[key]] for key in keys], dtype=np.float32)

    def _make_key(self, views: NDArray[np.uint8]) -> str:
        digest = hashlib.sha256(f"{self._answer_key}{views.shape}".encode())
        digest.update(views.tobytes())
        return digest.hexdigest()

    def _ask(self, new: dict[str, NDArray[np.uint8]]) -> dict[str, float]:
        keys, rewards = list(new), dict[str, float]()
        for number, (reward, details) in self._questioner.answer(new.values(), self._estimate, estimates=1):
            rewards[keys[number]] = reward
            self._scores.write(keys[number], self._answer_key, reward, details)
        if missing := len(new) - len(rewards):
            kept = "in memory" if self._spec.cache is None else f"in {self._spec.cache}"
            raise InputError(
                f"{self._spec.used_up}: {missing} of {len(new)} states were not asked about. The answers so far "
                f"are kept {kept}. Pass a higher budget to go on."
            )
        return rewards

    def _estimate(self, views: NDArray[np.uint8], question: Question) -> tuple[float, dict[str, Any]]:
        """Ask about the views of a state: its reward, and the details to store beside it."""
        messages = make_question(self._spec.prompt, [encode(view) for view in views], self._spec.rating_levels)
        reward = self._questioner.estimate(messages, question, self._options)
        if reward is None:
            raise InputError(
                f"{self._spec.model} must answer with one of {', '.join(self._options.values)}. Received "
                f"{short_repr(question.details['texts'][-1])}. Choose another `model`, or let it answer at length by "
                "`request`. The answers so far are kept."
            )
        return reward, question.details

    def close(self) -> None:
        """End the connection, and requests under way."""
        self._questioner.close()
