"""Virtual time: one heap of events, one source of chance. The same seed gives the same history, to the last event."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable

Action = Callable[[], None]


class Heap:
    """Events in the order of their time; those of the same time in the order in which they were added."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.mishaps = random.Random(~seed)
        self.now_s = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, Action]] = []
        self._order = itertools.count()

    def after(self, delay_s: float, action: Action) -> None:
        """Let something happen, some time from now."""
        heapq.heappush(self._heap, (self.now_s + delay_s, next(self._order), action))

    def step(self) -> bool:
        """Let the next event happen; False if there is none."""
        if not self._heap:
            return False
        self.now_s, _, action = heapq.heappop(self._heap)
        self.events += 1
        action()
        return True


class SkewedClock:
    """The clock of one machine: its wall clock is off by some seconds, which may change."""

    def __init__(self, heap: Heap, off_s: float = 0.0) -> None:
        self._heap = heap
        self.off_s = off_s

    def now_s(self) -> float:
        return 1_000_000.0 + self._heap.now_s + self.off_s

    def steady_s(self) -> float:
        return self._heap.now_s
