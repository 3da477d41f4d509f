"""The Spark session of a node, with the settings that micro-batches of a few hundred milliseconds need.

Each setting that differs from Spark's default says why. A user's own settings (`Settings.spark`, `--set`) win, except
for the few that exactness rests on.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from anabranch.class_archive import with_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DEFAULTS = {
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    # A stream never ends: what the status store keeps per job and query must be few, or memory grows.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.sql.streaming.ui.retainedQueries": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "4",
    # A watermark is a literal in a predicate, so every micro-batch compiles one anew; old ones need not be remembered.
    "spark.sql.codegen.cache.maxEntries": "200",
    # How soon an idle query looks for the next epoch: 1 ms costs a quarter of a core per query, 10 ms hardly anything.
    "spark.sql.streaming.pollingDelay": "10ms",
    # Small state deltas per epoch, a snapshot now and then, so that a restart loads little.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "10",
    "spark.sql.streaming.stateStore.maintenanceInterval": "2s",
    "spark.sql.streaming.minBatchesToRetain": "20",
    # Rows cross between the JVM and Python in Arrow batches, bounded by rows alone: with a bound in bytes Spark adds up
    # the size of the whole batch again for every row, which took half the CPU of a pass-through. Give rows of many
    # kilobytes a smaller number of rows, or a bound in bytes.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    # Workers that have everything loaded, and do not look through all of it after every task.
    "spark.python.daemon.module": "anabranch.worker_daemon",
    # Rows between Python and the JVM are short-lived garbage: on few cores a stop-the-world collector costs less.
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    # Without it a progress bar is drawn over everything else.
    "spark.ui.showConsoleProgress": "false",
}

# Where several nodes share a machine, one that starts must not take the CPU from the others for the minutes that the
# optimising compiler works: takeovers took twice as long. The quick compiler costs some throughput, and no warm-up. By
# itself it is given 48 MiB for compiled code, which are full within minutes; then nothing is compiled any more.
AMONG_NEIGHBOURS = "-XX:+UseParallelGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_NICENESS = 5

_FIXED = {
    # A micro-batch is an epoch; Spark must not invent batches of its own.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # State files carry unique ids that the commit names, so runs cannot be mixed up.
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    # Spark's default manager forks a chmod per file, about 100 ms per micro-batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # Rows are hashed whole for the digest of an epoch, maps included.
    "spark.sql.legacy.allowHashOnMapType": "true",
}


@dataclass(frozen=True)
class SessionOptions:
    """What a node's session is made of."""

    name: str
    master: str
    timezone: str
    state_partitions: int | None
    settings: Mapping[str, str]
    module_directory: Path
    neighbours: bool = False


def build_session(options: SessionOptions) -> SparkSession:
    """Start Spark in this process."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Functions of the user's module are pickled by reference: Spark's workers must be able to import it too.
    python_path = os.pathsep.join(filter(None, [str(options.module_directory), os.environ.get("PYTHONPATH")]))
    os.environ["PYTHONPATH"] = python_path
    from pyspark.sql import SparkSession

    from anabranch.channel.reader import ChannelDataSource

    builder = SparkSession.builder.appName(options.name).master(options.master)
    defaults = _DEFAULTS | ({_JAVA_OPTIONS: AMONG_NEIGHBOURS} if options.neighbours else {})
    settings = {**defaults, **options.settings, **_FIXED, "spark.sql.session.timeZone": options.timezone}
    settings["spark.executorEnv.PYTHONPATH"] = python_path
    settings[_JAVA_OPTIONS] = with_archive(settings[_JAVA_OPTIONS])
    if options.state_partitions is not None:
        settings["spark.sql.shuffle.partitions"] = str(options.state_partitions)
    if options.master.startswith("local"):
        # Everything is on this machine: nothing of Spark needs to be reached from another.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings.setdefault("spark.driver.host", "127.0.0.1")
        settings.setdefault("spark.driver.bindAddress", "127.0.0.1")
    for key, value in settings.items():
        builder = builder.config(key, value)
    with ThreadPoolExecutor(1, initializer=_yield_to_others) as starter:
        spark = starter.submit(builder.getOrCreate).result()
    spark.sparkContext.setLogLevel("ERROR")
    if options.state_partitions is None:
        spark.conf.set("spark.sql.shuffle.partitions", str(max(2, spark.sparkContext.defaultParallelism)))
    _without_checksum_files(spark)
    spark.dataSource.register(ChannelDataSource)
    return spark


def activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread."""
    session_class = spark._get_j_spark_session_class(spark._jvm)
    session_class.setActiveSession(spark._jsparkSession)


def _yield_to_others() -> None:
    """Let what this thread starts, the JVM and Spark's workers, give way to the node's own threads.

    A node that is busy computing must still answer its peers in time, or they take it for dead. On Linux niceness
    belongs to a thread and is passed on to the processes that it starts.
    """
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS)


def _without_checksum_files(spark: SparkSession) -> None:
    """Stop Hadoop from writing a .crc file beside every checkpoint file; they cost a third of a commit."""
    context = spark.sparkContext
    configuration = context._jsc.hadoopConfiguration()
    file_system = context._jvm.org.apache.hadoop.fs.FileSystem  # type: ignore[union-attr]
    file_system.getLocal(configuration).setWriteChecksum(False)
