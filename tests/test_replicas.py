"""What runs on a node follows what it leads: replicas that are begun, promoted, replaced and ended. Without Spark."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from anabranch import workshop
from anabranch.channel.channel import Channel, ChannelSpec
from anabranch.channel.inputs import Gate
from anabranch.channel.manifest import Manifest, Producer
from anabranch.clock import ManualClock
from anabranch.errors import Corrupt, StoreUnavailable
from anabranch.node_options import NodeOptions
from anabranch.replicas import Replicas
from anabranch.setup import Setup
from anabranch.spans import NO_STATE, Span
from anabranch.strategies import ActiveStandby, Amnesia, PassiveStandby, TrailingStandby, UpstreamBackup
from anabranch.strategies.strategy import WARM_BATCHES
from anabranch.testing.wait import wait_until
from anabranch.work import Work

TIMEOUT_S = 30.0
SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


@dataclass
class FakeUnit:
    """A run that does what it is told, and notes it."""

    generation: int | None
    scratch: bool
    at: int = -1
    batches: int = 0
    told: list = field(default_factory=list)
    broken: BaseException | None = None
    stuck: bool = False
    floor: int = -1
    run: str = "r000000.00000000"

    def prepare(self, restore=None, *, owner=None):
        self.told.append(("prepare", owner))
        if self.broken is not None:
            raise self.broken
        return self.at

    def prepare_empty(self):
        self.told.append("prepare empty")

    def begin_after(self, epoch, **options):
        self.told.append(("begin after", epoch, options))

    def start(self, _spark, gate):
        self.told.append(("start", gate))

    def promote(self, generation, how):
        self.generation = generation
        self.told.append(("promote", generation, how.at_once))

    def lead_on(self, generation):
        if generation != self.generation:
            self.generation = generation
            self.told.append(("lead on", generation))

    def follow(self, to, *, go_on):
        self.told.append(("follow", to, go_on))

    def stop(self):
        self.told.append("stop")
        if self.stuck:
            raise TimeoutError("the query does not end")

    def failure(self):
        return self.broken

    def committed(self):
        return self.at

    def input_floor(self):
        return self.floor

    def wait_until_polled(self):
        self.told.append("polled")

    def remove_former_runs(self):
        self.told.append("tidy")


class Place:
    """A node with one unit, `counts`, over `lines`."""

    def __init__(self, path: Path, strategy, monkeypatch, span=NO_STATE, unmergeable=None):
        work = Work.create(path)
        for name in ("lines", "counts"):
            Channel.create(work.channel_path(name), ChannelSpec(name, SCHEMA))
        self.units, self.notes, self.clock = [], [], ManualClock(1000.0)
        self.next_broken = []
        segment = SimpleNamespace(name="counts", inputs=("lines",))
        setup = Setup(
            SimpleNamespace(sources={"lines": None}),
            {"counts": segment},
            {"lines": ("counts",), "counts": ()},
            {"counts": strategy},
            work,
            NodeOptions(file=path / "p.py", work=path, name="node-2"),
            self.clock,
            "life",
        )
        monkeypatch.setattr(Setup, "note", lambda _, kind, **fields: self.notes.append((kind, fields)))
        built = SimpleNamespace(segment=segment, span=span, unmergeable=unmergeable)
        plan = SimpleNamespace(built=built, run="r000000.00000000")
        assembly = SimpleNamespace(plans={"counts": plan}, make=lambda: None, build=lambda _: plan)
        monkeypatch.setattr(workshop, "Unit", self.unit)
        self.replicas = Replicas(setup, workshop.Workshop(setup, None, assembly, None, lambda *_: None))
        self.replicas.assemble()
        self.lines, self.counts = work.channel("lines"), work.channel("counts")

    def unit(self, _built, place, _events, *, run, generation, clock):
        del run, clock
        made = FakeUnit(generation, place.scratch, at=self.counts.last_epoch())
        made.broken = self.next_broken.pop() if self.next_broken else None
        self.units.append(made)
        return made

    def publish(self, *channels, epochs=1):
        for channel in channels:
            for _ in range(epochs):
                epoch = channel.last_epoch() + 1
                channel.release(Manifest(epoch, Producer("x", "r", 0), 0.0, rows=0, seen_ms=(epoch,), highest_ms=77))

    def reconcile(self, generation=None):
        """Let the node settle, leading the unit in a generation, or not."""
        held = {} if generation is None else {"counts": generation}
        self.replicas.reconcile(held)
        wait_until(lambda: all(job.future.done() for job in self.replicas._jobs.values()), TIMEOUT_S, "the starter")
        self.replicas.reconcile(held)


@pytest.fixture
def place(tmp_path, monkeypatch):
    made = []

    def make(strategy, **options):
        made.append(Place(tmp_path, strategy, monkeypatch, **options))
        return made[-1]

    yield make
    for one in made:
        one.replicas.end_all()


def test_what_is_led_runs_once(place):
    """However often it is looked at; and it ends when the lease is another's."""
    node = place(ActiveStandby())
    for _ in range(3):
        node.reconcile(0)
    assert len(node.units) == 1
    assert node.replicas.primaries["counts"] is node.units[0]
    node.reconcile(None)
    assert "counts" not in node.replicas.primaries
    assert "stop" in node.units[0].told


def test_a_primary_that_does_not_end_in_time_is_no_reason_to_die(place):
    """It can do no harm, and what else runs here goes on."""
    node = place(ActiveStandby())
    node.reconcile(0)
    node.units[0].stuck = True
    node.reconcile(None)
    node.units[0].stuck = False
    assert node.notes[-1][0] == "standby failed"


def test_a_standby_is_promoted(place):
    """The run that was there goes on; nothing is started anew."""
    node = place(ActiveStandby())
    node.reconcile(None)
    assert node.units == [], "nothing is published yet"
    node.publish(node.lines, node.counts, epochs=3)
    node.reconcile(None)
    assert list(node.replicas.standbys) == ["counts"]
    for run in ("the old primary's", node.units[0].run):
        node.lines.acknowledge("counts", run, 2)
    node.reconcile(5)
    assert len(node.units) == 1
    assert list(node.lines.received_by_run("counts")) == [node.units[0].run], "nobody waits for the old primary"
    assert node.units[0].told[-1] == ("promote", 5, 2)
    assert node.replicas.primaries["counts"].generation == 5


def test_a_standby_that_failed_is_not_promoted(place):
    """A new run takes its place."""
    node = place(ActiveStandby())
    node.publish(node.lines, node.counts)
    node.reconcile(None)
    node.units[0].broken = RuntimeError("its query died")
    node.reconcile(2)
    assert node.replicas.primaries["counts"] is node.units[1]
    assert ("prepare", None) in node.units[1].told, "it goes on from the newest state, not from none"
    assert "stop" in node.units[0].told


def test_a_standby_whose_input_is_trimmed_is_not_promoted(place):
    """It waited while others went on; its query could only fail, here and on the next node."""
    here = place(ActiveStandby())
    here.publish(here.lines, here.counts, epochs=2)
    here.reconcile()
    standby = here.units[0]
    standby.floor = standby.at + 1
    here.reconcile(generation=3)
    assert "stop" in standby.told
    assert here.units[1].generation == 3
    assert here.replicas.primaries["counts"] is here.units[1]


@pytest.mark.parametrize("error", [FileNotFoundError("a file went"), Corrupt("half of it is there")])
def test_a_standby_that_cannot_begin_is_tried_again_later(place, error):
    """The primary's files may go while they are linked; that is no reason to die."""
    node = place(ActiveStandby())
    node.publish(node.lines, node.counts)
    node.next_broken = [error]
    node.reconcile(None)
    assert node.notes[-1][0] == "standby failed"
    node.reconcile(None)
    assert len(node.units) == 1
    node.clock.advance(6.0)
    node.reconcile(None)
    assert len(node.units) == 2
    assert list(node.replicas.standbys) == ["counts"]


def test_a_primary_that_cannot_begin_is_an_error(place):
    """For the node to die of: another one, or the next life, may do better."""
    node = place(ActiveStandby())
    node.next_broken = [Corrupt("the state is torn")]
    with pytest.raises(Corrupt, match="torn"):
        node.reconcile(0)


def test_a_primary_whose_files_went_while_it_was_begun_is_begun_again(place):
    """Whoever led before may live on, and tidy up; but what is gone for good is an error in the end."""
    node = place(ActiveStandby())
    node.next_broken = [FileNotFoundError(2, "gone", "changelog")] * 2
    for _ in range(3):
        node.reconcile(0)
    assert "counts" in node.replicas.primaries
    assert [kind for kind, _ in node.notes] == ["begun again"] * 2
    node.reconcile()
    node.next_broken = [FileNotFoundError(2, "gone", "changelog")] * 9

    def lead_on():
        for _ in range(9):
            node.reconcile(1)

    with pytest.raises(FileNotFoundError):
        lead_on()
    assert len(node.notes) == 2 + 3


def test_a_primary_whose_store_is_away_is_tried_again_later(place):
    """Ending would not bring the store back; the wait is noted once, and over when the store is there."""
    node = place(PassiveStandby("log:store"))
    node.next_broken = [StoreUnavailable("not now"), StoreUnavailable("not now")]
    node.reconcile(0)
    node.reconcile(0)
    assert len(node.units) == 1
    for _ in range(2):
        node.clock.advance(3.0)
        node.reconcile(0)
    assert [kind for kind, _ in node.notes] == ["waits for its store"]
    assert list(node.replicas.primaries) == ["counts"]


def test_a_trailing_standby_is_told_where_to_go_once(place):
    """And not again before it is there."""
    node = place(TrailingStandby(every_s=1))
    node.publish(node.lines, node.counts, epochs=2)
    node.reconcile(None)
    unit = node.units[0]
    unit.at, unit.batches = 1, WARM_BATCHES
    node.publish(node.lines, node.counts, epochs=6)
    node.clock.advance(2.0)
    for _ in range(3):
        node.reconcile(None)
    assert [told for told in unit.told if told[0] == "follow"] == [("follow", 6, False)]


def test_a_gated_standby_is_replaced_by_a_newer_one(place, monkeypatch):
    """The old one ends when the new one is ready."""
    node = place(PassiveStandby(store="memory:"))
    node.publish(node.lines, node.counts, epochs=3)
    node.reconcile(None)
    node.units[0].batches = WARM_BATCHES
    node.publish(node.lines, node.counts, epochs=20)
    saved = ("r", SimpleNamespace(epoch=node.counts.last_epoch()))
    monkeypatch.setattr(workshop, "newest_commit", lambda *_, **__: saved)
    node.clock.advance(30.0)
    node.reconcile(None)
    assert node.replicas.standbys["counts"].unit is node.units[1]
    assert "stop" in node.units[0].told
    assert node.replicas.batches("counts") == WARM_BATCHES, "the node is as warm as it was"


def test_upstream_backup_warms_up_with_a_scratch_run(place):
    """And waits with an empty one, which begins where the replay has to."""
    node = place(UpstreamBackup(), span=Span(1))
    node.publish(node.lines, node.counts, epochs=3)
    node.reconcile(None)
    assert node.units[0].scratch
    node.units[0].batches = WARM_BATCHES
    node.reconcile(None)
    standby = node.replicas.standbys["counts"].unit
    assert standby is node.units[1]
    assert not standby.scratch
    standby.at = -1
    node.reconcile(4)
    assert node.replicas.primaries["counts"] is standby
    assert ("begin after", -1, {"compare_from": 2, "lost": False}) in standby.told


def test_amnesia_publishes_gaps(place):
    """Before anything else, in the new generation."""
    node = place(Amnesia())
    node.publish(node.lines, node.counts, epochs=2)
    node.publish(node.lines, epochs=4)
    node.reconcile(3)
    gaps = [node.counts.manifest(epoch) for epoch in range(2, 5)]
    assert all(gap.gap and gap.producer.generation == 3 for gap in gaps)
    assert node.counts.last_epoch() == 4
    assert ("begin after", 1, {"compare_from": -1, "lost": True}) in node.units[0].told
    assert ("start", Gate(5, after=1)) in node.units[0].told
    assert node.notes == [("gap", {"unit": "counts", "first": 2, "last": 4})]
    assert {gap.highest_ms for gap in gaps} == {77}, "what says so may be trimmed by the time that it is needed"


def test_a_primary_whose_predecessor_goes_on_catches_up(place):
    """After a planned takeover the old primary publishes on; the new one reads several epochs at once to get there."""
    node = place(ActiveStandby())
    node.publish(node.lines, node.counts, epochs=3)
    node.reconcile(4)
    unit = node.units[0]
    node.publish(node.lines, node.counts, epochs=9)
    for _ in range(3):
        node.reconcile(4)
    assert unit.told[-1] == ("follow", 10, True)
    assert sum(told[0] == "follow" for told in unit.told) == 1
    unit.at = 10
    node.reconcile(4)
    assert sum(told[0] == "follow" for told in unit.told) == 1


def test_what_runs_leads_on_in_a_newer_generation(place):
    """A successor that was planned died of it: the query that still does the work goes on, and is not begun again."""
    node = place(ActiveStandby())
    node.publish(node.lines, node.counts, epochs=3)
    node.reconcile(4)
    node.reconcile(6)
    node.reconcile(6)
    assert len(node.units) == 1
    assert node.units[0].told.count(("lead on", 6)) == 1
