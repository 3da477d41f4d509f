"""Channels: an epoch is published once, its parts go when nobody can need them, and a trimmed epoch says so.

Rules 2 (parts) and 3 (floor) of the design, each with a crash between any two steps.
"""

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from anabranch import sources
from anabranch.channel import channel as channel_module
from anabranch.channel.channel import Channel, ChannelSpec
from anabranch.channel.manifest import Manifest, Part, Producer
from anabranch.channel.parts import PartWriter
from anabranch.errors import Corrupt, IdentityChanged, Trimmed

SCHEMA = pa.schema([("n", pa.int64())])
SPEC = ChannelSpec("counts", SCHEMA)
RUN, OTHER = "r000000.aaaaaaaa", "r000001.bbbbbbbb"


class Crash(BaseException):
    """The process is gone: no handler of the code under test may catch this."""


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    """These tests kill processes, they cut no power: flushing would only take time."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def channel(tmp_path):
    return Channel.create(tmp_path / "counts", SPEC)


def write_part(channel, epoch, numbers, *, run=RUN, task=0):
    writer = PartWriter(channel.parts / f"{epoch}-{run}-{task}-0.arrow", SCHEMA)
    writer.write(pa.record_batch({"n": numbers}, SCHEMA))
    return writer.close()


def manifest_of(epoch, *parts, run=RUN):
    rows = sum(part.rows for part in parts)
    return Manifest(epoch=epoch, producer=Producer("counts", run, 0), released_s=0.0, rows=rows, parts=parts)


def publish(channel, *epochs, run=RUN):
    for epoch in epochs:
        assert channel.release(manifest_of(epoch, write_part(channel, epoch, [epoch], run=run), run=run)).won


def part_names(channel):
    return set(os.listdir(channel.parts))


def numbers(channel, epoch):
    table = channel.table(epoch)
    return None if table is None else table["n"].to_pylist()


# Publishing


def test_an_epoch_is_published_once(channel):
    """The second release of an epoch gets the first one's manifest, and readers see the first one's rows."""
    first = manifest_of(0, write_part(channel, 0, [1, 2]))
    second = manifest_of(0, write_part(channel, 0, [7], run=OTHER), run=OTHER)
    assert (channel.release(first).won, numbers(channel, 0)) == (True, [1, 2])
    outcome = channel.release(second)
    assert (outcome.won, outcome.manifest) == (False, first)
    assert numbers(Channel.open(channel.path), 0) == [1, 2]
    assert channel.table(1) is None


def test_a_loser_deletes_what_the_winner_does_not_name(channel):
    """A loser takes its own parts away, never one that the winning record names, and never a third writer's."""
    shared, mine = write_part(channel, 0, [1]), write_part(channel, 0, [2], task=1)
    theirs = write_part(channel, 0, [3], run=OTHER)
    bystander = write_part(channel, 0, [4], run="r000002.cccccccc")
    assert channel.release(manifest_of(0, shared, theirs)).won
    assert not channel.release(manifest_of(0, shared, mine)).won
    assert part_names(channel) == {shared.name, theirs.name, bystander.name}
    assert numbers(channel, 0) == [1, 3]


def test_repeating_a_release_keeps_its_parts(channel):
    """A writer that cannot know whether it published tries again, is told that it lost to itself, and loses nothing."""
    manifest = manifest_of(0, write_part(channel, 0, [1, 2]))
    channel.release(manifest)
    again = Channel.open(channel.path).release(manifest)
    assert (again.won, again.manifest) == (False, manifest)
    assert numbers(channel, 0) == [1, 2]


def test_parts_have_durable_names_before_the_claim(channel, monkeypatch):
    """The directory of the parts is flushed first: a manifest never outlives, in a power cut, what it names."""
    done = []
    claim = channel.ledger.claim
    monkeypatch.setattr(channel_module, "fsync_directory", done.append)
    monkeypatch.setattr(channel.ledger, "claim", lambda *given: (done.append("claim"), claim(*given))[1])
    channel.release(manifest_of(0, write_part(channel, 0, [1])))
    assert done == [channel.parts, "claim"]


def test_a_manifest_in_the_wrong_slot_is_corrupt(channel):
    """A record that was claimed for another epoch is not taken for this one."""
    channel.ledger.claim(3, manifest_of(2).encode())
    with pytest.raises(Corrupt, match="epoch 3 of channel 'counts' holds the manifest of epoch 2"):
        channel.manifest(3)


def test_a_damaged_part_is_named(channel):
    """Reading an epoch whose part is altered or gone says which file, and stays `Corrupt`: nothing was trimmed."""
    publish(channel, 0)
    path = channel.parts / next(iter(part_names(channel)))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Corrupt, match=path.name):
        channel.table(0)
    path.unlink()
    with pytest.raises(Corrupt, match=path.name):
        channel.table(0)


def test_planned_rows_are_read_from_the_source(tmp_path):
    """A channel of planned ranges gives the source's rows; the empty range gives none."""
    source = sources.generate_words(rows=10, seed=3)
    channel = Channel.create(tmp_path / "words", ChannelSpec("words", source.raw_schema(), source.spec()))
    planned = source.planner().plan(0.0, sources.Limit(4, 1 << 20))
    for epoch, some in enumerate([planned, {}]):
        channel.release(Manifest(epoch, Producer("pacer", "n1", 0), 0.0, rows=len(some) and 4, planned=some))
    assert [channel.table(0).num_rows, channel.table(1).num_rows] == [4, 0]
    assert channel.table(0).to_batches() == list(source.read(planned))


# Sweeping (rule 2)

PART_FATES = [
    # epoch of the part, run, whether a sweep takes it; the channel holds epochs 0…5 of RUN, trimmed up to 2
    (0, OTHER, True),
    (2, OTHER, True),
    (3, OTHER, True),
    (5, OTHER, True),
    (6, OTHER, False),
    (99, OTHER, False),
    (4, RUN, False),
]


@pytest.mark.parametrize(("epoch", "run", "swept"), PART_FATES)
def test_a_part_is_swept_only_when_its_slot_has_decided(channel, epoch, run, swept):
    """Orphans of trimmed or claimed slots go; named parts, and parts whose slot is still open, stay."""
    publish(channel, *range(6))
    channel.trim(2)
    kept = part_names(channel)
    name = f"{epoch}-{run}-0-0.arrow" if run == RUN else write_part(channel, epoch, [1], run=run).name
    assert channel.sweep() == int(swept)
    assert part_names(channel) == kept | (set() if swept else {name})
    assert [numbers(channel, left) for left in (3, 4, 5)] == [[3], [4], [5]]


def test_a_part_of_an_open_slot_can_still_be_published(channel):
    """A sweep between writing the parts and the claim does no harm, however often it runs."""
    part = write_part(channel, 0, [1, 2])
    assert (channel.sweep(), channel.sweep()) == (0, 0)
    assert channel.release(manifest_of(0, part)).won
    assert (channel.sweep(), numbers(channel, 0)) == (0, [1, 2])


def test_foreign_files_are_left_alone(channel):
    """A file that is no part of ours is not swept."""
    publish(channel, 0, 1)
    channel.trim(0)
    (channel.parts / "notes.txt").write_text("mine")
    channel.sweep()
    assert (channel.parts / "notes.txt").exists()


# Trimming (rule 3)


@pytest.mark.parametrize(
    ("published", "floor", "first_left"),
    [(0, 5, None), (1, 0, 0), (5, 1, 2), (5, 3, 4), (5, 4, 4), (5, 100, 4), (5, -1, 0)],
)
def test_the_newest_epoch_is_never_trimmed(channel, published, floor, first_left):
    """Trimming stops below the newest epoch, and does nothing where there is none."""
    publish(channel, *range(published))
    channel.trim(floor)
    assert channel.ledger.slots() == ([] if first_left is None else list(range(first_left, published)))
    assert len(part_names(channel)) == len(channel.ledger.slots())


def test_a_floor_does_not_fall(channel):
    """A trimmer that is late with a lower floor changes nothing."""
    publish(channel, *range(6))
    channel.trim(3)
    channel.trim(1)
    assert channel.ledger.floor() == 3
    assert channel.ledger.slots() == [4, 5]


def test_reading_below_the_floor_is_loud(channel):
    """A reader that is too late is told so, with a hint; it never takes a trimmed epoch for one still to come."""
    publish(channel, *range(4))
    channel.trim(1)
    for read in (channel.manifest, channel.table, Channel.open(channel.path).table):
        for epoch in (0, 1):
            with pytest.raises(Trimmed, match=f"slot {epoch}") as caught:
                read(epoch)
            assert caught.value.hint
    assert numbers(channel, 2) == [2]


def test_releasing_below_the_floor_publishes_nothing(channel):
    """A writer that slept through a trim cannot bring an epoch back, and its parts are swept."""
    publish(channel, *range(4))
    late = manifest_of(1, write_part(channel, 1, [99], run=OTHER), run=OTHER)
    channel.trim(2)
    with pytest.raises(Trimmed):
        channel.release(late)
    assert channel.ledger.slots() == [3]
    channel.sweep()
    assert part_names(channel) == {f"3-{RUN}-0-0.arrow"}


def crashing_trims(path):
    """Yield channels whose trim(2) died after raising the floor, then at the first part, then at the second."""
    for number in itertools.count(1):
        channel = Channel.create(path / str(number), SPEC)
        publish(channel, *range(4))
        real, calls = Path.unlink, itertools.count(1)

        def unlink(self, *, missing_ok=False, real=real, calls=calls, number=number):
            if self.suffix == ".arrow" and next(calls) >= number:
                raise Crash
            real(self, missing_ok=missing_ok)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "unlink", unlink)
            try:
                channel.trim(2)
            except Crash:
                died = True
            else:
                died = False
        if not died:
            return
        yield channel


def test_what_a_crashed_trim_leaves_is_swept(tmp_path):
    """A trim that dies between the floor and its last part leaves parts nobody can read; the next sweep takes them."""
    for number, dead in enumerate(crashing_trims(tmp_path)):
        channel = Channel.open(dead.path)
        assert (channel.ledger.floor(), channel.ledger.slots()) == (2, [3])
        assert len(part_names(channel)) == 4 - number
        with pytest.raises(Trimmed):
            channel.table(1)
        assert channel.sweep() == 3 - number
        assert part_names(channel) == {f"3-{RUN}-0-0.arrow"}
        assert numbers(channel, 3) == [3]
    assert number == 2


class TrimmedWhileRead(Channel):
    """A channel that another process trims after the manifest was read and before the first part is opened."""

    def batches(self, manifest):
        Channel.open(self.path).trim(manifest.epoch)
        yield from super().batches(manifest)


def test_an_epoch_trimmed_while_it_is_read_is_trimmed_not_corrupt(channel):
    """Parts that vanish under a reader because of a trim are no damage, and must not be reported as such."""
    publish(channel, 0, 1, 2)
    with pytest.raises(Trimmed, match="slot 1"):
        TrimmedWhileRead(channel.path, SPEC).table(1)


# Acknowledgements


def test_received_is_the_furthest_run(channel):
    """Acks are per run; a unit has received what its furthest run has, and runs that are replaced are forgotten."""
    assert channel.received("counts") == -1
    for run, epoch in [(RUN, 4), (OTHER, 2), (OTHER, 3)]:
        channel.acknowledge("counts", run, epoch)
    assert (channel.received("counts"), channel.received("other")) == (4, -1)
    channel.forget_runs("counts", OTHER)
    assert channel.received("counts") == 3


@pytest.mark.parametrize("content", [b"", b"\0" * 20, b'{"received"', b'{"got": 4}'])
def test_an_ack_lost_in_a_power_cut_counts_as_none(channel, content):
    """Acks are hints that are never flushed: an unreadable one is as good as none."""
    channel.acknowledge("counts", RUN, 4)
    channel.acknowledge("counts", OTHER, 2)
    (channel.path / "acks" / "counts" / f"{RUN}.json").write_bytes(content)
    assert channel.received("counts") == 2


def test_safe_never_goes_back(channel):
    """What a unit will never need again stays so, and forgetting its runs does not touch it."""
    assert channel.safe("counts") == -1
    for epoch in (4, 2, 4):
        channel.declare_safe("counts", epoch)
        channel.forget_runs("counts", RUN)
        assert Channel.open(channel.path).safe("counts") == 4


# Opening


def test_a_channel_is_opened_with_what_it_was_made_with(channel):
    """Making a channel again opens it; metadata on the schema makes no difference."""
    publish(channel, 0)
    again = Channel.create(channel.path, replace(SPEC, schema=SCHEMA.with_metadata({"a": "b"})))
    assert again.spec.schema.equals(SCHEMA)
    assert numbers(again, 0) == [0]


def test_another_schema_is_refused(channel):
    """A channel with other columns is not opened, and the message names both."""
    with pytest.raises(IdentityChanged, match=r"\(n int64\).*\(n string\)") as caught:
        Channel.create(channel.path, replace(SPEC, schema=pa.schema([("n", pa.string())])))
    assert "--work" in caught.value.hint
    assert Channel.open(channel.path).spec == SPEC


def test_other_source_arguments_are_refused(tmp_path):
    """A source that would read other rows is not opened, and the message names the argument."""
    source = sources.generate_words(rows=10, seed=3)
    spec = ChannelSpec("words", source.raw_schema(), source.spec())
    Channel.create(tmp_path / "words", spec)
    with pytest.raises(IdentityChanged, match=r"'words'.*seed=3 \(now 4\)"):
        Channel.create(tmp_path / "words", replace(spec, source={**source.spec(), "seed": 4}))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format": 1}',
        b'{"format": 1, "name": "a", "schema": "!", "source": null}',
        b'{"format": 1, "name": "a", "schema": "AAAA", "source": null}',
        json.dumps({**json.loads(SPEC.encode()), "format": 2}).encode(),
        json.dumps({**json.loads(SPEC.encode()), "source": {"kind": "kafka"}}).encode(),
    ],
)
def test_a_damaged_description_is_corrupt(channel, content):
    """A channel.json that is torn, foreign or of another format is never guessed at."""
    (channel.path / "channel.json").write_bytes(content)
    with pytest.raises(Corrupt):
        Channel.open(channel.path)


def test_the_parts_of_another_epoch_are_not_in_the_way(channel):
    """Epoch 1's parts are not taken for epoch 10's, though their names begin alike."""
    publish(channel, 0, 1)
    open_part = write_part(channel, 10, [10], run=OTHER)
    assert channel.sweep() == 0
    assert isinstance(open_part, Part)
    assert open_part.name in part_names(channel)


@pytest.mark.parametrize("epoch", [-1, 0, 1, 7])
def test_a_new_channel_may_begin_later(channel, epoch):
    """A channel that begins after an epoch goes on with the next; beginning again changes nothing."""
    for _ in range(2):
        channel.begin_after(epoch, Producer("counts", RUN, 0), 1.0)
        assert channel.ledger.last() == (None if epoch < 0 else epoch)
    publish(channel, epoch + 1)
    assert channel.ledger.floor() == (epoch - 1 if epoch > 0 else -1)
    if epoch >= 0:
        assert channel.manifest(epoch).rows == 0


def test_a_source_goes_on_diverting(tmp_path):
    """The description of a channel follows a source that may become what it is now, and no other."""
    spec = {"kind": "jsonl", "version": 1, "directory": str(tmp_path), "schema": "n long", "pattern": "*"}
    make = lambda **more: ChannelSpec("lines", SCHEMA, {**spec, **more})  # noqa: E731
    Channel.create(tmp_path / "lines", make(malformed="fail"))
    assert Channel.create(tmp_path / "lines", make(malformed="divert")).spec.source["malformed"] == "divert"
    assert Channel.open(tmp_path / "lines").spec.source["malformed"] == "divert"
    with pytest.raises(IdentityChanged):
        Channel.create(tmp_path / "lines", make(malformed="fail"))
