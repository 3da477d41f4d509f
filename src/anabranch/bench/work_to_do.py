"""The work that both sides of a measurement do: the same functions, on the same files."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

SCHEMA = "ts timestamp, word string"


def pass_through(words: DataFrame) -> DataFrame:
    """Every row, as it is."""
    return words


def windowed(words: DataFrame) -> DataFrame:
    """Count words in windows of ten seconds."""
    return words.withWatermark("ts", "1 second").groupBy(F.window("ts", "10 seconds"), "word").count()


FUNCTIONS = {"pass_through": pass_through, "windowed": windowed}
