"""How the questions of a training are divided over its sessions."""

from collections.abc import Callable

import numpy as np

from vlmrm_gym.rewards.custom import find_callable
from vlmrm_gym.validation import check_positive_integer

Schedule = str | Callable[[float], float]
"""A function from the part of the sessions that is over, 0 to 1, to a relative number of questions; its
"package.module:name"; or "constant"."""


def plan_sessions(total: int, pairs: int, schedule: Schedule = "constant") -> list[int]:
    """The number of questions of each session, at least 1, which are `total` together.

    Args:
        total: Questions of all sessions.
        pairs: Questions of a session, on average.
        schedule: See `Schedule`.

    Raises:
        ValueError: A number is not an integer of at least 1, or the schedule is unknown or returns a number that is
            not finite and positive.
    """
    check_positive_integer("total", total)
    check_positive_integer("pairs", pairs)
    count = -(-total // pairs)
    weights = np.ones(count)
    if schedule != "constant":
        if isinstance(schedule, str) and ":" not in schedule:
            rule = '`schedule` must be "constant", a function, or its "package.module:name".'
            raise ValueError(f"{rule} Received {schedule!r}.")
        rate = find_callable(schedule, "schedule") if isinstance(schedule, str) else schedule
        weights = np.array([rate(t) for t in np.linspace(0, 1, count).tolist()], dtype=np.float64)
    if not np.isfinite(weights).all() or (weights <= 0).any():
        raise ValueError(f"`schedule` must return finite numbers above 0. Received {weights.tolist()}.")
    ends = np.rint(total * np.cumsum(weights) / weights.sum()).astype(np.int64)
    plan = np.diff(ends, prepend=0)
    while not plan.all():  # each session has a question
        plan[plan.argmin()] += 1
        plan[plan.argmax()] -= 1
    return plan.tolist()
