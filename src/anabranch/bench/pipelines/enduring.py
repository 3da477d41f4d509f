"""The pipeline that runs for a long time: words at a steady pace, counted in windows. Configured by environment."""

import os

import anabranch as ab
from anabranch.bench.work_to_do import windowed

pipe = ab.Pipeline("enduring", settings=ab.Settings(retain_epochs=100))
words = pipe.source("words", ab.generate_words(rows_per_second=float(os.environ["BENCH_ROWS_PER_SECOND"])))
counts = pipe.step(words)(windowed)
pipe.sink(counts, ab.parquet(os.environ["BENCH_OUTPUT"]))
