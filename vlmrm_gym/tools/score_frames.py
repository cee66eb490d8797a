"""`vlmrm_gym.score`: rewards of frames, in Python and in notebooks."""

import base64
import io
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from vlmrm_gym._util.errors import as_input_error
from vlmrm_gym.data.frames import TimedFrame, batch, open_frames
from vlmrm_gym.data.recordings import Source, of_array
from vlmrm_gym.rewards.specification import resolve_reward
from vlmrm_gym.scoring.several import SeveralRewards
from vlmrm_gym.states.drawing import FrameStore
from vlmrm_gym.states.states import States


@dataclass(frozen=True, eq=False)
class FrameScores:
    """Rewards of successive frames by one or several rewards. A notebook shows them as a plot."""

    rewards: NDArray[np.float32]
    """float32 (T, P)."""
    labels: Sequence[str]
    """Of the P rewards."""

    def __repr__(self) -> str:
        ends = (
            f"{label}: {one.min():.3f} to {one.max():.3f}"
            for label, one in zip(self.labels, self.rewards.T, strict=True)
        )
        return f"Scores of {len(self.rewards)} frames. {'; '.join(ends)}"

    def _repr_html_(self) -> str:
        from vlmrm_gym.data.videos import plot_rewards

        file = io.BytesIO()
        plot_rewards(file, self.labels, [self.rewards])
        picture = base64.b64encode(file.getvalue()).decode()
        return f'<img src="data:image/png;base64,{picture}" alt="{escape(repr(self))}" style="max-width: 100%">'


def score(frames: Any, rewards: Any, *, device: str = "auto", progress: bool = False) -> FrameScores:
    """Score successive frames by one or several rewards, before any training.

    Args:
        frames: uint8 (T, H, W, 3); or a video, or a folder of pictures.
        rewards: A specification such as `vlmrm_gym.CLIP(prompt="a kneeling robot")`, a callable, a saved reward, or a
            list of these. Those that share a model encode each frame once.
        device: Where models run.
        progress: Whether to show a bar.

    Raises:
        InputError: A video cannot be read, or a model cannot be loaded.
        TypeError: `frames` are something else, or a reward is none.
    """
    several = list(rewards) if isinstance(rewards, list | tuple) else [rewards]
    specs = [resolve_reward(one) for one in several]
    source = open_frames(Path(frames)) if isinstance(frames, str | Path) else of_array(frames, "`frames`").source
    with as_input_error(OSError, RuntimeError), closing(SeveralRewards(specs, device)) as scorer:
        scorer.open(lambda size: FrameStore())
        scored = tqdm(score_frames(source, scorer), total=source.count, unit=" frames", disable=not progress)
        rows = [row for _, row in scored]
    return FrameScores(np.stack(rows), [_label(one, spec) for one, spec in zip(several, specs, strict=True)])


def score_frames(source: Source, scorer: SeveralRewards) -> Iterator[tuple[TimedFrame, NDArray[np.float32]]]:
    """Score the frames of a video; yields each with its P rewards, float32 (P,)."""
    scorer.begin_episode()
    with closing(source.frames()) as decoded:
        for frames in batch(decoded, scorer.microbatch_size):
            yield from zip(frames, scorer(States(np.stack([one.frame for one in frames]))), strict=True)


def _label(given: Any, spec: Any) -> str:
    known = [getattr(spec, "prompt", None), given, getattr(given, "__name__", None)]
    return next((one for one in known if isinstance(one, str)), repr(spec))
