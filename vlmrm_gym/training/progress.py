"""How far a run has come."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from vlmrm_gym.training.run_folder import METRICS
from vlmrm_gym.validation import short_repr


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

    @classmethod
    def read(cls, values: Any, step: int) -> "Progress":
        """The progress that a checkpoint has.

        Args:
            values: What the checkpoint says.
            step: The checkpoint's step.

        Raises:
            ValueError: It is not the progress of a run at that step.
        """
        try:
            progress = TypeAdapter(cls).validate_python(values)
        except ValidationError as error:
            # Its text would write out all of a value, which can be 2 to the 60 times what is in the file.
            (first, *_) = error.errors(include_input=False, include_url=False)
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        if (progress.step, progress.checkpoint) != (step, step):
            raise ValueError(f"its step must be {step}. Received {short_repr(progress.step)}.")
        if not 0 <= progress.seconds < np.inf:
            raise ValueError(f"its seconds must be finite and at least 0. Received {short_repr(progress.seconds)}.")
        for rows in (progress.unwritten, progress.unlogged):
            if any(row.keys() != rows[0].keys() or not row.keys() <= set(METRICS) for row in rows):
                raise ValueError(f"its rows must have the names of metrics. Received {short_repr(rows)}.")
        return progress
