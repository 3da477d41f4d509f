"""Counts words in windows of ten seconds: the smallest useful pipeline.

anabranch run examples/wordcount.py --seconds 30
anabranch read counts

With a second node that follows the first one, and goes on when it dies:

anabranch run examples/wordcount.py --nodes 2
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import anabranch as ab

pipe = ab.Pipeline("wordcount")
words = pipe.source("words", ab.generate_words(rows_per_second=20_000, vocabulary=1_000))


@pipe.step(words)
def counts(words: DataFrame) -> DataFrame:
    return words.withWatermark("ts", "1 second").groupBy(F.window("ts", "10 seconds"), "word").count()


pipe.sink(counts, ab.parquet("out/wordcount"))
pipe.protect(strategy=ab.TrailingStandby())
