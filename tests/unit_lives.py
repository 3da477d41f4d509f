"""A unit without Spark: `Life` plays Spark's part, writing the offset entry, calling the unit, writing the commit."""

import json
import os
from types import SimpleNamespace

import pyarrow as pa

from anabranch.channel.channel import Channel, ChannelSpec
from anabranch.channel.digest import HASH_COLUMN
from anabranch.channel.manifest import Part
from anabranch.channel.writer import PartsPlan, TaskShare, Written
from anabranch.clock import ManualClock
from anabranch.publishing import UnitEvents
from anabranch.runs import new_run
from anabranch.spans import NO_STATE
from anabranch.unit import Unit, UnitPlace
from fake_task import inside_task

SCHEMA = pa.schema([("n", pa.int64())])


class Crash(BaseException):
    """The process is gone: no handler of the code under test may catch this."""


class FakeFrame:
    """The rows of one micro-batch, and how they are to be written."""

    schema = SimpleNamespace(fields=[])

    def __init__(self, numbers=(), plan=None, batch_id=0):
        self.numbers, self.plan, self.batch_id = numbers, plan, batch_id


def execute(frame):
    """Write a frame's rows as one task would."""
    with inside_task(batch_id=frame.batch_id):
        share = TaskShare(frame.plan)
        hashes = pa.array([n * 7919 for n in frame.numbers], pa.int64())
        share.take(pa.record_batch({"n": frame.numbers, HASH_COLUMN: hashes}))
        said = share.finish()
    if said["name"] is None:
        return Written((), said["rows"], said["digest"], None, discarded=True)
    part = Part(said["name"], said["rows"], said["size_bytes"], said["crc"])
    return Written((part,), said["rows"], said["digest"], None)


class Home:
    """A unit's place: two inputs, its output, and everything it told others."""

    def __init__(self, directory):
        make = lambda name: Channel.create(directory / name, ChannelSpec(name, SCHEMA))  # noqa: E731
        self.inputs = {name: make(name) for name in ("a", "b")}
        self.output = make("counts")
        self.directory = directory / "unit"
        self.diverged, self.released = [], []

    def unit(self):
        built = SimpleNamespace(
            segment=SimpleNamespace(name="counts", output_mode="append", steps=(SimpleNamespace(function=len),)),
            frame=FakeFrame(),
            leaves=("a", "b"),
            stateful=False,
            span=NO_STATE,
        )
        events = UnitEvents(
            released=lambda _, manifest: self.released.append(manifest.epoch), diverged=self.diverged.append
        )
        place = UnitPlace(self.directory, self.inputs, self.output)
        return Unit(built, place, events, run=new_run(self.directory), generation=0, clock=ManualClock(5.0))

    def published(self):
        return {slot: self.output.table(slot)["n"].to_pylist() for slot in self.output.ledger.slots()}

    def runs(self):
        return sorted(os.listdir(self.directory / "runs"))


class Life:
    """One run, from its start to its end."""

    def __init__(self, home, **without_state):
        self.unit = home.unit()
        if without_state:
            self.unit.prepare_empty()
            self.unit.begin_after(without_state["after"], compare_from=without_state["compare_from"])
        else:
            self.after = self.unit.prepare()
        self.unit._started.set()
        self.parts = home.output.parts
        self.checkpoint = home.directory / "runs" / self.unit.run / "checkpoint"
        for log in ("offsets", "commits"):
            (self.checkpoint / log).mkdir(parents=True, exist_ok=True)
        self.batch_id = len(os.listdir(self.checkpoint / "commits")) - 1

    def plan(self, *epochs):
        self.batch_id += 1
        lines = ["v1", '{"batchWatermarkMs":0}', *[json.dumps({"epoch": epoch}) for epoch in epochs]]
        (self.checkpoint / "offsets" / str(self.batch_id)).write_text("\n".join(lines))

    def execute(self, *numbers):
        schema = SCHEMA.serialize().to_pybytes()
        plan = PartsPlan(str(self.parts), self.unit.run, str(self.checkpoint), schema, None)
        self.unit._batch(FakeFrame(numbers, plan, self.batch_id), self.batch_id)

    def commit(self):
        (self.checkpoint / "commits" / str(self.batch_id)).write_text("v1\n{}")

    def whole(self, epoch, *numbers):
        self.plan(epoch, epoch)
        self.execute(*numbers)
        self.commit()
