"""How far a run has come."""

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Progress:
    """The progress of a training run; part of a checkpoint."""

    step: int = 0
    """Step at the start of the last rollout."""
    seconds: float = 0.0
    best_return: float = -np.inf
    checkpoint: int | None = None
    """The step of the last checkpoint."""
    recent: list[float] = field(default_factory=list)
    """The newest returns; if the reward is learned, those of episodes that began with its newest head."""
    head_version: int = 0
    """The newest head of a reward that is learned, as far as returns and the best policy are by it."""
    head_step: int = 0
    """The step at which that head came."""
    has_new_returns: bool = False
    """Whether returns have arrived since policies were last compared."""
    unwritten: list[dict[str, float]] = field(default_factory=list)
    """Rows of metrics.csv that could not be written yet, as on a full disk."""
    unlogged: list[dict[str, float]] = field(default_factory=list)
    """Rows that are not in TensorBoard yet."""
    logged: dict[str, float] = field(default_factory=dict)
    """Values of the algorithm's that are not in TensorBoard yet, such as its newest losses."""
