"""Steps over `events` (ts, key, value, x double, d decimal, items array) of which plans are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle


def marked(events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "2 seconds")


class Columns:
    """A step that adds columns, so that several cases can be tried in one run."""

    def __init__(self, *makes: Callable[[], Column]) -> None:
        self.makes = makes

    def __call__(self, events: DataFrame) -> DataFrame:
        return events.select("key", *[make().alias(f"c{n}") for n, make in enumerate(self.makes)])


class Aggregates:
    """A step that adds up, in windows or for ever."""

    def __init__(self, *makes: Callable[[], Column], windows: bool = True) -> None:
        self.makes = makes
        self.windows = windows

    def __call__(self, events: DataFrame) -> DataFrame:
        groups = marked(events).groupBy(F.window("ts", "10 seconds"), "key") if self.windows else events.groupBy("key")
        return groups.agg(*[make().alias(f"c{n}") for n, make in enumerate(self.makes)])


def column(*makes: Callable[[], Column]) -> Columns:
    return Columns(*makes)


def windowed(*makes: Callable[[], Column]) -> Aggregates:
    return Aggregates(*makes)


def running(*makes: Callable[[], Column]) -> Aggregates:
    return Aggregates(*makes, windows=False)


def doubled(value):
    return 2 * value


def tripled(value: pd.Series) -> pd.Series:
    return 3 * value


def drawn(value):
    import random

    return value + random.randrange(1_000_000)  # the point of it


def same_rows(frames: Any) -> Any:
    yield from frames


def counted(key: Any, frames: Any, state: Any) -> Any:
    """Count the rows of a key, whatever their order."""
    seen = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
    state.update((seen,))
    yield pd.DataFrame({"key": [key[0]], "n": [seen]})


def timed(key: Any, frames: Any, state: Any) -> Any:
    """Tell when the rows of a key were looked at."""
    state.update((sum(len(frame) for frame in frames),))
    yield pd.DataFrame({"key": [key[0]], "n": [state.getCurrentProcessingTimeMs()]})


class Counting(StatefulProcessor):
    """Counts the rows of a key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803  Spark's face
        before = self._seen.get()[0] if self._seen.exists() else 0
        seen = before + sum(len(frame) for frame in rows)
        self._seen.update((seen,))
        yield pd.DataFrame({"key": [key[0]], "n": [self.told(seen, timerValues)]})

    def told(self, seen: int, timers: Any) -> int:
        del timers
        return seen

    def close(self) -> None:
        """Nothing is held."""


class Timing(Counting):
    """Tells when the rows of a key were looked at."""

    def told(self, seen: int, timers: Any) -> int:
        del seen
        return timers.getCurrentProcessingTimeInMs()


def grouped(timeout: str) -> Callable[[DataFrame], DataFrame]:
    return lambda events: (
        marked(events)
        .groupBy("key")
        .applyInPandasWithState(
            timed if timeout == "ProcessingTimeTimeout" else counted, "key string, n long", "n long", "update", timeout
        )
    )


def transformed(time_mode: str) -> Callable[[DataFrame], DataFrame]:
    return lambda events: (
        marked(events)
        .groupBy("key")
        .transformWithStateInPandas(
            Timing() if time_mode == "ProcessingTime" else Counting(), "key string, n long", "update", time_mode
        )
    )


def joined(
    how: str = "inner", within: str | None = "5 seconds", *, watermarks: bool = True
) -> Callable[..., DataFrame]:
    def build(events: DataFrame) -> DataFrame:
        left = (marked(events) if watermarks else events).select("key", "ts", "value").alias("a")
        right = (marked(events) if watermarks else events).select("key", "ts", "value").alias("b")
        condition = "a.key = b.key AND b.value % 3 = 0"
        if within is not None:
            condition += f" AND b.ts BETWEEN a.ts AND a.ts + INTERVAL {within}"
        pair = left.join(right, F.expr(condition), how)
        return pair.select("a.key", F.expr("a.ts AS first"), F.expr("b.ts AS second"), "a.value")

    return build


def table_of_files(events: DataFrame) -> DataFrame:
    """Join with files that anyone may replace while the pipeline runs."""
    spark = events.sparkSession
    names = spark.read.schema("key string, name string").json(names_directory(spark))
    return events.join(names, "key", "left").select("key", "value", "name")


def named_keys(events: DataFrame) -> DataFrame:
    """Add up something of files that anyone may replace."""
    spark = events.sparkSession
    return spark.read.schema("key string, name string").json(names_directory(spark)).select(F.sum(F.length("name")))


def names_directory(spark: SparkSession) -> str:
    return spark.conf.get("spark.anabranch.test.names")


def table_in_the_code(events: DataFrame) -> DataFrame:
    names = events.sparkSession.createDataFrame([("k0", "zero"), ("k1", "one")], "key string, name string")
    return events.join(names, "key", "left").select("key", "value", "name")
