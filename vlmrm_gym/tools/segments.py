"""Segments of a dataset's episodes: what `vlmrm-gym label` asks about, and `vlmrm-gym fit` learns from."""

from pathlib import Path
from typing import Any

import numpy as np

from vlmrm_gym._util.errors import InputError, close_on_error
from vlmrm_gym._util.validation import short_repr
from vlmrm_gym.data.dataset_folder import read_dataset, read_settings
from vlmrm_gym.data.rollouts import check_states
from vlmrm_gym.data.trajectory import Trajectory
from vlmrm_gym.learning.answers import Place, StoredPair
from vlmrm_gym.learning.pairs import Pair, grade_of_task
from vlmrm_gym.tools.environments import NamedEnv, has_path


class DatasetSegments(NamedEnv):
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
        self.rollouts = read_dataset(folder)
        super().__init__(self.id, self.env_kwargs, settings["camera"] if camera is None else camera)
        with close_on_error([self]):
            check_states(self.rollouts, self.env, self.view)
            self._grade = grade_of_task(self.task)

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
        places = [(0, i, at, length) for i, at in zip(episodes.tolist(), starts.tolist(), strict=True)]
        views = f"{self.id} camera={self.camera!r}"
        return [self.cut(one, other, prompt, views) for one, other in zip(places[::2], places[1::2], strict=True)]

    def find(self, stored: StoredPair, prompt: str) -> Pair:
        """The pair that was stored. An InputError if it is not of this dataset."""
        pair = self.cut(stored.first, stored.second, prompt, stored.views)
        if pair.key != stored.pair:
            raise self._is_of_another("other states")
        return pair

    def cut(self, first: Place, second: Place, prompt: str, views: str = "") -> Pair:
        """The pair of segments at these places. An InputError if the dataset has none there."""
        sides: list[Trajectory] = []
        for _, i, start, size in (first, second):
            if not (0 <= i < len(self.rollouts) and 0 <= start < start + size <= len(self.rollouts[i])):
                raise self._is_of_another(f"steps {start} to {start + size} of episode {i}, which it does not have")
            sides.append(self.rollouts[i][start : start + size])
        one, other = sides
        return Pair(first=one, second=other, prompt=prompt, draw=self.draw, grade=self._grade, views=views)

    def _is_of_another(self, received: str) -> InputError:
        rule = f"The answers must be about the dataset {self.folder}. Received some about {received}"
        return InputError(f"{rule}. Pass the dataset that was labelled.")
