"""Promises against reality: plans are executed over the same epochs on unlike nodes, and with a failure in between.

Two nodes with other numbers of tasks read the same epochs, of several parts each; a third fails between publishing an
epoch and committing it, and goes on. What is not arbitrary has to give the same rows for every epoch, everywhere; for
what is arbitrary, some epoch must differ, or the class would be only an opinion. Cases that add columns or aggregates
of one kind are tried in one run, and compared column by column.
"""

import itertools
import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812

from anabranch.channel.inputs import Gate
from anabranch.strategies import UpstreamBackup
from anabranch.strategies.strategy import Past, View
from anabranch.testing.wait import wait_until
from plan_cases import CASES, IN_TIME
from plan_steps import Aggregates, Columns, marked
from spark_units import Bench, publish

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
START = datetime(2026, 1, 1, tzinfo=UTC)
EPOCHS, FAILING = 4, 1
SCHEMA = pa.schema(
    [
        ("ts", pa.timestamp("us", tz="UTC")),
        ("key", pa.string()),
        ("value", pa.int64()),
        ("x", pa.float64()),
        ("d", pa.decimal128(12, 2)),
        ("items", pa.list_(pa.int64())),
    ]
)
# Those that differ after midnight only, and those that Spark does not run.
UNSEEN = {"current_date", "running counts by date of processing"} | {n for n, case in CASES.items() if not case.runs}
COMBINED = {
    name: (type(case.build), getattr(case.build, "windows", None), case.kind == "arbitrary", case.mode)
    for name, case in CASES.items()
    if isinstance(case.build, Columns | Aggregates) and name not in UNSEEN
}
GROUPS = sorted(set(COMBINED.values()), key=repr)
ALONE = [name for name in CASES if name not in COMBINED and name not in UNSEEN]

# The others are like them; they are tried in the soak.
TOLD = {
    "a union",
    "an outer join",
    "a session",
    "duplicates with their time",
    "a function with state",
    "one row per key",
    "limit",
    "a table of files",
}
REPLAYED = {"a sliding count", "an outer join", "duplicates with their time"}

# How the rows of an epoch are divided into parts. A node with one task reads the parts by size, one with two gives the
# first and the last to one task and the others to the other: another order.
PARTS = (12, 9, 7, 5)
CUTS = tuple(itertools.accumulate(PARTS[:-1]))


# The two have the same hash, so the order of a set that holds both is that in which they came. Beside the first, small
# numbers are lost if they are added one by one as fractions.
FIRST, SECOND = 2**60, 2**28


def rows(epoch):
    """Numbers that round when they are added as fractions; keys that begin in the second part; times with gaps."""
    return [
        {
            "ts": START + timedelta(seconds=20 * epoch + n % 4),
            "key": "k0" if n < CUTS[0] else f"k{1 + n % 2}",
            "value": FIRST if n in (0, CUTS[0], CUTS[0] + 1) else SECOND if n == CUTS[2] else 100 * epoch + n,
            "x": math.sin(n * n + epoch) * (1e6 if n % 5 == 0 else 1),
            "d": Decimal(n),
            "items": list(range(n, n + 20)),
        }
        for n in range(sum(PARTS))
    ]


def executed(spark, directory, step, mode, *, ways, fails=False, epochs=EPOCHS):
    """Run a step over all epochs; return the rows of each."""
    bench = Bench(spark, directory, {"events": SCHEMA}, step, mode)
    bench.ways = ways

    def fail(_unit, manifest):
        if manifest is not None and manifest.epoch == FAILING:
            msg = "killed between the claim and the commit"
            raise RuntimeError(msg)

    unit = bench.start(fail) if fails else bench.start()
    for epoch in range(epochs):
        publish(bench.inputs["events"], epoch, rows(epoch), cuts=CUTS)
        if fails and epoch == FAILING:
            unit = failed(bench, unit)
        bench.wait_committed(unit, epoch)
    unit.stop()
    return [bench.rows(epoch) for epoch in range(epochs)]


def failed(bench, unit):
    """Wait until a run has failed; go on with a new one."""
    wait_until(lambda: unit.failure() is not None, 60.0, "the failure")
    unit.stop()
    return bench.start()


def column(found, name):
    return [sorted(repr({key: row[key] for key in ("key", name)}) for row in epoch) for epoch in found]


@pytest.fixture
def names(spark, tmp_path):
    path = tmp_path / "names"
    path.mkdir()
    spark.conf.set("spark.anabranch.test.names", str(path))
    return path / "names.json"


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: f"{group[0].__name__}-{group[1:]}")
def test_columns_and_aggregates(spark, tmp_path, group):
    """Each of a kind, in one run: the same everywhere, or really not."""
    kind, windows, arbitrary, mode = group
    cases = [name for name in COMBINED if COMBINED[name] == group]
    makes = {f"{name} {n}": make for name in cases for n, make in enumerate(CASES[name].build.makes)}
    aliased = {f"c{n}": name for n, name in enumerate(makes)}

    def step(events):
        named = [make().alias(alias) for alias, make in zip(aliased, makes.values(), strict=True)]
        if kind is Columns:
            return events.select("key", "value", *named)
        keys = [F.window("ts", "10 seconds"), "key"] if windows else ["key"]
        return marked(events).groupBy(*keys).agg(*named)

    one = executed(spark, tmp_path / "one", step, mode, ways=1)
    other = executed(spark, tmp_path / "other", step, mode, ways=2)
    again = executed(spark, tmp_path / "again", step, mode, ways=3, fails=True) if not arbitrary else one
    assert any(one), "nothing was compared"
    for alias, name in aliased.items():
        same = column(one, alias) == column(other, alias) == column(again, alias)
        assert same != arbitrary, name


@pytest.mark.parametrize(
    "name", [name if name in TOLD else pytest.param(name, marks=pytest.mark.soak) for name in ALONE]
)
def test_other_steps(spark, tmp_path, names, name):
    """One by one: the same on another node that fails in between, or really not."""
    case = CASES[name]
    arbitrary = case.kind == "arbitrary"
    names.write_text('{"key": "k0", "name": "zero"}\n')
    one = executed(spark, tmp_path / "one", case.build, case.mode, ways=1)
    # Of a table that can change, the change.
    names.write_text('{"key": "k0", "name": "nought"}\n')
    other = executed(spark, tmp_path / "other", case.build, case.mode, ways=2, fails=not arbitrary)
    assert (one == other) != arbitrary
    assert any(one), "nothing was compared"


@pytest.mark.parametrize("name", [n if n in REPLAYED else pytest.param(n, marks=pytest.mark.soak) for n in IN_TIME])
def test_what_event_time_bounds_can_be_replayed(spark, tmp_path, name):
    """Begun without state where upstream backup says, the epochs to come are as they would have been."""
    case = CASES[name]
    whole = executed(spark, tmp_path / "whole", case.build, case.mode, ways=1, epochs=2 * EPOCHS)
    bench = Bench(spark, tmp_path / "again", {"events": SCHEMA}, case.build, case.mode)
    unit = bench.start()
    for epoch in range(EPOCHS):
        publish(bench.inputs["events"], epoch, rows(epoch), cuts=CUTS)
        bench.wait_committed(unit, epoch)
    unit.stop()
    for epoch in range(EPOCHS, 2 * EPOCHS):
        publish(bench.inputs["events"], epoch, rows(epoch), cuts=CUTS)
    heir = bench.unit()
    mergeable = bench.built.unmergeable is None
    view = View(
        EPOCHS - 1, 2 * EPOCHS - 1, span=bench.built.span, mergeable=mergeable, past=partial(past, bench.output)
    )
    how = UpstreamBackup().takeover(view)
    assert how.after >= 0, "nothing was forgotten"
    heir.prepare_empty()
    heir.begin_after(how.after, compare_from=how.compare_from, lost=how.lost)
    heir.start(spark, Gate(how.at_once, after=how.after))
    bench.wait_committed(heir, 2 * EPOCHS - 1)
    heir.stop()
    assert bench.diverged == []
    assert [bench.rows(epoch) for epoch in range(2 * EPOCHS)] == whole


def past(output, epoch):
    manifest = output.manifest(epoch)
    return Past(epoch, manifest.seen_ms, manifest.watermark_ms, manifest.late_rows)
