"""Waiting for something observable: the only place where a test may sleep.

A test says what it waits for and for how long at most. If it does not come, the failure names it and what was last
seen, instead of a later assertion that fails for no visible reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Seen = TypeVar("Seen")

#: How long a poll rests: short beside anything worth waiting for, long enough to leave a core to what is awaited.
POLL_S = 0.01


def wait_until(predicate: Callable[[], Seen], timeout_s: float, what: str) -> Seen:
    """Ask `predicate` until it gives something true, and return that; `AssertionError` naming `what` after the timeout.

    The predicate is asked at least once, and once more after the time is up. What it raises is passed on.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        late = time.monotonic() >= deadline_s
        seen = predicate()
        if seen:
            return seen
        if late:
            raise AssertionError(f"waited {timeout_s:g} s for {what}; last seen: {seen!r}")
        time.sleep(POLL_S)
