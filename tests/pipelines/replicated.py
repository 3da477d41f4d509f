"""Pipelines without shared storage: `ANABRANCH_TEST_STAGE` is `entry`, `middle`, `aligned` or `tuples`.

The entry publishes lines as they come. A middle reads the epochs of the entry and counts windows, so that all middles
are aligned. `aligned` reads what several middles publish, `tuples` what several entries do, whatever their epochs are.
`ANABRANCH_TEST_REPLICAS` names the work directories that are read.
"""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import anabranch as ab
from anabranch import tuples

STAGE = os.environ["ANABRANCH_TEST_STAGE"]
REPLICAS = [name for name in os.environ.get("ANABRANCH_TEST_REPLICAS", "").split(",") if name]
COLUMNS = "ts timestamp, key string, value bigint, too_late boolean"
# Each entry cuts epochs of its own.
LARGEST = int(os.environ.get("ANABRANCH_TEST_EPOCH_BYTES", "30000"))

pipe = ab.Pipeline(STAGE, settings=ab.Settings(largest_epoch_bytes=LARGEST, state_partitions=2))


def _counted(rows: DataFrame) -> DataFrame:
    windows = rows.groupBy(F.window("ts", "10 seconds"), "key").agg(
        F.count("*").alias("rows"), F.sum("value").alias("sum")
    )
    return windows.select(F.col("window.end").alias("ts"), "key", "rows", "sum")


if STAGE == "entry":
    events = pipe.source("events", ab.read_jsonl("events", schema=COLUMNS))

    @pipe.step(events)
    def passed(events: DataFrame) -> DataFrame:
        return events.where("not too_late").select("ts", "key", "value").withWatermark("ts", "10 seconds")

    pipe.sink(passed, ab.parquet(f"out-{os.environ['ANABRANCH_TEST_NAME']}"))
elif STAGE == "middle":
    lines = pipe.source("passed", ab.read_replicas("passed", *REPLICAS))

    @pipe.step(lines)
    def counts(lines: DataFrame) -> DataFrame:
        return _counted(lines.withWatermark("ts", "10 seconds"))

    pipe.sink(counts, ab.parquet(f"out-{os.environ['ANABRANCH_TEST_NAME']}"))
elif STAGE == "aligned":
    counted = pipe.source("counts", ab.read_replicas("counts", *REPLICAS))

    @pipe.step(counted)
    def final(counted: DataFrame) -> DataFrame:
        return counted.where("rows > 0")

    pipe.sink(final, ab.parquet("out"))
else:
    copies = pipe.source("passed", ab.read_replicas("passed", *REPLICAS, timestamp="ts"))

    @pipe.step(copies)
    def final(copies: DataFrame) -> DataFrame:
        return _counted(tuples.first_arrivals(copies, "ts"))

    pipe.sink(final, ab.parquet("out"))
