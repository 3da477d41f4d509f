"""The pipeline that is measured: a directory of Parquet files, one step, a Parquet sink. Configured by environment."""

import os

import anabranch as ab
from anabranch.bench.work_to_do import FUNCTIONS, SCHEMA

pipe = ab.Pipeline(
    "measured", settings=ab.Settings(largest_epoch_bytes=int(os.environ["BENCH_EPOCH_BYTES"]), state_partitions=2)
)
words = pipe.source("words", ab.read_parquet(os.environ["BENCH_INPUT"], schema=SCHEMA))
result = pipe.step(words)(FUNCTIONS[os.environ["BENCH_FUNCTION"]])
pipe.sink(result, ab.parquet(os.environ["BENCH_OUTPUT"]))
if os.environ.get("BENCH_STORE"):
    pipe.protect(strategy=ab.PassiveStandby(store=os.environ["BENCH_STORE"]))
