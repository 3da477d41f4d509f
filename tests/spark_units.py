"""Runs units inside the test process, over channels whose epochs the test publishes itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from anabranch.channel.channel import Channel, ChannelSpec
from anabranch.channel.manifest import Manifest, Part, Producer
from anabranch.channel.parts import PartWriter
from anabranch.channel.reader import ReadOptions, stream
from anabranch.clock import SystemClock
from anabranch.pipeline import StepNode
from anabranch.plans import BuiltSegment, build_segment
from anabranch.publishing import UnitEvents
from anabranch.runs import new_run
from anabranch.segments import Segment
from anabranch.testing.wait import wait_until
from anabranch.unit import Unit, UnitPlace

TIMEOUT_S = 120.0
SCHEMA_FOR_STEPS = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("key", pa.string()), ("value", pa.int64())])


def one_step(inputs: Iterable[str], function: Callable[..., DataFrame], output_mode: str = "append") -> Segment:
    """Return a segment of one step named `result`."""
    step = StepNode("result", function, tuple(inputs), connector=True, output_mode=output_mode)
    return Segment("result", (step,), tuple(inputs), output_mode)


def build(
    spark: SparkSession,
    segment: Segment,
    channels: Path,
    schemas: dict[str, pa.Schema],
    run_directory: Path,
    ways: int = 2,
) -> BuiltSegment:
    """Build a segment, as a node does before it starts anything."""
    frames = {
        name: stream(spark, ReadOptions(channels / name, ways, run_directory=run_directory, input_name=name), schema)
        for name, schema in schemas.items()
    }
    return build_segment(spark, segment, frames)


def publish(
    channel: Channel, epoch: int, rows: list[dict], *, incomplete: bool = False, cuts: tuple[int, ...] = ()
) -> None:
    """Publish an epoch by hand, as one part or cut at some rows into several."""
    parts: tuple[Part, ...] = ()
    for number, (start, end) in enumerate(itertools.pairwise((0, *cuts, len(rows)))):
        if end > start:
            writer = PartWriter(channel.parts / f"{epoch}-hand-{number}-{epoch}.arrow", channel.spec.schema)
            writer.write(pa.RecordBatch.from_pylist(rows[start:end], schema=channel.spec.schema))
            parts += (writer.close(),)
    producer = Producer("hand", "hand", 0)
    manifest = Manifest(epoch, producer, 0.0, rows=len(rows), parts=parts, incomplete=incomplete)
    channel.release(manifest)


class Bench:
    """One segment, its channels, and its runs."""

    def __init__(
        self,
        spark: SparkSession,
        directory: Path,
        inputs: dict[str, pa.Schema],
        function: Callable[..., DataFrame],
        output_mode: str = "append",
    ) -> None:
        self.spark = spark
        self.directory = directory
        self.inputs = {
            name: Channel.create(directory / "channels" / name, ChannelSpec(name, schema))
            for name, schema in inputs.items()
        }
        self.schemas = inputs
        self.segment = one_step(inputs, function, output_mode)
        self.ways = 2
        self.output: Channel | None = None
        self.diverged: list[Exception] = []

    def start(
        self,
        released: Callable[[str, Manifest], None] = lambda _unit, _manifest: None,
        restore: Callable[[Path, bool], object] = lambda *_: None,
    ) -> Unit:
        """Start a new run of the unit, as a node does."""
        unit = self.unit(released)
        unit.prepare(restore)
        unit.start(self.spark)
        return unit

    def unit(
        self,
        released: Callable[[str, Manifest], None] = lambda _unit, _manifest: None,
        generation: int | None = 0,
    ) -> Unit:
        """Make a new run of the unit, and start nothing; one without a generation withholds what it has."""
        home = self.directory / "units" / "result"
        run = new_run(home)
        built = build(
            self.spark, self.segment, self.directory / "channels", self.schemas, home / "runs" / run, self.ways
        )
        self.built = built
        self.output = Channel.create(self.directory / "channels" / "result", ChannelSpec("result", built.schema))
        place = UnitPlace(home, self.inputs, self.output)
        events = UnitEvents(released=released, diverged=self.diverged.append)
        return Unit(built, place, events, run=run, generation=generation, clock=SystemClock())

    def wait_committed(self, unit: Unit, epoch: int) -> None:
        """Wait until a run has committed an epoch; fail at once if its query failed."""

        def done() -> bool:
            failure = unit.failure()
            assert failure is None, failure
            return unit.committed() >= epoch

        wait_until(done, TIMEOUT_S, f"commit of epoch {epoch}")

    def rows(self, epoch: int) -> list[dict]:
        """Return the published rows of an epoch, sorted."""
        table = self.output.table(epoch)
        assert table is not None, f"epoch {epoch} is not published"
        return sorted(table.to_pylist(), key=repr)
