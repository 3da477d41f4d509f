"""Parquet files: whole, once, and of the declared columns."""

import json
import os
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anabranch import sources
from anabranch.errors import SourceError
from anabranch.sources import files, parquet
from anabranch.sources.source import Limit

LIMIT = Limit(rows=0, size_bytes=1 << 30)


def write(path, rows=10, start=0, **options):
    table = pa.table({"n": pa.array(range(start, start + rows), pa.int64()), "word": [f"w{n}" for n in range(rows)]})
    pq.write_table(table, path, **options)
    return table


def rows_of(source, planned):
    return [row for batch in source.read(planned) for row in batch.to_pylist()]


def take(source, planner, limit=LIMIT):
    planned = json.loads(json.dumps(planner.plan(0.0, limit)))
    planner.apply(planned)
    return [row["n"] for row in rows_of(source, planned)]


@pytest.fixture
def source(tmp_path):
    return sources.read_parquet(tmp_path, schema="n bigint")


def test_every_file_is_taken_once(tmp_path, source):
    """Complete files are taken whole, late ones with early names too, also by a planner that takes over."""
    write(tmp_path / "m.parquet", 3)
    planner = source.planner()
    assert take(source, planner) == [0, 1, 2]
    write(tmp_path / "a.parquet", 2, start=50)
    again = source.planner(json.loads(json.dumps(planner.snapshot())))
    assert take(source, planner) == take(source, again) == [50, 51]
    assert not planner.waiting(9.0)


def test_a_file_without_a_footer_is_left_until_it_has_one(tmp_path, source):
    """A file that is still being written is not read, and not opened again until it changes."""
    write(tmp_path / "done", 4)
    whole = (tmp_path / "done").read_bytes()
    (tmp_path / "done").unlink()
    planner = source.planner()
    for size in (0, 3, 100, len(whole) - 1):
        (tmp_path / "a").write_bytes(whole[:size])
        assert planner.plan(0.0, LIMIT) == {}
        assert not planner.waiting(0.0)
    (tmp_path / "a").write_bytes(whole)
    assert take(source, planner) == [0, 1, 2, 3]


def test_an_incomplete_file_is_an_error_when_the_source_is_closed(tmp_path, source):
    """A drain does not pass over a file that will never be complete."""
    (tmp_path / "a").write_bytes(b"PAR1 and no more")
    planner = source.planner()
    planner.close(0.0)
    with pytest.raises(SourceError, match="/a has no footer"):
        planner.plan(0.0, LIMIT)


@pytest.mark.parametrize("content", [b"a,b\n1,2\n", b"PAR1" + b"x" * 20 + b"\x04\0\0\0PAR1"])
def test_a_file_that_is_no_parquet_is_named(tmp_path, source, content):
    """Another format, or a damaged footer, is an error that names the file."""
    (tmp_path / "readme").write_bytes(content)
    with pytest.raises(SourceError, match=r"/readme is (not a|a damaged) Parquet file"):
        source.planner().plan(0.0, LIMIT)


def test_large_files_are_cut_between_row_groups(tmp_path, source, monkeypatch):
    """Pieces hold a few row groups each; epochs and splits cut between them, and together they hold every row once."""
    monkeypatch.setattr(parquet, "PIECE_BYTES", 4000)
    write(tmp_path / "a", 10_000, row_group_size=500, compression="none")
    planner = source.planner()
    epochs = []
    while planned := planner.plan(0.0, Limit(0, 20_000)):
        planner.apply(planned)
        shares = source.split(planned, 3)
        assert len(shares) <= 3
        epochs.append([row["n"] for share in shares for row in rows_of(source, share)])
    assert len(epochs) > 2
    assert [n for epoch in epochs for n in epoch] == list(range(10_000))


def test_an_empty_file_gives_nothing(tmp_path, source):
    """A file without rows is no obstacle, for a drain neither."""
    write(tmp_path / "a", 0)
    planner = source.planner()
    planner.close(0.0)
    assert take(source, planner) == []
    assert planner.ended(0.0)


def flip(path, where):
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: flip(path, 10), "was changed after its row groups 0 to 1"),
        (lambda path: flip(path, -20), "was changed after its row groups 0 to 1"),
        (lambda path: write(path, 11), "was changed after its row groups 0 to 1 were planned: it had"),
        (lambda path: os.truncate(path, 50), "now 50"),
        (lambda path: path.unlink(), "cannot be read, though its row groups 0 to 1"),
    ],
    ids=["data", "footer", "replaced", "truncated", "deleted"],
)
def test_reading_a_range_whose_file_changed_is_an_error(tmp_path, source, spoil, says):
    """Rule 15: a planned file gives the rows that were planned, or an error that names it."""
    write(tmp_path / "a")
    planned = source.planner().plan(0.0, LIMIT)
    assert len(rows_of(source, planned)) == 10
    spoil(tmp_path / "a")
    with pytest.raises(SourceError, match=says) as caught:
        rows_of(source, planned)
    assert str(tmp_path / "a") in caught.value.message


def test_planning_after_a_file_was_replaced_is_an_error(tmp_path, source):
    """Rule 15: a taken file of another size is named within a second, not read again."""
    write(tmp_path / "a")
    planner = source.planner()
    take(source, planner)
    write(tmp_path / "a", 20)
    assert planner.plan(0.5, LIMIT) == {}
    with pytest.raises(SourceError, match="/a was changed"):
        planner.plan(1.0, LIMIT)


def test_files_that_were_taken_are_not_looked_at_again_and_again(tmp_path, source, monkeypatch):
    """Only names are listed while nothing is new; once in a second every file is looked at."""
    for name in "abc":
        write(tmp_path / name)
    known = []
    real = files.list_files
    monkeypatch.setattr(files, "list_files", lambda *args: (known.append(len(args[2])), real(*args))[1])
    planner = source.planner()
    take(source, planner)
    write(tmp_path / "d")
    assert planner.waiting(0.5)
    assert planner.waiting(1.5)
    assert known == [0, 3, 0]


def test_a_file_of_the_same_name_comes_again_after_its_position_was_forgotten(tmp_path, source):
    """A file that was removed, and whose position is forgotten, may be followed by another of its name."""
    write(tmp_path / "a")
    write(tmp_path / "b")
    planner = source.planner()
    take(source, planner)
    (tmp_path / "a").unlink()
    planner.snapshot()
    write(tmp_path / "a", 20)
    assert planner.waiting(1.0)
    assert planner.plan(1.0, LIMIT)["pieces"][0]["file"] == "a"


def test_columns_are_cast_and_picked(tmp_path):
    """Declared columns come in the declared order and types; others are ignored."""
    pq.write_table(
        pa.table(
            {
                "extra": [1],
                "small": pa.array([7], pa.int16()),
                "at": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns")),
                "name": pa.array(["x"]).dictionary_encode(),
                "price": pa.array([Decimal("1.5")], pa.decimal128(5, 1)),
                "tags": pa.array([["a"]], pa.large_list(pa.large_string())),
                "a.b": [True],
            }
        ),
        tmp_path / "a",
    )
    schema = "name string, small int, at timestamp, price decimal(10,2), tags array<string>, `a.b` boolean"
    source = sources.read_parquet(tmp_path, schema=schema)
    (batch,) = source.read(source.planner().plan(0.0, LIMIT))
    assert batch.schema == source.raw_schema()
    assert batch.to_pylist() == [
        {
            "name": "x",
            "small": 7,
            "at": datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC),
            "price": Decimal("1.50"),
            "tags": ["a"],
            "a.b": True,
        }
    ]


def test_a_value_that_does_not_fit_is_an_error(tmp_path):
    """A cast that would change a value names the column and the file."""
    write(tmp_path / "a", 3, start=2**40)
    source = sources.read_parquet(tmp_path, schema="n int")
    with pytest.raises(SourceError, match=r"column 'n' of .*/a is int64 and does not fit int32"):
        rows_of(source, source.planner().plan(0.0, LIMIT))


def test_a_missing_column_is_an_error_before_an_epoch_depends_on_it(tmp_path):
    """A file without a declared column is refused when it is planned, with its name and what it has."""
    write(tmp_path / "a")
    source = sources.read_parquet(tmp_path, schema="n bigint, N2 string")
    with pytest.raises(SourceError, match=r"/a has no column 'N2' .*n, word"):
        source.planner().plan(0.0, LIMIT)


def test_the_schema_is_inferred_from_the_first_file_and_pinned(tmp_path):
    """Without a schema the first complete file by name decides, and the spec keeps its answer."""
    (tmp_path / "a").write_bytes(b"PAR1")
    write(tmp_path / "b")
    source = sources.read_parquet(tmp_path)
    source.check()
    spec = json.loads(json.dumps(source.spec()))
    assert spec["schema"] == "n bigint, word string"
    pq.write_table(pa.table({"other": [1]}), tmp_path / "a")
    assert source.spec() == spec
    assert sources.from_spec(spec).raw_schema() == source.raw_schema()


def test_inferring_from_nothing_is_an_error(tmp_path):
    """No file and no schema: the error says both ways out."""
    with pytest.raises(SourceError, match="holds no complete Parquet file") as caught:
        sources.read_parquet(tmp_path).check()
    assert "schema=" in caught.value.hint


def test_inferring_a_type_that_spark_does_not_have_is_an_error(tmp_path):
    """A column that cannot be taken over is an error with a hint, not a crash."""
    pq.write_table(pa.table({"t": pa.array([1], pa.time64("us"))}), tmp_path / "a")
    with pytest.raises(SourceError, match="cannot be taken over"):
        sources.read_parquet(tmp_path).check()


def test_int96_times_are_instants(tmp_path):
    """Old Spark, Hive and Impala write times as INT96, and mean UTC."""
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    table = pa.table({"ts": pa.array([moment], pa.timestamp("us", tz="UTC"))})
    pq.write_table(table, tmp_path / "a", use_deprecated_int96_timestamps=True, store_schema=False)
    source = sources.read_parquet(tmp_path)
    assert source.spec()["schema"] == "ts timestamp"
    assert rows_of(source, source.planner().plan(0.0, LIMIT)) == [{"ts": moment}]
