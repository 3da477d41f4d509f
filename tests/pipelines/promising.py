"""A pipeline that asks for more than one of its steps can keep, unless it is told not to. Configured by environment."""

import os
import uuid

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import anabranch as ab

pipe = ab.Pipeline("promising", settings=ab.Settings(state_partitions=2))
events = pipe.source("events", ab.read_jsonl(os.environ["TEST_INPUT"], schema="ts timestamp, key string, value long"))


@pipe.step(events)
def cleaned(events: DataFrame) -> DataFrame:
    kept = events.where("value > 0")
    # A value that is another one whenever the step is built.
    return kept.withColumn("stamp", F.lit(str(uuid.uuid4()))) if "TEST_STAMP" in os.environ else kept


@pipe.step(cleaned, output_mode="update")
def samples(cleaned: DataFrame) -> DataFrame:
    # A random number goes into the state.
    drawn = cleaned.withColumn("chance", F.rand())
    return drawn.groupBy("key").agg(F.max("chance").alias("luckiest"), F.count("*").alias("n"))


pipe.sink(samples, ab.parquet("out"))
pipe.sink(samples, ab.console())
pipe.protect(
    guarantee=os.environ.get("TEST_GUARANTEE", "precise"),
    strategy={"active": ab.ActiveStandby(), "": None}[os.environ.get("TEST_STRATEGY", "")],
)
