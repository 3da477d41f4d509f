"""The batch oracle of the kill tests: plain Spark over the same files, none of Anabranch's code in it."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

COLUMNS = "ts timestamp, key string, value bigint, too_late boolean"


def expected(spark: SparkSession, directory: Path, name: str) -> DataFrame:
    """Return what a step must have delivered in the end; for windows and outer joins, what the watermark has closed."""
    events = spark.read.schema(COLUMNS).json(str(directory / "events"))
    in_time = events.where("NOT too_late")
    if name == "stateless":
        return events.where("value % 3 != 0").select("ts", F.upper("key").alias("key"), (F.col("value") * 2).alias("v"))
    if name == "running":
        return events.groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("total"))
    if name == "windowed":
        grouped = in_time.groupBy(F.window("ts", "10 seconds"), "key")
        result = grouped.agg(F.count("*").alias("n"), F.sum("value").alias("total"))
        newest = in_time.agg(F.max("ts")).collect()[0][0]
        return result.where(F.col("window.end") <= F.lit(newest) - F.expr("INTERVAL 10 SECONDS"))
    loads = spark.read.schema(COLUMNS).json(str(directory / "loads")).where("NOT too_late").alias("l")
    near = F.expr("e.key = l.key AND l.ts BETWEEN e.ts - INTERVAL 2 SECONDS AND e.ts + INTERVAL 2 SECONDS")
    joined = in_time.alias("e").join(loads, near, "inner" if name == "joined" else "leftOuter")
    columns = joined.select("e.ts", "e.key", "e.value", F.col("l.ts").alias("load_ts"), F.col("l.value").alias("load"))
    return columns if name == "joined" else columns.where(closed_outer(spark, directory))


def closed_outer(spark: SparkSession, directory: Path) -> str:
    """Return the condition on `ts` under which an outer join's row must have been emitted, matched or not."""
    newest = []
    for name in ("events", "loads"):
        rows = spark.read.schema(COLUMNS).json(str(directory / name)).where("NOT too_late")
        newest.append(rows.agg(F.max("ts").cast("double")).collect()[0][0])
    # The smaller watermark decides; a left row can still find a partner up to 2 s after it.
    return f"CAST(ts AS double) < {min(newest)} - 10 - 2 - 1"


def delivered(spark: SparkSession, directory: Path, name: str) -> DataFrame:
    """Return what was delivered, in the form that `expected` has."""
    rows = spark.read.parquet(str(directory / "out" / name))
    if name == "running":
        # Update mode: the last row per key counts, and a running count only grows.
        last = rows.groupBy("key").agg(F.max(F.struct("n", "total")).alias("last"))
        return last.select("key", "last.n", "last.total")
    return rows if name != "outer" else rows.where(closed_outer(spark, directory))
