"""Pipelines that share no storage, each with its own work directory and ledger: one of them is lost half way."""

import shutil
from collections import Counter

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from pyspark.sql import functions as F  # noqa: N812

from anabranch.bench.events import write_input
from anabranch.work import Work
from harness import PIPELINES, anabranch

pytestmark = pytest.mark.spark
FILE = PIPELINES / "replicated.py"


def drained(tmp_path, work, stage, *replicas, epoch_bytes="30000"):
    """Run a stage over what is there now."""
    done = anabranch(
        tmp_path,
        *("run", str(FILE), "--drain", "--work", work, "--retain", "all", "--master", "local[2]"),
        ANABRANCH_TEST_STAGE=stage,
        ANABRANCH_TEST_NAME=work,
        ANABRANCH_TEST_REPLICAS=",".join(replicas),
        ANABRANCH_TEST_EPOCH_BYTES=epoch_bytes,
    )
    assert done.returncode == 0, done.stderr


def give(tmp_path, names):
    """Let files be seen."""
    (tmp_path / "events").mkdir(exist_ok=True)
    for path in names:
        path.rename(tmp_path / "events" / path.name)


def half_and_half(tmp_path, seed):
    """Return the files of an input in two halves, none of which can be seen yet."""
    write_input(tmp_path, files=24, rows=60, seed=seed)
    (tmp_path / "events").rename(tmp_path / "later")
    files = sorted((tmp_path / "later").iterdir())
    return files[:12], files[12:]


def bag(table):
    return Counter((row["ts"], row["key"], row["rows"], row["sum"]) for row in table.to_pylist())


def expected(spark, tmp_path):
    """Count closed windows with a plain batch query."""
    columns = "ts timestamp, key string, value bigint, too_late boolean"
    rows = spark.read.schema(columns).json(str(tmp_path / "events")).where("not too_late")
    closed = rows.agg(F.max("ts") - F.expr("INTERVAL 10 SECONDS")).collect()[0][0]
    windows = rows.groupBy(F.window("ts", "10 seconds"), "key").agg(
        F.count("*").alias("rows"), F.sum("value").alias("sum")
    )
    found = windows.select(F.col("window.end").alias("ts"), "key", "rows", "sum").where(F.col("ts") <= F.lit(closed))
    return bag(found.toArrow())


def delivered(tmp_path):
    return ds.dataset(tmp_path / "out", format="parquet").to_table(columns=["ts", "key", "rows", "sum"])


def test_aligned_replicas_are_one_stream(tmp_path, spark):
    """Two pipelines read the same epochs; the first is lost after half of the input, the second goes on."""
    first, second = half_and_half(tmp_path, 11)
    give(tmp_path, first)
    drained(tmp_path, "entry", "entry")
    drained(tmp_path, "a", "middle", "entry")
    give(tmp_path, second)
    drained(tmp_path, "entry", "entry")
    drained(tmp_path, "b", "middle", "entry")
    a, b = (Work.open(tmp_path / name).channel("counts") for name in "ab")
    assert 0 < a.last_epoch() < b.last_epoch()
    for epoch in range(a.last_epoch() + 1):
        assert a.manifest(epoch).digest == b.manifest(epoch).digest, epoch
    drained(tmp_path, "end", "aligned", "a", "b")
    end = Work.open(tmp_path / "end").channel("final")
    assert end.last_epoch() == b.last_epoch(), "the epochs of the end are those of the beginning"
    assert bag(delivered(tmp_path)) == expected(spark, tmp_path)


def test_replicas_with_epochs_of_their_own_are_one_stream(tmp_path, spark):
    """Two entries cut and order the same lines differently; one is lost, and its directory with it."""
    first, second = half_and_half(tmp_path, 12)
    give(tmp_path, first)
    drained(tmp_path, "a", "entry", epoch_bytes="9000")
    drained(tmp_path, "b", "entry", epoch_bytes="50000")
    epochs = [Work.open(tmp_path / name).channel("passed").last_epoch() for name in "ab"]
    assert epochs[0] > epochs[1]
    drained(tmp_path, "end", "tuples", "a", "b")
    shutil.rmtree(tmp_path / "a")
    give(tmp_path, second)
    drained(tmp_path, "b", "entry", epoch_bytes="50000")
    drained(tmp_path, "end", "tuples", "a", "b")
    found = delivered(tmp_path)
    assert pc.sum(found["rows"]).as_py() > 0
    missing = expected(spark, tmp_path) - bag(found)
    newest = max(ts for ts, *_ in bag(found))
    assert bag(found) - expected(spark, tmp_path) == Counter()
    assert all(ts > newest for ts, *_ in missing), "windows that no punctuation has passed yet, and no others"
