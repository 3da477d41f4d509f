"""Rows of numbers as sources, and pacers over them that may die at any claim."""

import pyarrow as pa

from anabranch.channel.channel import Channel, ChannelSpec
from anabranch.clock import ManualClock
from anabranch.pacer import Downstream, PacedSource, Pacer
from anabranch.settings import Settings

SETTINGS = Settings(largest_epoch_rows=3, pending_epochs=4)
DONE = Downstream(taken=10**6, received=10**6)
SCHEMA = pa.schema([("n", pa.int64())])


class Crash(BaseException):
    """The process is gone: no handler of the code under test may catch this."""


class NumberPlanner:
    """Where a row of numbers stands; notes every range it was told."""

    def __init__(self, source, snapshot):
        self.source = source
        self.next = snapshot["next"] if snapshot else 0
        self.applied = []
        self.closed = 0

    def waiting(self, now_s):
        return self.source.rows > self.next

    def backlogged(self, now_s, limit):
        return False

    def plan(self, now_s, limit):
        end = min(self.source.rows, self.next + limit.rows)
        return {"start": self.next, "end": end} if end > self.next else {}

    def apply(self, planned):
        assert planned.get("start", self.next) == self.next, "a range was lost, repeated or forgotten"
        self.next = planned.get("end", self.next)
        self.applied.append(planned)

    def close(self, now_s):
        self.closed += 1

    def ended(self, now_s):
        return self.source.ends and self.next >= self.source.rows

    def snapshot(self):
        return {"next": self.next}


class NumberSource:
    """The outside world: rows that are there, and whether more may come."""

    def __init__(self, rows):
        self.rows, self.ends, self.planners = rows, False, []

    def planner(self, snapshot=None):
        self.planners.append(NumberPlanner(self, snapshot))
        return self.planners[-1]


class WatchedChannel(Channel):
    """Calls `before` ahead of every look and every claim, which is where a pacer can die or a rival come first."""

    before = staticmethod(lambda _operation: None)

    def manifest(self, epoch):
        self.before("look")
        return super().manifest(epoch)

    def release(self, manifest):
        self.before("claim")
        return super().release(manifest)


class World:
    """Sources with their channels, given as their rows; pacers come and go."""

    def __init__(self, directory, **rows):
        self.directory = directory
        self.clock = ManualClock(1_000.0)
        self.sources = {name: NumberSource(count) for name, count in rows.items()}
        for name in rows:
            Channel.create(directory / name, ChannelSpec(name, SCHEMA))

    def pacer(self, before=None, *, depth=1):
        sources = {}
        for name, source in self.sources.items():
            channel = WatchedChannel(self.directory / name, ChannelSpec(name, SCHEMA))
            if before is not None:
                channel.before = before
            sources[name] = PacedSource(source, channel)
        return Pacer(sources, SETTINGS, self.clock, run="n0", generation=0, depth=depth)

    def resumed(self, before=None, *, depth=1):
        pacer = self.pacer(before, depth=depth)
        pacer.resume()
        return pacer

    def step(self, pacer, downstream=DONE):
        self.clock.advance(1.0)
        return pacer.step(downstream)

    def channel(self, name):
        return Channel.open(self.directory / name)

    def decided(self, name):
        """Return the ranges of a source, as (start, end) or ()."""
        channel = self.channel(name)
        ranges = [channel.manifest(slot).planned for slot in channel.ledger.slots()]
        return [(some["start"], some["end"]) if some else () for some in ranges]

    def check(self):
        """Every source has the same epochs; their ranges follow each other without a gap or an overlap."""
        slots = [self.channel(name).ledger.slots() for name in self.sources]
        assert all(some == list(range(len(slots[0]))) for some in slots)
        for name in self.sources:
            ranges = [some for some in self.decided(name) if some]
            assert [start for start, _ in ranges] == [0, *[end for _, end in ranges]][: len(ranges)]
