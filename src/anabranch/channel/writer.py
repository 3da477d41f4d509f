"""Writing a channel from Spark: Arrow parts in the tasks, one claim in the driver.

Writing is the last operator of the streaming plan itself: the tasks write parts and give out what they wrote, and
`foreachBatch` sees only those few rows. So nothing is analysed, planned or pickled anew per micro-batch, and the hash
of a row is generated code together with what made the row. The frame is executed whole and once, as a stateful batch
requires. Of an epoch that is already published (a replay, or a re-execution after a crash between claim and commit)
only the digest is taken, to be compared; whoever loses a race for the claim removes its parts.

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
from anabranch.ledger.directory import DirectoryLedger

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
# How Spark tells the tasks of a micro-batch which one it is.
_BATCH_ID_PROPERTY = "streaming.sql.batchId"


@dataclass(frozen=True)
class Written:
    """What the tasks of one micro-batch produced. `discarded`: a task found the epoch published and wrote nothing."""

    parts: tuple[Part, ...]
    rows: int
    digest: str
    event_time_us: tuple[int, int] | None
    discarded: bool = False


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
    """Where the tasks of a run put their parts, and what they must know: plain values only, for they are pickled.

    `schema` is serialised Arrow; `event_time` names the column that carries the watermark, if there is one.
    """

    directory: str
    run: str
    checkpoint: str
    schema: bytes
    event_time: str | None


def writing(frame: DataFrame, plan: PartsPlan) -> DataFrame:
    """Return a frame that writes the rows of another, and holds what its tasks wrote."""
    return frame.select("*", row_hash(frame.schema.fields).alias(HASH_COLUMN)).mapInArrow(_task(plan), _STATISTICS)


def written(statistics: DataFrame) -> Written:
    """Execute one micro-batch of a writing frame; return what its rows add up to."""
    rows = statistics.collect()
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
        discarded=any(row.name is None for row in rows),
    )


def _task(plan: PartsPlan) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that runs in the tasks."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        share = TaskShare(plan)
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


def _place(plan: PartsPlan) -> tuple[int, str]:
    """Return the epoch and a name that no other epoch, run, task or attempt has; asked inside a task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    batch_id = context.getLocalProperty(_BATCH_ID_PROPERTY) if context is not None else None
    if context is None or batch_id is None:
        raise Corrupt("parts can be written by the tasks of a micro-batch only")
    epoch = planned_batch(Path(plan.checkpoint), int(batch_id)).epoch
    return epoch, f"{epoch}-{plan.run}-{context.partitionId()}-{context.taskAttemptId()}.arrow"


class TaskShare:
    """One task's share of an epoch: writes one part if there are rows, adds up digest and event time.

    Rows of an epoch that is decided already are not written: nobody could publish them.
    """

    def __init__(self, plan: PartsPlan) -> None:
        self._plan = plan
        self._schema = pa.ipc.read_schema(pa.py_buffer(plan.schema))
        self._writer: PartWriter | None = None
        self._rows = 0
        self._digest = Digest()
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
        self._note_event_time(rows)
        if self._rows == 0:
            epoch, name = _place(self._plan)
            directory = Path(self._plan.directory)
            if not DirectoryLedger(directory.with_name("ledger")).decided(epoch):
                self._writer = PartWriter(directory / name, self._schema)
        self._rows += rows.num_rows
        if self._writer is not None:
            self._writer.write(rows if rows.schema.equals(self._schema) else rows.cast(self._schema))

    def _note_event_time(self, rows: pa.RecordBatch) -> None:
        if self._plan.event_time is None:
            return
        column = rows.column(self._plan.event_time)
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
        if self._rows == 0:
            return None
        part = self._writer.close() if self._writer is not None else None
        return {
            "name": None if part is None else part.name,
            "rows": self._rows,
            "size_bytes": 0 if part is None else part.size_bytes,
            "crc": 0 if part is None else part.crc,
            "digest": self._digest.hex(),
            "low_us": self._low_us,
            "high_us": self._high_us,
        }
