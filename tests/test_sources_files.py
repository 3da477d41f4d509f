"""Growing directories, and rule 15 of the design: every complete record once, and no silent change."""

import json
import os

import pytest

from anabranch import sources
from anabranch.errors import Corrupt, SourceError
from anabranch.sources import files, lines
from anabranch.sources.source import Limit

LIMIT = Limit(rows=0, size_bytes=1 << 30)


def rows_of(source, planned):
    return [value for batch in source.read(planned) for value in batch.to_pydict()["value"]]


def take(source, planner, now_s=0.0, limit=LIMIT):
    """Plan, decide and read one epoch."""
    planned = json.loads(json.dumps(planner.plan(now_s, limit)))
    planner.apply(planned)
    return rows_of(source, planned)


@pytest.fixture
def source(tmp_path):
    return sources.read_text(tmp_path)


def append(path, data):
    with path.open("ab") as file:
        file.write(data)


# What is taken


def test_only_complete_records_are_taken(tmp_path, source):
    """A line without its newline waits in the file until it has one."""
    planner = source.planner()
    append(tmp_path / "a", b"one\ntw")
    assert take(source, planner) == ["one"]
    assert take(source, planner) == []
    append(tmp_path / "a", b"o\nthree\n")
    assert take(source, planner) == ["two", "three"]


def test_an_unfinished_line_is_not_read_again_until_it_grows(tmp_path, source, monkeypatch):
    """After one look, a file without a complete record is not opened and does not count as waiting."""
    planner = source.planner()
    append(tmp_path / "a", b"unfinished")
    assert planner.waiting(0.0)
    assert planner.plan(0.0, LIMIT) == {}
    opened = []
    monkeypatch.setattr(lines, "_opened", opened.append)
    assert not planner.waiting(1.0)
    assert planner.plan(1.0, LIMIT) == {}
    assert opened == []


def test_hidden_files_directories_and_other_names_are_ignored(tmp_path):
    """Names with a leading dot or underscore, directories, and names off the pattern are no input."""
    for name in (".hidden", "_temporary", "a.txt", "b.log"):
        append(tmp_path / name, name.encode() + b"\n")
    (tmp_path / "directory.txt").mkdir()
    source = sources.read_text(tmp_path, pattern="*.txt")
    assert take(source, source.planner()) == ["a.txt"]


def test_a_late_file_with_an_early_name_is_not_skipped(tmp_path, source):
    """Rule 15: a file is new because its name was not taken, wherever it sorts and whatever its time."""
    planner = source.planner()
    append(tmp_path / "m", b"one\n")
    assert take(source, planner) == ["one"]
    append(tmp_path / "a", b"two\n")
    os.utime(tmp_path / "a", (0, 0))
    again = source.planner(json.loads(json.dumps(planner.snapshot())))
    assert take(source, planner) == ["two"]
    assert take(source, again) == ["two"]


def test_the_size_of_an_epoch_is_bounded(tmp_path, source, monkeypatch):
    """A plan holds about as many bytes as allowed, and always at least one record."""
    monkeypatch.setattr(lines, "PIECE_BYTES", 16)
    append(tmp_path / "a", b"".join(b"%04d\n" % number for number in range(100)))
    planner = source.planner()
    assert len(take(source, planner, limit=Limit(0, 50))) == 10
    assert len(take(source, planner, limit=Limit(0, 1))) == 3
    total = 13
    while rows := take(source, planner, limit=Limit(0, 33)):
        assert 1 <= len(rows) <= 9
        total += len(rows)
    assert total == 100


def test_the_number_of_pieces_is_bounded(tmp_path, source, monkeypatch):
    """Very many small files are spread over several epochs."""
    monkeypatch.setattr(files, "MOST_PIECES", 5)
    for number in range(12):
        append(tmp_path / f"f{number:02d}", b"%d\n" % number)
    planner = source.planner()
    assert [len(take(source, planner)) for _ in range(4)] == [5, 5, 2, 0]


def test_a_file_that_always_grows_does_not_starve_the_others(tmp_path, source):
    """A file's turn ends with the bytes it had when it joined the queue."""
    append(tmp_path / "a", b"busy\n" * 10)
    append(tmp_path / "b", b"quiet\n")
    planner = source.planner()
    seen = []
    while "quiet" not in seen:
        seen += take(source, planner, limit=Limit(0, 20))
        append(tmp_path / "a", b"busy\n" * 8)
        assert len(seen) < 20


def test_a_backlog_is_read_file_after_file(tmp_path, source, monkeypatch):
    """Files that wait together are finished in the order of their names, so event time advances with them."""
    monkeypatch.setattr(lines, "PIECE_BYTES", 10)
    for name in ("c", "a", "b"):
        append(tmp_path / name, name.encode() * 3 + b"\n" + name.encode() * 3 + b"\n" + name.encode() * 3 + b"\n")
    planner = source.planner()
    rows = [row for _ in range(10) for row in take(source, planner, limit=Limit(0, 5))]
    assert rows == ["aaa"] * 3 + ["bbb"] * 3 + ["ccc"] * 3


# Waiting


def test_the_directory_is_listed_now_and_then(tmp_path, source, monkeypatch):
    """Asking every millisecond lists the directory every 20 ms, and at once when the clock was set back."""
    listed = []
    monkeypatch.setattr(files, "list_files", lambda *args, real=files.list_files: (listed.append(1), real(*args))[1])
    planner = source.planner()
    for millisecond in range(100):
        planner.waiting(10.0 + millisecond / 1000)
    assert len(listed) == 5
    planner.waiting(3.0)
    assert len(listed) == 6


def test_planning_alone_changes_nothing(tmp_path, source):
    """The same plan comes again until a range is applied."""
    append(tmp_path / "a", b"one\n")
    planner = source.planner()
    assert planner.plan(0.0, LIMIT) == planner.plan(0.0, LIMIT) != {}
    assert planner.waiting(0.0)


def test_a_range_decided_by_another_is_followed(tmp_path, source):
    """A planner goes on after a range that another one planned, also if it never saw the files."""
    append(tmp_path / "a", b"one\ntwo\n")
    first, second = source.planner(), source.planner()
    planned = first.plan(0.0, Limit(0, 4))
    append(tmp_path / "a", b"three\n")
    second.apply(planned)
    assert take(source, second) == ["two", "three"]
    assert not second.waiting(1.0)


def test_overlapping_ranges_are_refused(tmp_path, source):
    """A range that takes bytes again is damage."""
    append(tmp_path / "a", b"one\ntwo\n")
    planner = source.planner()
    planner.apply(planner.plan(0.0, LIMIT))
    with pytest.raises(Corrupt, match="takes a in"):
        planner.apply({"pieces": [{"file": "a", "start": 4, "end": 8, "crc": 0}]})


# Closing


def test_closing_counts_the_unterminated_tail(tmp_path, source):
    """After closing, the last line is a record without its newline, and nothing that comes later is taken."""
    append(tmp_path / "a", b"one\ntail")
    append(tmp_path / "b", b"only\r")
    planner = source.planner()
    planner.close(0.0)
    append(tmp_path / "a", b" grows\n")
    append(tmp_path / "c", b"late\n")
    assert not planner.ended(0.0)
    assert take(source, planner) == ["one", "tail", "only"]
    assert planner.ended(0.0)
    assert not planner.waiting(9.0)


def test_closing_after_an_unfinished_line_was_seen_still_takes_it(tmp_path, source):
    """That a line had no end when it was looked at does not count once the source is closed."""
    append(tmp_path / "a", b"tail")
    planner = source.planner()
    assert planner.plan(0.0, LIMIT) == {}
    planner.close(0.0)
    assert take(source, planner) == ["tail"]


def test_closing_goes_by_the_size_of_that_moment(tmp_path, source):
    """A file that was waiting with half a line, and grew, is taken to its present end when the source is closed."""
    append(tmp_path / "a", b"one\nta")
    planner = source.planner()
    assert planner.waiting(0.0)
    append(tmp_path / "a", b"il")
    planner.close(0.0)
    assert take(source, planner) == ["one", "tail"]


@pytest.mark.parametrize(
    ("tail", "growth", "rows"),
    [
        (b"tail", b"\nnext\n", ["next"]),
        (b"tail", b"\r\nnext\n", ["next"]),
        (b"tail", b"\rnext\n", ["next"]),
        (b"tail", b"\r", []),
        (b"tail", b"\n", []),
        (b"tail\r", b"\nnext\n", ["next"]),
        (b"tail\r", b"next\n", ["next"]),
    ],
)
def test_a_closed_tail_that_gets_its_line_end_goes_on(tmp_path, source, tail, growth, rows):
    """The newline that ends a record already taken is skipped, not read as a blank line."""
    append(tmp_path / "a", tail)
    planner = source.planner()
    planner.close(0.0)
    assert take(source, planner) == ["tail"]
    later = source.planner(planner.snapshot())
    append(tmp_path / "a", growth)
    assert take(source, later) == rows
    later.close(1.0)
    assert take(source, later) == []
    assert later.ended(1.0)


def test_a_closed_tail_that_goes_on_is_an_error(tmp_path, source):
    """If a record that was taken turns out to be half of one, that is said, with the file."""
    append(tmp_path / "a", b"tail")
    planner = source.planner()
    planner.close(0.0)
    take(source, planner)
    append(tmp_path / "a", b"-end\n")
    with pytest.raises(SourceError, match=r"last line of .*/a was read as a record up to byte 4"):
        source.planner(planner.snapshot()).plan(0.0, LIMIT)


def test_a_file_that_vanishes_or_shrinks_after_closing_is_an_error(tmp_path, source):
    """What was declared to be there must be there until it is taken."""
    append(tmp_path / "a", b"one\ntwo\n")
    vanished, truncated = source.planner(), source.planner()
    vanished.close(0.0)
    truncated.close(0.0)
    os.truncate(tmp_path / "a", 4)
    with pytest.raises(SourceError, match="shrunk to 4 bytes"):
        truncated.plan(0.0, LIMIT)
    (tmp_path / "a").unlink()
    with pytest.raises(SourceError, match="removed while rows"):
        vanished.plan(0.0, LIMIT)


# Rule 15: a file that changed after it was planned is an error that names it


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: path.write_bytes(b"one\nTWO\n"), "was changed after bytes 4 to 8"),
        (lambda path: os.truncate(path, 6), "has shrunk: bytes 4 to 8"),
        (lambda path: path.unlink(), "bytes 4 to 8 of .* cannot be read"),
    ],
    ids=["altered", "truncated", "deleted"],
)
def test_reading_a_range_whose_file_changed_is_an_error(tmp_path, source, spoil, says):
    """A planned range gives the rows that were planned, or an error that names the file and the bytes."""
    append(tmp_path / "a", b"one\n")
    planner = source.planner()
    planner.apply(planner.plan(0.0, LIMIT))
    append(tmp_path / "a", b"two\n")
    planned = planner.plan(0.0, LIMIT)
    assert rows_of(source, planned) == ["two"]
    spoil(tmp_path / "a")
    with pytest.raises(SourceError, match=says) as caught:
        rows_of(source, planned)
    assert str(tmp_path / "a") in caught.value.message
    assert caught.value.hint


def test_reading_does_not_depend_on_what_was_added(tmp_path, source):
    """A file that only grew gives the same rows for the same range."""
    append(tmp_path / "a", b"one\n")
    planned = source.planner().plan(0.0, LIMIT)
    append(tmp_path / "a", b"two\n")
    assert rows_of(source, planned) == ["one"]


def test_planning_from_a_file_that_shrank_is_an_error(tmp_path, source):
    """A file below what was taken of it is named; waiting says True so that the plan is asked and raises."""
    append(tmp_path / "a", b"one\ntwo\n")
    planner = source.planner()
    take(source, planner)
    os.truncate(tmp_path / "a", 4)
    assert planner.waiting(1.0)
    with pytest.raises(SourceError, match=r"/a has shrunk to 4 bytes, but 8 bytes"):
        planner.plan(1.0, LIMIT)


@pytest.mark.parametrize("restored", [False, True])
def test_planning_from_a_file_that_was_rewritten_and_grew_is_an_error(tmp_path, source, restored):
    """A new file under an old name is found by the checksum of the last piece, though it is larger."""
    append(tmp_path / "a", b"one\ntwo\n")
    planner = source.planner()
    take(source, planner)
    if restored:
        planner = source.planner(planner.snapshot())
    (tmp_path / "new").write_bytes(b"ONE\nTWO\nTHREE\n")
    (tmp_path / "new").replace(tmp_path / "a")
    with pytest.raises(SourceError, match="/a was changed after bytes 0 to 8"):
        planner.plan(1.0, LIMIT)


def test_a_file_removed_with_rows_waiting_is_an_error(tmp_path, source):
    """Rows that were seen and are gone are not passed over in silence."""
    append(tmp_path / "a", b"one\ntwo\n")
    planner = source.planner()
    take(source, planner, limit=Limit(0, 4))
    (tmp_path / "a").unlink()
    with pytest.raises(SourceError, match="/a was removed while rows"):
        planner.plan(1.0, LIMIT)


def test_a_file_that_was_only_passing_by_is_no_error(tmp_path, source):
    """A temporary name that is renamed before anything of it was taken is nothing to worry about."""
    append(tmp_path / "a.tmp", b"one\n")
    planner = source.planner()
    assert planner.waiting(0.0)
    (tmp_path / "a.tmp").rename(tmp_path / "a")
    assert take(source, planner, 1.0) == ["one"]


def test_an_unreadable_file_is_named(tmp_path, source, monkeypatch):
    """A file that may not be read stops the source with its name."""
    append(tmp_path / "a", b"one\n")

    def refuse(path, *args):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(SourceError, match="/a cannot be read: Permission denied"):
        source.planner().plan(0.0, LIMIT)


# Positions


def test_a_snapshot_forgets_files_that_are_gone(tmp_path, source):
    """The position does not grow with files that were taken and removed; a new file of that name is new."""
    for name in ("a", "b"):
        append(tmp_path / name, b"old\n")
    planner = source.planner()
    take(source, planner)
    (tmp_path / "a").unlink()
    assert set(planner.snapshot()["files"]) == {"b"}
    append(tmp_path / "a", b"new\n")
    assert take(source, planner) == ["new"]


def test_an_empty_directory_forgets_nothing(tmp_path, source):
    """All files gone at once may be a file system that is not mounted: they must not be read again when it is."""
    append(tmp_path / "a", b"one\n")
    planner = source.planner()
    take(source, planner)
    (tmp_path / "a").rename(tmp_path / ".away")
    snapshot = planner.snapshot()
    (tmp_path / ".away").rename(tmp_path / "a")
    assert take(source, source.planner(snapshot)) == []


@pytest.mark.parametrize("snapshot", [{}, {"files": {"a": {"end": "x"}}}, {"files": {"a": {"end": 3}}}, {"files": [1]}])
def test_a_damaged_position_is_refused(source, snapshot):
    """A snapshot that is none is an error that names the source."""
    with pytest.raises(Corrupt, match="position"):
        source.planner(snapshot)
