"""Turns states into features with a renderer and a reward model, in this process or in workers."""

import importlib

from vlmrm_gym._util.errors import close_on_error
from vlmrm_gym.rewards.heads import CombineViews
from vlmrm_gym.scoring.options import ScoringOptions
from vlmrm_gym.scoring.queue import ScoringQueue as ScoringQueue
from vlmrm_gym.scoring.requests import Request as Request
from vlmrm_gym.scoring.requests import transition_keys as transition_keys
from vlmrm_gym.scoring.scorer import MODULES, MakeEncoder, MakeRenderer
from vlmrm_gym.scoring.scorer import WorkerDied as WorkerDied


def make_scoring_queue(
    make_encoder: MakeEncoder,
    make_renderer: MakeRenderer,
    options: ScoringOptions | None = None,
    combine: CombineViews | None = None,
) -> ScoringQueue:
    """Load models in this process or in workers, and wait until they are ready.

    `combine` says how the rewards of views make one. Without options a model that the caller has loaded scores here; it
    may be yet to be learned, as where features are returned.
    """
    may_be_missing = options is None or options.return_features
    options = options or ScoringOptions(device="cpu")
    name = MODULES[options.backend if options.num_workers else "local"]
    backend = importlib.import_module(f"vlmrm_gym.scoring.{name}")
    started = backend.start(make_encoder, make_renderer, options)
    with close_on_error(started.scorers):
        head = started.info.make_head(combine, may_be_missing=may_be_missing)
    # Half is for states that have not been submitted.
    return ScoringQueue(started, head, max_pending_bytes=options.max_pending_bytes // 2)
