"""A pipeline with a hidden flaw: a step that reads the clock, marked deterministic by its author."""

import os
import time

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType

import anabranch as ab

pipe = ab.Pipeline("flawed", settings=ab.Settings(state_partitions=2))
events = pipe.source("events", ab.read_jsonl(os.environ["TEST_INPUT"], schema="key string, value bigint"))
stamp = F.udf(lambda value: value + time.time_ns() // 1_000_000, LongType())


@pipe.step(events)
def stamped(events: DataFrame) -> DataFrame:
    return events.select("key", stamp("value").alias("seen"))


pipe.sink(stamped, ab.parquet("out"))
pipe.protect(strategy=ab.ActiveStandby())
