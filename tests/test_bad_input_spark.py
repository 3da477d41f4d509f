"""What people get wrong gives a clear error that names the thing and the fix, and leaves nothing half-written."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812

from anabranch.errors import StepError
from harness import anabranch, running
from spark_units import SCHEMA_FOR_STEPS, build, one_step

pytestmark = pytest.mark.spark

HEAD = """
import anabranch as ab
from pyspark.sql import functions as F
pipe = ab.Pipeline("bad")
"""


def write(directory: Path, body: str) -> Path:
    file = directory / "bad.py"
    file.write_text(HEAD + textwrap.dedent(body))
    return file


@pytest.mark.parametrize(
    ("function", "mode", "names", "says"),
    [
        (lambda _events: None, "append", "result", "not a DataFrame"),
        (lambda _events: 42, "append", "result", "returned int"),
        (lambda events: events.sparkSession.range(3), "append", "result", "does not stream"),
        (lambda events: events.select("missing"), "append", "result", "missing"),
        (lambda events: events.groupBy("key").count(), "append", "append", "watermark"),
        (lambda events: events.select("key"), "complete", "complete", "aggregation"),
        (lambda _events: 1 / 0, "append", "result", "division by zero"),
        (lambda events: events.join(_other_stream(events), "value"), "append", "result", "not one of its inputs"),
    ],
)
def test_a_step_that_cannot_run_is_refused_when_it_is_built(spark, tmp_path, function, mode, names, says):
    """The error names the step (or the mode) and says what is wrong with it; no trace, no plan."""
    with pytest.raises(StepError) as caught:
        build(spark, one_step(["events"], function, mode), tmp_path, {"events": SCHEMA_FOR_STEPS}, tmp_path)
    assert names in caught.value.message
    assert says in caught.value.message.lower() or says in caught.value.message
    assert "\tat " not in caught.value.message


def _other_stream(events):
    return events.sparkSession.readStream.format("rate").load().withColumn("value", F.col("value"))


def test_an_input_that_is_not_read_is_refused(spark, tmp_path):
    """An unread input would never be acknowledged, and its channel would grow for ever."""
    inputs = {"left": SCHEMA_FOR_STEPS, "right": SCHEMA_FOR_STEPS}
    with pytest.raises(StepError, match="does not use its input 'right'"):
        build(spark, one_step(inputs, lambda left, _right: left), tmp_path, inputs, tmp_path)


def test_random_functions_are_no_change_of_the_plan(spark, tmp_path):
    """Spark draws their seeds anew whenever a plan is analysed; a pipeline that uses them must be able to go on."""

    def drawn(events):
        columns = {"a": F.rand(), "b": F.randn(), "c": F.uuid(), "d": F.uniform(1, 5), "e": F.randstr(4)}
        return events.select("key", *(column.alias(name) for name, column in columns.items()))

    def built(run):
        return build(spark, one_step(["events"], drawn), tmp_path, {"events": SCHEMA_FOR_STEPS}, tmp_path / run)

    assert built("one").identity() == built("two").identity()


def test_errors_before_anything_runs(tmp_path):
    """A file without a pipeline ends with a message, a hint, exit code 2, and no trace."""
    (tmp_path / "empty.py").write_text("x = 1\n")
    ended = anabranch(tmp_path, "run", "empty.py")
    assert ended.returncode == 2
    assert "defines no pipeline" in ended.stderr
    assert "hint:" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / ".anabranch").exists()


def test_a_missing_directory_and_a_changed_schema(tmp_path):
    """A source directory that is not there, then a schema that changed under existing state."""
    body = """
        events = pipe.source("events", ab.read_jsonl("in", schema="key string, n bigint"))
        @pipe.step(events, output_mode="update")
        def counts(events):
            return events.groupBy("key").agg(F.sum("n").alias("total"))
        """
    file = write(tmp_path, body)
    ended = anabranch(tmp_path, "run", str(file), "--drain")
    assert ended.returncode == 5
    assert str(tmp_path / "in") in ended.stderr
    assert "Traceback" not in ended.stderr
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"key": "x", "n": 1}\n')
    assert anabranch(tmp_path, "run", str(file), "--drain").returncode == 0
    before = sorted(str(path) for path in (tmp_path / ".anabranch").rglob("*") if "logs" not in str(path))
    write(tmp_path, body.replace('F.sum("n")', 'F.max("n")'))
    ended = anabranch(tmp_path, "run", str(file), "--drain")
    assert ended.returncode == 3, ended.stderr
    assert "'counts' keeps state and its plan changed" in ended.stderr
    assert "--work" in ended.stderr
    after = sorted(str(path) for path in (tmp_path / ".anabranch").rglob("*") if "logs" not in str(path))
    assert [path for path in after if "error.json" not in path] == before


def test_malformed_rows_fail_or_are_diverted(tmp_path):
    """A malformed row stops the pipeline and is named; diverted from then on, it is found among the rejects."""
    (tmp_path / "in").mkdir()
    good = "".join(json.dumps({"key": f"k{n}", "n": n}) + "\n" for n in range(10))
    (tmp_path / "in" / "a.jsonl").write_text(good + '{"key": "bad", "n": "seven"}\n' + good)
    body = """
        events = pipe.source("events", ab.read_jsonl("in", schema="key string, n bigint", malformed="MODE"))
        @pipe.step(events, output_mode="update")
        def kept(events):
            return events.groupBy("key").count()
        pipe.sink(kept, ab.parquet("out/MODE"))
        """
    file = write(tmp_path, body.replace("MODE", "fail"))
    ended = anabranch(tmp_path, "run", str(file), "--drain", "--work", "work-fail")
    assert ended.returncode == 6, ended.stderr
    assert "malformed row" in ended.stderr
    assert "seven" in ended.stderr
    assert "a.jsonl" in ended.stderr
    assert "line 11" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not list((tmp_path / "out").glob("fail/*.parquet"))
    assert 'malformed="divert"' in ended.stderr
    file = write(tmp_path, body.replace('malformed="MODE"', 'malformed="divert"').replace("MODE", "fail"))
    ended = anabranch(tmp_path, "run", str(file), "--drain", "--work", "work-fail")
    assert ended.returncode == 0, ended.stderr
    delivered = [pq.read_table(path) for path in (tmp_path / "out" / "fail").glob("*.parquet")]
    assert sum(sum(table["count"].to_pylist()) for table in delivered) == 20
    rejects = anabranch(tmp_path, "read", "events.rejects", "--work", "work-fail")
    assert rejects.returncode == 0, rejects.stderr
    reject = json.loads(rejects.stdout)
    assert reject["file"].endswith("a.jsonl")
    assert "seven" in reject["record"]
    assert reject["reason"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a file system of its own")
def test_a_full_disk_stops_the_pipeline_and_loses_nothing(tmp_path, small_disk):
    """With the disk full the unit fails with that reason; with room again, the next run goes on and is exact."""
    (tmp_path / "in").mkdir()
    for number in range(6):
        lines = [json.dumps({"key": f"k{number}", "text": "x" * 1000}) for _ in range(1500)]
        (tmp_path / "in" / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    file = write(
        tmp_path,
        """
        pipe = ab.Pipeline("bad", settings=ab.Settings(largest_epoch_bytes=2_000_000))
        events = pipe.source("events", ab.read_jsonl("in", schema="key string, text string"))
        @pipe.step(events)
        def kept(events):
            return events
        pipe.sink(kept, ab.parquet("out"))
        """,
    )
    ended = anabranch(tmp_path, "run", str(file), "--drain", "--work", str(small_disk / "work"))
    assert ended.returncode != 0
    assert "No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr
    (small_disk / "ballast").unlink()
    ended = anabranch(tmp_path, "run", str(file), "--drain", "--work", str(small_disk / "work"))
    assert ended.returncode == 0, ended.stderr
    keys = [key for path in (tmp_path / "out").glob("*.parquet") for key in pq.read_table(path)["key"].to_pylist()]
    assert sorted(keys) == sorted(f"k{number}" for number in range(6) for _ in range(1500))


def test_a_work_directory_in_use_is_refused_and_status_and_stop_work(tmp_path):
    """A second run is refused and told by whom; `status` shows the first, `stop` ends it with exit code 0."""
    file = write(
        tmp_path,
        """
        words = pipe.source("words", ab.generate_words(rows_per_second=1000))
        @pipe.step(words)
        def kept(words):
            return words
        pipe.sink(kept, ab.jsonl("out"))
        """,
    )
    with running(tmp_path, file, "--retain", "all") as first:
        first.wait_for_epoch("kept", 1)
        second = anabranch(tmp_path, "run", str(file), "--work", "work")
        assert second.returncode == 3, second.stderr
        assert "in use by node-1" in second.stderr
        shown = json.loads(anabranch(tmp_path, "status", "--work", "work", "--json").stdout)
        assert shown["pipeline"] == "bad"
        assert shown["nodes"][0]["alive"]
        assert shown["nodes"][0]["units"][0]["role"] == "primary"
        stopped = anabranch(tmp_path, "stop", "--work", "work", "--json")
        assert stopped.returncode == 0, stopped.stderr
        assert first.finish() == 0, first.output()
    lines = sum(len(path.read_text().splitlines()) for path in (tmp_path / "out").glob("*.jsonl"))
    last = first.work.channel("words").ledger.last()
    assert lines == max(first.work.channel("words").manifest(e).planned.get("end", 0) for e in range(last + 1))
