"""The steps, as Spark is given them; see the package for what they are for."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as spark

from anabranch.channel.digest import row_hash
from anabranch.errors import PipelineError
from anabranch.sources.replica_planners import PUNCTUATION, REPLICA
from anabranch.tuples.processors import AT, ID, FirstArrivals, InOrder, Retries

_BUCKET = "__anabranch_bucket"
# State of one key is loaded and stored as a whole: few enough for large batches, enough for a few cores.
_BUCKETS = 8
_SECOND_SEED = 7


def first_arrivals(replicas: DataFrame, timestamp: str) -> DataFrame:
    """Return each row once, from whichever replica brought it first, with a watermark on `timestamp`.

    `replicas` comes from `read_replicas(…, timestamp=…)`. A row that occurs several times in every replica comes out
    as often. A row at or before a punctuation is a copy: the replica that punctuated has brought all until then. Rows
    without a time are left out, as Spark's windows leave them out.
    """
    _need_time(replicas, timestamp, REPLICA, PUNCTUATION)
    own = [field for field in replicas.schema.fields if field.name not in (REPLICA, PUNCTUATION)]
    names = [field.name for field in own]
    shown = _identified(_punctuated(replicas, timestamp), names).withColumn(AT, F.unix_micros(timestamp))
    buckets = shown.withColumn(_BUCKET, F.pmod(F.xxhash64(ID), F.lit(_BUCKETS))).groupBy(_BUCKET)
    return buckets.transformWithState(
        FirstArrivals(names), spark.StructType(own), "Append", "EventTime", eventTimeColumnName=timestamp
    )


def join(left: DataFrame, right: DataFrame, *, on: Sequence[str], within: str, timestamp: str) -> DataFrame:
    """Return the pairs of rows that agree in `on` and are less than `within` apart, at the time of the later one.

    Both sides have a watermark on `timestamp`. Columns of the right side that are not in `on` must have other names.
    """
    for side in (left, right):
        _need_time(side, timestamp, *on)
    twice = (set(left.columns) & set(right.columns)) - {*on, timestamp}
    if twice:
        raise PipelineError(f"both sides of a join have a column {min(twice)!r}", hint="rename it on one side")
    apart = F.expr(f"INTERVAL {within}")
    ours, theirs = left.alias("ours"), right.alias("theirs")
    ours_ts, theirs_ts = F.col(f"ours.`{timestamp}`"), F.col(f"theirs.`{timestamp}`")
    near = (ours_ts > theirs_ts - apart) & (ours_ts < theirs_ts + apart)
    same = [F.col(f"ours.`{name}`") == F.col(f"theirs.`{name}`") for name in on]
    pairs = ours.join(theirs, _all([*same, near]), "inner")
    kept = [
        *(F.col(f"ours.`{name}`") for name in left.columns if name != timestamp),
        *(F.col(f"theirs.`{name}`") for name in right.columns if name not in {*on, timestamp}),
    ]
    return pairs.select(F.greatest(ours_ts, theirs_ts).alias(timestamp), *kept)


def in_order(rows: DataFrame, timestamp: str, *, by: Sequence[str]) -> DataFrame:
    """Return the rows with a column `position`: their place, from 0, among those that agree in `by`.

    Places are by event time, and by content among rows of the same time: the same for every replica. A row comes when
    the watermark on `timestamp` has passed it.
    """
    own = _ordered_columns(rows, timestamp, by)
    shape = spark.StructType([*own, spark.StructField("position", spark.LongType())])
    return _in_order(rows, timestamp, by, shape, None)


def count_windows(
    rows: DataFrame, timestamp: str, *, by: Sequence[str], size: int, slide: int | None = None
) -> DataFrame:
    """Return windows of `size` rows, a new one every `slide` rows (default: `size`), among those that agree in `by`.

    Columns: those of `by`, `timestamp` (of the last row), `first` and `last` (positions), and `rows`, the rows
    themselves as an array of structs, oldest first: aggregate it with Spark's functions on arrays.
    """
    slide = size if slide is None else slide
    if size < 1 or slide < 1:
        raise PipelineError(f"windows of {size} rows every {slide} rows make no sense", hint="give numbers above zero")
    own = _ordered_columns(rows, timestamp, by, size)
    shape = spark.StructType(
        [
            *(field for field in own if field.name in by),
            next(field for field in own if field.name == timestamp),
            spark.StructField("first", spark.LongType()),
            spark.StructField("last", spark.LongType()),
            spark.StructField("rows", spark.ArrayType(spark.StructType(own))),
        ]
    )
    return _in_order(rows, timestamp, by, shape, (size, slide))


def drop_retries(rows: DataFrame, *, seqnum: str = "seqnum", by: Sequence[str] = ("source", "primary")) -> DataFrame:
    """Return the rows without those that a producer sent again.

    A producer numbers its rows, upwards, by `by` (in the original: where they come from, and who is to process them),
    and sends those of one such group in order. A number that is not above all that came before is a copy.
    """
    _need(rows, seqnum, *by)
    return rows.groupBy(*by).transformWithState(Retries(rows.columns, seqnum), rows.schema, "Append", "None")


def _punctuated(replicas: DataFrame, timestamp: str) -> DataFrame:
    """Return the rows alone, under a watermark that is the newest punctuation.

    Two watermarks, of which Spark takes the lower: one sees rows and punctuations, so the other, which sees
    punctuations alone, is never the higher. Both filters ask for the time too, or Spark would move them in front.
    """
    moment = F.col(timestamp)
    timed = replicas.withColumn(timestamp, F.coalesce(F.col(PUNCTUATION), moment))
    rows = timed.withWatermark(timestamp, "0 seconds").where(F.when(F.col(PUNCTUATION).isNull(), moment).isNotNull())
    marks = timed.where(F.col(PUNCTUATION).isNotNull()).withWatermark(timestamp, "0 seconds").where(moment.isNull())
    return rows.unionByName(marks).drop(PUNCTUATION)


def _identified(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """Add what tells rows of different content apart: 128 bits, which nulls count for."""
    fields = [rows.schema[name] for name in names]
    halves = [row_hash(fields), row_hash(fields, _SECOND_SEED)]
    return rows.withColumn(ID, F.concat(*(F.lpad(F.hex(half), 16, "0") for half in halves)))


def _in_order(
    rows: DataFrame, timestamp: str, by: Sequence[str], shape: spark.StructType, window: tuple[int, int] | None
) -> DataFrame:
    names = list(rows.columns)
    more = [spark.StructField(AT, spark.LongType()), spark.StructField(ID, spark.StringType())]
    own = spark.StructType([*rows.schema.fields, *more])
    processor = InOrder(names, timestamp, list(by), own, window)
    timed = rows.where(F.col(timestamp).isNotNull()).withColumn(AT, F.unix_micros(timestamp))
    groups = _identified(timed, names).groupBy(*by)
    return groups.transformWithState(processor, shape, "Append", "EventTime", eventTimeColumnName=timestamp)


def _ordered_columns(
    rows: DataFrame, timestamp: str, by: Sequence[str], window: int | None = None
) -> list[spark.StructField]:
    added = {"position"} if window is None else {"first", "last", "rows"}
    _need_time(rows, timestamp, *by)
    if not by:
        raise PipelineError("there is an order only among rows that agree in something", hint="name columns: by=[…]")
    taken = (set(rows.columns) if window is None else set(by)) & added
    if taken:
        raise PipelineError(f"there is a column {min(taken)!r} already", hint="rename it before this step")
    return list(rows.schema.fields)


def _need_time(frame: DataFrame, timestamp: str, *names: str) -> None:
    _need(frame, timestamp, *names)
    if not isinstance(frame.schema[timestamp].dataType, spark.TimestampType):
        raise PipelineError(f"column {timestamp!r} is no timestamp", hint="name the column of the event time")


def _need(frame: DataFrame, *names: str) -> None:
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise PipelineError(
            f"there is no column {missing[0]!r} among {', '.join(frame.columns)}",
            hint=f"{REPLICA!r} and {PUNCTUATION!r} come from ab.read_replicas(…, timestamp=…)"
            if missing[0] in (REPLICA, PUNCTUATION)
            else "name a column that is there",
        )


def _all(conditions: Sequence[Column]) -> Column:
    found = conditions[0]
    for condition in conditions[1:]:
        found &= condition
    return found
