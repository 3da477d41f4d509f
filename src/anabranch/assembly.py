"""From a pipeline to channels and units: everything that is checked and made before the first row moves.

All segments are built first, in memory; only when every step is sound and fits the state in the work directory are
channels made. So a mistake in the last step leaves nothing half-written behind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anabranch import sources as source_kinds
from anabranch.channel.channel import Channel, ChannelSpec
from anabranch.channel.reader import ReadOptions, stream
from anabranch.errors import PipelineError
from anabranch.pipeline import Graph
from anabranch.plans import BuiltSegment, build_segment
from anabranch.runs import new_run
from anabranch.segments import Segment
from anabranch.session import activate
from anabranch.work import Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Plan:
    """A segment ready to become a run."""

    run: str
    built: BuiltSegment


def with_known_columns(graph: Graph, work: Work) -> Graph:
    """Give sources that find out their columns by themselves those that the work directory was made with.

    What they were found out from may be out of reach by now.
    """
    sources = {}
    for name, node in graph.sources.items():
        path = work.channel_path(name)
        if getattr(node.source, "schema", "") is None and (path / "channel.json").exists():
            known = Channel.open(path).spec.source or {}
            source: Any = node.source
            sources[name] = replace(node, source=replace(source, schema=known.get("schema")))
        else:
            sources[name] = node
    return replace(graph, sources=sources)


class Assembly:
    """Builds the segments of one pipeline in one session."""

    def __init__(self, spark: SparkSession, graph: Graph, segments: dict[str, Segment], work: Work) -> None:
        self._spark = spark
        self._graph = graph
        self._segments = segments
        self._work = work
        self._specs: dict[str, ChannelSpec] = {}
        self.plans: dict[str, Plan] = {}
        self.work_id = ""

    def check(self, *, sinks: bool = True) -> None:
        """Check what can be checked without Spark: that sources and, if anything is delivered, sinks are usable."""
        for node in self._graph.sources.values():
            node.source.check()
        elsewhere = {n: source_kinds.epochs_decided_elsewhere(node.source) for n, node in self._graph.sources.items()}
        if len(set(elsewhere.values())) > 1:
            raise PipelineError(
                f"source {max(elsewhere, key=elsewhere.__getitem__)!r} comes in epochs of its own, and "
                f"{min(elsewhere, key=elsewhere.__getitem__)!r} does not",
                hint="read rows of replicas (timestamp=…), or read them in a pipeline of their own",
            )
        known = self._work.identity() or {}
        for sink in self._graph.sinks.values() if sinks else ():
            sink.sink.check(known.get("id"))

    def build_all(self) -> dict[str, Plan]:
        """Build every segment, in memory."""
        for name, node in self._graph.sources.items():
            self._specs[name] = ChannelSpec(name, node.source.raw_schema(), node.source.spec())
        plans = {}
        for name in self._segments:
            plans[name] = self.build(name, twice=True)
            self._specs[name] = ChannelSpec(name, plans[name].built.schema)
        self.plans = plans
        return plans

    def make(self) -> None:
        """Compare what was built with the work directory, and make or open the channels."""
        self.work_id = self._work.pin(self._identity(self.plans))
        for name, spec in self._specs.items():
            Channel.create(self._work.channel_path(name), spec)

    def build(self, name: str, *, twice: bool = False) -> Plan:
        """Build one segment for a new run, in any thread: steps may ask for the active session."""
        activate(self._spark)
        segment = self._segments[name]
        unit_path = self._work.unit_path(name)
        run = new_run(unit_path)
        frames = {read: self._input(segment, read, unit_path / "runs" / run) for read in segment.inputs}
        return Plan(run, build_segment(self._spark, segment, frames, twice=twice))

    def _input(self, segment: Segment, name: str, run_directory: Path) -> DataFrame:
        spec = self._specs[name]
        source, schema = spec.source, spec.schema
        if segment.steps[0].function is None and source is not None:
            rejects = source_kinds.from_spec(source).rejects()  # type: ignore[attr-defined]  # only those that divert
            source, schema = rejects.spec(), rejects.raw_schema()
        channel = self._work.channel_path(name)
        rejects_only = segment.steps[0].function is None and (channel / "channel.json").exists()
        options = ReadOptions(
            channel=channel,
            ways=max(1, self._spark.sparkContext.defaultParallelism),
            source=source,
            run_directory=run_directory,
            input_name=name,
            # Rejects that were not asked for at first begin with what is left of their source.
            after=Channel.open(channel).ledger.floor() if rejects_only else -1,
        )
        return stream(self._spark, options, schema)

    def _identity(self, plans: dict[str, Plan]) -> dict[str, Any]:
        return {
            "pipeline": self._graph.name,
            "spark": self._spark.version,
            "timezone": self._spark.conf.get("spark.sql.session.timeZone"),
            "state_partitions": int(str(self._spark.conf.get("spark.sql.shuffle.partitions"))),
            "sources": {name: node.source.spec() for name, node in self._graph.sources.items()},
            "segments": {name: plan.built.identity() for name, plan in plans.items()},
            "sinks": {name: sink.stream for name, sink in self._graph.sinks.items()},
            "retain_epochs": self._graph.settings.retain_epochs,
        }
