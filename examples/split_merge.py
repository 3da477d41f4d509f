"""A stream that splits and merges again (the mixed topology of Shen 2017, figure 3.1): four segments, one diamond.

`cleaned` is read by two steps, so it is a connector. `high` and `low` run apart, each over the same
epochs; `both` reads the two, and a micro-batch of it holds the same epoch of each.

    anabranch run examples/split_merge.py --drain
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import anabranch as ab

pipe = ab.Pipeline("split_merge")
words = pipe.source("words", ab.generate_words(vocabulary=500, rows=300_000, seed=7))


@pipe.step(words)
def cleaned(words: DataFrame) -> DataFrame:
    return words.select("ts", F.lower("word").alias("word"), (F.xxhash64("word") % 100).alias("bucket"))


@pipe.step(cleaned, connector=True)
def high(cleaned: DataFrame) -> DataFrame:
    return cleaned.where("bucket >= 0").select("ts", "word", F.lit("high").alias("branch"))


@pipe.step(cleaned, connector=True)
def low(cleaned: DataFrame) -> DataFrame:
    return cleaned.where("bucket < 0").select("ts", "word", F.lit("low").alias("branch"))


@pipe.step(high, low)
def both(high: DataFrame, low: DataFrame) -> DataFrame:
    merged = high.unionByName(low).withWatermark("ts", "1 second")
    return merged.groupBy(F.window("ts", "1 second"), "branch").count()


pipe.sink(both, ab.parquet("out/split_merge"))
