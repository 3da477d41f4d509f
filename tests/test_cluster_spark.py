"""A node on a Spark standalone cluster: its `master` is a setting, and everything else stays the same."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from anabranch.testing.wait import wait_until
from harness import running

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
PIPELINE = """
import anabranch as ab
from pyspark.sql import functions as F
pipe = ab.Pipeline("clustered")
words = pipe.source("words", ab.generate_words(vocabulary=50, rows=300_000))
@pipe.step(words, output_mode="update")
def counts(words):
    return words.groupBy("word").count()
pipe.sink(counts, ab.parquet("out"))
"""


@contextmanager
def daemon(name: str, log: Path, *arguments: str):
    """Run a Spark daemon in the foreground of a process group of its own, and end it."""
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(SPARK_CLASS), f"org.apache.spark.deploy.{name}", *arguments],
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_pipeline_runs_on_a_standalone_cluster(tmp_path):
    """Executors in another JVM write the parts; the counts are those of a batch query over the same words."""
    master_log, worker_log = tmp_path / "master.log", tmp_path / "worker.log"
    master_arguments = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with daemon("master.Master", master_log, *master_arguments):
        found = wait_until(
            lambda: re.search(r"Starting Spark master at (spark://[\d.:]+)", master_log.read_text()), 60, "the master"
        )
        url = found[1]
        worker_arguments = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "2", "--memory", "2g")
        work_dir = ("--work-dir", str(tmp_path / "executors"))
        with daemon("worker.Worker", worker_log, *worker_arguments, *work_dir, url):
            wait_until(lambda: "Successfully registered" in worker_log.read_text(), 60, "the worker")
            (tmp_path / "clustered.py").write_text(PIPELINE)
            arguments = ("--drain", "--master", url, "--set", "spark.driver.host=127.0.0.1")
            with running(tmp_path, tmp_path / "clustered.py", *arguments) as run:
                assert run.finish() == 0, run.output()
            assert any((tmp_path / "executors").glob("app-*/*")), "no executor ran"
    totals: dict[str, int] = {}
    for path in (tmp_path / "out").glob("*.parquet"):
        for row in pq.read_table(path).to_pylist():
            totals[row["word"]] = max(totals.get(row["word"], 0), row["count"])
    assert sum(totals.values()) == 300_000
    assert len(totals) == 50
