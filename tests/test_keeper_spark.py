"""The keeper over real Spark checkpoints: what is restored elsewhere goes on with exactly the right state."""

import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F  # noqa: N812

from anabranch.checkpoint import last_commit
from anabranch.clock import SystemClock
from anabranch.doctor.checkpoints import look_at_checkpoint
from anabranch.keeper.contents import CommitContents
from anabranch.keeper.keeper import Keeper, KeeperOptions
from anabranch.keeper.restoring import restore_unit
from anabranch.store.opening import open_store
from anabranch.testing.wait import wait_until
from plan_steps import grouped, transformed
from spark_units import SCHEMA_FOR_STEPS, Bench, publish

pytestmark = pytest.mark.spark
TIMEOUT_S = 120.0
START = datetime(2026, 1, 1, tzinfo=UTC)


def running(events):
    """Count and add up per key, for ever."""
    return events.groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("total"))


def joined(left, right):
    """Join two streams on key and second; its state is four stores per partition."""
    left = left.withWatermark("ts", "1 hour")
    right = right.withWatermark("ts", "1 hour").select(F.col("ts").alias("ts2"), F.col("key").alias("key2"))
    return left.join(right, (left.key == right.key2) & (left.ts == right.ts2)).select("key", "value", "ts")


def rows(epoch, count=6):
    return [
        {"ts": START + timedelta(seconds=10 * epoch + n), "key": f"k{n % 4}", "value": epoch * 10 + n}
        for n in range(count)
    ]


def keeping(bench, unit, url):
    keeper = Keeper(
        {url: open_store(url, f"home/result/{unit.run}")},
        KeeperOptions(bench.directory, "result", unit.run),
        SystemClock(),
    )
    keeper.start()
    return keeper


def check_doctor(checkpoint):
    """The doctor finds nothing in what Spark wrote, and finds a flipped bit in any changelog or snapshot it needs."""
    assert [finding for finding in look_at_checkpoint(checkpoint) if finding.severity == "damage"] == []
    batch_id = last_commit(checkpoint).batch_id

    def needed():
        """Spark may still write a snapshot after the query has ended; then what lies before it is of no use."""
        files = CommitContents(checkpoint).files(batch_id)
        return [checkpoint / path for path in files if path.endswith((".changelog", ".zip"))]

    assert needed()
    for path in needed():
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        whole = path.read_bytes()
        path.write_bytes(content)
        noticed = any(finding.severity == "damage" for finding in look_at_checkpoint(checkpoint))
        assert noticed or path not in needed(), path
        path.write_bytes(whole)


def run_and_lose(bench, epochs, url):
    """Run some epochs with a keeper, then lose every file of the unit."""
    unit = bench.start()
    keeper = keeping(bench, unit, url)
    bench.wait_committed(unit, epochs - 1)
    wait_until(lambda: keeper.shipped_epoch() == epochs - 1, TIMEOUT_S, "the last version")
    unit.stop()
    keeper.stop()
    shutil.rmtree(bench.directory / "units")


def test_state_comes_back_from_a_store(spark, tmp_path):
    """After all local state was lost, counts go on from the store, through snapshots and changelogs, several times."""
    bench = Bench(spark, tmp_path, {"events": SCHEMA_FOR_STEPS}, running, "update")
    url = f"log:{tmp_path / 'store'}"
    expected = Counter()
    done = 0
    for epochs in (14, 17):
        for epoch in range(done, epochs):
            publish(bench.inputs["events"], epoch, rows(epoch))
        unit = bench.start(restore=lambda directory, _: restore_unit([url], "home", "result", directory))
        keeper = keeping(bench, unit, url)
        bench.wait_committed(unit, epochs - 1)
        wait_until(lambda epochs=epochs, keeper=keeper: keeper.shipped_epoch() == epochs - 1, TIMEOUT_S, "a version")
        unit.stop()
        keeper.stop()
        check_doctor(unit.directory / "checkpoint")
        shutil.rmtree(tmp_path / "units")
        for epoch in range(done, epochs):
            for row in rows(epoch):
                expected[row["key"]] += row["value"]
            assert {row["key"]: row["total"] for row in bench.rows(epoch)} == dict(expected)
        done = epochs
    assert bench.diverged == []
    assert list(tmp_path.joinpath("store").rglob("*")), "nothing was kept"


def test_a_join_comes_back_from_a_store(spark, tmp_path):
    """Rows that waited for their partners before the loss find them after it."""
    inputs = {"left": SCHEMA_FOR_STEPS, "right": SCHEMA_FOR_STEPS}
    bench = Bench(spark, tmp_path, inputs, joined)
    url = f"log:{tmp_path / 'store'}"
    for epoch in range(3):
        publish(bench.inputs["left"], epoch, rows(epoch))
        publish(bench.inputs["right"], epoch, [])
    run_and_lose(bench, 3, url)
    publish(bench.inputs["left"], 3, [])
    publish(bench.inputs["right"], 3, [row for epoch in range(3) for row in rows(epoch)])
    unit = bench.start(restore=lambda directory, _: restore_unit([url], "home", "result", directory))
    bench.wait_committed(unit, 3)
    unit.stop()
    assert [row["value"] for row in sorted(bench.rows(3), key=lambda row: row["value"])] == [
        row["value"] for epoch in range(3) for row in rows(epoch)
    ]


@pytest.mark.parametrize(
    "step", [transformed("EventTime"), grouped("NoTimeout")], ids=["transformWithState", "applyInPandasWithState"]
)
def test_functions_with_state_come_back_from_a_store(spark, tmp_path, step):
    """Spark notes whole paths of what one of them keeps; it goes on elsewhere all the same, and then once more."""
    bench = Bench(spark, tmp_path, {"events": SCHEMA_FOR_STEPS}, step, "update")
    url = f"log:{tmp_path / 'store'}"
    for epoch in range(2):
        publish(bench.inputs["events"], epoch, rows(epoch, count=4))
    run_and_lose(bench, 2, url)
    for epoch in (2, 3):
        publish(bench.inputs["events"], epoch, rows(epoch, count=4))
        unit = bench.start(restore=lambda directory, _: restore_unit([url], "home", "result", directory))
        bench.wait_committed(unit, epoch)
        unit.stop()
        unit.remove_former_runs()
    assert [row["n"] for epoch in range(4) for row in bench.rows(epoch)] == [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4
