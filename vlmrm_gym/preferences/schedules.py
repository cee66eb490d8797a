"""How the questions of a training are divided over its sessions; names as in `imitation`."""

from collections.abc import Callable, Mapping

import numpy as np

from vlmrm_gym.rewards.custom import find_callable
from vlmrm_gym.validation import check_choice, check_positive_integer

Schedule = str | Callable[[float], float]
"""A name, or a function from the part of the sessions that is over, 0 to 1, to a relative number of questions."""

SCHEDULES: Mapping[str, Callable[[float], float]] = {
    "constant": lambda t: 1.0,
    "hyperbolic": lambda t: 1.0 / (1.0 + t),
    "inverse_quadratic": lambda t: 1.0 / (1.0 + t**2),
}


def plan_sessions(total: int, pairs: int, schedule: Schedule = "constant") -> list[int]:
    """The number of questions of each session, at least 1, which are `total` together.

    Args:
        total: Questions of all sessions.
        pairs: Questions of a session, on average.
        schedule: "constant", "hyperbolic", "inverse_quadratic", a function, or its "package.module:name".

    Raises:
        ValueError: A number is not an integer of at least 1, or the schedule is unknown or returns a number that is
            not finite and positive.
    """
    check_positive_integer("total", total)
    check_positive_integer("pairs", pairs)
    if isinstance(schedule, str) and ":" in schedule:
        schedule = find_callable(schedule, "schedule")
    if not callable(schedule):
        check_choice("schedule", schedule, SCHEDULES)
        schedule = SCHEDULES[schedule]
    count = -(-total // pairs)
    weights = np.array([schedule(t) for t in np.linspace(0, 1, count).tolist()], dtype=np.float64)
    if not np.isfinite(weights).all() or (weights <= 0).any():
        raise ValueError(f"`schedule` must return finite numbers above 0. Received {weights.tolist()}.")
    ends = np.rint(total * np.cumsum(weights) / weights.sum()).astype(np.int64)
    plan = np.diff(ends, prepend=0)
    while not plan.all():  # each session has a question
        plan[plan.argmin()] += 1
        plan[plan.argmax()] -= 1
    return plan.tolist()
