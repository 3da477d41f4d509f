"""Part files: written once under a name of their own, read only whole and unaltered."""

import errno
import os
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from anabranch.channel.digest import HASH_COLUMN, Digest
from anabranch.channel.manifest import Part
from anabranch.channel.parts import PartWriter, read_part
from anabranch.channel.writer import PartsPlan, TaskShare, _task
from anabranch.errors import Corrupt
from fake_task import inside_task

SCHEMA = pa.schema([("n", pa.int64()), ("word", pa.string())])
NAME = "4-r000001.0a1b2c3d-0-0.arrow"


def batch(*numbers):
    return pa.record_batch({"n": list(numbers), "word": [f"w{n}" for n in numbers]}, SCHEMA)


def hashed(*numbers):
    """Return a batch as a task gets it: the row hash is its last column."""
    return batch(*numbers).append_column(HASH_COLUMN, pa.array([n * 7919 for n in numbers], pa.int64()))


def write(directory, *batches, name=NAME):
    writer = PartWriter(directory / name, SCHEMA)
    for some in batches:
        writer.write(some)
    return writer.close()


def rows(directory, part):
    return pa.Table.from_batches(list(read_part(directory, part)), SCHEMA).to_pylist()


@pytest.fixture
def parts(tmp_path):
    """Return the directory of parts, beside a checkpoint whose micro-batches 0 and 1 are epochs 4 and 5."""
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    for batch_id, epoch in enumerate((4, 5)):
        (offsets / str(batch_id)).write_text(f'v1\n{{}}\n{{"epoch": {epoch}}}')
    (tmp_path / "parts").mkdir()
    return tmp_path / "parts"


def plan(parts, run="r000001.0a1b2c3d", schema=SCHEMA, event_time=None):
    return PartsPlan(str(parts), run, str(parts.parent / "checkpoint"), schema.serialize().to_pybytes(), event_time)


def test_what_is_written_is_read(tmp_path):
    """A part gives back its rows in order, and is described by its name, rows and size."""
    part = write(tmp_path, batch(1, 2), batch(), batch(3))
    assert (part.name, part.rows, part.size_bytes) == (NAME, 3, (tmp_path / NAME).stat().st_size)
    assert [row["n"] for row in rows(tmp_path, part)] == [1, 2, 3]


def test_a_name_is_never_used_twice(tmp_path):
    """Writing under a name that exists fails, and leaves the part that has it as it is."""
    part = write(tmp_path, batch(1))
    with pytest.raises(FileExistsError):
        PartWriter(tmp_path / NAME, SCHEMA)
    assert [row["n"] for row in rows(tmp_path, part)] == [1]


def test_every_attempt_of_every_task_has_a_name_of_its_own(parts):
    """Epoch, run, task and attempt are all in the name, so a repeated task cannot meet another's part."""
    names = set()
    for run, batch_id in (("r000001.0a1b2c3d", 0), ("r000002.0a1b2c3d", 0), ("r000001.0a1b2c3d", 1)):
        for task, attempt in [(0, 0), (0, 1), (1, 2)]:
            with inside_task(task, attempt, batch_id):
                share = TaskShare(plan(parts, run))
                share.take(hashed(1))
                names.add(share.finish()["name"])
    assert len(names) == 9
    assert "5-r000001.0a1b2c3d-1-2.arrow" in names
    assert names == set(os.listdir(parts))


def test_parts_are_written_in_micro_batches_only(parts):
    """Outside of a task, or in a task that no micro-batch started, nothing says which epoch it is."""
    with pytest.raises(Corrupt, match="micro-batch"):
        TaskShare(plan(parts)).take(hashed(1))
    with inside_task(batch_id=None), pytest.raises(Corrupt, match="micro-batch"):
        TaskShare(plan(parts)).take(hashed(1))
    assert os.listdir(parts) == []


def damaged(path, content):
    path.write_bytes(content)


@pytest.mark.parametrize("left", [0, 1, 8, 100, -1])
def test_a_torn_part_is_found_out(tmp_path, left):
    """A part that lost its end, down to an empty file, is named as corrupt."""
    part = write(tmp_path, batch(1, 2, 3))
    damaged(tmp_path / NAME, (tmp_path / NAME).read_bytes()[:left])
    with pytest.raises(Corrupt, match=NAME) as caught:
        rows(tmp_path, part)
    assert caught.value.hint


def test_a_changed_byte_is_found_out(tmp_path):
    """Whichever byte of a part is altered, not one row of it is given out."""
    part = write(tmp_path, batch(1, 2, 3))
    content = (tmp_path / NAME).read_bytes()
    for position in range(len(content)):
        altered = bytearray(content)
        altered[position] ^= 0x10
        damaged(tmp_path / NAME, altered)
        with pytest.raises(Corrupt, match=NAME):
            next(read_part(tmp_path, part))


def test_a_longer_part_is_found_out(tmp_path):
    """Bytes after the end are an alteration too."""
    part = write(tmp_path, batch(1))
    damaged(tmp_path / NAME, (tmp_path / NAME).read_bytes() + b"\0")
    with pytest.raises(Corrupt, match=NAME):
        rows(tmp_path, part)


def test_a_missing_part_is_named(tmp_path):
    """A part that a manifest names and nobody can find is corrupt, with a hint what to do."""
    with pytest.raises(Corrupt, match=NAME) as caught:
        rows(tmp_path, Part(NAME, 1, 100, 7))
    assert "copy" in caught.value.hint


def test_a_part_is_flushed_before_it_is_described(tmp_path, monkeypatch):
    """The last byte goes to the device after it was written and before `close` returns."""
    done = []
    for name in ("write", "fsync"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, name=name, real=real: (done.append(name), real(*given))[1])
    write(tmp_path, batch(1))
    assert done[-1] == "fsync"
    assert done.count("write") > 0


def test_a_device_may_take_less_than_it_is_given(tmp_path, monkeypatch):
    """A write that takes a byte at a time still ends as the whole part."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:1]))
    part = write(tmp_path, batch(1, 2))
    monkeypatch.undo()
    assert [row["n"] for row in rows(tmp_path, part)] == [1, 2]


def test_a_failed_task_leaves_no_part(parts):
    """Rows that stop coming take the half-written part with them."""

    def broken():
        yield hashed(1, 2)
        raise ZeroDivisionError

    with inside_task(), pytest.raises(ZeroDivisionError):
        list(_task(plan(parts))(broken()))
    assert os.listdir(parts) == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_full_disk_leaves_no_part(parts, monkeypatch):
    """A part that did not fit on the device is removed, and the error is passed on."""
    real, count = os.write, [0]

    def full(descriptor, data):
        count[0] += 1
        if count[0] > 3:
            raise OSError(errno.ENOSPC, "no space left on device")
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    with inside_task(), pytest.raises(OSError, match="no space"):
        list(_task(plan(parts))(iter([hashed(*range(500)), hashed(*range(500))])))
    assert os.listdir(parts) == []


def test_a_task_without_rows_writes_nothing(parts):
    """Neither no batches nor empty ones make a part."""
    assert list(_task(plan(parts))(iter([]))) == []
    assert list(_task(plan(parts))(iter([hashed()]))) == []
    assert os.listdir(parts) == []


def test_a_batch_without_hashes_is_refused(parts):
    """Rows whose digest cannot be taken are never written."""
    with pytest.raises(Corrupt, match="row hashes"):
        TaskShare(plan(parts)).take(batch(1))
    assert os.listdir(parts) == []


def described(parts, *batches, **options):
    """Return what a task says about the share it wrote."""
    with inside_task(attempt=len(os.listdir(parts))):
        return next(iter(_task(plan(parts, **options))(iter(batches)))).to_pylist()[0]


def test_the_digest_does_not_depend_on_how_rows_are_spread(parts):
    """One task over all rows, or two over some each in another order, add up to the same digest."""
    whole = described(parts, hashed(1, 2, 3, 3))
    shares = [described(parts, hashed(3, 1)), described(parts, hashed(3), hashed(2))]
    total = Digest()
    for share in shares:
        total.merge_hex(share["digest"])
    assert total.hex() == whole["digest"]
    assert sum(share["rows"] for share in shares) == whole["rows"] == 4


@pytest.mark.parametrize("other", [(1, 2, 3), (1, 2, 3, 3, 3), (1, 2, 2, 3), (1, 2, 3, 4), ()])
def test_other_rows_have_another_digest(other):
    """A row more, less or instead changes the digest."""
    digests = []
    for numbers in [(1, 2, 3, 3), other]:
        digest = Digest()
        digest.update(hashed(*numbers).column(2))
        digests.append(digest.hex())
    assert digests[0] != digests[1]


TIMES = [datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC) for second in (30, 10, 20)]
ZONED = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("column", "bounds"),
    [
        (pa.array(TIMES, ZONED), (TIMES[1], TIMES[0])),
        (pa.array([None, TIMES[2], None], ZONED), (TIMES[2], TIMES[2])),
        (pa.array([None, None], ZONED), None),
        (
            pa.array([{"start": None, "end": time} for time in TIMES], pa.struct([("start", ZONED), ("end", ZONED)])),
            (TIMES[1], TIMES[0]),
        ),
    ],
    ids=["times", "some nulls", "only nulls", "windows count with their end"],
)
def test_event_time_is_bounded(parts, column, bounds):
    """A share knows its earliest and latest event time, without nulls."""
    hashes = pa.array([0] * len(column), pa.int64())
    rows = pa.record_batch({"ts": column, HASH_COLUMN: hashes})
    found = described(parts, rows, schema=pa.schema([("ts", column.type)]), event_time="ts")
    expected = [None if bounds is None else int(time.timestamp() * 1_000_000) for time in bounds or (None, None)]
    assert [found["low_us"], found["high_us"]] == expected
