"""The source contract: planning is cheap and runs in the pacer, reading runs inside Spark tasks.

A *range* is a JSON object that says exactly which rows belong to an epoch. It is decided once, in the source
channel's ledger; reading a range gives the same rows every time and everywhere, or fails. `{}` is the empty range.

A source is rebuilt from its `spec()` (JSON) in the processes that read, so nothing is pickled. What `read` yields is
*raw* rows; `shape` turns them, inside Spark, into the rows of the declared schema. So a text format is parsed by
Spark's own parser, with Spark's semantics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Range = dict[str, Any]


@dataclass(frozen=True)
class Limit:
    """The largest epoch that may be planned. A source uses what it can measure before it plans."""

    rows: int
    size_bytes: int


class Planner(Protocol):
    """Where a source stands. Lives in the pacer; one thread."""

    def waiting(self, now_s: float) -> bool:
        """Say whether `plan` would give rows now. Cheap enough to be asked every few milliseconds.

        A directory is listed at most as often as the planner finds reasonable.
        """
        ...

    def backlogged(self, now_s: float, limit: Limit) -> bool:
        """Say whether a whole epoch of the largest size waits for sure; cheap, and False where that is not known."""
        ...

    def plan(self, now_s: float, limit: Limit) -> Range:
        """Return the next range after all applied ones, `{}` if nothing waits. Changes nothing by itself.

        Raises `SourceError` naming the file if one that was planned from has shrunk or was replaced.
        """
        ...

    def apply(self, planned: Range) -> None:
        """Take note of a decided range, this planner's or another's; the next plan follows it."""
        ...

    def close(self, now_s: float) -> None:
        """Declare that what the source holds now is all there will be (a drain). Then unterminated tails count."""
        ...

    def ended(self, now_s: float) -> bool:
        """Say whether nothing can ever wait again: the source is finite or closed, and all of it is applied."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """Return the position as JSON; `Source.planner(snapshot)` goes on from there."""
        ...


@runtime_checkable
class TakingPlanner(Planner, Protocol):
    """Plans an entry point: what it plans may be gone later, so its rows are copied before the epoch is claimed."""

    def taken(self, planned: Range) -> list[pa.RecordBatch]:
        """Return the rows of the range that was planned last."""
        ...

    def without(self, now_s: float) -> list[str]:
        """Return what it does without just now, of several places that have the same, for people to read."""
        ...


class Source(Protocol):
    """A replayable input."""

    def spec(self) -> dict[str, Any]:
        """Return a JSON object with a `kind`; `sources.from_spec` makes an equal source of it, in any process."""
        ...

    def check(self) -> None:
        """Raise `SourceError` or `PipelineError`, with a hint, if this source cannot be used at all."""
        ...

    def raw_schema(self) -> pa.Schema:
        """Return the Arrow schema of what `read` yields."""
        ...

    def shape(self, raw: DataFrame) -> DataFrame:
        """Turn raw rows into rows of the declared schema, with Spark expressions only."""
        ...

    def planner(self, snapshot: dict[str, Any] | None = None) -> Planner:
        """Return a planner at the beginning, or at a snapshot."""
        ...

    def split(self, planned: Range, ways: int) -> list[Range]:
        """Cut a range into at most `ways` ranges of about equal work; together they hold the same rows."""
        ...

    def read(self, planned: Range) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range. Same rows every time; `SourceError` naming the file if that is impossible."""
        ...
