"""Word count with a stateless middle (Tanuwidjaja 2015, figure 5): a source, a node that appends a 1, one that adds up.

Each of the two steps is a segment of its own: `ones` is a connector, so whatever happens to `counts`, the pairs are
kept and are not made again.

    anabranch run examples/wordcount_stateless_middle.py --drain
"""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import anabranch as ab

# As fast as they can be counted, unless the environment says how many a second.
PACE = float(os.environ.get("WORDS_PER_SECOND", "0")) or None

pipe = ab.Pipeline("wordcount_stateless_middle")
words = pipe.source("words", ab.generate_words(PACE, vocabulary=200, rows=400_000, seed=5))


@pipe.step(words, connector=True)
def ones(words: DataFrame) -> DataFrame:
    return words.select("word", F.lit(1).alias("one"))


@pipe.step(ones, output_mode="update")
def counts(ones: DataFrame) -> DataFrame:
    return ones.groupBy("word").agg(F.sum("one").alias("count"))


pipe.sink(counts, ab.parquet("out/wordcount_stateless_middle"))
