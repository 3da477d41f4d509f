"""Two stateful segments in a row, both kept in a store. Configured by environment."""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import anabranch as ab

pipe = ab.Pipeline("protected", settings=ab.Settings(state_partitions=2))
events = pipe.source("events", ab.read_jsonl(os.environ["TEST_INPUT"], schema="key string, value long"))


@pipe.step(events, output_mode="update")
def totals(events: DataFrame) -> DataFrame:
    return events.groupBy("key").agg(F.sum("value").alias("total"))


@pipe.step(totals, output_mode="update")
def updates(totals: DataFrame) -> DataFrame:
    return totals.groupBy("key").agg(F.count("*").alias("updates"), F.max("total").alias("total"))


pipe.sink(updates, ab.jsonl(os.environ["TEST_OUTPUT"]))
pipe.protect(strategy=ab.PassiveStandby(store=os.environ["TEST_STORE"]))
