"""How far back the state of a segment reaches, as real plans tell it."""

import pytest
from pyspark.sql import functions as F  # noqa: N812

from anabranch.guarantee.plan_tree import plan_tree
from anabranch.spans import NO_STATE, combined, operator_spans

pytestmark = pytest.mark.spark
BOTH_WAYS = "e.key = l.key AND l.ts BETWEEN e.ts - INTERVAL 2 SECONDS AND e.ts + INTERVAL 3 SECONDS"


@pytest.fixture(scope="module")
def events(spark):
    return spark.readStream.format("rate").load().selectExpr("timestamp AS ts", "value", "value % 3 AS key")


def timely(events):
    return events.withWatermark("ts", "10 seconds")


def near(events, how, condition):
    left, right = timely(events).alias("e"), events.withWatermark("ts", "5 seconds").alias("l")
    return left.join(right, F.expr(condition), how)


BOUNDED = {
    "nothing": (lambda e: e.where("value > 1"), "append", 0),
    "a static join": (lambda e: e.join(e.sparkSession.range(5).withColumnRenamed("id", "key"), "key"), "append", 0),
    "tumbling windows": (lambda e: timely(e).groupBy(F.window("ts", "10 seconds"), "key").count(), "append", 10_000),
    "sliding windows": (lambda e: timely(e).groupBy(F.window("ts", "1 minute", "3 seconds")).count(), "update", 60_000),
    "event time itself": (lambda e: timely(e).groupBy("ts").count(), "append", 0),
    # Begun when the window was, forgotten when it ends.
    "distinct rows in windows": (
        lambda e: timely(e).select(F.window("ts", "10 minutes"), "key").dropDuplicates(["window", "key"]),
        "append",
        600_000,
    ),
    "distinct rows with their time": (lambda e: timely(e).dropDuplicates(["ts", "key"]), "append", 0),
    # Spark keeps the rows of a join a millisecond longer than the condition needs.
    "an interval join": (lambda e: near(e, "inner", BOTH_WAYS), "append", 3_001),
    "an outer join": (lambda e: near(e, "leftOuter", BOTH_WAYS), "append", 3_001),
}
UNBOUNDED = {
    "a running count": (lambda e: e.groupBy("key").count(), "update", "without a tumbling or sliding window"),
    "windows without a watermark": (lambda e: e.groupBy(F.window("ts", "10 seconds")).count(), "update", "watermark"),
    # Spark forgets by a column with a watermark, not by what is derived from one.
    "hours": (lambda e: timely(e).groupBy(F.date_trunc("hour", "ts")).count(), "update", "watermark"),
    "starts of windows": (
        lambda e: timely(e).withColumn("w", F.window("ts", "10 seconds")).groupBy("w.start").count(),
        "update",
        "watermark",
    ),
    "complete mode": (lambda e: timely(e).groupBy(F.window("ts", "10 seconds")).count(), "complete", "complete"),
    "sessions": (lambda e: timely(e).groupBy(F.session_window("ts", "9 seconds")).count(), "append", "window"),
    "a join on a key": (lambda e: near(e, "inner", "e.key = l.key"), "append", "does not bound"),
    "a join bounded on one side": (lambda e: near(e, "inner", "e.key = l.key AND l.ts >= e.ts"), "append", "bound"),
    "distinct rows": (lambda e: timely(e).dropDuplicates(["key"]), "append", "dropDuplicates"),
    "distinct rows for a while": (lambda e: timely(e).dropDuplicatesWithinWatermark(["key"]), "append", "Within"),
    "windows of windows": (
        lambda e: (
            timely(e)
            .groupBy(F.window("ts", "10 seconds"), "key")
            .count()
            .groupBy(F.window(F.window_time("window"), "1 minute"))
            .count()
        ),
        "append",
        "more than one operator",
    ),
}


def span_of(spark, frame, mode):
    analyzed = frame._jdf.queryExecution().analyzed()
    return combined(operator_spans(spark.sparkContext._jvm, analyzed, plan_tree(frame), mode))


@pytest.mark.parametrize("case", BOUNDED)
def test_state_that_a_watermark_bounds(spark, events, case):
    """By as much as a window is long, or a join reaches."""
    function, mode, span_ms = BOUNDED[case]
    assert span_of(spark, function(events), mode).ms == span_ms


@pytest.mark.parametrize("case", UNBOUNDED)
def test_state_that_nothing_bounds(spark, events, case):
    """With what it is."""
    function, mode, reason = UNBOUNDED[case]
    span = span_of(spark, function(events), mode)
    assert span.ms is None
    assert reason in span.reason


def test_a_plan_without_state_has_none(spark, events):
    """Not even an empty one."""
    assert span_of(spark, events.where("value > 1"), "append") == NO_STATE
