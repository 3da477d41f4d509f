"""Replicas that disagree about order, through Spark: whatever comes first, the rows are those without replicas."""

import os
import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812

from anabranch import tuples
from anabranch.errors import PipelineError
from test_tuples import micro_batches, replica_streams

pytestmark = pytest.mark.spark
BEGIN = datetime(2026, 5, 1, tzinfo=UTC)
STAMP = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [("ts", STAMP), ("word", pa.string()), ("note", pa.int64()), ("replica", pa.int32()), ("punctuation", STAMP)]
)


def at(seconds):
    return BEGIN + timedelta(seconds=seconds)


def write(directory, number, rows):
    """Write one micro-batch."""
    directory.mkdir(exist_ok=True)
    columns = {field.name: [row.get(field.name) for row in rows] for field in SCHEMA}
    place(directory, number, pa.table(columns, SCHEMA))


def place(directory, number, table):
    """Write a file; Spark takes files in the order of their times."""
    path = directory / f"{number:04d}.parquet"
    pq.write_table(table, path)
    os.utime(path, (1000 + number, 1000 + number))


def as_row(number, kind, what):
    if kind == "punctuation":
        return {"replica": number, "punctuation": at(what)}
    # A null is a value too.
    return {"replica": number, "word": what[0], "ts": at(what[1]), "note": None if what[0] == "a" else what[1] * 2**40}


def given(directory, seed, replicas):
    """Write what replicas bring, micro-batch by micro-batch; return the rows there are."""
    chance = random.Random(seed)
    rows, streams = replica_streams(chance, replicas)
    batches = list(micro_batches(chance, streams))
    for number, batch in enumerate(batches):
        some = [as_row(replica, kind, what) for replica, stretch in batch for kind, what in stretch]
        chance.shuffle(some)
        write(directory, number, some)
    # The last watermark takes a micro-batch to come about, and one more to show.
    for number in range(3):
        write(directory, len(batches) + number, [{"replica": 0, "punctuation": at(1000)}])
    return [as_row(0, "row", row) for row in rows]


def streamed(spark, directory):
    schema = "ts timestamp, word string, note long, replica int, punctuation timestamp"
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(directory))


def ran(frame, tmp_path):
    """Run a stream to its end; return its rows."""
    found = []

    def collect(batch, _):
        found.extend(batch.collect())

    query = frame.writeStream.foreachBatch(collect).option("checkpointLocation", str(tmp_path / "checkpoint"))
    running = query.trigger(availableNow=True).start()
    try:
        assert running.awaitTermination(240)
    finally:
        running.stop()
    return found


def bag(rows, *names):
    return Counter(tuple(_plain(row[name]) for name in names) for row in rows)


def _plain(value):
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value


def naive(rows):
    """Return rows with times as Spark collects them."""
    return [{**row, "ts": row["ts"].replace(tzinfo=None)} for row in rows]


@pytest.mark.parametrize("seed", [1])
def test_first_arrivals_and_their_windows(spark, tmp_path, seed):
    """Each row once, nulls and all; and windows over them, in the same query, as over the rows themselves."""
    rows = naive(given(tmp_path / "input", seed, replicas=3))
    once = tuples.first_arrivals(streamed(spark, tmp_path / "input"), "ts")
    (tmp_path / "rows").mkdir()
    assert bag(ran(once, tmp_path / "rows"), "ts", "word", "note") == bag(rows, "ts", "word", "note")
    counts = once.groupBy(F.window("ts", "7 seconds"), "word").count().select("window.start", "word", "count")
    (tmp_path / "windows").mkdir()
    plain = spark.createDataFrame([(row["ts"], row["word"]) for row in rows], "ts timestamp, word string")
    expected = plain.groupBy(F.window("ts", "7 seconds"), "word").count().select("window.start", "word", "count")
    assert bag(ran(counts, tmp_path / "windows"), "start", "word", "count") == bag(
        expected.collect(), "start", "word", "count"
    )


def test_count_windows_after_first_arrivals(spark, tmp_path):
    """Order-sensitive steps see rows in the one order that does not depend on replicas."""
    rows = naive(given(tmp_path / "input", 3, replicas=2))
    once = tuples.first_arrivals(streamed(spark, tmp_path / "input"), "ts")
    found = ran(tuples.count_windows(once, "ts", by=["word"], size=4, slide=3), tmp_path)
    expected = Counter()
    for word in {row["word"] for row in rows}:
        times = sorted(row["ts"] for row in rows if row["word"] == word)
        for begin in range(0, len(times) - 3, 3):
            expected[word, begin, begin + 3, tuple(times[begin : begin + 4])] += 1
    assert sum(expected.values()) > 5
    assert Counter((row["word"], row["first"], row["last"], tuple(r["ts"] for r in row["rows"])) for row in found) == (
        expected
    )


def test_rows_in_order(spark, tmp_path):
    """Positions are those of the sorted rows."""
    rows = naive(given(tmp_path / "input", 4, replicas=2))
    once = tuples.first_arrivals(streamed(spark, tmp_path / "input"), "ts")
    found = ran(tuples.in_order(once, "ts", by=["word"]), tmp_path)
    for word in {row["word"] for row in rows}:
        times = sorted(row["ts"] for row in rows if row["word"] == word)
        ours = sorted((row["position"], row["ts"]) for row in found if row["word"] == word)
        assert ours == list(enumerate(times))


def test_a_join_gives_each_pair_once(spark, tmp_path):
    """Of two streams with replicas of their own, less than three seconds apart, at the time of the later."""
    left = naive(given(tmp_path / "left", 5, replicas=2))
    right = naive(given(tmp_path / "right", 6, replicas=2))
    ours = tuples.first_arrivals(streamed(spark, tmp_path / "left"), "ts").drop("note")
    theirs = tuples.first_arrivals(streamed(spark, tmp_path / "right"), "ts").select("ts", "word", "note")
    joined = tuples.join(ours, theirs, on=["word"], within="3 seconds", timestamp="ts")
    found = ran(joined, tmp_path)
    expected = Counter(
        (max(one["ts"], other["ts"]), one["word"], other["note"])
        for one in left
        for other in right
        if one["word"] == other["word"] and abs(one["ts"] - other["ts"]) < timedelta(seconds=3)
    )
    assert bag(found, "ts", "word", "note") == expected


def test_retries_of_producers_are_dropped(spark, tmp_path):
    """Numbers rise by source and primary; what is sent again, in the same micro-batch or later, is dropped."""
    chance = random.Random(7)
    sent = {(source, primary): 0 for source in "xy" for primary in "pq"}
    truth, directory = [], tmp_path / "input"
    directory.mkdir()
    schema = pa.schema(
        [("source", pa.string()), ("primary", pa.string()), ("seqnum", pa.int64()), ("text", pa.string())]
    )
    for number in range(6):
        batch = []
        for (source, primary), last in sent.items():
            first = max(0, last - chance.randrange(4))
            sent[source, primary] = last + chance.randrange(1, 5)
            some = [(source, primary, n, f"{source}{primary}{n}") for n in range(first, sent[source, primary])]
            truth += some[last - first :]
            batch += some + some[:1]
        chance.shuffle(batch)
        columns = list(zip(*batch, strict=True))
        place(directory, number, pa.table([list(column) for column in columns], schema))
    ddl = "source string, primary string, seqnum long, text string"
    stream = spark.readStream.schema(ddl).option("maxFilesPerTrigger", 1).parquet(str(directory))
    assert bag(ran(tuples.drop_retries(stream), tmp_path), *schema.names) == Counter(truth)


def test_what_is_missing_is_named(spark):
    """A column that is not there, a window without rows, an order of everything."""
    plain = spark.createDataFrame([], "ts timestamp, word string")
    with pytest.raises(PipelineError, match="'replica'") as caught:
        tuples.first_arrivals(plain, "ts")
    assert "timestamp=" in caught.value.hint
    with pytest.raises(PipelineError, match="no column 'when'"):
        tuples.in_order(plain, "when", by=["word"])
    with pytest.raises(PipelineError, match="no timestamp"):
        tuples.in_order(plain, "word", by=["ts"])
    with pytest.raises(PipelineError, match="'position' already"):
        tuples.in_order(plain.withColumnRenamed("word", "position"), "ts", by=["position"])
    with pytest.raises(PipelineError, match="'rows' already"):
        tuples.count_windows(plain.withColumnRenamed("word", "rows"), "ts", by=["rows"], size=2)
    with pytest.raises(PipelineError, match="agree in something"):
        tuples.in_order(plain, "ts", by=[])
    with pytest.raises(PipelineError, match="windows of 0 rows"):
        tuples.count_windows(plain, "ts", by=["word"], size=0)
    with pytest.raises(PipelineError, match="no column 'seqnum'"):
        tuples.drop_retries(plain)
    with pytest.raises(PipelineError, match="both sides"):
        tuples.join(plain, plain.withColumnRenamed("ts", "ts"), on=[], within="1 second", timestamp="ts")
