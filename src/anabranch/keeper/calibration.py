"""When to ship a version, and how often a store can take one. Pure.

A version is due every n epochs or every t seconds. A store that is slow gets versions less often: after each one it
rests for a quarter of the time that one took, so shipping takes at most four fifths of the time, and the versions that
come meanwhile are coalesced. A rest ends by itself: a pipeline that falls silent still has its last epoch kept.
"""

from __future__ import annotations

from dataclasses import dataclass

_REST_SHARE = 0.25
# A store that was away for an hour is not left alone for a quarter of one.
_LONGEST_REST_S = 10.0


@dataclass(frozen=True)
class Trigger:
    """Every so many epochs, or every so many seconds, whichever comes first; None is never.

    What a run began with is kept only if `inherited`: nobody knows yet whether it can be gone on from, and the run that
    came to it has kept it, or the next commit is kept. But where epochs wait for it, there may be no next commit.
    """

    every_epochs: int | None = 1
    every_s: float | None = None
    inherited: bool = False


def due(trigger: Trigger, *, epochs: int, seconds: float, inherited: bool = False) -> bool:
    """Say whether a version is due, `epochs` and `seconds` after the last one; False if there is nothing new.

    `inherited`: the run has come to nothing itself yet.
    """
    if epochs <= 0 or (inherited and not trigger.inherited):
        return False
    by_epochs = trigger.every_epochs is not None and epochs >= trigger.every_epochs
    by_time = trigger.every_s is not None and seconds >= trigger.every_s
    return by_epochs or by_time


def rest_s(busy_s: float) -> float:
    """Return how long a store rests after it was busy with a version for some time."""
    return min(_REST_SHARE * busy_s, _LONGEST_REST_S)
