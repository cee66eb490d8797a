"""`Endpoint`, the reward of a vision-language model behind a server. Imports no torch."""

import importlib
from dataclasses import dataclass, field

from vlmrm_gym._util.validation import UNAFFECTED, check_size
from vlmrm_gym.rewards.clip import check_count, check_prompt, check_text, integer, optional
from vlmrm_gym.rewards.endpoint.settings import EndpointSettings
from vlmrm_gym.rewards.model import RewardModel
from vlmrm_gym.rewards.spec import RewardSpec


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
        TypeError: `prompt` is not a string, or `request` is not a mapping.
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
        # By its name, as the file of the model imports this one.
        return importlib.import_module("vlmrm_gym.rewards.endpoint.model").EndpointReward(self)
