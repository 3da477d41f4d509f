"""The parent of Spark's Python workers: what every task needs is loaded once, before workers are forked from it.

Spark's own daemon collects garbage after each task, before the worker may have the next one. With pyarrow and pandas
loaded, that looks at 75,000 objects which never go, for 20 to 40 ms: a fifth of a small epoch. Here they are frozen:
the collector does not look at them. Workers also start faster, and share the memory of what is loaded.
"""

from __future__ import annotations

import gc

import pandas as pd  # noqa: F401  PySpark loads it in every task that uses Arrow
import pyarrow.parquet  # noqa: F401
import pyspark.sql.worker.plan_data_source_read
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import anabranch.channel.reader
import anabranch.channel.writer  # noqa: F401

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    manager()
