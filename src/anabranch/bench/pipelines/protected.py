"""The pipeline whose nodes are killed: a directory of Parquet files, a windowed count, a Parquet sink."""

import os

import anabranch as ab
from anabranch.bench.pipelines.protections import STRATEGIES
from anabranch.bench.work_to_do import FUNCTIONS, SCHEMA

pipe = ab.Pipeline("protected", settings=ab.Settings(state_partitions=2))
words = pipe.source("words", ab.read_parquet(os.environ["BENCH_INPUT"], schema=SCHEMA))
result = pipe.step(words)(FUNCTIONS[os.environ.get("BENCH_FUNCTION", "windowed")])
pipe.sink(result, ab.parquet(os.environ["BENCH_OUTPUT"]))
pipe.protect(strategy=STRATEGIES[os.environ.get("BENCH_STRATEGY", "none")]())
