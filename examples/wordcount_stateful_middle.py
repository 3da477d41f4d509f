"""Word count with a stateful middle (Tanuwidjaja 2015, figure 6): windows are counted, then the top word is picked.

Both segments keep state. A watermark does not cross a connector: `top` declares its own, on the window's end.

    anabranch run examples/wordcount_stateful_middle.py --drain
"""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import anabranch as ab

# As fast as they can be counted, unless the environment says how many a second.
PACE = float(os.environ.get("WORDS_PER_SECOND", "0")) or None

pipe = ab.Pipeline("wordcount_stateful_middle")
words = pipe.source("words", ab.generate_words(PACE, vocabulary=200, rows=1_000_000, seed=6))


@pipe.step(words, connector=True)
def counts(words: DataFrame) -> DataFrame:
    windows = words.withWatermark("ts", "1 second").groupBy(F.window("ts", "1 second"), "word").count()
    return windows.select(F.col("window.end").alias("until"), "word", "count")


@pipe.step(counts)
def top(counts: DataFrame) -> DataFrame:
    # Among words with the same count the last in the alphabet wins, so that the answer does not depend on order.
    best = F.max(F.struct("count", "word")).alias("best")
    latest = counts.withWatermark("until", "0 seconds").groupBy("until").agg(best)
    return latest.select("until", "best.word", "best.count")


pipe.sink(top, ab.parquet("out/wordcount_stateful_middle"))
