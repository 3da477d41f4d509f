"""Generated words: every row is a function of the seed and its number, however it is asked for."""

import json
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch import sources
from anabranch.clock import ManualClock
from anabranch.errors import Corrupt, PipelineError, SourceError
from anabranch.sources.source import Limit
from anabranch.sources.words import BLOCK_ROWS, FIXED_ORIGIN_US

LIMIT = Limit(rows=1000, size_bytes=0)
PINNED = ["word0037", "word0056", "word0005", "word0038", "word0119", "word0000", "word0110", "word0002"]


def rows_of(source, start, end, origin_us=FIXED_ORIGIN_US):
    planned = {"start": start, "end": end, "origin_us": origin_us}
    return pa.Table.from_batches(source.read(planned), schema=source.raw_schema())


@given(
    start=st.integers(0, 3 * BLOCK_ROWS) | st.integers(10**12, 10**12 + 10),
    length=st.integers(0, 2 * BLOCK_ROWS),
    ways=st.integers(1, 7),
    rate=st.none() | st.sampled_from([0.5, 3, 20_000, 333_333.3]),
    vocabulary=st.sampled_from([1, 7, 1000, 20_000]),
)
def test_rows_do_not_depend_on_how_a_range_is_split(start, length, ways, rate, vocabulary):
    """The same rows come out of a range and of any split of it, in order, in batches of bounded size."""
    source = sources.generate_words(rate, vocabulary=vocabulary, seed=7)
    whole = rows_of(source, start, start + length)
    planned = {"start": start, "end": start + length, "origin_us": FIXED_ORIGIN_US}
    shares = source.split(planned, ways)
    batches = [batch for share in shares for batch in source.read(share)]
    assert len(shares) <= ways
    assert all(0 < batch.num_rows <= BLOCK_ROWS for batch in batches)
    assert pa.Table.from_batches(batches, schema=source.raw_schema()).equals(whole)
    assert whole.num_rows == length
    whole.validate(full=True)


def test_words_are_pinned():
    """The first rows of seed 0 never change: recorded ranges of older versions must give the same rows."""
    rows = rows_of(sources.generate_words(), 0, 8).to_pylist()
    assert [row["word"] for row in rows] == PINNED
    assert rows[1]["ts"] == datetime(2026, 1, 1, 0, 0, 0, 10, tzinfo=UTC)


def test_words_do_not_depend_on_the_pace_and_do_on_the_seed():
    """Pace and origin move only the time; another seed gives other words."""
    slow = rows_of(sources.generate_words(10), 0, 5000)
    fast = rows_of(sources.generate_words(10_000), 0, 5000, origin_us=17)
    other = rows_of(sources.generate_words(10, seed=1), 0, 5000)
    assert slow["word"].equals(fast["word"])
    assert not slow["word"].equals(other["word"])
    assert slow["ts"][10].as_py() == datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert fast["ts"].cast(pa.int64())[5].as_py() == 17 + 500


def test_words_follow_zipf():
    """The most frequent words have the share that Zipf's law gives them, and every word is in the vocabulary."""
    words = rows_of(sources.generate_words(vocabulary=100), 0, 1_000_000)["word"]
    counts = {entry["values"]: entry["counts"] for entry in words.value_counts().to_pylist()}
    weights = np.arange(1, 101) ** -1.1
    expected = weights / weights.sum() * 1_000_000
    assert set(counts) == {f"word{rank:04d}" for rank in range(100)}
    for rank in (0, 1, 10, 99):
        assert abs(counts[f"word{rank:04d}"] - expected[rank]) < 5 * expected[rank] ** 0.5


def test_time_is_monotonic_across_blocks_at_an_odd_rate():
    """Event time never goes back, also where a rate does not divide a second and blocks meet."""
    times = rows_of(sources.generate_words(7.77), 5 * BLOCK_ROWS - 100, 5 * BLOCK_ROWS + 100)["ts"].cast(pa.int64())
    assert (np.diff(times.to_numpy()) > 0).all()


def test_paced_rows_come_with_time():
    """At a pace the origin is the time of the first question, and each range carries it."""
    clock = ManualClock(1000.25)
    planner = sources.generate_words(100).planner()
    assert planner.plan(clock.now_s(), LIMIT) == {}
    clock.advance(0.5)
    assert planner.waiting(clock.now_s())
    planned = planner.plan(clock.now_s(), LIMIT)
    assert planned == {"start": 0, "end": 50, "origin_us": 1_000_250_000}
    assert planner.plan(clock.now_s(), LIMIT) == planned
    planner.apply(planned)
    assert not planner.waiting(clock.now_s())
    assert not planner.ended(clock.now_s())
    clock.advance(100)
    assert planner.plan(clock.now_s(), LIMIT) == {"start": 50, "end": 1050, "origin_us": 1_000_250_000}


def test_another_planner_goes_on_with_the_decided_origin():
    """A planner that takes over keeps the pace that the decided ranges and the snapshot say, not its own."""
    source = sources.generate_words(100)
    first = source.planner()
    first.waiting(10.0)
    decided = first.plan(11.0, LIMIT)
    second = source.planner()
    second.waiting(500.0)
    second.apply(decided)
    assert second.plan(12.0, LIMIT)["origin_us"] == 10_000_000
    third = source.planner(json.loads(json.dumps(second.snapshot())))
    assert third.plan(12.0, LIMIT) == {"start": 100, "end": 200, "origin_us": 10_000_000}


def test_a_snapshot_before_the_first_rows_leaves_the_origin_open():
    """An origin that no decided range carries is forgotten: nothing depends on it yet."""
    source = sources.generate_words(100)
    planner = source.planner()
    planner.waiting(10.0)
    again = source.planner(planner.snapshot())
    assert again.plan(99.0, LIMIT) == {}
    assert again.plan(99.1, LIMIT)["origin_us"] == 99_000_000


def test_a_start_in_the_past_is_a_backlog():
    """With `start`, row 0 falls at that time, and the rows since then wait."""
    source = sources.generate_words(10, start="2026-01-01T00:00:00")
    planner = source.planner()
    planned = planner.plan(FIXED_ORIGIN_US / 1e6 + 2, LIMIT)
    assert planned == {"start": 0, "end": 20, "origin_us": FIXED_ORIGIN_US}
    assert sources.generate_words(10, start=datetime(2026, 1, 1, tzinfo=UTC)) == source


def test_a_finite_source_ends():
    """With `rows` the source gives exactly that many and says that it has ended."""
    source = sources.generate_words(rows=2500)
    planner = source.planner()
    total = 0
    while not planner.ended(0.0):
        assert planner.waiting(0.0)
        planned = planner.plan(0.0, LIMIT)
        planner.apply(planned)
        total += planned["end"] - planned["start"]
    assert total == 2500
    assert planner.plan(0.0, LIMIT) == {}
    assert not planner.waiting(0.0)


def test_closing_takes_what_is_there_now():
    """A closed paced source ends with the rows of that moment; a finite one still gives all its rows."""
    paced = sources.generate_words(100).planner()
    paced.waiting(0.0)
    paced.close(1.0)
    paced.apply(paced.plan(50.0, LIMIT))
    assert paced.snapshot()["next"] == 100
    assert paced.ended(50.0)
    finite = sources.generate_words(rows=10).planner()
    finite.close(0.0)
    assert finite.plan(0.0, LIMIT)["end"] == 10


def test_an_endless_source_cannot_be_drained():
    """Closing a source without an end is refused, with the two ways out."""
    planner = sources.generate_words().planner()
    assert planner.plan(0.0, LIMIT)["end"] == 1000
    assert planner.waiting(0.0)
    with pytest.raises(SourceError, match="no end") as caught:
        planner.close(0.0)
    assert "rows=" in caught.value.hint


def test_a_range_out_of_sequence_is_refused():
    """A decided range that does not follow the last is damage, not a row to skip."""
    planner = sources.generate_words().planner()
    with pytest.raises(Corrupt, match="starts at row 5"):
        planner.apply({"start": 5, "end": 6, "origin_us": 0})


def test_a_damaged_position_is_refused():
    """A snapshot that is none is named."""
    with pytest.raises(Corrupt, match="position"):
        sources.generate_words().planner({"nxt": 3})


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("rows_per_second", 0),
        ("rows_per_second", float("nan")),
        ("rows_per_second", "fast"),
        ("vocabulary", 0),
        ("vocabulary", 2.5),
        ("rows", 0),
        ("rows", True),
        ("seed", -1),
        ("start", "tomorrow"),
    ],
)
def test_bad_arguments_are_named(argument, value):
    """A bad argument is refused by name when the source is made."""
    with pytest.raises(PipelineError, match=argument) as caught:
        sources.generate_words(**{argument: value})
    assert caught.value.hint
