"""Text pieces: where they end, and how their bytes become rows."""

import re

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anabranch import sources
from anabranch.errors import SourceError
from anabranch.sources import lines
from anabranch.sources.source import Limit

LIMIT = Limit(rows=0, size_bytes=1 << 30)
content = st.lists(
    st.sampled_from([b"a", b"bc", b" ", b"\t", b"\n", b"\n", b"\r", b"\r\n", b"\x0b", b"\xc3\xa4", b"\xff", b"\x00"])
).map(b"".join)


def spark_lines(data):
    """Split as Spark's text reader does, one record at a time."""
    records = re.split(rb"\r\n|\r|\n", data)
    return records[:-1] if records[-1] == b"" else records


def taken(source, *, close=True):
    """Return all rows of the raw column `value` that a source holds, as bytes."""
    planner = source.planner()
    if close:
        planner.close(0.0)
    planned = planner.plan(0.0, LIMIT)
    batches = list(source.read(planned))
    return [value.as_buffer().to_pybytes() for batch in batches for value in batch.column(0).cast(pa.binary())]


@given(content)
@example(b"\r")
@example(b"\n\r\n\r")
def test_lines_are_those_of_spark(data):
    """Splitting by vectors gives the same records as splitting one by one, and knows where each started."""
    found = lines.split_lines(data)
    records = spark_lines(data)
    begins, ends = found.offsets[:-1], found.offsets[1:]
    assert [found.text[begin:end] for begin, end in zip(begins, ends, strict=True)] == records
    assert [data[start : start + len(record)] for start, record in zip(found.starts, records, strict=True)] == records
    assert sorted(set(found.starts)) == list(found.starts)


@given(content, st.sampled_from([b" \t", lines.TRIMMED_BYTES]))
def test_blank_records_are_recognised(data, blank):
    """A record counts as filled exactly if something is left when blanks are stripped."""
    found = lines.split_lines(data)
    keep = lines.filled(found, blank)
    expected = [bool(record.strip(blank)) for record in spark_lines(data)]
    assert (list(keep) if keep is not None else [True] * len(expected)) == expected
    assert keep is None or not all(expected)


def test_text_keeps_blank_lines_and_others_drop_them(tmp_path):
    """Blank lines are rows of text, and no records of JSON lines or CSV."""
    (tmp_path / "a").write_bytes(b"one\r\n\n  \ntwo\n\x01\n")
    assert taken(sources.read_text(tmp_path)) == [b"one", b"", b"  ", b"two", b"\x01"]
    assert taken(sources.read_jsonl(tmp_path, schema="a int")) == [b"one", b"two", b"\x01"]
    assert taken(sources.read_csv(tmp_path, schema="a int")) == [b"one", b"two"]


def test_a_byte_order_mark_is_no_part_of_the_first_record(tmp_path):
    """A mark at the start of a file is skipped; elsewhere it is content."""
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n")
    (tmp_path / "b").write_bytes(b"\xef\xbb\xbf")
    assert taken(sources.read_text(tmp_path)) == [b"one", b"\xef\xbb\xbftwo"]
    (batch,) = sources.read_text(tmp_path).located().read(sources.read_text(tmp_path).planner().plan(0.0, LIMIT))
    assert batch.to_pydict()["offset"] == [3, 7]


def test_located_rows_say_where_they_came_from(tmp_path):
    """Located raw rows carry the file and the byte where the record starts, blanks and line ends counted."""
    (tmp_path / "a").write_bytes(b"x\r\n\n   \nyy\rz\n")
    source = sources.read_jsonl(tmp_path, schema="a int").located()
    (batch,) = source.read(source.planner().plan(0.0, LIMIT))
    assert batch.schema == source.raw_schema()
    assert batch.to_pydict() == {"value": ["x", "yy", "z"], "file": ["a"] * 3, "offset": [0, 8, 11]}


@pytest.mark.parametrize("content", [b"h1,h2\n1,2\n", b"\xef\xbb\xbf\n  \nh1,h2\r\n\n1,2\n", b"\n\n\nh\n1,2\n"])
@pytest.mark.parametrize("piece_bytes", [1, 4, 1 << 20])
def test_a_header_is_the_first_record_of_each_file(tmp_path, monkeypatch, content, piece_bytes):
    """The header is skipped in every file, also behind blank lines, however the file is cut."""
    monkeypatch.setattr(lines, "PIECE_BYTES", piece_bytes)
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "b").write_bytes(content)
    assert taken(sources.read_csv(tmp_path, schema="a int, b int", header=True)) == [b"1,2", b"1,2"]


def test_a_header_that_comes_after_blank_lines_were_seen_is_still_the_header(tmp_path):
    """Blank lines at the top are not taken on their own, else the header would look like a row."""
    source = sources.read_csv(tmp_path, schema="a int", header=True)
    planner = source.planner()
    (tmp_path / "a").write_bytes(b"\n\n")
    assert planner.plan(0.0, LIMIT) == {}
    (tmp_path / "a").write_bytes(b"\n\nname\n1\n")
    (batch,) = source.read(planner.plan(0.0, LIMIT))
    assert batch.to_pydict() == {"value": ["1"]}


def test_a_record_longer_than_a_piece_makes_a_longer_piece(tmp_path, monkeypatch):
    """A long record is taken whole; pieces otherwise stay small, and end at record ends."""
    monkeypatch.setattr(lines, "PIECE_BYTES", 10)
    records = [b"x" * 95, b"ab", b"cd", b"ef", b"gh", b"y" * 30]
    (tmp_path / "a").write_bytes(b"\n".join(records) + b"\n")
    source = sources.read_text(tmp_path)
    pieces = source.planner().plan(0.0, LIMIT)["pieces"]
    assert [(piece["start"], piece["end"]) for piece in pieces] == [(0, 99), (99, 108), (108, 139)]
    assert taken(source) == records


def test_a_record_without_end_is_an_error(tmp_path, monkeypatch):
    """A file without newlines is refused at a limit, instead of filling the memory."""
    monkeypatch.setattr(lines, "PIECE_BYTES", 10)
    monkeypatch.setattr(lines, "LONGEST_RECORD_BYTES", 50)
    (tmp_path / "image").write_bytes(b"x" * 200)
    with pytest.raises(SourceError, match=r"byte 0 of .*image is longer"):
        sources.read_text(tmp_path).planner().plan(0.0, LIMIT)


def test_batches_are_neither_tiny_nor_huge(tmp_path):
    """Many small files share batches, and a large one is cut into several."""
    for number in range(300):
        (tmp_path / f"small{number:03d}").write_bytes(b"row\n" * 10)
    (tmp_path / "large").write_bytes(b"\n" * 200_000)
    source = sources.read_text(tmp_path)
    batches = list(source.read(source.planner().plan(0.0, LIMIT)))
    assert sum(batch.num_rows for batch in batches) == 203_000
    assert max(batch.num_rows for batch in batches) <= lines.BATCH_ROWS
    assert len(batches) < 10


def test_bytes_that_are_not_utf8_pass_unchanged(tmp_path):
    """Text is handed to Spark as it is in the file."""
    (tmp_path / "a").write_bytes(b"\xff\xfe\n")
    assert taken(sources.read_text(tmp_path)) == [b"\xff\xfe"]
