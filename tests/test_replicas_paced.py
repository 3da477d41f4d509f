"""Pacing a pipeline that reads replicas: their rows are copied, and their epochs are taken whole."""

import os
import shutil

import pytest

from anabranch.channel.channel import Channel, ChannelSpec
from anabranch.channel.manifest import Manifest, Producer
from anabranch.clock import ManualClock
from anabranch.keeper.surroundings import Surroundings
from anabranch.pacer import Downstream, PacedSource, Pacer
from anabranch.settings import Settings
from replicas_elsewhere import SCHEMA, Replica, source_of


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def two(tmp_path):
    return Replica(tmp_path / "a"), Replica(tmp_path / "b")


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


def test_what_is_done_without_is_told(two, tmp_path):
    """For people to read, and gone when it is back."""
    a, b = two
    pacing = Pacing(tmp_path, counts=[a, b])
    a.publish("x")
    assert pacing.step() == "claim"
    assert pacing.pacer.without() == {}
    b.work.rename(tmp_path / "unmounted")
    pacing.step()
    assert pacing.pacer.without() == {"counts": [str(b.work)]}
    (tmp_path / "unmounted").rename(b.work)
    pacing.step()
    assert pacing.pacer.without() == {}


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


def test_a_drain_of_channels_of_unlike_length_ends_with_the_shorter(two, tmp_path):
    """What follows has no counterpart yet."""
    a, b = two
    a.publish("x").publish("y")
    b.publish("u")
    pacing = Pacing(tmp_path, left=[a], right=[b])
    pacing.pacer.close()
    assert [pacing.step() for _ in range(2)] == ["claim", "finish"]


def test_positions_are_those_of_each_source(two, tmp_path):
    """Of an epoch that was claimed for one of two, a stop notes that the one is past it; the next start goes on."""
    a, b = two
    a.publish("x").publish("y")
    b.publish("u")
    pacing = Pacing(tmp_path, left=[a], right=[b])
    assert pacing.step() == "claim"
    pacing.channels["left"].release(Manifest(1, Producer("pacer", "n0", 0), 0.0, rows=None, planned={"epoch": 1}))
    pacing.begin()
    pacing.pacer.note_positions()
    b.publish("v")
    pacing.begin()
    assert pacing.step() == "wait", "it was completed when it began"
    assert pacing.words("right", 1) == ["v"]
