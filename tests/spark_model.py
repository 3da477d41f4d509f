"""A model of what Spark does with a windowed count, one micro-batch after the other: enough to judge replays by.

A row is dropped if its window ended at or before the watermark of the batch before; what ended at or before the present
watermark is emitted and forgotten; the next watermark is the newest event time so far, less the delay.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class WindowedCount:
    """The state of one query. Times are milliseconds."""

    length: int
    delay: int
    windows: Counter = field(default_factory=Counter)
    highest: int | None = None
    watermark_before: int | None = None
    watermark: int | None = None

    def batch(self, times: list[int]) -> Batch:
        """Run one micro-batch."""
        late = 0
        for time in times:
            end = (time // self.length + 1) * self.length
            if self.watermark_before is not None and end <= self.watermark_before:
                late += 1
            else:
                self.windows[end] += 1
        emitted = {end: n for end, n in self.windows.items() if self.watermark is not None and end <= self.watermark}
        for end in emitted:
            del self.windows[end]
        done = Batch(emitted, self.watermark, late, max(times, default=None))
        if times:
            self.highest = max(times if self.highest is None else [self.highest, *times])
        self.watermark_before = self.watermark
        if self.highest is not None:
            self.watermark = max(0, self.highest - self.delay)
        return done


@dataclass(frozen=True)
class Batch:
    """What a micro-batch emitted, the watermark it ran with, how many rows it dropped, the newest time it saw."""

    emitted: dict[int, int]
    watermark: int | None
    late: int
    seen: int | None
