"""After a takeover without state, on real Spark: gaps and incomplete epochs are marked, and only those are wrong."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F  # noqa: N812

from anabranch.channel.inputs import Gate
from anabranch.channel.manifest import Manifest, Producer
from spark_units import SCHEMA_FOR_STEPS, Bench, publish

pytestmark = pytest.mark.spark
START = datetime(2026, 1, 1, tzinfo=UTC)
# The state that is lost, that of epoch 4, holds half a window.
LOST_AFTER, LAST = 6, 15


def rows(epoch):
    """Every epoch brings three rows of five seconds of event time."""
    return [{"ts": START + timedelta(seconds=5 * epoch + n), "key": "k", "value": epoch} for n in range(3)]


def windowed(events):
    return events.withWatermark("ts", "1 second").groupBy(F.window("ts", "10 seconds"), "key").count()


def run_over(bench, unit, epochs, **fields):
    for epoch in epochs:
        publish(bench.inputs["events"], epoch, rows(epoch), **fields)
        bench.wait_committed(unit, epoch)


@pytest.mark.parametrize("gate", [Gate(after=LOST_AFTER), Gate(LOST_AFTER + 1, after=LOST_AFTER - 2)])
def test_what_may_be_wrong_is_marked(tmp_path, spark, gate):
    """A run that begins with nothing counts too little until windows that began later are closed.

    It may read what waited together with the newest epoch: gaps they stay, but their rows count in what follows.
    """
    whole = Bench(spark, tmp_path / "whole", {"events": SCHEMA_FOR_STEPS}, windowed)
    unit = whole.start()
    run_over(whole, unit, range(LAST + 1))
    unit.stop()
    bench = Bench(spark, tmp_path / "lossy", {"events": SCHEMA_FOR_STEPS}, windowed)
    unit = bench.start()
    run_over(bench, unit, range(LOST_AFTER - 1))
    unit.stop()
    for epoch in (LOST_AFTER - 1, LOST_AFTER):
        publish(bench.inputs["events"], epoch, rows(epoch))
        gap = Manifest(epoch, Producer("result", "other", 1), 0.0, rows=0, gap=True)
        bench.output.release(gap)
    heir = bench.unit()
    heir.prepare_empty()
    heir.begin_after(gate.after, lost=True)
    heir.start(spark, gate)
    run_over(bench, heir, range(LOST_AFTER + 1, LAST + 1))
    heir.stop()
    marks = [bench.output.manifest(epoch).incomplete for epoch in range(LOST_AFTER + 1, LAST + 1)]
    assert marks[0]
    assert not marks[-1]
    assert marks == sorted(marks, reverse=True), "once complete, always complete"
    wrong = [epoch for epoch in range(LOST_AFTER + 1, LAST + 1) if bench.rows(epoch) != whole.rows(epoch)]
    assert wrong
    assert all(bench.output.manifest(epoch).incomplete for epoch in wrong)


def test_what_reads_an_incomplete_epoch_is_incomplete(tmp_path, spark):
    """For as long as its windows may lack rows."""
    bench = Bench(spark, tmp_path, {"events": SCHEMA_FOR_STEPS}, windowed)
    unit = bench.start()
    run_over(bench, unit, range(3))
    run_over(bench, unit, range(3, 5), incomplete=True)
    run_over(bench, unit, range(5, 12))
    unit.stop()
    marks = [bench.output.manifest(epoch).incomplete for epoch in range(12)]
    assert marks[:5] == [False, False, False, True, True]
    assert marks[5]
    assert not marks[-1]


def test_a_run_that_goes_on_knows_that_its_state_is_incomplete(tmp_path, spark):
    """A restart in between does not make it whole."""
    bench = Bench(spark, tmp_path, {"events": SCHEMA_FOR_STEPS}, windowed)
    unit = bench.start()
    run_over(bench, unit, range(2))
    run_over(bench, unit, range(2, 4), incomplete=True)
    unit.stop()
    unit = bench.start()
    run_over(bench, unit, range(4, 5))
    unit.stop()
    assert bench.output.manifest(4).incomplete
