"""Which settings differ between a run and its resumption."""

from collections.abc import Collection, Mapping
from typing import Any

from vlmrm_gym.validation import short_repr


def find_changes(
    before: Mapping[str, Any], now: Mapping[str, Any], overridable: Collection[str], steps: str
) -> str | None:
    """The settings that keep a run from being resumed, for a message; None if there are none.

    Args:
        before: Settings of the run by name.
        now: Settings to resume it with.
        overridable: Names of settings that may change.
        steps: Name of the number of steps, which may only grow.
    """
    other = [name for name in now if now[name] != before.get(name) and name not in overridable]
    if now[steps] < before[steps]:
        other.append(steps)
    changes = (f"`{name}` is {short_repr(now[name])}, was {short_repr(before.get(name))}" for name in other)
    return "; ".join(changes) or None
