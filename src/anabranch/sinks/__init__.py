"""Sinks: where rows leave a pipeline."""

from anabranch.sinks.call import call
from anabranch.sinks.console import console
from anabranch.sinks.directory import jsonl, parquet

__all__ = ["call", "console", "jsonl", "parquet"]
