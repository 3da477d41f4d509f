"""When to ship a version, and how often a store can take one. Pure.

A version is due every n epochs or every t seconds. A store that is busy most of the time gets versions less often: the
distance doubles while shipping takes more than four fifths of the time, and halves again when it takes less than a
third, so a store that was slow for a while returns to what was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

_BUSY = 0.8
_IDLE = 0.33
_LARGEST_STRETCH = 64.0


@dataclass(frozen=True)
class Trigger:
    """Every so many epochs, or every so many seconds, whichever comes first; None is never."""

    every_epochs: int | None = 1
    every_s: float | None = None


def due(trigger: Trigger, *, epochs: int, seconds: float, stretch: float) -> bool:
    """Say whether a version is due, `epochs` and `seconds` after the last one; False if there is nothing new."""
    if epochs <= 0:
        return False
    by_epochs = trigger.every_epochs is not None and epochs >= trigger.every_epochs * stretch
    by_time = trigger.every_s is not None and seconds >= trigger.every_s * stretch
    return by_epochs or by_time


def calibrated(stretch: float, *, busy_s: float, elapsed_s: float) -> float:
    """Return the new stretch, after shipping was busy for some of the time that elapsed since the last version."""
    share = busy_s / max(elapsed_s, 1e-9)
    if share > _BUSY:
        return min(stretch * 2, _LARGEST_STRETCH)
    if share < _IDLE:
        return max(stretch / 2, 1.0)
    return stretch
