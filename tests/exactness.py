"""Checks what a run of the test pipelines delivered, by both oracles."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from anabranch.node_options import NodeOptions
from anabranch.oracle.compare import Verdict, compare
from anabranch.oracle.reference import check_parquet, replay
from pipelines import batch_queries

STEPS = ("stateless", "windowed", "running", "joined", "outer")


def by_reference(directory: Path, file: Path, steps: tuple[str, ...] = STEPS) -> dict[str, Verdict]:
    """Run the recorded plans again without faults and compare every delivered epoch."""
    before = Path.cwd()
    os.chdir(directory)  # the pipeline's own directories are relative to where it runs
    try:
        options = NodeOptions(file=file, work=directory / "work", master="local[2]")
        reference = replay(options, directory / "reference")
        return {name: check_parquet(reference, name, directory / "out" / name) for name in steps}
    finally:
        os.chdir(before)


def by_batch(spark: SparkSession, directory: Path, steps: tuple[str, ...] = STEPS) -> dict[str, Verdict]:
    """Compare everything delivered with a plain batch query over the same input."""
    found = {}
    for name in steps:
        expected = _rows(batch_queries.expected(spark, directory, name))
        delivered = _rows(batch_queries.delivered(spark, directory, name))
        found[name] = compare(expected, delivered, where=name)
    return found


def _rows(frame: DataFrame):
    return frame.toArrow()
