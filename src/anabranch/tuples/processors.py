"""What Spark calls for the rows of one key: loads state, lets `deciding` decide, stores it. State is JSON or rows.

Names of methods and arguments are Spark's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql import types as spark
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from anabranch.errors import PipelineError
from anabranch.sources.replica_planners import REPLICA
from anabranch.tuples.deciding import Arrivals, released, windows

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import (
        ExpiredTimerInfo,
        StatefulProcessorHandle,
        TimerValues,
        ValueState,
    )

# The column that tells rows of different content apart.
ID = "__anabranch_id"
# Their time in microseconds: a datetime in Python would be one of the machine's time zone.
AT = "__anabranch_at"


class FirstArrivals(StatefulProcessor):
    """One bucket of rows."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._noted = handle.getValueState("arrivals", "noted string")

    def handleInputRows(  # noqa: N802  Spark's name
        self,
        key: Any,  # noqa: ANN401
        rows: Iterator[Row],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Row]:
        del key
        arrivals = Arrivals(_value(self._noted))
        passing = [
            Row(**{name: row[name] for name in self._names})
            for row in rows
            if arrivals.first(row[ID], row[AT], row[REPLICA])
        ]
        arrivals.forget(timerValues.getCurrentWatermarkInMs() * 1000)
        noted = arrivals.noted()
        if noted is None:
            self._noted.clear()
        else:
            self._noted.update((noted,))
        yield from passing

    def close(self) -> None:
        """Nothing is held."""


class InOrder(StatefulProcessor):
    """The rows of one group: those that wait for the watermark, and those that windows still need."""

    def __init__(
        self, names: list[str], timestamp: str, by: list[str], own: spark.StructType, window: tuple[int, int] | None
    ) -> None:
        self._names = names
        self._timestamp = timestamp
        self._by = by
        self._own = own
        self._window = window

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._waiting = handle.getListState("waiting", self._own)
        self._kept = handle.getListState("kept", self._own)
        self._position = handle.getValueState("position", "position long")

    def handleInputRows(  # noqa: N802  Spark's name
        self,
        key: Any,  # noqa: ANN401
        rows: Iterator[Row],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Row]:
        del key, timerValues
        come = [tuple(row[name] for name in [*self._names, AT, ID]) for row in rows]
        if come:
            self._waiting.appendList(come)
            self._ring(come)
        return iter(())

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,  # noqa: ANN401
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        del key, expiredTimerInfo
        ready, waiting = released(list(self._waiting.get()), timerValues.getCurrentWatermarkInMs() * 1000, self._when)
        self._replace(self._waiting, waiting)
        if waiting:
            self._ring(waiting)
        position = _value(self._position) or 0
        self._position.update((position + len(ready),))
        if self._window is None:
            for number, row in enumerate(ready, position):
                yield Row(**self._named(row), position=number)
            return
        size, slide = self._window
        found, kept = windows(list(self._kept.get()), position, ready, size, slide)
        self._replace(self._kept, kept)
        for first, rows in found:
            last = self._named(rows[-1])
            yield Row(
                **{name: last[name] for name in self._names if name in self._by},
                **{self._timestamp: last[self._timestamp]},
                first=first,
                last=first + size - 1,
                rows=[Row(**self._named(row)) for row in rows],
            )

    def close(self) -> None:
        """Nothing is held."""

    def _ring(self, rows: list[tuple[Any, ...]]) -> None:
        """Ask to be called when the watermark has passed the oldest of some rows."""
        self._handle.registerTimer(-(-min(self._when(row)[0] for row in rows) // 1000))

    def _when(self, row: tuple[Any, ...]) -> tuple[int, str]:
        return row[-2], row[-1]

    def _named(self, row: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(self._names, row, strict=False))

    def _replace(self, state: Any, rows: list[Any]) -> None:  # noqa: ANN401  a list state
        if rows:
            state.put(rows)
        else:
            state.clear()


class Retries(StatefulProcessor):
    """The rows of one producer."""

    def __init__(self, names: list[str], seqnum: str) -> None:
        self._names = names
        self._seqnum = seqnum

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._highest = handle.getValueState("highest", "highest long")

    def handleInputRows(  # noqa: N802  Spark's name
        self,
        key: Any,  # noqa: ANN401
        rows: Iterator[Row],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Row]:
        del key, timerValues
        highest = _value(self._highest)
        passing = []
        for row in self._in_order(rows):
            if highest is None or row[self._seqnum] > highest:
                highest = row[self._seqnum]
                passing.append(Row(**{name: row[name] for name in self._names}))
        if passing:
            self._highest.update((highest,))
        yield from passing

    def _in_order(self, rows: Iterator[Row]) -> list[Row]:
        """Return rows by number; of those with the same, which should be copies, the same comes first every time."""
        come = list(rows)
        for row in come:
            if row[self._seqnum] is None:
                raise PipelineError(
                    f"a row has no {self._seqnum!r}: {row.asDict()}",
                    hint="leave out what has no number in a step before this one",
                )
        return sorted(come, key=lambda row: (row[self._seqnum], str(row)))

    def close(self) -> None:
        """Nothing is held."""


def _value(state: ValueState) -> Any:  # noqa: ANN401  whatever was put there
    held = state.get()
    return None if held is None else held[0]
