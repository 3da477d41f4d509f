"""Small plans with the class and the guarantees they must have, each derived here by reasoning.

`promises` has one letter per strategy, in the order of `STRATEGIES`: P precise, D no-loss (divergent), G gap,
x refused. The reasoning behind the recurring rows of letters:

- `SAME`: no state, always the same rows. An epoch can be made again anywhere, at any time; it is published once.
- `BOUNDED`: state, bounded by event time. The same rows from the same state; and the state itself can be made again
  from inputs that are still kept, so upstream backup is precise too.
- `GROWING`: the same, but nothing ever leaves the state: upstream backup would have to keep every input. Refused.
- `GROWING_ALONE`: and where a batch ends matters, so epochs may not be merged: trailing is refused, too.
- `DRAW`: no state, but other rows each time. An epoch that is published is one draw; nobody needs to make it again, and
  none of it goes into the next. Only racing is refused: two replicas would give their readers a choice.
- `DRIFTS`: other rows each time, and a state that remembers them. Whoever takes over has another state than the one
  that readers have seen the results of. Only what is shipped before it is published can be gone on from.
- `DRIFTS_BOUNDED`: the same with a state that event time bounds: upstream backup may, and drifts as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from plan_steps import (
    column,
    doubled,
    drawn,
    grouped,
    joined,
    marked,
    named_keys,
    running,
    same_rows,
    table_in_the_code,
    table_of_files,
    transformed,
    tripled,
    windowed,
)

STRATEGIES = ("none", "passive", "trailing", "active", "written", "upstream", "shipped", "amnesia")
SAME = BOUNDED = "PPPPPPPG"
BOUNDED_ALONE = "PPxPPPPG"
GROWING = "PPPPPxPG"
GROWING_ALONE = "PPxPPxPG"
DRAW = "PPPPxPPG"
DRIFTS = "DDxDxxPG"
DRIFTS_MERGEABLE = "DDDDxxPG"
DRIFTS_BOUNDED = "DDxDxDPG"
DRIFTS_BOUNDED_MERGEABLE = "DDDDxDPG"


@dataclass(frozen=True)
class Case:
    """A step over `events` (ts, key, value, x double, d decimal, items array), its class, and its promises."""

    build: Callable[..., DataFrame]
    kind: str
    promises: str
    decided_by: str = ""
    mode: str = "append"
    # Whether Spark runs it at all; some expressions it refuses in a stream.
    runs: bool = True


# Nothing but the row itself decides what becomes of it; there is no state.
STATELESS = {
    "a projection": Case(lambda e: e.select("key", (F.col("value") + 1).alias("v")), "repeatable", SAME),
    "a filter": Case(lambda e: e.where("value % 2 = 0"), "repeatable", SAME),
    "functions of text": Case(column(lambda: F.upper("key"), lambda: F.length("key")), "repeatable", SAME),
    "a hash": Case(column(lambda: F.xxhash64("key", "value")), "repeatable", SAME),
    "explode": Case(lambda e: e.select("key", F.explode("items").alias("item")), "repeatable", SAME),
    "posexplode": Case(lambda e: e.select("key", F.posexplode("items")), "repeatable", SAME),
    # The author does not say otherwise, so the same rows give the same; nobody can look into the function.
    "a function": Case(lambda e: e.select("key", F.udf(doubled, "long")("value").alias("v")), "repeatable", SAME),
    "a pandas function": Case(
        lambda e: e.select("key", F.pandas_udf(tripled, "long")("value").alias("v")), "repeatable", SAME
    ),
    "mapInPandas": Case(
        lambda e: e.select("key", "value").mapInPandas(same_rows, "key string, value long"), "repeatable", SAME
    ),
    "mapInArrow": Case(
        lambda e: e.select("key", "value").mapInArrow(same_rows, "key string, value long"), "repeatable", SAME
    ),
    # Both sides of a union are at the same epoch in every batch; the order of rows within it shows in nothing.
    "a union": Case(lambda e: e.where("value > 3").union(e.where("value < 9")), "repeatable", SAME),
    # Where rows lie, and in what order, is not what they are.
    "repartition": Case(lambda e: e.repartition(3), "repeatable", SAME),
    "a watermark alone": Case(marked, "repeatable", SAME),
    # It reads the column, not the clock.
    "the time of a column": Case(column(lambda: F.to_date("ts"), lambda: F.unix_timestamp("ts")), "repeatable", SAME),
    "a table in the code": Case(table_in_the_code, "repeatable", SAME),
    # Rows come out of a channel, so the name of their file is empty, always.
    "input_file_name": Case(column(F.input_file_name), "repeatable", SAME),
    # A vector that comes from a column makes the ciphertext a function of the row.
    "encryption with a vector": Case(
        column(
            lambda: F.expr("aes_encrypt(key, 'abcdefghijklmnop', 'CBC', 'PKCS', CAST('0123456789abcdef' AS BINARY))")
        ),
        "repeatable",
        SAME,
    ),
}

# Another draw, another time, another place each time a row is looked at; no state remembers which.
DRAWN = {
    "rand": Case(column(F.rand), "arbitrary", DRAW, "rand()"),
    # A seed settles what a task draws, not which rows the task has.
    "rand with a seed": Case(column(lambda: F.rand(7)), "arbitrary", DRAW, "rand()"),
    "randn": Case(column(F.randn), "arbitrary", DRAW, "randn()"),
    "uuid": Case(column(lambda: F.expr("uuid()")), "arbitrary", DRAW, "uuid()"),
    "shuffle": Case(column(lambda: F.shuffle("items")), "arbitrary", DRAW, "shuffle()"),
    "randstr": Case(column(lambda: F.expr("randstr(5)")), "arbitrary", DRAW, "randstr()"),
    "uniform": Case(column(lambda: F.expr("uniform(1, 1000000)")), "arbitrary", DRAW, "uniform()"),
    "a filter by chance": Case(lambda e: e.where(F.rand() < 0.5), "arbitrary", DRAW, "rand()"),
    "sample": Case(lambda e: e.sample(0.5, seed=3), "arbitrary", DRAW, "sample", runs=False),
    "monotonically_increasing_id": Case(
        column(F.monotonically_increasing_id), "arbitrary", DRAW, "monotonically_increasing_id()", runs=False
    ),
    "spark_partition_id": Case(column(F.spark_partition_id), "arbitrary", DRAW, "spark_partition_id()"),
    "current_timestamp": Case(column(F.current_timestamp), "arbitrary", DRAW, "current_timestamp()"),
    "now": Case(column(F.now), "arbitrary", DRAW, "now()"),
    "localtimestamp": Case(column(F.localtimestamp), "arbitrary", DRAW, "localtimestamp()"),
    "unix_timestamp": Case(column(F.unix_timestamp), "arbitrary", DRAW, "current_timestamp()"),
    # The same within a day, and another one after midnight.
    "current_date": Case(column(F.current_date), "arbitrary", DRAW, "current_date()"),
    "a filter by the clock": Case(
        lambda e: e.where("value % 1000 * 37 % 1000 < unix_millis(current_timestamp()) % 1000"),
        "arbitrary",
        DRAW,
        "current_timestamp()",
    ),
    "a function marked as not deterministic": Case(
        lambda e: e.select("key", F.udf(drawn, "long").asNondeterministic()("value").alias("v")),
        "arbitrary",
        DRAW,
        "drawn()",
    ),
    "encryption without a vector": Case(
        column(lambda: F.expr("base64(aes_encrypt(key, 'abcdefghijklmnop'))")), "arbitrary", DRAW, "aes_encrypt()"
    ),
    "reflect": Case(column(lambda: F.expr("reflect('java.util.UUID', 'randomUUID')")), "arbitrary", DRAW, "reflect()"),
    # The optimiser puts the clock in its place, anew for every batch.
    "a text that means the time": Case(
        column(lambda: F.lit("now").cast("timestamp")), "arbitrary", DRAW, "the text 'now' as a time"
    ),
    "a subquery over files": Case(
        lambda e: e.where(F.col("value") >= named_keys(e).scalar()), "arbitrary", DRAW, "a table that can change"
    ),
    "a table of files": Case(table_of_files, "arbitrary", DRAW, "a table that can change (files)"),
}

# What the watermark has passed does not count any more: a replay of a window's length comes to the same state.
IN_TIME = {
    "a tumbling count": Case(windowed(lambda: F.count("*")), "convergent-capable", BOUNDED, "an aggregate"),
    "a sliding count": Case(
        lambda e: marked(e).groupBy(F.window("ts", "10 seconds", "5 seconds")).count(),
        "convergent-capable",
        BOUNDED,
        "an aggregate",
    ),
    "a count in update mode": Case(
        windowed(lambda: F.count("*")), "convergent-capable", BOUNDED, "an aggregate", mode="update"
    ),
    "sums, extremes, bits": Case(
        windowed(lambda: F.sum("value"), lambda: F.max("value"), lambda: F.min("ts"), lambda: F.bit_or("value")),
        "convergent-capable",
        BOUNDED,
    ),
    "exact fractions": Case(windowed(lambda: F.sum("d"), lambda: F.avg("d")), "convergent-capable", BOUNDED),
    # Sketches of maxima: merging them in another order changes nothing.
    "approx_count_distinct": Case(windowed(lambda: F.approx_count_distinct("value")), "convergent-capable", BOUNDED),
    # How many there are, and what they are when sorted, is the same in any order.
    "sizes and sorted lists": Case(
        windowed(lambda: F.size(F.collect_set("value")), lambda: F.sort_array(F.collect_list("value"))),
        "convergent-capable",
        BOUNDED,
    ),
    "a count per instant": Case(lambda e: marked(e).groupBy("ts").count(), "convergent-capable", BOUNDED),
    "an interval join": Case(joined(), "convergent-capable", BOUNDED, "a join"),
    "an outer join": Case(joined("leftOuter"), "convergent-capable", BOUNDED, "a join"),
    # Every column is part of the key, so it does not matter which copy is kept; and a copy is as old as its original.
    # Where epochs are merged, copies of different epochs meet: not followed in large batches.
    "duplicates with their time": Case(
        lambda e: marked(e.select("ts", "key")).dropDuplicates(["ts", "key"]),
        "convergent-capable",
        BOUNDED_ALONE,
        "dropDuplicates",
    ),
}

# Always the same from the same state; but the first row ever seen still counts.
FROM_THE_START = {
    "a running count": Case(running(lambda: F.count("*")), "deterministic", GROWING, "an aggregate", mode="update"),
    "a running sum": Case(running(lambda: F.sum("value")), "deterministic", GROWING, "an aggregate", mode="update"),
    "every window, complete": Case(
        windowed(lambda: F.count("*")), "deterministic", GROWING, "an aggregate", mode="complete"
    ),
    # Sorting all that there is gives the same rows in any order of arrival.
    "a sorted table": Case(
        lambda e: e.groupBy("key").count().orderBy(F.desc("count"), "key"),
        "deterministic",
        GROWING,
        "an aggregate",
        mode="complete",
    ),
    # Keys tell the rows apart, and are part of the order: the first ten are always the same.
    "the ten most frequent": Case(
        lambda e: e.groupBy("key").count().orderBy(F.desc("count"), "key").limit(10),
        "deterministic",
        GROWING_ALONE,
        mode="complete",
    ),
    # Spark forgets a group by a column with a watermark, not by what is derived from it.
    "a count per hour": Case(
        lambda e: marked(e).groupBy(F.date_trunc("hour", "ts").alias("hour")).count(),
        "deterministic",
        GROWING,
        "an aggregate",
        mode="update",
    ),
    "a join without end": Case(joined(within=None), "deterministic", GROWING, "a join"),
    "a join without watermarks": Case(joined(watermarks=False), "deterministic", GROWING, "a join"),
    # A session that began before the replay would begin later in it, and one that never ends never heals.
    "a session": Case(
        lambda e: marked(e).groupBy(F.session_window("ts", "5 seconds"), "key").count(),
        "deterministic",
        GROWING_ALONE,
        "an aggregate",
    ),
    # All columns are the key; nothing is ever forgotten.
    "duplicates for ever": Case(
        lambda e: e.select("key").dropDuplicates(), "deterministic", GROWING_ALONE, "dropDuplicates"
    ),
    # The rows of a union have the columns of its first side, all of which are the key.
    "duplicates of a union": Case(
        lambda e: e.select("key").union(e.select("key")).dropDuplicates(),
        "deterministic",
        GROWING_ALONE,
        "dropDuplicates",
    ),
    # When a key is forgotten depends on which of its rows came first: begun later, it forgets at other times.
    "duplicates within a while": Case(
        lambda e: marked(e.select("ts", "key")).dropDuplicatesWithinWatermark(["ts", "key"]),
        "deterministic",
        GROWING_ALONE,
        "dropDuplicatesWithinWatermark",
    ),
    # The author's word for the function; what it keeps nobody can bound.
    "a function with state": Case(
        grouped("NoTimeout"), "deterministic", GROWING_ALONE, "applyInPandasWithState", mode="update"
    ),
    "a function with timeouts in event time": Case(
        grouped("EventTimeTimeout"), "deterministic", GROWING_ALONE, "applyInPandasWithState", mode="update"
    ),
    "transformWithState": Case(
        transformed("EventTime"), "deterministic", GROWING_ALONE, "transformWithState", mode="update"
    ),
}

# Other rows each time, and a state that remembers them.
REMEMBERED = {
    "the first": Case(windowed(lambda: F.first("value")), "arbitrary", DRIFTS_BOUNDED, "first()"),
    "the last": Case(windowed(lambda: F.last("value")), "arbitrary", DRIFTS_BOUNDED, "last()"),
    "any value": Case(windowed(lambda: F.any_value("value")), "arbitrary", DRIFTS_BOUNDED, "any_value()"),
    "a list": Case(windowed(lambda: F.collect_list("value")), "arbitrary", DRIFTS_BOUNDED, "collect_list()"),
    "a set": Case(windowed(lambda: F.collect_set("value")), "arbitrary", DRIFTS_BOUNDED, "collect_set()"),
    "a sum of fractions": Case(windowed(lambda: F.sum("x")), "arbitrary", DRIFTS_BOUNDED, "sum()"),
    "an average of fractions": Case(windowed(lambda: F.avg("x")), "arbitrary", DRIFTS_BOUNDED, "avg()"),
    # Spark adds whole numbers up as fractions for it; beyond 2 to the 53rd bits are lost, and which depends on order.
    "an average": Case(windowed(lambda: F.avg("value")), "arbitrary", DRIFTS_BOUNDED, "avg()"),
    "a deviation": Case(windowed(lambda: F.stddev("x")), "arbitrary", DRIFTS_BOUNDED, "stddev()"),
    # Two rows may share the largest x.
    "the one with the most": Case(windowed(lambda: F.max_by("value", "key")), "arbitrary", DRIFTS_BOUNDED, "max_by()"),
    "a running first": Case(running(lambda: F.first("value")), "arbitrary", DRIFTS, "first()", mode="update"),
    # Copies that differ elsewhere: which one is kept depends on which comes first.
    "one row per key": Case(
        lambda e: e.select("key", "value").dropDuplicates(["key"]), "arbitrary", DRIFTS, "dropDuplicates"
    ),
    "limit": Case(lambda e: e.select("key", "value").limit(15), "arbitrary", DRIFTS, "limit"),
    "counts of draws": Case(
        lambda e: (
            marked(e).withColumn("r", (F.rand() * 10).cast("int")).groupBy(F.window("ts", "10 seconds"), "r").count()
        ),
        "arbitrary",
        DRIFTS_BOUNDED_MERGEABLE,
        "rand()",
    ),
    "windows of the clock": Case(
        lambda e: (
            e.withColumn("at", F.current_timestamp())
            .withWatermark("at", "2 seconds")
            .groupBy(F.window("at", "1 second"))
            .count()
        ),
        "arbitrary",
        DRIFTS_BOUNDED_MERGEABLE,
        "current_timestamp()",
        mode="update",
    ),
    "running counts by date of processing": Case(
        lambda e: e.groupBy(F.current_date().alias("day"), "key").count(),
        "arbitrary",
        DRIFTS_MERGEABLE,
        "current_date()",
        mode="update",
    ),
    "a function with timeouts by the clock": Case(
        grouped("ProcessingTimeTimeout"), "arbitrary", DRIFTS, "applyInPandasWithState", mode="update"
    ),
    "transformWithState by the clock": Case(
        transformed("ProcessingTime"), "arbitrary", DRIFTS, "transformWithState", mode="update"
    ),
}

CASES = {**STATELESS, **DRAWN, **IN_TIME, **FROM_THE_START, **REMEMBERED}
