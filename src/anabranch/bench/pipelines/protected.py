"""The pipeline whose nodes are killed: a directory of Parquet files, a windowed count, a Parquet sink."""

import os
from collections.abc import Callable

import anabranch as ab
from anabranch.bench.work_to_do import FUNCTIONS, SCHEMA
from anabranch.strategies import Strategy

STRATEGIES: dict[str, Callable[[], Strategy | None]] = {
    "none": lambda: None,
    "amnesia": ab.Amnesia,
    "upstream": ab.UpstreamBackup,
    "passive-cold": lambda: ab.PassiveStandby(store=os.environ["BENCH_STORE"], temperature="cold"),
    "passive-warm": lambda: ab.PassiveStandby(store=os.environ["BENCH_STORE"], temperature="warm"),
    "passive-gated": lambda: ab.PassiveStandby(store=os.environ["BENCH_STORE"], temperature="gated"),
    "trailing": ab.TrailingStandby,
    "active": ab.ActiveStandby,
}

pipe = ab.Pipeline("protected", settings=ab.Settings(state_partitions=2))
words = pipe.source("words", ab.read_parquet(os.environ["BENCH_INPUT"], schema=SCHEMA))
result = pipe.step(words)(FUNCTIONS["windowed"])
pipe.sink(result, ab.parquet(os.environ["BENCH_OUTPUT"]))
pipe.protect(strategy=STRATEGIES[os.environ.get("BENCH_STRATEGY", "none")]())
