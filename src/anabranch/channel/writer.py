"""Writing a channel from Spark: `foreachBatch`, Arrow parts in the tasks, one claim in the driver.

The tasks of a micro-batch write parts and return what they wrote; the driver puts that into a manifest. The frame is
executed whole and once, as a stateful batch requires. If the epoch was already published (a re-execution after a
crash between claim and commit), nothing is written, but the digest is computed and compared all the same.

Which epoch a micro-batch is comes from the query's own offset log, never from the batch id.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.channel.digest import HASH_COLUMN, Digest, row_hash
from anabranch.channel.manifest import Part
from anabranch.channel.parts import PartWriter
from anabranch.errors import Corrupt, Misaligned

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_STATISTICS = "name string, rows long, size_bytes long, crc long, digest string, low_us long, high_us long"
_STATISTICS_ARROW = pa.schema(
    [
        ("name", pa.string()),
        ("rows", pa.int64()),
        ("size_bytes", pa.int64()),
        ("crc", pa.int64()),
        ("digest", pa.string()),
        ("low_us", pa.int64()),
        ("high_us", pa.int64()),
    ]
)
WATERMARK_KEY = "spark.watermarkDelayMs"


@dataclass(frozen=True)
class Written:
    """What the tasks of one micro-batch produced."""

    parts: tuple[Part, ...]
    rows: int
    digest: str
    event_time_us: tuple[int, int] | None


@dataclass(frozen=True)
class Planned:
    """What the offset log says of a micro-batch: its epoch and the watermark in force."""

    epoch: int
    watermark_ms: int | None


def planned_batch(checkpoint: Path, batch_id: int) -> Planned:
    """Read which epoch a micro-batch is; `Misaligned` if its inputs do not agree on one."""
    path = checkpoint / "offsets" / str(batch_id)
    lines = path.read_text().splitlines()
    try:
        version, metadata, *offsets = lines
        if not version.startswith("v"):
            raise Corrupt(f"{path} is not an offset log entry")
        ends = _epochs(offsets)
        watermark_ms = json.loads(metadata).get("batchWatermarkMs")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(f"{path} is not an offset log entry: {error}") from error
    if len(set(ends)) != 1:
        raise Misaligned(f"micro-batch {batch_id} reads epochs {ends} of its inputs; it is not published")
    return Planned(epoch=ends[0], watermark_ms=watermark_ms or None)


def _epochs(offsets: list[str]) -> list[int]:
    return [int(json.loads(offset)["epoch"]) for offset in offsets if offset != "-"]


def event_time_column(frame: DataFrame) -> str | None:
    """Return the column that carries the watermark through this frame, if any."""
    for field in frame.schema.fields:
        if WATERMARK_KEY in field.metadata:
            return field.name
    return None


@dataclass(frozen=True)
class PartsPlan:
    """Where the tasks put their parts, named `PREFIX-TASK-ATTEMPT.arrow`, and their Arrow schema, serialised."""

    directory: str
    prefix: str
    schema: bytes


def write_parts(frame: DataFrame, plan: PartsPlan, event_time: str | None) -> Written:
    """Execute a frame and write its rows as parts."""
    return _execute(frame, _task(plan, event_time))


def digest_only(frame: DataFrame, event_time: str | None) -> Written:
    """Execute a frame, write nothing, and return what its rows add up to."""
    return _execute(frame, _task(None, event_time))


def _execute(frame: DataFrame, task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> Written:
    rows = frame.select("*", row_hash(frame)).mapInArrow(task, _STATISTICS).collect()
    digest = Digest()
    for row in rows:
        digest.merge_hex(row.digest)
    lows = [row.low_us for row in rows if row.low_us is not None]
    highs = [row.high_us for row in rows if row.high_us is not None]
    return Written(
        parts=tuple(Part(row.name, row.rows, row.size_bytes, row.crc) for row in rows if row.name is not None),
        rows=sum(row.rows for row in rows),
        digest=digest.hex(),
        event_time_us=(min(lows), max(highs)) if lows else None,
    )


def _task(
    plan: PartsPlan | None, event_time: str | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that runs in the tasks; it captures plain values only."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        share = TaskShare(plan, event_time)
        try:
            for batch in batches:
                share.take(batch)
        except BaseException:
            share.abandon()
            raise
        statistics = share.finish()
        if statistics is not None:
            yield pa.RecordBatch.from_pylist([statistics], schema=_STATISTICS_ARROW)

    return run


class TaskShare:
    """One task's share of an epoch: writes at most one part, adds up digest and event time."""

    def __init__(self, plan: PartsPlan | None, event_time: str | None) -> None:
        self._plan = plan
        self._schema = pa.ipc.read_schema(pa.py_buffer(plan.schema)) if plan is not None else None
        self._event_time = event_time
        self._writer: PartWriter | None = None
        self._digest = Digest()
        self._rows = 0
        self._low_us: int | None = None
        self._high_us: int | None = None

    def take(self, batch: pa.RecordBatch) -> None:
        """Add a batch whose last column is the row hash."""
        if batch.num_rows == 0:
            return
        if batch.schema.names[-1] != HASH_COLUMN:
            raise Corrupt("a batch arrived without its row hashes")
        self._digest.update(batch.column(batch.num_columns - 1))
        rows = batch.select(range(batch.num_columns - 1))
        self._rows += rows.num_rows
        self._note_event_time(rows)
        if self._plan is not None and self._schema is not None:
            if self._writer is None:
                self._writer = PartWriter(self._path(self._plan), self._schema)
            self._writer.write(rows if rows.schema.equals(self._schema) else rows.cast(self._schema))

    @staticmethod
    def _path(plan: PartsPlan) -> Path:
        from pyspark import TaskContext

        context = TaskContext.get()
        task, attempt = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
        return Path(plan.directory) / f"{plan.prefix}-{task}-{attempt}.arrow"

    def _note_event_time(self, rows: pa.RecordBatch) -> None:
        if self._event_time is None:
            return
        column = rows.column(self._event_time)
        if pa.types.is_struct(column.type):
            column = pc.struct_field(column, "end")
        bounds = pc.min_max(column.cast(pa.timestamp("us")).cast(pa.int64()))
        low, high = bounds["min"].as_py(), bounds["max"].as_py()
        if low is not None:
            self._low_us = low if self._low_us is None else min(low, self._low_us)
            self._high_us = high if self._high_us is None else max(high, self._high_us)

    def abandon(self) -> None:
        """Remove what was written: the task failed."""
        if self._writer is not None:
            self._writer.abandon()

    def finish(self) -> dict[str, Any] | None:
        """Close the part and describe the share; None if there were no rows."""
        if not self._rows:
            return None
        part = self._writer.close() if self._writer is not None else None
        return {
            "name": part.name if part else None,
            "rows": self._rows,
            "size_bytes": part.size_bytes if part else None,
            "crc": part.crc if part else None,
            "digest": self._digest.hex(),
            "low_us": self._low_us,
            "high_us": self._high_us,
        }
