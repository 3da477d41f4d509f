"""Reading a channel that several pipelines publish, each in its own work directory: what is taken from whom."""

import os
import shutil
from dataclasses import replace

import pyarrow as pa
import pytest

from anabranch import sources
from anabranch.channel.channel import Channel, ChannelSpec
from anabranch.channel.manifest import Manifest, Producer
from anabranch.channel.parts import PartWriter
from anabranch.clock import ManualClock
from anabranch.errors import PipelineError, SourceError
from anabranch.keeper.surroundings import Surroundings
from anabranch.pacer import Downstream, PacedSource, Pacer
from anabranch.settings import Settings
from anabranch.sources.source import Limit

SCHEMA = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("word", pa.string())])
LIMIT = Limit(1000, 1 << 20)


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


class Replica:
    """A pipeline elsewhere, as its channel shows it."""

    def __init__(self, work):
        self.work = work
        (work / "channels").mkdir(parents=True)
        self.channel = Channel.create(work / "channels" / "counts", ChannelSpec("counts", SCHEMA))

    def publish(self, *words, epoch=None, **fields):
        """Publish the next epoch with some rows."""
        epoch = self.channel.last_epoch() + 1 if epoch is None else epoch
        parts = ()
        if words:
            writer = PartWriter(self.channel.parts / f"{epoch}-r{self.work.name}-0-0.arrow", SCHEMA)
            writer.write(pa.record_batch([pa.array([0] * len(words), SCHEMA[0].type), list(words)], schema=SCHEMA))
            parts = (writer.close(),)
        digest = f"{sum(hash(word) for word in words) & (1 << 64) - 1:032x}"
        manifest = Manifest(epoch, Producer("counts", "r", 0), 0.0, rows=len(words), parts=parts, digest=digest)
        self.channel.release(replace(manifest, **fields))
        return self


@pytest.fixture
def two(tmp_path):
    return Replica(tmp_path / "a"), Replica(tmp_path / "b")


def source_of(*replicas, **options):
    return sources.read_replicas("counts", *(replica.work for replica in replicas), **options)


def taken(planner, now_s=0.0):
    """Let a planner take what is next; return the range and its rows."""
    planned = planner.plan(now_s, LIMIT)
    rows = [row for batch in planner.taken(planned) for row in batch.to_pylist()] if planned else []
    planner.apply(planned)
    return planned, rows


def words(rows):
    return [row["word"] for row in rows if row["word"] is not None]


def test_an_epoch_comes_from_whichever_has_it_first(two):
    """And each once, whoever publishes it later."""
    a, b = two
    planner = source_of(a, b).planner()
    assert not planner.waiting(0.0)
    b.publish("x")
    assert planner.waiting(0.0)
    assert taken(planner)[1][0]["word"] == "x"
    a.publish("x").publish("y", "z")
    planned, rows = taken(planner)
    assert (planned["epoch"], planned["replica"], words(rows)) == (1, 0, ["y", "z"])
    b.publish("y", "z")
    assert not planner.waiting(0.0)


def test_an_empty_epoch_is_an_epoch(two):
    """Else numbers would not be those of the replicas."""
    planner = source_of(*two).planner()
    two[0].publish()
    planned, rows = taken(planner)
    assert planned
    assert rows == []


def test_replicas_that_disagree_are_refused(two):
    """They read other epochs, or do not repeat."""
    a, b = two
    a.publish("x")
    b.publish("y")
    with pytest.raises(SourceError, match="not the same") as caught:
        source_of(a, b).planner().plan(0.0, LIMIT)
    assert "aligned=False" in caught.value.hint


def test_what_lacks_nothing_is_preferred(two):
    """Of a gap and an epoch that is whole, the whole one; of a gap alone, the gap, which stays named."""
    a, b = two
    a.publish(gap=True).publish(gap=True)
    b.publish("x")
    planner = source_of(a, b).planner()
    assert taken(planner)[0]["incomplete"] is False
    assert taken(planner)[0]["incomplete"] is True


def test_a_damaged_or_missing_replica_is_done_without(two, tmp_path):
    """Its files are checked as they are copied; it is asked again later."""
    a, b = two
    a.publish("x").publish("y")
    b.publish("x").publish("y")
    for path in a.channel.parts.iterdir():
        path.write_bytes(b"torn")
    planner = source_of(a, b).planner()
    assert taken(planner)[0]["replica"] == 1
    shutil.rmtree(b.work)
    assert taken(planner)[0] == {}
    assert not planner.waiting(0.5)
    assert not (tmp_path / "b").exists(), "nothing is made where somebody else's work directory was"
    a.channel.parts.joinpath("1-ra-0-0.arrow").unlink()
    shutil.copytree(a.work, b.work)
    assert planner.plan(0.5, LIMIT) == {}


def test_an_epoch_that_is_gone_everywhere_is_an_error(two):
    """Not a silent gap; while one still has it, it is taken from there."""
    a, b = two
    for replica in two:
        replica.publish("x").publish("y")
    a.channel.trim(0)
    planner = source_of(a, b).planner()
    assert taken(planner)[0]["replica"] == 1
    late = source_of(a, b).planner()
    b.channel.trim(0)
    with pytest.raises(SourceError, match="has epoch 0 any more"):
        late.waiting(5.0)


@pytest.mark.parametrize("aligned", [True, False])
def test_a_drain_takes_what_there_is(two, aligned):
    """And ends, though more comes."""
    two[0].publish("x")
    two[1].publish("x").publish("y")
    planner = source_of(*two, aligned=aligned).planner()
    planner.close(0.0)
    two[1].publish("z")
    found = []
    while planner.waiting(0.0):
        found += words(taken(planner)[1])
    assert planner.ended(0.0)
    assert sorted(set(found)) == ["x", "y"]


def test_rows_of_all_replicas_come_with_their_punctuations(two):
    """Each with the number of its replica; the newest watermark of a stretch follows it."""
    a, b = two
    a.publish("x", watermark_ms=3).publish("y", watermark_ms=5)
    b.publish("x", "y")
    planner = source_of(a, b, aligned=False).planner()
    planned, rows = taken(planner)
    assert [(row["replica"], row["word"]) for row in rows] == [(0, "x"), (0, "y"), (0, None), (1, "x"), (1, "y")]
    assert rows[2]["punctuation"].timestamp() == 0.005
    assert planned["stretches"][1] == {"replica": 1, "first": 0, "last": 0, "punctuation_ms": None}
    again = source_of(a, b, aligned=False).planner(planner.snapshot())
    assert not again.waiting(0.0)
    b.publish("z")
    assert taken(again)[1][0]["word"] == "z"


def test_a_replica_that_trimmed_what_was_not_read_is_left_out(two):
    """Its punctuations would say that everything before came; it did not come from this one."""
    a, b = two
    a.publish("x").publish("y")
    a.channel.trim(0)
    b.publish("x")
    planner = source_of(a, b, aligned=False).planner()
    assert words(taken(planner)[1]) == ["x"]
    assert not planner.waiting(0.0)
    lonely = source_of(a, aligned=False).planner()
    with pytest.raises(SourceError, match="trimmed what was not read"):
        lonely.waiting(0.0)


def test_rows_that_may_be_missing_are_refused_where_nobody_could_tell(two):
    """A filter of copies cannot know that a copy is missing."""
    two[0].publish("x", incomplete=True)
    with pytest.raises(SourceError, match="incomplete"):
        source_of(*two, aligned=False).planner().plan(0.0, LIMIT)


def test_columns_come_from_whichever_is_there(two, tmp_path):
    """Or are declared, before any of them is there."""
    source = sources.read_replicas("counts", tmp_path / "nobody", two[1].work)
    assert source.raw_schema().names == ["ts", "word"]
    missing = sources.read_replicas("counts", tmp_path / "nobody")
    with pytest.raises(SourceError, match="not known"):
        missing.raw_schema()
    assert sources.read_replicas("counts", "x", schema="a int").raw_schema().names == ["a"]
    assert source_of(two[0], aligned=False).raw_schema().names == ["ts", "word", "replica", "punctuation"]


@pytest.mark.parametrize(
    ("channel", "works"), [("counts", ()), ("counts", ("a", "a")), ("../x", ("a",)), ("", ("a",)), (".x", ("a",))]
)
def test_senseless_arguments_are_refused(channel, works):
    """When the source is made."""
    with pytest.raises(PipelineError):
        sources.read_replicas(channel, *works)


class Pacing:
    """A pipeline that reads replicas, as far as pacing goes."""

    def __init__(self, path, **replicas):
        self.clock = ManualClock(1000.0)
        self.sources = {name: source_of(*some) for name, some in replicas.items()}
        self.channels = {
            name: Channel.create(path / f"own-{name}", ChannelSpec(name, source.raw_schema(), source.spec()))
            for name, source in self.sources.items()
        }
        self.generation = -1
        self.begin()

    def begin(self):
        """Begin with a new pacer."""
        self.generation += 1
        paced = {name: PacedSource(source, self.channels[name]) for name, source in self.sources.items()}
        settings = Settings(shortest_interval_s=0.0, longest_interval_s=1.0)
        self.pacer = Pacer(paced, settings, self.clock, run="n1", generation=self.generation, depth=2)
        self.pacer.resume()

    def step(self):
        self.clock.advance(10.0)
        return self.pacer.step(Downstream(taken=self.pacer.last_epoch, received=self.pacer.last_epoch))

    def words(self, name, epoch):
        table = self.channels[name].table(epoch)
        return None if table is None else table["word"].to_pylist()


def test_what_is_taken_is_copied_before_it_is_claimed(two, tmp_path):
    """Replicas may vanish then; epochs are those of the replicas, and none is made up."""
    a, b = two
    pacing = Pacing(tmp_path, counts=[a, b])
    a.publish("x").publish()
    assert [pacing.step() for _ in range(5)] == ["claim", "claim", "wait", "wait", "wait"]
    shutil.rmtree(a.work)
    b.publish("x").publish().publish("y")
    pacing.begin()
    assert pacing.step() == "claim"
    assert [pacing.words("counts", epoch) for epoch in range(3)] == [["x"], [], ["y"]]
    pacing.pacer.close()
    assert pacing.step() == "finish"


def test_an_epoch_of_several_channels_is_taken_whole_or_not_at_all(two, tmp_path):
    """One that cannot be read just now is waited for: with a hole in it, the two would never be aligned again."""
    a, b = two
    pacing = Pacing(tmp_path, left=[a], right=[b])
    a.publish("x").publish("y")
    assert pacing.step() == "wait"
    b.publish("u").publish("v")
    (torn,) = b.channel.parts.glob("0-*")
    whole = torn.read_bytes()
    torn.write_bytes(b"torn")
    assert [pacing.step() for _ in range(2)] == ["wait", "wait"]
    assert pacing.words("left", 0) is None
    torn.write_bytes(whole)
    assert pacing.step() == "claim"
    # The second epoch was claimed for the first of them only, by a pacer that died.
    pacing.channels["left"].release(Manifest(1, Producer("pacer", "n0", 0), 0.0, rows=None, planned={"epoch": 1}))
    (torn,) = b.channel.parts.glob("1-*")
    whole = torn.read_bytes()
    torn.write_bytes(b"torn")
    pacing.begin()
    assert pacing.step() == "wait"
    torn.write_bytes(whole)
    assert pacing.step() == "claim"
    assert pacing.words("right", 1) == ["v"]
    assert pacing.pacer.last_epoch == 1


def test_copies_are_kept_with_the_versions_of_whoever_reads_them(two, tmp_path):
    """Elsewhere the replicas may not be within reach, and another unit may not be as far."""
    pacing = Pacing(tmp_path, counts=[two[0]])
    two[0].publish("x").publish().publish("y")
    for _ in range(3):
        pacing.step()
    output = Channel.create(tmp_path / "out", ChannelSpec("out", SCHEMA))
    files = Surroundings(tmp_path, (pacing.channels["counts"],), output, ()).files(1)
    (part,) = pacing.channels["counts"].manifest(0).parts
    assert [path for path in files if "parts" in path] == [f"own-counts/parts/{part.name}"]
