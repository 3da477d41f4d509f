"""Every example runs as its documentation says, and its output is that of a plain batch query over the same input."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812

from anabranch.loading import load_pipeline
from anabranch.oracle.compare import compare
from anabranch.sources import generate_words
from anabranch.sources.source import Limit
from harness import anabranch, command

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def drained(directory: Path, name: str) -> None:
    """Run an example to its end."""
    ended = anabranch(directory, "run", str(EXAMPLES / f"{name}.py"), "--drain", "--master", "local[2]")
    assert ended.returncode == 0, ended.stderr


def delivered(directory: Path, name: str) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted((directory / "out" / name).glob("*.parquet"))])


def words(spark, rows: int, **arguments):
    """Return the rows of a words source as a plain DataFrame."""
    source = generate_words(rows=rows, **arguments)
    planned = source.planner().plan(0.0, Limit(10**9, 10**12))
    return spark.createDataFrame(pa.Table.from_batches(list(source.read(planned))))


def test_word_count_with_a_stateless_middle(tmp_path, spark):
    """The last count of every word is the number of times it was generated."""
    drained(tmp_path, "wordcount_stateless_middle")
    last = spark.createDataFrame(delivered(tmp_path, "wordcount_stateless_middle")).groupBy("word").agg(F.max("count"))
    expected = words(spark, 400_000, vocabulary=200, seed=5).groupBy("word").count()
    assert compare(expected.toArrow().rename_columns(["word", "n"]), last.toArrow().rename_columns(["word", "n"])).exact


def test_word_count_with_a_stateful_middle(tmp_path, spark):
    """The top word of every closed window is the one that a batch query finds."""
    drained(tmp_path, "wordcount_stateful_middle")
    found = delivered(tmp_path, "wordcount_stateful_middle")
    all_words = words(spark, 1_000_000, vocabulary=200, seed=6)
    counts = all_words.groupBy(F.window("ts", "1 second").getField("end").alias("until"), "word").count()
    best = counts.groupBy("until").agg(F.max(F.struct("count", "word")).alias("best"))
    expected = best.select("until", "best.word", "best.count").toArrow()
    verdict = compare(expected, found)
    assert (verdict.duplicated, verdict.wrong) == (0, 0), verdict
    # Ten windows of a second; those that the second watermark, one window behind the first, had not closed are open.
    assert len(found) >= 7


def test_split_and_merge(tmp_path, spark):
    """Both branches together hold every word of the closed windows once."""
    drained(tmp_path, "split_merge")
    found = delivered(tmp_path, "split_merge")
    bucket = F.xxhash64("word") % 100
    branch = F.when(bucket >= 0, "high").otherwise("low").alias("branch")
    all_words = words(spark, 300_000, vocabulary=500, seed=7).withColumn("word", F.lower("word"))
    windows = all_words.groupBy(F.window("ts", "1 second"), branch).count()
    closed = all_words.agg(F.max("ts") - F.expr("INTERVAL 1 SECOND")).collect()[0][0]
    assert compare(windows.where(F.col("window.end") <= F.lit(closed)).toArrow(), found).exact
    assert len(found) > 0


def test_slow_paths(tmp_path, spark):
    """Every slow path is judged by every load report near it, as in a batch join over the same files."""
    subprocess.run(
        [sys.executable, str(EXAMPLES / "make_slow_paths_input.py"), "data/slow_paths"], cwd=tmp_path, check=True
    )
    drained(tmp_path, "slow_paths")
    lines = [
        line for path in (tmp_path / "out" / "slow_paths").glob("*.jsonl") for line in path.read_text().splitlines()
    ]
    found = sorted((row["ts"], row["server"], row["cause"]) for row in map(json.loads, lines))
    data = tmp_path / "data" / "slow_paths"
    latency = spark.read.schema("ts timestamp, origin string, server string, latency_s double").json(
        [str(data / f"latency_{network}") for network in ("east", "west")]
    )
    load = spark.read.schema("load_ts timestamp, load_server string, load double").csv(
        [str(data / f"load_{network}") for network in ("east", "west")], header=True, enforceSchema=True
    )
    near = "server = load_server AND load_ts BETWEEN ts - INTERVAL 5 SECONDS AND ts + INTERVAL 5 SECONDS"
    joined = latency.where("latency_s > 5").join(load, F.expr(near))
    cause = F.when(F.col("load") > 0.8, "busy server").otherwise("network")
    rows = joined.select("ts", "server", cause.alias("cause")).toArrow().to_pylist()
    assert found == sorted((row["ts"].isoformat(), row["server"], row["cause"]) for row in rows)
    assert found


def test_the_readme_shows_a_pipeline_that_loads(tmp_path):
    """The code in README.md is a whole file, and its commands exist."""
    readme = (ROOT / "README.md").read_text()
    code = re.search(r"```python\n(# wordcount.py.*?)```", readme, re.DOTALL)[1]
    (tmp_path / "readme_wordcount.py").write_text(code)
    graph = load_pipeline(tmp_path / "readme_wordcount.py").graph()
    assert list(graph.steps) == ["counts"]
    for verb in set(re.findall(r"^anabranch (\w+)", readme, re.MULTILINE)):
        ended = anabranch(tmp_path, verb, "--help")
        assert ended.returncode == 0, command(verb)
        assert "anabranch" in ended.stdout


def test_the_word_count_runs_for_a_while_and_stops(tmp_path):
    """`--seconds` stops in order: what was taken is delivered, and the exit code is 0."""
    file = str(EXAMPLES / "wordcount.py")
    ended = anabranch(tmp_path, "run", file, "--seconds", "25", "--retain", "all", "--master", "local[2]", "--json")
    assert ended.returncode == 0, ended.stderr
    last = json.loads(ended.stdout.splitlines()[-1])
    assert last["done"]
    epochs = {row["name"]: row["last"] for row in last["channels"]}
    assert epochs["counts"] == epochs["words"] > 0
