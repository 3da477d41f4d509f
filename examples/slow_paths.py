"""The slow-path monitor (Hwang 2009, figure 1.3): slow connections that no busy server explains.

Two networks report latencies, two report server loads. Latencies above five seconds are joined with the load reports
of the same server around the same time, and sorted by whether the server was busy.

    python examples/make_slow_paths_input.py data/slow_paths
    anabranch run examples/slow_paths.py --drain
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import anabranch as ab

LATENCY = "ts timestamp, origin string, server string, latency_s double"
LOAD = "ts timestamp, server string, load double"

pipe = ab.Pipeline("slow_paths")
latency_east = pipe.source("latency_east", ab.read_jsonl("data/slow_paths/latency_east", schema=LATENCY))
latency_west = pipe.source("latency_west", ab.read_jsonl("data/slow_paths/latency_west", schema=LATENCY))
load_east = pipe.source("load_east", ab.read_csv("data/slow_paths/load_east", schema=LOAD, header=True))
load_west = pipe.source("load_west", ab.read_csv("data/slow_paths/load_west", schema=LOAD, header=True))


@pipe.step(latency_east, latency_west)
def slow(east: DataFrame, west: DataFrame) -> DataFrame:
    return east.unionByName(west).where("latency_s > 5")


@pipe.step(load_east, load_west)
def loads(east: DataFrame, west: DataFrame) -> DataFrame:
    return east.unionByName(west).withColumnRenamed("ts", "load_ts").withColumnRenamed("server", "load_server")


@pipe.step(slow, loads)
def judged(slow: DataFrame, loads: DataFrame) -> DataFrame:
    near = F.expr(
        "server = load_server AND load_ts BETWEEN ts - INTERVAL 5 SECONDS AND ts + INTERVAL 5 SECONDS",
    )
    joined = slow.withWatermark("ts", "20 seconds").join(loads.withWatermark("load_ts", "20 seconds"), near)
    cause = F.when(F.col("load") > 0.8, "busy server").otherwise("network")  # noqa: PLR2004
    return joined.select("ts", "origin", "server", "latency_s", "load", cause.alias("cause"))


pipe.sink(judged, ab.jsonl("out/slow_paths"))
