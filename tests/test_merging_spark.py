"""Which plans may be followed in merged micro-batches, and what is named where they may not."""

import pytest
from pyspark.sql import functions as F  # noqa: N812

from anabranch.guarantee.plan_tree import plan_tree
from anabranch.merging import unmergeable

pytestmark = pytest.mark.spark

WINDOW = lambda: F.window("ts", "10 seconds")  # noqa: E731  needs a session
PLANS = {
    "stateless": (lambda rows: rows.where("value > 1").select("key", F.upper("key")), None),
    "a window count": (lambda rows: rows.withWatermark("ts", "1 second").groupBy(WINDOW(), "key").count(), None),
    "a sliding sum": (
        lambda rows: (
            rows.withWatermark("ts", "1 second")
            .groupBy(F.window("ts", "10 seconds", "2 seconds"))
            .agg(F.sum("value"), F.max("value"), F.avg(F.col("value").cast("decimal(20,0)")))
        ),
        None,
    ),
    "a running count": (lambda rows: rows.groupBy("key").agg(F.count("*"), F.min("ts")), None),
    "a join": (
        lambda rows: (
            rows.withWatermark("ts", "1 second")
            .alias("a")
            .join(
                rows.withWatermark("ts", "1 second").alias("b"), F.expr("a.key = b.key AND b.ts BETWEEN a.ts AND a.ts")
            )
        ),
        None,
    ),
    "a sum of fractions": (
        lambda rows: rows.groupBy("key").agg(F.sum(F.col("value") / 3)),
        "sum(): the last bits",
    ),
    "an average": (
        lambda rows: rows.groupBy("key").agg(F.avg("value")),
        "avg(): Spark averages whole numbers as fractions",
    ),
    "a list": (lambda rows: rows.groupBy("key").agg(F.collect_list("value")), "collect_list"),
    "the first": (lambda rows: rows.groupBy("key").agg(F.count("*"), F.first("value")), "first"),
    "a session": (
        lambda rows: rows.withWatermark("ts", "1 second").groupBy(F.session_window("ts", "5 seconds")).count(),
        "a session window",
    ),
    "distinct rows": (lambda rows: rows.dropDuplicates(["key"]), "dropDuplicates"),
    "distinct rows for a while": (
        lambda rows: rows.withWatermark("ts", "1 second").dropDuplicatesWithinWatermark(["key"]),
        "dropDuplicatesWithinWatermark",
    ),
    "a function with state": (
        lambda rows: rows.groupBy("key").applyInPandasWithState(
            lambda _key, frames, _state: frames, "key string", "n long", "append", "NoTimeout"
        ),
        "a user function with state",
    ),
}


@pytest.mark.parametrize(("build", "expected"), PLANS.values(), ids=PLANS)
def test_what_may_be_merged(spark, build, expected):
    """Whole sums, counts and joins may; what depends on order or on where batches end is named."""
    rows = spark.readStream.format("rate").load().selectExpr("timestamp AS ts", "value", "CAST(value AS STRING) AS key")
    found = unmergeable(plan_tree(build(rows)))
    assert (found is None) if expected is None else found.startswith(expected)
