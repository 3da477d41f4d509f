"""The batch oracle: a pipeline's own steps as plain Spark batch queries over the same input, none of our code in them.

Steps are functions of DataFrames, so they run over files as they run over streams. What a stream must have delivered
in the end follows from the plan: everything, where nothing is kept; the last row per key of an aggregate in update
mode; the last epoch in complete mode; the windows that the watermark has closed in append mode; every pair of an inner
join. Rows that may have come too late are told from the order in which files came: where leaving them out changes
nothing, the result is certain, and the rest is left undecided and counted. What cannot be compared says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from anabranch.execution import items, walk
from anabranch.oracle.compare import NOTHING, Verdict, compare, rows_of
from anabranch.pipeline import Graph, StepNode

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_EPOCH = "__epoch"
_FILE = "__file"
# What keeps rows from one micro-batch to the next; nodes of the analysed plan, by class.
_AGGREGATE, _JOIN = "Aggregate", "Join"
_INCOMPARABLE = {
    "Deduplicate": "dropDuplicates keeps whichever row came first",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark forgets as time goes on",
    "FlatMapGroupsWithState": "its state has no meaning in a batch",
    "FlatMapGroupsInPandasWithState": "its state has no meaning in a batch",
    "TransformWithState": "its state has no meaning in a batch",
    "TransformWithStateInPySpark": "its state has no meaning in a batch",
    "Distinct": "distinct keeps whichever row came first",
    "GlobalLimit": "a limit keeps whichever rows came first",
}


@dataclass(frozen=True)
class Given:
    """The input of a source: all of its rows, as a table and as a stream that is only looked at, never run.

    `order` are the names of its files in the order in which they came, if that is known.
    """

    frame: DataFrame
    stream: DataFrame
    order: tuple[str, ...] = ()


@dataclass(frozen=True)
class Compared:
    """What one sink comes to. Without a verdict, `reason` says why; `undecided` groups may have had late rows."""

    verdict: Verdict | None
    reason: str = ""
    undecided: int = 0


def check(
    spark: SparkSession, graph: Graph, given: Mapping[str, Given], delivered: Mapping[str, Path]
) -> dict[str, Compared]:
    """Compare what was delivered to Parquet directories, by sink, with batch queries over all that was given."""
    found = {}
    for name, directory in delivered.items():
        step = graph.steps[graph.sinks[name].stream]
        try:
            found[name] = _Sink(spark, graph, step, given).compared(directory)
        except _Incomparable as error:
            found[name] = Compared(None, str(error))
    return found


class _Incomparable(Exception):
    """A batch query says nothing of this stream."""


class _Sink:
    """The comparison of one step's output."""

    def __init__(self, spark: SparkSession, graph: Graph, step: StepNode, given: Mapping[str, Given]) -> None:
        self._spark = spark
        self._graph = graph
        self._step = step
        for name in self._needed() - {step.name}:
            if graph.steps[name].output_mode != "append":
                raise _Incomparable(f"step {name!r} emits rows that are not final, and what follows sees them all")
        read = {name for needed in self._needed() for name in graph.steps[needed].inputs}
        self._given = {name: one for name, one in given.items() if name in read}
        self._frames = {name: one.frame for name, one in self._given.items()}
        # Spark forgets watermarks where nothing streams.
        self._nodes = _nodes(self._queried({name: one.stream for name, one in self._given.items()}))
        self._frame = self._queried(self._frames)
        self._keys = self._grouped_by()

    def _queried(self, inputs: Mapping[str, DataFrame]) -> DataFrame:
        """Run the steps, as far as this one needs them, over batch frames."""
        from pyspark.errors import PySparkException

        frames = dict(inputs)
        needed = self._needed()
        for name, step in self._graph.steps.items():
            if name in needed:
                if step.function is None:
                    raise _Incomparable("rejects are not rows of the source's schema")
                try:
                    frames[name] = step.function(*[frames[read] for read in step.inputs])
                    _nodes(frames[name])
                except PySparkException as error:
                    reason = str(error).splitlines()[0]
                    raise _Incomparable(f"step {name!r} does not run as a batch: {reason}") from error
        return frames[self._step.name]

    def _needed(self) -> set[str]:
        needed, waiting = set(), [self._step.name]
        while waiting:
            name = waiting.pop()
            if name not in needed and name in self._graph.steps:
                needed.add(name)
                waiting += self._graph.steps[name].inputs
        return needed

    # What kind of result it is

    def _grouped_by(self) -> list[str]:
        """Return the grouping columns of the one aggregate that there is, none if there is none."""
        for node in self._nodes:
            reason = _INCOMPARABLE.get(node.getClass().getSimpleName())
            if reason is not None:
                raise _Incomparable(reason)
        aggregates = [node for node in self._nodes if node.getClass().getSimpleName() == _AGGREGATE]
        joins = [node for node in self._nodes if node.getClass().getSimpleName() == _JOIN]
        both = [node for node in joins if node.left().isStreaming() and node.right().isStreaming()]
        kinds = {node.joinType().toString() for node in both}
        if len(aggregates) + len(both) > 1:
            raise _Incomparable("it has more than one operator with state")
        if kinds - {"Inner"}:
            raise _Incomparable(f"when a {kinds.pop()} join emits a row depends on the watermark")
        if not aggregates:
            return []
        if self._step.output_mode == "update" and self._filtered(aggregates[0]):
            raise _Incomparable("it leaves out rows of its aggregate, and the last one of a group may be among them")
        names = [_name(expression) for expression in items(aggregates[0].groupingExpressions())]
        missing = [name for name in names if name not in self._frame.columns]
        if missing and self._step.output_mode != "complete":
            raise _Incomparable("the columns that it is grouped by are not in the result")
        return [name for name in names if name in self._frame.columns]

    def _filtered(self, aggregate: Any) -> bool:  # noqa: ANN401  a node
        """Say whether a condition stands above an aggregate; nodes come before those that they read."""
        before = self._nodes[: self._nodes.index(aggregate)]
        return any(node.getClass().getSimpleName() == "Filter" for node in before)

    # Comparing

    def compared(self, directory: Path) -> Compared:
        found = _delivered(self._spark, directory, self._frame)
        late = self._certain_inputs()
        if late is not None and any(key.startswith("session_window") for key in self._keys):
            raise _Incomparable("a late row may have joined two sessions, or made one longer")
        if self._step.output_mode == "complete":
            if late is not None:
                raise _Incomparable("rows may have come too late")
            return Compared(_compare(self._frame, _last_epoch(found)))
        if self._step.output_mode == "update" and self._keys:
            found = _last_rows(found, self._keys)
        aggregated = any(node.getClass().getSimpleName() == _AGGREGATE for node in self._nodes)
        if aggregated and self._step.output_mode == "append":
            self._frame = self._frame.where(self._closed())
        if late is None:
            return Compared(_compare(self._frame, found))
        certain = self._queried(late)
        if aggregated and self._step.output_mode == "append":
            certain = certain.where(self._closed())
        return self._bounded(certain, found)

    def _bounded(self, certain: DataFrame, found: DataFrame) -> Compared:
        """Compare where late rows make no difference.

        A group that may have had late rows is there once, if it has rows that were certainly not late, and at most
        once if not; its values are left undecided.
        """
        names = sorted(self._frame.columns)
        everything, sure, seen = (_table(frame) for frame in (self._frame, certain, found))
        all_rows, sure_rows, seen_rows = (rows_of(table, names) for table in (everything, sure, seen))
        places = [names.index(key) for key in self._keys]

        def key(row: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(row[place] for place in places)

        def keys(rows: Any) -> set[tuple[Any, ...]]:  # noqa: ANN401  a multiset
            return {key(row) for row in rows}

        open_keys = keys((all_rows - sure_rows) | (sure_rows - all_rows)) if self._keys else set()
        required = sure_rows & all_rows
        missing = required - seen_rows
        surplus = seen_rows - required
        if self._keys:
            unexplained = Counter({row: n for row, n in surplus.items() if key(row) not in open_keys})
            there = Counter(key(row) for row in surplus.elements())
            unexplained += Counter({(*again, "again"): n - 1 for again, n in there.items() if again in open_keys})
            absent = (open_keys & keys(sure_rows)) - keys(seen_rows)
            missing += Counter((*gone, "in any form") for gone in absent)
        else:
            unexplained = surplus - (all_rows - required)
        duplicated = sum(n for row, n in unexplained.items() if row in required)
        examples = [f"lost {row}" for row in list(missing)[:3]] + [f"not expected {row}" for row in [*unexplained][:3]]
        verdict = Verdict(
            expected=required.total(),
            delivered=seen_rows.total(),
            lost=missing.total(),
            duplicated=duplicated,
            wrong=sum(unexplained.values()) - duplicated,
            examples=tuple(examples[:3]),
        )
        return Compared(verdict, undecided=len(open_keys) if self._keys else (all_rows - required).total())

    # Event time

    def _closed(self) -> Column:
        """Return the condition that the watermark has passed a window at the end."""
        from pyspark.sql import functions as F  # noqa: N812

        windows = [field.name for field in self._frame.schema if field.dataType.simpleString() == _WINDOW]
        bounds = [bound for name in self._given if (bound := self._newest(name)) is not None]
        if not windows or not bounds:
            raise _Incomparable("which groups the watermark has closed cannot be told from the result")
        return F.col(windows[0]).getField("end") <= F.lit(min(bounds))

    def _newest(self, source: str) -> Any:  # noqa: ANN401  a timestamp
        """Return the watermark that a source has come to."""
        from pyspark.sql import functions as F  # noqa: N812

        found = self._event_time(source)
        if found is None:
            return None
        column, delay_ms = found
        delay = F.expr(f"INTERVAL {delay_ms / 1000:f} SECONDS")
        return self._frames[source].agg(F.max(column) - delay).collect()[0][0]

    def _event_time(self, source: str, of: Callable[[int, int], int] = max) -> tuple[str, int] | None:
        """Return the column of a source that a watermark follows, and the longest delay of one, or the shortest."""
        delays: dict[str, int] = {}
        for node in self._nodes:
            if node.getClass().getSimpleName() == "EventTimeWatermark":
                name, delay_ms = str(node.eventTime().name()), _delay_ms(self._spark, node)
                delays[name] = of(delay_ms, delays.get(name, delay_ms))
        for name, delay_ms in delays.items():
            if name in self._frames[source].columns:
                return name, delay_ms
        if delays:
            raise _Incomparable("its event time is no column of the source")
        return None

    def _certain_inputs(self) -> dict[str, DataFrame] | None:
        """Return the inputs without the rows that may have come too late, None if there are none of these."""
        certain, any_late = dict(self._frames), False
        for name, given in self._given.items():
            found = self._event_time(name, min)  # which rows may have been late: by the watermark that is ahead
            if found is None or not given.order:
                continue
            column, delay_ms = found
            in_time = _in_time(given, column, delay_ms)
            if in_time is not None:
                certain[name], any_late = in_time, True
        return certain if any_late else None


_WINDOW = "struct<start:timestamp,end:timestamp>"


def _in_time(given: Given, column: str, delay_ms: int) -> DataFrame | None:
    """Return the rows that cannot have been late, whatever epochs were cut from the files; None if that is all."""
    from pyspark.sql import functions as F  # noqa: N812

    named = given.frame.select("*", F.col("_metadata.file_name").alias(_FILE))
    newest = {row[0]: row[1] for row in named.groupBy(_FILE).agg(F.max(column)).collect()}
    bounds, highest = [], None
    for name in given.order:
        at = newest.get(name)
        highest = at if highest is None or (at is not None and at > highest) else highest
        if highest is not None:
            bounds.append((name, highest))
    if not bounds:
        return None
    spark = given.frame.sparkSession
    limits = spark.createDataFrame(bounds, f"{_FILE} string, __bound timestamp")
    delay = F.expr(f"INTERVAL {delay_ms / 1000:f} SECONDS")
    joined = named.join(F.broadcast(limits), _FILE, "left")
    late = (F.col(column) < F.col("__bound") - delay) & F.col("__bound").isNotNull()
    if joined.where(late).isEmpty():
        return None
    return joined.where(~late | F.col(column).isNull()).select(*given.frame.columns)


def _delivered(spark: SparkSession, directory: Path, like: DataFrame) -> DataFrame:
    """Read what was delivered, with the epoch of every row."""
    from pyspark.sql import functions as F  # noqa: N812

    read = spark.read.schema(like.schema).parquet(str(directory))
    return read.select("*", F.col("_metadata.file_name").alias(_EPOCH))


def _last_epoch(found: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    last = found.agg(F.max(_EPOCH)).collect()[0][0]
    return found.where(F.col(_EPOCH) == F.lit(last))


def _last_rows(found: DataFrame, keys: list[str]) -> DataFrame:
    """Return the newest row per key."""
    from pyspark.sql import functions as F  # noqa: N812

    columns = [name for name in found.columns if name != _EPOCH]
    newest = found.groupBy(*keys).agg(F.max_by(F.struct(*columns), _EPOCH).alias("__row"))
    return newest.select(*[F.col(f"__row.{name}") for name in columns])


def _compare(expected: DataFrame, found: DataFrame) -> Verdict:
    return compare(_table(expected), _table(found), where="batch")


def _table(frame: DataFrame) -> pa.Table:
    """Return the rows; sums of floating point numbers depend, in their last digits, on the order of rows."""
    from pyspark.sql import functions as F  # noqa: N812

    shown = []
    for field in frame.schema:
        if field.name != _EPOCH:
            column = F.col(f"`{field.name}`")
            inexact = field.dataType.simpleString() in ("double", "float")
            shown.append(F.format_string("%.9e", column).alias(field.name) if inexact else column)
    return frame.select(*shown).toArrow()


def _nodes(frame: DataFrame) -> list[Any]:
    return walk(frame._jdf.queryExecution().analyzed())


def _name(expression: Any) -> str:  # noqa: ANN401  a JVM object
    return str(expression.name()) if hasattr(expression, "name") else str(expression)


def _delay_ms(spark: SparkSession, node: Any) -> int:  # noqa: ANN401  a JVM object
    logical = spark._jvm.org.apache.spark.sql.catalyst.plans.logical  # type: ignore[union-attr]
    return int(logical.EventTimeWatermark.getDelayMs(node.delay()))


def total(found: Mapping[str, Compared]) -> Verdict:
    """Return everything that was compared, added up."""
    verdict = NOTHING
    for name, one in found.items():
        if one.verdict is not None:
            examples = tuple(f"{name}: {example}" for example in one.verdict.examples)
            verdict += replace(one.verdict, examples=examples)
    return verdict
