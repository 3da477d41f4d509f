"""Reading a channel from any program: every epoch once, in order, or a loud error."""

import os
from itertools import islice
from types import SimpleNamespace

import pyarrow as pa
import pytest

import anabranch as ab
from anabranch import reading
from anabranch.channel.channel import Channel, ChannelSpec
from anabranch.channel.manifest import Manifest, Producer
from anabranch.channel.parts import PartWriter
from anabranch.errors import Corrupt, Trimmed, WorkDirectoryError
from anabranch.work import Work

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def channel(tmp_path):
    work = Work.create(tmp_path)
    return Channel.create(work.channel_path("counts"), ChannelSpec("counts", SCHEMA))


def publish(channel, *epochs):
    """Publish epochs whose only row is their number; odd ones are empty."""
    for epoch in epochs:
        parts = ()
        if epoch % 2 == 0:
            writer = PartWriter(channel.parts / f"{epoch}-r0-0-0.arrow", SCHEMA)
            writer.write(pa.record_batch({"n": [epoch]}, SCHEMA))
            parts = (writer.close(),)
        channel.release(Manifest(epoch, Producer("counts", "r0", 0), 0.0, rows=len(parts), parts=parts))


def seen(epochs):
    return {epoch.number: epoch.table["n"].to_pylist() for epoch in epochs}


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (None, {0: [0], 1: [], 2: [2], 3: []}),
        (-1, {0: [0], 1: [], 2: [2], 3: []}),
        (1, {2: [2], 3: []}),
        (3, {}),
        (9, {}),
    ],
)
def test_epochs_come_in_order(channel, tmp_path, after, expected):
    """All published epochs after the one named, empty ones included, with the channel's columns; then it ends."""
    publish(channel, *range(4))
    found = list(ab.read_channel(tmp_path, "counts", after=after))
    assert seen(found) == expected
    assert [epoch.number for epoch in found] == list(expected)
    assert all(epoch.table.schema.equals(SCHEMA) for epoch in found)


def test_an_empty_channel_has_no_epochs(channel, tmp_path):
    """Nothing published is nothing to read, not an error."""
    assert list(ab.read_channel(str(tmp_path), "counts")) == []


def test_reading_ends_before_a_hole(channel, tmp_path):
    """An epoch that is not there yet is never skipped."""
    publish(channel, 0, 1, 3)
    assert list(seen(ab.read_channel(tmp_path, "counts"))) == [0, 1]


@pytest.mark.parametrize(("after", "first"), [(None, 3), (2, 3), (3, 4)])
def test_reading_begins_with_what_is_kept(channel, tmp_path, after, first):
    """Without a wish it begins with the oldest epoch kept; the one at the floor may be named as already read."""
    publish(channel, *range(5))
    channel.trim(2)
    assert list(seen(ab.read_channel(tmp_path, "counts", after=after))) == list(range(first, 5))


@pytest.mark.parametrize("after", [-1, 0, 1])
@pytest.mark.parametrize("follow", [False, True])
def test_reading_below_the_floor_is_loud(channel, tmp_path, after, follow):
    """Whoever asks for an epoch that is gone is told what is kept and how to keep more, before the first row."""
    publish(channel, *range(5))
    channel.trim(2)
    with pytest.raises(Trimmed, match=rf"keeps epochs from 3 on, epoch {after + 1} is gone") as caught:
        next(ab.read_channel(tmp_path, "counts", after=after, follow=follow))
    assert "retain_epochs" in caught.value.hint


def test_a_reader_that_is_overtaken_is_told(channel, tmp_path):
    """A reader slower than the retention gets an error where its next epoch was, never a silent gap."""
    publish(channel, *range(5))
    reader = ab.read_channel(tmp_path, "counts")
    assert next(reader).number == 0
    channel.trim(3)
    with pytest.raises(Trimmed):
        next(reader)


def test_damage_is_told(channel, tmp_path):
    """A lost part is not an empty epoch."""
    publish(channel, 0)
    for name in os.listdir(channel.parts):
        (channel.parts / name).unlink()
    with pytest.raises(Corrupt):
        list(ab.read_channel(tmp_path, "counts"))


def test_following_waits_for_the_next_epoch(channel, tmp_path, monkeypatch):
    """A follower gives each epoch as it appears; between two looks it rests."""
    rests = []

    def rest(seconds):
        rests.append(seconds)
        if len(rests) % 3 == 0:
            publish(channel, len(rests) // 3)

    monkeypatch.setattr(reading, "time", SimpleNamespace(sleep=rest))
    publish(channel, 0)
    found = list(islice(ab.read_channel(tmp_path, "counts", follow=True), 4))
    assert seen(found) == {0: [0], 1: [], 2: [2], 3: []}
    assert len(rests) == 9
    assert all(0 < seconds < 1 for seconds in rests)


def test_what_is_not_there_is_named(channel, tmp_path):
    """A directory that is no work directory, or a channel that does not exist, is named with the way out."""
    with pytest.raises(WorkDirectoryError, match="not a work directory"):
        next(ab.read_channel(tmp_path / "channels", "counts"))
    with pytest.raises(WorkDirectoryError, match="no channel 'count'") as caught:
        next(ab.read_channel(tmp_path, "count"))
    assert "counts" in caught.value.hint


def test_a_source_is_read_like_any_channel(tmp_path):
    """The rows of a planned epoch come from the source itself."""
    source = ab.generate_words(rows=10)
    work = Work.create(tmp_path)
    words = Channel.create(work.channel_path("words"), ChannelSpec("words", source.raw_schema(), source.spec()))
    planned = {"start": 2, "end": 5, "origin_us": 0}
    words.release(Manifest(0, Producer("pacer", "n0", 0), 0.0, rows=3, planned=planned))
    (epoch,) = ab.read_channel(tmp_path, "words")
    assert epoch.table.num_rows == 3
    assert epoch.table.column_names == ["ts", "word"]


def test_runs_tell_how_far_they_are(channel):
    """Those that have said something lately; what a dead one said long ago does not count."""
    for run, epoch in (("r1", 7), ("r2", 5), ("r3", 2)):
        channel.acknowledge("counts", run, epoch)
    os.utime(channel.path / "acks" / "counts" / "r3.json", (100.0, 100.0))
    assert channel.received_by_run("counts", 200.0) == {"r1": 7, "r2": 5}
    assert channel.received_by_run("counts") == {"r1": 7, "r2": 5, "r3": 2}
    assert channel.received_by_run("nobody") == {}
