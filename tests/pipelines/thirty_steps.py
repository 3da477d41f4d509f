"""Thirty steps of every kind, three of them connectors: for how long planning takes."""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import anabranch as ab

pipe = ab.Pipeline("thirty")
events = pipe.source(
    "events", ab.read_jsonl(os.environ["TEST_INPUT"], schema="ts timestamp, key string, value long, text string")
)
SHAPES = (
    lambda frame: frame.withColumn("value", F.col("value") + 1),
    lambda frame: frame.where("value % 7 <> 3"),
    lambda frame: frame.withColumn("text", F.regexp_replace("text", "a+", "b")),
    lambda frame: frame.withColumn("key", F.concat("key", F.lit("-"), F.upper("text"))),
    lambda frame: frame.select("ts", "key", "value", F.explode(F.split("text", " ")).alias("text")),
)


def named(number):
    """Return the function of one step."""

    def shape(frame: DataFrame) -> DataFrame:
        return SHAPES[number % len(SHAPES)](frame)

    shape.__name__ = f"shape{number:02d}"
    return shape


before = events
for number in range(28):
    before = pipe.step(before, connector=number in (9, 19))(named(number))


@pipe.step(before)
def windows(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("ts", "2 seconds").groupBy(F.window("ts", "10 seconds"), "key").agg(F.sum("value"))


@pipe.step(windows)
def named_windows(frame: DataFrame) -> DataFrame:
    return frame.withColumn("start", F.col("window.start")).drop("window")


pipe.sink(named_windows, ab.parquet("out"))
pipe.protect(guarantee="precise")
