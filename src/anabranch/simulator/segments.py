"""Models of segments: what Spark would keep, drop and emit, one micro-batch after the other.

Rows are `(key, event time)`. Each model says, as the plan of a real segment would, how far back its state reaches and
whether epochs may be merged. What is emitted follows from the rows so far and from where batches end; but `Drawn` gives
other rows every time it is executed.
"""

from __future__ import annotations

import random
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

from anabranch.spans import NO_STATE, Span

Row = tuple[Any, ...]
WINDOW, DELAY = 10, 5


@dataclass(frozen=True)
class Done:
    """What a micro-batch gave: rows, the watermark it ran with, rows dropped as late, the newest event time it saw."""

    rows: tuple[Row, ...]
    watermark_ms: int | None = None
    late: int = 0
    seen_ms: tuple[int | None, ...] = ()


class Model(ABC):
    """The state of one query. `copy` is what a commit saves."""

    span: ClassVar[Span]
    unmergeable: ClassVar[str | None] = None
    watermarked: ClassVar[bool] = False
    deterministic: ClassVar[bool] = True

    @abstractmethod
    def batch(self, rows: list[Row], chance: random.Random) -> Done:
        """Run one micro-batch."""

    @abstractmethod
    def copy(self) -> Model:
        """Return the same state, apart."""

    def alike(self, other: Model) -> bool:
        """Say whether two states are the same as far as what is still to come goes."""
        return vars(self) == vars(other)


class Stateless(Model):
    """Every other row."""

    span = NO_STATE

    def batch(self, rows: list[Row], chance: random.Random) -> Done:
        del chance
        return Done(tuple(sorted(row for row in rows if row[1] % 2 == 0)))

    def copy(self) -> Stateless:
        return self


class Windowed(Model):
    """A count by window, emitted when the watermark has passed the window; late rows are dropped.

    A row is dropped if its window ended at or before the watermark of the batch before; what ended at or before the
    present one is emitted and forgotten; the next watermark is the newest event time so far, less the delay.
    """

    span = Span(WINDOW)
    watermarked = True

    def __init__(self) -> None:
        self.windows: Counter[int] = Counter()
        self.highest: int | None = None
        self.watermark_before: int | None = None
        self.watermark: int | None = None

    def batch(self, rows: list[Row], chance: random.Random) -> Done:
        del chance
        late = 0
        times = [row[1] for row in rows]
        for time in times:
            end = (time // WINDOW + 1) * WINDOW
            if self.watermark_before is not None and end <= self.watermark_before:
                late += 1
            else:
                self.windows[end] += 1
        closed = sorted(end for end in self.windows if self.watermark is not None and end <= self.watermark)
        emitted = tuple((f"w{self.windows.pop(end)}", end) for end in closed)
        done = Done(emitted, self.watermark, late, (max(times, default=None),))
        if times:
            self.highest = max(times if self.highest is None else [self.highest, *times])
        self.watermark_before = self.watermark
        if self.highest is not None:
            self.watermark = max(0, self.highest - DELAY)
        return done

    def copy(self) -> Windowed:
        other = Windowed()
        other.windows = Counter(self.windows)
        other.highest, other.watermark = self.highest, self.watermark
        other.watermark_before = self.watermark_before
        return other


class Running(Model):
    """A running count by key, in update mode."""

    span = Span(None, "a running count")

    def __init__(self) -> None:
        self.counts: Counter[Any] = Counter()

    def batch(self, rows: list[Row], chance: random.Random) -> Done:
        del chance
        for row in rows:
            self.counts[row[0]] += 1
        changed = sorted({row[0] for row in rows})
        return Done(tuple((key, self.counts[key]) for key in changed))

    def copy(self) -> Running:
        other = Running()
        other.counts = Counter(self.counts)
        return other


class Ordered(Model):
    """A hash over everything so far, batch by batch: where batches end is part of it."""

    span = Span(None, "a list")
    unmergeable = "a list"

    def __init__(self, value: int = 0, newest: int = 0) -> None:
        self.value = value
        self.newest = newest

    def batch(self, rows: list[Row], chance: random.Random) -> Done:
        del chance
        self.value = zlib.crc32(repr((self.value, sorted(rows))).encode())
        self.newest = max([self.newest, *(row[1] for row in rows)])
        return Done(((f"chain {self.value:08x}", self.newest),))

    def copy(self) -> Ordered:
        return Ordered(self.value, self.newest)


class Drawn(Model):
    """Draws a number for every batch; its state is the last one, and every row names the one before."""

    span = Span(None, "drawn numbers")
    unmergeable = "drawn numbers"
    deterministic = False

    def __init__(self, last: int = 0) -> None:
        self.last = last

    def batch(self, rows: list[Row], chance: random.Random) -> Done:
        before, self.last = self.last, chance.randrange(1 << 40)
        return Done((("drawn", self.last, before, len(rows)),))

    def copy(self) -> Drawn:
        return Drawn(self.last)


MODELS: dict[str, type[Model]] = {
    "stateless": Stateless,
    "windowed": Windowed,
    "running": Running,
    "ordered": Ordered,
    "drawn": Drawn,
}
