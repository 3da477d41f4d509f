"""A unit on real Spark: one epoch per micro-batch, published once, whatever happens between claim and commit."""

from __future__ import annotations

import gc
import weakref
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812

from anabranch.durable import write_advisory
from anabranch.errors import Diverged
from anabranch.testing.wait import wait_until
from spark_units import TIMEOUT_S, Bench, publish

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("key", pa.string()), ("value", pa.int64())])
START = datetime(2026, 1, 1, tzinfo=UTC)


def row(second: float, key: str = "a", value: int = 1) -> dict:
    return {"ts": START + timedelta(seconds=second), "key": key, "value": value}


def counted(events):
    return events.groupBy("key").agg(F.sum("value").alias("total"))


def windowed(events):
    return events.withWatermark("ts", "5 seconds").groupBy(F.window("ts", "10 seconds"), "key").count()


def outer(left, right):
    near = F.expr("l.key = r.key AND r.ts BETWEEN l.ts AND l.ts + INTERVAL 1 SECOND")
    joined = left.withWatermark("ts", "1 second").alias("l").join(
        right.withWatermark("ts", "1 second").alias("r"), near, "leftOuter"
    )  # fmt: skip
    return joined.select("l.ts", "l.key", F.col("r.value").alias("found"))


def test_every_epoch_is_one_micro_batch_and_empty_epochs_are_published_too(spark, tmp_path):
    """Epochs with rows, without rows and with rows again give one output epoch each."""
    bench = Bench(spark, tmp_path, {"events": SCHEMA}, counted, "update")
    for epoch, rows in enumerate([[row(0), row(1)], [], [row(2, "b"), row(3)]]):
        publish(bench.inputs["events"], epoch, rows)
    unit = bench.start()
    bench.wait_committed(unit, 2)
    unit.stop()
    assert bench.rows(0) == [{"key": "a", "total": 2}]
    assert bench.rows(1) == []
    assert bench.rows(2) == [{"key": "a", "total": 3}, {"key": "b", "total": 1}]


def test_a_query_that_starts_before_its_first_epoch_waits_for_it(spark, tmp_path):
    """Spark's batch over nothing is no epoch, neither in the run that sees it nor in the one that follows."""
    bench = Bench(spark, tmp_path, {"events": SCHEMA}, counted, "update")
    unit = bench.start()
    commits = tmp_path / "units" / "result" / "runs" / unit.run / "checkpoint" / "commits"
    wait_until((commits / "0").exists, TIMEOUT_S, "the batch over nothing")
    assert unit.committed() == -1
    assert bench.output.ledger.last() is None
    unit.stop()
    again = bench.start()
    for epoch in range(2):
        publish(bench.inputs["events"], epoch, [row(epoch)])
        bench.wait_committed(again, epoch)
    again.stop()
    assert [bench.rows(epoch) for epoch in range(2)] == [[{"key": "a", "total": n}] for n in (1, 2)]


def test_a_crash_between_claim_and_commit_publishes_the_epoch_once(spark, tmp_path):
    """The epoch is executed again by the next run, found published with the same digest, and not written twice."""
    bench = Bench(spark, tmp_path, {"events": SCHEMA}, counted, "update")
    for epoch in range(4):
        publish(bench.inputs["events"], epoch, [row(epoch, value=epoch + 1)])

    def crash(_unit, manifest):
        if manifest.epoch == 2:
            raise RuntimeError("killed between claim and commit")

    unit = bench.start(released=crash)
    wait_until(lambda: unit.failure() is not None, TIMEOUT_S, "the crash")
    assert unit.committed() == 1
    first = bench.output.manifest(2)
    again = bench.start()
    bench.wait_committed(again, 3)
    again.stop()
    assert bench.output.manifest(2) == first
    assert bench.diverged == []
    assert [bench.rows(epoch) for epoch in range(4)] == [[{"key": "a", "total": n}] for n in (1, 3, 6, 10)]
    assert bench.output.sweep() == 0, "the second execution left parts behind"


def test_a_run_that_is_stopped_in_the_middle_of_an_epoch_ends_in_silence(spark, tmp_path):
    """Spark takes it for what it is, an interruption: no error, no log of a thousand lines, nothing published."""
    bench = Bench(spark, tmp_path, {"events": SCHEMA}, counted, "update")
    publish(bench.inputs["events"], 0, [row(0)])
    unit = bench.unit(generation=None)
    unit.prepare()
    unit.start(spark)
    wait_until(lambda: unit.batches == 1, TIMEOUT_S, "the epoch to be executed")
    unit.stop()
    assert unit.query.exception() is None
    assert bench.output.last_epoch() == -1


def test_a_run_that_ended_is_forgotten(spark, tmp_path):
    """Else the JVM and Python would keep each other's half of it for ever, and nodes would run out of memory."""
    bench = Bench(spark, tmp_path, {"events": SCHEMA}, counted, "update")
    publish(bench.inputs["events"], 0, [row(0)])
    unit = bench.start()
    bench.wait_committed(unit, 0)
    unit.stop()
    known = weakref.ref(unit)
    del unit
    gc.collect()
    assert known() is None


def test_a_step_that_is_not_deterministic_is_found_out_when_it_is_executed_again(spark, tmp_path):
    """Random values differ between executions; the digest tells, and the published epoch stays."""
    bench = Bench(spark, tmp_path, {"events": SCHEMA}, lambda events: events.select("key", F.rand().alias("r")))
    publish(bench.inputs["events"], 0, [row(0)])

    def crash(_unit, _manifest):
        raise RuntimeError("killed between claim and commit")

    unit = bench.start(released=crash)
    wait_until(lambda: unit.failure() is not None, TIMEOUT_S, "the crash")
    published = bench.rows(0)
    again = bench.start()
    bench.wait_committed(again, 0)
    again.stop()
    assert bench.rows(0) == published
    assert isinstance(bench.diverged[0], Diverged)


def test_a_misaligned_batch_is_never_published_and_does_not_come_back(spark, tmp_path):
    """A follower that runs ahead makes the batch fail before it is written; the next run aligns its inputs."""
    bench = Bench(
        spark, tmp_path, {"left": SCHEMA, "right": SCHEMA}, lambda left, right: left.unionByName(right).select("value")
    )
    for channel in bench.inputs.values():
        publish(channel, 0, [row(0, value=1)])
        publish(channel, 1, [row(1, value=2)])
    unit = bench.start()
    bench.wait_committed(unit, 1)
    run_directory = tmp_path / "units" / "result" / "runs" / unit.run
    # The leader still waits for epoch 2 of both; a note that lies lets the follower go ahead alone.
    publish(bench.inputs["right"], 2, [row(2, value=3)])
    write_advisory(run_directory / "note", b"1 2")
    wait_until(lambda: unit.failure() is not None, TIMEOUT_S, "the misaligned batch to fail")
    assert "Misaligned" in str(unit.failure())
    assert bench.output.manifest(2) is None
    publish(bench.inputs["left"], 2, [row(2, value=4)])
    again = bench.start()
    bench.wait_committed(again, 2)
    again.stop()
    assert bench.rows(2) == [{"value": 3}, {"value": 4}]


def test_late_rows_are_counted_as_spark_reports_them(spark, tmp_path):
    """The number in the manifest, taken from Spark's internals, equals the one in Spark's progress."""
    bench = Bench(spark, tmp_path, {"events": SCHEMA}, windowed)
    reported: dict[int, int] = {}
    for epoch, rows in enumerate([[row(0), row(100)], [row(101)], [row(1), row(2, "b"), row(200)]]):
        publish(bench.inputs["events"], epoch, rows)
    unit = bench.start()
    bench.wait_committed(unit, 2)
    wait_until(lambda: unit.query.lastProgress and unit.query.lastProgress["batchId"] == 2, TIMEOUT_S, "progress")
    for progress in unit.query.recentProgress:
        late = sum(operator["numRowsDroppedByWatermark"] for operator in progress["stateOperators"])
        reported[progress["batchId"]] = late
    unit.stop()
    assert {epoch: bench.output.manifest(epoch).late_rows for epoch in range(3)} == reported
    # Spark drops by the watermark of the batch before: what epoch 0 closed is closed to rows of epoch 2.
    assert reported == {0: 0, 1: 0, 2: 2}
    assert bench.output.manifest(1).watermark_ms == int((START + timedelta(seconds=95)).timestamp() * 1000)


@pytest.mark.parametrize("restart", [False, True])
def test_watermarks_of_all_inputs_survive_a_restart(spark, tmp_path, restart):
    """With one input silent since before the restart, the other's rows still move the watermark, as without it."""
    bench = Bench(spark, tmp_path, {"left": SCHEMA, "right": SCHEMA}, outer)
    left = [[row(0)], [row(10)], [row(20)], [row(30)], []]
    right = [[row(100, "z")], [], [], [], []]
    unit = bench.start()
    for epoch, (some, others) in enumerate(zip(left, right, strict=True)):
        publish(bench.inputs["left"], epoch, some)
        publish(bench.inputs["right"], epoch, others)
        bench.wait_committed(unit, epoch)
        if restart and epoch == 1:
            unit.stop()
            unit = bench.start()
    unit.stop()
    emitted = [[found["ts"].second for found in bench.rows(epoch)] for epoch in range(5)]
    assert emitted == [[], [], [0], [10], [20]]


def test_state_is_kept_in_snapshots_now_and_then(spark, tmp_path):
    """RocksDB writes its snapshots with these settings; without them a restart would replay every change ever made."""
    bench = Bench(spark, tmp_path, {"events": SCHEMA}, counted, "update")
    unit = bench.start()
    epoch = -1

    def snapshot() -> bool:
        nonlocal epoch
        if unit.committed() == epoch:
            epoch += 1
            publish(bench.inputs["events"], epoch, [row(epoch)])
        checkpoint = tmp_path / "units" / "result" / "runs" / unit.run / "checkpoint"
        return any(checkpoint.glob("state/0/*/*.zip"))

    wait_until(snapshot, TIMEOUT_S, "a snapshot")
    unit.stop()
    assert epoch > 0
