"""A small pipeline with every kind of state: what it loads is what the archive of classes holds."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import anabranch as ab

_COLUMNS = "ts timestamp, key string, value bigint"

pipe = ab.Pipeline("sample", settings=ab.Settings(largest_epoch_bytes=20_000, state_partitions=2))
left = pipe.source("left", ab.read_jsonl("left", schema=_COLUMNS))
right = pipe.source("right", ab.read_parquet("right", schema=_COLUMNS))


@pipe.step(left, connector=True)
def parsed(left: DataFrame) -> DataFrame:
    """Leave some rows out."""
    length = F.udf(len, "int")
    return left.where("value % 3 != 0").select("ts", "key", (F.col("value") + length("key")).alias("value"))


@pipe.step(parsed)
def windowed(parsed: DataFrame) -> DataFrame:
    """Count in windows."""
    windows = parsed.withWatermark("ts", "5 seconds").groupBy(F.window("ts", "10 seconds"), "key")
    return windows.agg(F.count("*").alias("n"), F.avg("value").alias("mean"))


@pipe.step(parsed, output_mode="update")
def running(parsed: DataFrame) -> DataFrame:
    """Count for ever."""
    return parsed.groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("total"), F.max("ts").alias("last"))


@pipe.step(parsed)
def distinct(parsed: DataFrame) -> DataFrame:
    """Keep every key once."""
    return parsed.withWatermark("ts", "5 seconds").dropDuplicatesWithinWatermark(["key"])


@pipe.step(parsed, right)
def joined(parsed: DataFrame, right: DataFrame) -> DataFrame:
    """Pair rows of both sources that are near in time."""
    ours = parsed.withWatermark("ts", "5 seconds").alias("p")
    theirs = right.withWatermark("ts", "5 seconds").alias("r")
    near = F.expr("p.key = r.key AND r.ts BETWEEN p.ts - INTERVAL 2 SECONDS AND p.ts + INTERVAL 2 SECONDS")
    return ours.join(theirs, near, "left_outer").select("p.ts", "p.key", F.col("r.value").alias("value"))


pipe.sink(windowed, ab.parquet("windowed"))
pipe.sink(running, ab.jsonl("running"))
pipe.sink(distinct, ab.parquet("distinct"))
pipe.sink(joined, ab.parquet("joined"))
