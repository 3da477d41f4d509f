"""The only clock.

Everything that needs the time takes a `Clock`, so that deciders can be tested without waiting. `now_s` is the wall
clock (rows carry it), `steady_s` never goes back (intervals are measured with it).
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def now_s(self) -> float:
        """Give the wall-clock time in seconds since 1970; may be stepped by an operator."""
        ...

    def steady_s(self) -> float:
        """Give a time in seconds that never goes back; only differences mean anything."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_s(self) -> float:
        return time.time()

    def steady_s(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock for tests: it moves only when told."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def now_s(self) -> float:
        return self._now_s

    def steady_s(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move time forward; going back is refused, as `steady_s` promises."""
        if seconds < 0:
            msg = "a manual clock only moves forward"
            raise ValueError(msg)
        self._now_s += seconds
