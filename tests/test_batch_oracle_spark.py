"""The batch oracle: what a stream must have delivered, told from the plan; what was not delivered so is noticed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812

import anabranch as ab
from anabranch.oracle.batch import Given, check, total

pytestmark = pytest.mark.spark
SCHEMA = "ts timestamp, key string, value bigint"
START = datetime(2026, 1, 1, tzinfo=UTC)


def counted(events):
    windows = events.withWatermark("ts", "5 seconds").groupBy(F.window("ts", "10 seconds"), "key")
    return windows.agg(F.count("*").alias("n"), F.avg("value").alias("mean"))


def running(events):
    return events.groupBy("key").agg(F.count("*").alias("n"))


def doubled(events):
    return events.where("value > 2").select("key", (F.col("value") * 2).alias("value"))


def paired(events):
    other = events.withWatermark("ts", "5 seconds").alias("b")
    left = events.withWatermark("ts", "5 seconds").alias("a")
    return left.join(other, F.expr("a.key = b.key AND a.ts = b.ts")).select("a.ts", "a.key", "b.value")


def distinct(events):
    return events.dropDuplicates(["key"])


class Made:
    """A pipeline of one step over a directory of files, and what it is said to have delivered."""

    def __init__(self, spark, directory, step, output_mode="append"):
        self.spark, self.directory = spark, directory
        pipe = ab.Pipeline("made")
        events = pipe.source("events", ab.read_jsonl(directory / "events", schema=SCHEMA))
        pipe.sink(pipe.step(events, output_mode=output_mode)(step), ab.parquet(directory / "unused"))
        self.graph = pipe.graph()
        (self.sink,) = self.graph.sinks
        self.order = []
        (directory / "events").mkdir()
        (directory / "out").mkdir()

    def give(self, *rows):
        """Add a file of (second, key, value)."""
        name = f"{len(self.order)}.jsonl"
        lines = [
            json.dumps({"ts": (START + timedelta(seconds=at)).isoformat(), "key": key, "value": value})
            for at, key, value in rows
        ]
        (self.directory / "events" / name).write_text("\n".join(lines) + "\n")
        self.order.append(name)

    def deliver(self, epoch, table):
        pq.write_table(table, self.directory / "out" / f"epoch-{epoch:012d}.parquet")

    def given(self):
        place = str(self.directory / "events")
        frame = self.spark.read.schema(SCHEMA).json(place)
        return {"events": Given(frame, self.spark.readStream.schema(SCHEMA).json(place), tuple(self.order))}

    def compared(self):
        return check(self.spark, self.graph, self.given(), {self.sink: self.directory / "out"})[self.sink]


def window_row(start_s, key, n, mean):
    window = {"start": START + timedelta(seconds=start_s), "end": START + timedelta(seconds=start_s + 10)}
    return {"window": window, "key": key, "n": n, "mean": mean}


WINDOWS = pa.schema(
    [
        ("window", pa.struct([("start", pa.timestamp("us", tz="UTC")), ("end", pa.timestamp("us", tz="UTC"))])),
        ("key", pa.string()),
        ("n", pa.int64()),
        ("mean", pa.float64()),
    ]
)


def windows(*rows):
    return pa.Table.from_pylist([window_row(*row) for row in rows], WINDOWS)


def test_without_state_everything_counts(spark, tmp_path):
    """Row by row; a row that is missing, double or other is found."""
    made = Made(spark, tmp_path, doubled)
    made.give((0, "a", 1), (1, "b", 3), (2, "c", 4))
    made.deliver(0, pa.table({"key": ["b"], "value": [6]}))
    made.deliver(3, pa.table({"key": ["c"], "value": [8]}))
    assert made.compared().verdict.exact
    made.deliver(4, pa.table({"key": ["c", "d"], "value": [8, 9]}))
    made.deliver(0, pa.table({"key": pa.array([], pa.string()), "value": pa.array([], pa.int64())}))
    verdict = made.compared().verdict
    assert (verdict.lost, verdict.duplicated, verdict.wrong) == (1, 1, 1)


def test_windows_count_once_the_watermark_has_closed_them(spark, tmp_path):
    """The newest time less the delay closes; sums of floating point numbers may differ in their last digits."""
    made = Made(spark, tmp_path, counted)
    made.give((1, "a", 1), (2, "a", 2), (3, "b", 7))
    made.give((15, "a", 4))
    made.deliver(1, windows((0, "a", 2, 1.5 + 1e-12), (0, "b", 1, 7.0)))
    compared = made.compared()
    assert compared.verdict.exact
    assert (compared.verdict.expected, compared.undecided) == (2, 0)
    made.deliver(1, windows((0, "a", 2, 1.5), (0, "b", 2, 7.0)))
    assert (made.compared().verdict.lost, made.compared().verdict.wrong) == (1, 1)


@pytest.mark.parametrize("dropped", [True, False])
def test_rows_that_may_be_late_leave_their_windows_undecided(spark, tmp_path, dropped):
    """Whether a late row was dropped depends on where epochs ended; other windows are compared all the same."""
    made = Made(spark, tmp_path, counted)
    made.give((1, "a", 1), (2, "b", 2))
    made.give((21, "a", 4))
    made.give((3, "a", 3))
    made.give((40, "a", 4))
    late = windows((0, "a", 1, 1.0)) if dropped else windows((0, "a", 2, 2.0))
    made.deliver(1, late)
    made.deliver(2, windows((0, "b", 1, 2.0), (20, "a", 1, 4.0)))
    compared = made.compared()
    assert compared.verdict.exact, compared
    assert compared.undecided == 1
    made.deliver(2, windows((0, "b", 1, 9.0), (20, "a", 1, 4.0)))
    assert not made.compared().verdict.exact


def test_an_undecided_window_is_there_and_there_once(spark, tmp_path):
    """Its values may be either; that it has rows which were not late is certain."""
    made = Made(spark, tmp_path, counted)
    made.give((1, "a", 1))
    made.give((21, "a", 4))
    made.give((3, "a", 3), (4, "c", 1))
    made.give((40, "a", 4))
    made.deliver(2, windows((20, "a", 1, 4.0)))
    verdict = made.compared().verdict
    assert (verdict.lost, verdict.duplicated + verdict.wrong) == (1, 0), "of the window of c all rows may be late"
    made.deliver(1, windows((0, "a", 1, 1.0), (0, "a", 2, 2.0)))
    verdict = made.compared().verdict
    assert (verdict.lost, verdict.duplicated + verdict.wrong) == (0, 1)


def test_sources_that_a_sink_does_not_read_are_left_alone(spark, tmp_path):
    """They may have no event time at all, or another one."""
    made = Made(spark, tmp_path, counted)
    made.give((1, "a", 1))
    made.give((15, "a", 4))
    made.deliver(1, windows((0, "a", 1, 1.0)))
    other = spark.createDataFrame([("x",)], "name string")
    given = {**made.given(), "users": Given(other, other)}
    compared = check(spark, made.graph, given, {made.sink: tmp_path / "out"})[made.sink]
    assert compared.verdict.exact
    assert compared.verdict.expected == 1


def test_in_update_mode_the_last_row_of_a_key_counts(spark, tmp_path):
    """Whatever came before it."""
    made = Made(spark, tmp_path, running, "update")
    made.give((1, "a", 1), (2, "b", 2))
    made.give((3, "a", 1))
    made.deliver(0, pa.table({"key": ["a", "b"], "n": [1, 1]}))
    assert not made.compared().verdict.exact
    made.deliver(1, pa.table({"key": ["a"], "n": [2]}))
    assert made.compared().verdict.exact


def test_in_complete_mode_the_last_epoch_counts(spark, tmp_path):
    """It is the whole result."""
    made = Made(spark, tmp_path, running, "complete")
    made.give((1, "a", 1), (2, "b", 2))
    made.deliver(0, pa.table({"key": ["a"], "n": [7]}))
    made.deliver(1, pa.table({"key": ["a", "b"], "n": [1, 1]}))
    assert made.compared().verdict.exact


@pytest.mark.parametrize("joined", [True, False])
def test_an_inner_join_lies_between_what_must_and_what_may_be(spark, tmp_path, joined):
    """A row that may have come too late may have found its partners, or not."""
    made = Made(spark, tmp_path, paired)
    made.give((1, "a", 1))
    made.give((60, "b", 2))
    made.give((2, "c", 3))
    rows = [(60, "b", 2), (1, "a", 1), *([(2, "c", 3)] if joined else [])]
    times = [START + timedelta(seconds=at) for at, _, _ in rows]
    made.deliver(
        0,
        pa.table(
            {
                "ts": pa.array(times, pa.timestamp("us", tz="UTC")),
                "key": [key for _, key, _ in rows],
                "value": [value for _, _, value in rows],
            }
        ),
    )
    compared = made.compared()
    assert compared.verdict.exact
    assert compared.undecided == 1
    assert total({"paired": compared}).exact


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (distinct, "whichever row came first"),
        (lambda events: events.join(paired(events), "key", "left"), "more than one operator"),
        (lambda events: running(counted(events)), "more than one operator"),
    ],
)
def test_what_a_batch_cannot_tell_says_why(spark, tmp_path, step, why):
    """It is left to the other oracle."""
    step.__name__ = "step"
    made = Made(spark, tmp_path, step)
    made.give((1, "a", 1))
    made.deliver(0, pa.table({"key": ["a"]}))
    compared = made.compared()
    assert compared.verdict is None
    assert why in compared.reason
