"""What to do when a unit fails. Pure.

A query that fails is started again, as a new run. An epoch that failed on two runs with the same error is poison: the
unit is marked failed and waits for someone to act, because a third try would only fail again, and elsewhere a standby
would take over just to die of it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Different errors in a row, with no epoch released in between, are a fault that restarts do not heal.
MOST_FAILURES_WITHOUT_PROGRESS = 5


@dataclass(frozen=True)
class Failure:
    """One failed run."""

    run: str
    epoch: int
    error: str


def judge(history: list[Failure], failure: Failure) -> Literal["restart", "fail"]:
    """Say what to do about a failure, given the ones before it since the unit last released an epoch."""
    same = [past for past in history if past.epoch == failure.epoch and past.error == failure.error]
    if any(past.run != failure.run for past in same):
        return "fail"
    return "fail" if len(history) + 1 >= MOST_FAILURES_WITHOUT_PROGRESS else "restart"
