"""The pipelines of the campaign of chaos: one kind of state each, chosen by environment."""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import anabranch as ab
from anabranch.bench.pipelines.protections import STRATEGIES

COLUMNS = "ts timestamp, key string, value bigint, too_late boolean"
KIND = os.environ.get("BENCH_KIND", "windowed")

pipe = ab.Pipeline("broken", settings=ab.Settings(largest_epoch_bytes=30_000, state_partitions=2))
events = pipe.source("events", ab.read_jsonl(os.environ["BENCH_INPUT"] + "/events", schema=COLUMNS))


def windowed(events: DataFrame) -> DataFrame:
    """Count and add up by key in windows of ten seconds."""
    windows = events.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "10 seconds"), "key")
    return windows.agg(F.count("*").alias("n"), F.sum("value").alias("total"))


def running(events: DataFrame) -> DataFrame:
    """Count and add up by key, for ever."""
    return events.groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("total"))


def doubled(events: DataFrame) -> DataFrame:
    """Keep what is not divisible by three, twice as large."""
    return events.where("value % 3 != 0").select("ts", "key", (F.col("value") * 2).alias("value"))


def joined(events: DataFrame, loads: DataFrame) -> DataFrame:
    """Pair events with loads of the same key that are near in time."""
    left = events.withWatermark("ts", "10 seconds").alias("e")
    right = loads.withWatermark("ts", "10 seconds").alias("l")
    near = F.expr("e.key = l.key AND l.ts BETWEEN e.ts - INTERVAL 2 SECONDS AND e.ts + INTERVAL 2 SECONDS")
    return left.join(right, near).select("e.ts", "e.key", "e.value", F.col("l.value").alias("load"))


if KIND == "joined":
    loads = pipe.source("loads", ab.read_jsonl(os.environ["BENCH_INPUT"] + "/loads", schema=COLUMNS))
    result = pipe.step(events, loads)(joined)
elif KIND == "running":
    result = pipe.step(events, output_mode="update")(running)
elif KIND == "chain":
    first = pipe.step(events, connector=True)(doubled)
    result = pipe.step(first)(windowed)
else:
    result = pipe.step(events)(windowed)

pipe.sink(result, ab.parquet("out"))
pipe.protect(strategy=STRATEGIES[os.environ.get("BENCH_STRATEGY", "none")]())
