"""Segments of a dataset's episodes: what `vlmrm-gym label` asks about, and `vlmrm-gym fit` learns from."""

from contextlib import ExitStack, closing
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray

from vlmrm_gym._util.errors import InputError, as_input_error
from vlmrm_gym._util.validation import short_repr
from vlmrm_gym.data.labels import read_dataset, read_settings
from vlmrm_gym.data.rollouts import check_states
from vlmrm_gym.data.trajectory import Trajectory
from vlmrm_gym.learning.answers import Place, StoredPair
from vlmrm_gym.learning.pairs import Pair, grade_of_task
from vlmrm_gym.states import StateView
from vlmrm_gym.states.drawing import Drawings
from vlmrm_gym.states.states import States
from vlmrm_gym.tools.environments import find_named_task, has_path, make_unscored_env


class DatasetSegments:
    """Pairs of segments of a dataset that `vlmrm-gym dataset` made, and the environment that draws them.

    `camera` is that of the dataset, if it is None. Without `trust_code`, a dataset whose settings name code is refused.
    """

    def __init__(self, folder: Path, camera: Any = None, *, trust_code: bool = False) -> None:
        settings = read_settings(folder)
        self.folder, self.id, self.env_kwargs = folder, settings["id"], settings["env_kwargs"]
        if not trust_code and has_path([self.id.removeprefix("vlmrm_gym:"), self.env_kwargs]):
            received = f"Received {short_repr(self.env_kwargs if has_path(self.env_kwargs) else self.id)}"
            rule = f"The dataset {folder} names code that would be run. {received}"
            raise InputError(f"{rule}. If you trust it, pass --trust-code.")
        self.camera = settings["camera"] if camera is None else camera
        self.task = find_named_task(self.id)
        self._grade, self.rollouts = grade_of_task(self.task), read_dataset(folder)
        with ExitStack() as opened:
            self.env = opened.enter_context(closing(make_unscored_env(self.id, self.env_kwargs)))
            with as_input_error(DependencyNotInstalled):
                self.view = opened.enter_context(closing(StateView(self.env, self.camera)))
            check_states(self.rollouts, self.env, self.view)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.close()

    @cached_property
    def _drawings(self) -> Drawings:
        renderer = self._opened.enter_context(closing(self.view.make_renderer(lambda *own: own)))
        return self._opened.enter_context(closing(Drawings(renderer)))

    def draw(self, states: States, size: Any = None, views: Any = None) -> NDArray[np.uint8]:
        """Draw states at the environment's own size, or another: see `Pair`."""
        return self._drawings.draw(states, size, views)

    def sample(self, count: int, length: int, prompt: str, seed: int) -> list[Pair]:
        """Draw `count` pairs of `length` states, so that no segment is in two. More of one seed begin with the same."""
        ends = np.cumsum([max(0, len(rollout) - length + 1) for rollout in self.rollouts])
        if 2 * count > ends[-1]:
            raise InputError(
                f"`pairs` must be at most half of the dataset's segments of {length} states, {ends[-1]:,}. Received "
                f"{count:,}. Ask about fewer, or record more episodes."
            )
        chosen = np.random.default_rng(seed).permutation(ends[-1])[: 2 * count]
        episodes = np.searchsorted(ends, chosen, side="right")
        starts = chosen - np.concatenate([[0], ends])[episodes]
        sides = [self.rollouts[i][at : at + length] for i, at in zip(episodes.tolist(), starts.tolist(), strict=True)]
        views = f"{self.id} camera={self.camera!r}"
        return [self._pair(one, other, prompt, views) for one, other in zip(sides[::2], sides[1::2], strict=True)]

    def find(self, stored: StoredPair, prompt: str) -> Pair:
        """The pair that was stored. An InputError if it is not of this dataset."""
        pair = self.cut(stored.first, stored.second, prompt, stored.views)
        if pair.key != stored.pair:
            raise InputError(
                f"The answers must be about the dataset {self.folder}. Received some about other states. Pass the "
                "dataset that was labelled."
            )
        return pair

    def cut(self, first: Place, second: Place, prompt: str, views: str = "") -> Pair:
        """The pair of segments at these places. An InputError if the dataset has none there."""
        lengths = [len(one) for one in self.rollouts]
        for _, i, start, size in (first, second):
            if not (0 <= i < len(lengths) and 0 <= start < start + size <= lengths[i]):
                raise InputError(
                    f"The answers must be about the dataset {self.folder}. Received some about steps {start} to "
                    f"{start + size} of episode {i}, which it does not have. Pass the dataset that was labelled."
                )
        one, other = (self.rollouts[i][start : start + size] for _, i, start, size in (first, second))
        return self._pair(one, other, prompt, views)

    def _pair(self, first: Trajectory, second: Trajectory, prompt: str, views: str) -> Pair:
        how: Any = {"draw": self.draw, "grade": self._grade, "views": views}
        return Pair(first=first, second=second, prompt=prompt, **how)
