"""Bare Spark on the same work: file source, same function, Parquet sink. Run as a process of its own.

Stock settings, but for RocksDB as state store, and as many shuffle partitions as Anabranch uses: with Spark's default
of 200 a stateful query on two cores spends its time opening state stores.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from anabranch.bench.work_to_do import FUNCTIONS, SCHEMA


def main() -> None:
    """Run the query; with `drain` until all files are read, else until standard input ends."""
    options = json.loads(sys.argv[1])
    builder = SparkSession.builder.master(options["master"]).appName("bare")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    reader = spark.readStream.schema(SCHEMA)
    if options["files_per_batch"]:
        reader = reader.option("maxFilesPerTrigger", options["files_per_batch"])
    frame = FUNCTIONS[options["function"]](reader.parquet(options["input"]))
    writer = frame.writeStream.format("parquet").option("path", options["output"])
    writer = writer.option("checkpointLocation", options["checkpoint"])
    if options["drain"]:
        writer.trigger(availableNow=True).start().awaitTermination()
    else:
        query = writer.start()
        sys.stdin.read()
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
