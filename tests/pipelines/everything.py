"""One pipeline with every kind of segment, over two inputs with late rows: what the kill tests run.

`ANABRANCH_TEST_STEPS` chooses some of the steps (a comma-separated list), so that each can be tried alone;
`ANABRANCH_TEST_STRATEGIES` how each is protected (`windowed:active,joined:trailing`).
"""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import anabranch as ab

COLUMNS = "ts timestamp, key string, value bigint, too_late boolean"
STEPS = os.environ.get("ANABRANCH_TEST_STEPS", "stateless,windowed,running,joined,outer").split(",")

pipe = ab.Pipeline("everything", settings=ab.Settings(largest_epoch_bytes=30_000, pending_epochs=2, state_partitions=2))
if "drawn" not in STEPS:
    pipe.protect(guarantee="precise")
events = pipe.source("events", ab.read_jsonl("events", schema=COLUMNS))
needs_loads = {"joined", "outer"} & set(STEPS)
loads = pipe.source("loads", ab.read_jsonl("loads", schema=COLUMNS)) if needs_loads else None


def _near(events: DataFrame, loads: DataFrame, how: str) -> DataFrame:
    left = events.withWatermark("ts", "10 seconds").alias("e")
    right = loads.withWatermark("ts", "10 seconds").alias("l")
    near = F.expr("e.key = l.key AND l.ts BETWEEN e.ts - INTERVAL 2 SECONDS AND e.ts + INTERVAL 2 SECONDS")
    joined = left.join(right, near, how)
    return joined.select("e.ts", "e.key", "e.value", F.col("l.ts").alias("load_ts"), F.col("l.value").alias("load"))


if "stateless" in STEPS:

    @pipe.step(events)
    def stateless(events: DataFrame) -> DataFrame:
        return events.where("value % 3 != 0").select("ts", F.upper("key").alias("key"), (F.col("value") * 2).alias("v"))

    pipe.sink(stateless, ab.parquet("out/stateless"))

if "windowed" in STEPS:

    @pipe.step(events)
    def windowed(events: DataFrame) -> DataFrame:
        windows = events.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "10 seconds"), "key")
        return windows.agg(F.count("*").alias("n"), F.sum("value").alias("total"))

    pipe.sink(windowed, ab.parquet("out/windowed"))

if "running" in STEPS:

    @pipe.step(events, output_mode="update")
    def running(events: DataFrame) -> DataFrame:
        return events.groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("total"))

    pipe.sink(running, ab.parquet("out/running"))

if "joined" in STEPS:

    @pipe.step(events, loads)
    def joined(events: DataFrame, loads: DataFrame) -> DataFrame:
        return _near(events, loads, "inner")

    pipe.sink(joined, ab.parquet("out/joined"))

if "outer" in STEPS:

    @pipe.step(events, loads)
    def outer(events: DataFrame, loads: DataFrame) -> DataFrame:
        return _near(events, loads, "leftOuter")

    pipe.sink(outer, ab.parquet("out/outer"))

if "drawn" in STEPS:

    @pipe.step(events, output_mode="update")
    def drawn(events: DataFrame) -> DataFrame:
        """Draw a number for every row: executed again, it gives other rows. Its state is all that was drawn."""
        some = events.where("value % 50 = 0").select("key", F.floor(F.rand() * 1_000_000).alias("number"))
        return some.groupBy((F.crc32("key") % 3).alias("group")).agg(F.collect_list("number").alias("numbers"))

    pipe.sink(drawn, ab.parquet("out/drawn"))

STRATEGIES = {
    "active": ab.ActiveStandby(),
    "written": ab.ActiveStandby(release="written"),
    "ksafe": ab.KSafe(1),
    "trailing": ab.TrailingStandby(every_s=1),
    "passive": ab.PassiveStandby(store="log:store"),
    "cold": ab.PassiveStandby(store="log:store", temperature="cold"),
    "warm": ab.PassiveStandby(store="log:store", temperature="warm"),
    "upstream": ab.UpstreamBackup(),
    "shipped": ab.PassiveStandby(store="log:store", release="shipped"),
}
for _protected in filter(None, os.environ.get("ANABRANCH_TEST_STRATEGIES", "").split(",")):
    _step, _, _strategy = _protected.partition(":")
    pipe.protect(_step, strategy=STRATEGIES[_strategy])
