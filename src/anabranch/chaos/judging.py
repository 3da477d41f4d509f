"""Whether the promise was kept: what was delivered, against both oracles. Nothing here asks the nodes.

The first oracle runs the recorded plans of the sources again on one node without faults, epoch by epoch; the second
runs the pipeline's steps as plain batch queries over the same input. Amnesia promises less: every epoch that differs is
named as missing or incomplete.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.class_archive import with_archive
from anabranch.elsewhere import input_path, output_path
from anabranch.node_options import NodeOptions
from anabranch.oracle import batch
from anabranch.oracle.compare import NOTHING, Verdict
from anabranch.oracle.reference import by_epoch, replay
from anabranch.pipeline import Graph
from anabranch.processes import kill_session
from anabranch.sources import CsvFiles, JsonlFiles, TextFiles
from anabranch.work import Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Judgement:
    """What both oracles say. `differing` are the epochs that are not as they should be, by sink."""

    reference: Verdict
    differing: dict[str, list[int]]
    batch: dict[str, batch.Compared]
    # What sources that make their own rows left out, or took twice: neither oracle could see that.
    untaken: list[str] = field(default_factory=list)
    # By sink: how many rows the run without faults has, and the epochs in which rows came more often than in it.
    expected: Mapping[str, int] = field(default_factory=dict)
    repeated: Mapping[str, list[int]] = field(default_factory=dict)

    @property
    def judges(self) -> list[str]:
        """Which of the oracles had something to say."""
        compared = [one.verdict for one in self.batch.values() if one.verdict is not None]
        return ["reference", *(["batch"] if any(verdict.expected for verdict in compared) else [])]


def judge(
    graph: Graph, options: NodeOptions, scratch: Path, recorded: Work, order: Mapping[str, list[str]]
) -> Judgement:
    """Run both oracles over what a run left behind."""
    again_options = replace(options, work=recorded.path, elsewhere=scratch, name="reference")
    sessions: set[int] = set()
    given_up = threading.Event()

    def goes_on(session: int) -> bool:
        sessions.add(session)
        return not given_up.is_set()

    with ThreadPoolExecutor(1) as beside:
        replayed = beside.submit(replay, again_options, scratch / "reference", goes_on=goes_on)
        try:
            compared = _by_batch(graph, options, scratch, recorded, order)
            again = replayed.result()
        except BaseException:
            given_up.set()
            for session in sessions:  # else this would wait for it
                kill_session(session)
            raise
    verdict, differing = NOTHING, dict[str, list[int]]()
    expected, repeated = dict[str, int](), dict[str, list[int]]()
    for name, node in graph.sinks.items():
        verdicts = list(by_epoch(again, node.stream, output_path(scratch, name)))
        verdict = sum((one for _, one in verdicts), verdict)
        differing[name] = [epoch for epoch, one in verdicts if not one.exact]
        expected[name] = sum(one.expected for _, one in verdicts)
        repeated[name] = [epoch for epoch, one in verdicts if one.duplicated]
    untaken = [
        what
        for name, node in graph.sources.items()
        for what in (_holes if hasattr(node.source, "directory") else _untaken)(recorded, name)
    ]
    return Judgement(verdict, differing, compared, untaken, expected, repeated)


def _untaken(recorded: Work, source: str) -> Iterator[str]:
    """Yield where the plans of a source that makes its own rows do not follow each other, row by row."""
    channel, end = recorded.channel(source), 0
    for epoch in range(channel.last_epoch() + 1):
        manifest = channel.manifest(epoch)
        planned = (manifest.planned if manifest is not None else None) or {}
        if isinstance(planned.get("start"), int) and isinstance(planned.get("end"), int):
            if planned["start"] != end:
                yield f"epoch {epoch} of {source} begins at row {planned['start']}, though {end} rows were taken"
            end = planned["end"]


def _holes(recorded: Work, source: str) -> Iterator[str]:
    """Yield where the plans of a source that reads files leave something of one out, or take it twice."""
    channel, ends = recorded.channel(source), dict[str, int]()
    for epoch in range(channel.last_epoch() + 1):
        manifest = channel.manifest(epoch)
        for piece in ((manifest.planned if manifest is not None else None) or {}).get("pieces", []):
            end = ends.get(piece["file"], 0)
            if piece["start"] != end:
                yield f"epoch {epoch} of {source} takes {piece['file']} from {piece['start']} on, not from {end}"
            ends[piece["file"]] = piece["end"]


def _by_batch(
    graph: Graph, options: NodeOptions, scratch: Path, recorded: Work, order: Mapping[str, list[str]]
) -> dict[str, batch.Compared]:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.extraJavaOptions", with_archive(""))
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.sql.session.timeZone", "UTC")
    for key, value in {**graph.settings.spark, **options.settings}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        given = {
            name: _given(spark, node.source, _place(scratch, name, node.source, recorded), tuple(order.get(name, ())))
            for name, node in graph.sources.items()
        }
        delivered = {name: output_path(scratch, name) for name in graph.sinks}
        return batch.check(spark, graph, given, delivered)
    finally:
        spark.stop()


def _place(scratch: Path, name: str, source: Any, recorded: Work) -> Path:  # noqa: ANN401  one of the sources
    """Return the directory with everything that a source was given, or made itself."""
    if hasattr(source, "directory"):
        return input_path(scratch, name)
    channel = recorded.channel(name)
    tables = [table for epoch in range(channel.last_epoch() + 1) if (table := channel.table(epoch)) is not None]
    place = scratch / "made" / name
    place.mkdir(parents=True)
    pq.write_table(pa.concat_tables([channel.spec.schema.empty_table(), *tables]), place / "rows.parquet")
    return place


def _given(spark: SparkSession, source: Any, place: Path, order: tuple[str, ...]) -> batch.Given:  # noqa: ANN401
    """Read a directory with Spark's own readers."""
    options: dict[str, str] = {}
    schema: str | None
    if isinstance(source, JsonlFiles):
        kind, schema = "json", source.schema
    elif isinstance(source, CsvFiles):
        kind, schema = "csv", source.schema
        options = {"header": str(source.header), "sep": source.delimiter}
    elif isinstance(source, TextFiles):
        kind, schema = "text", "value string"
    else:
        kind, schema = "parquet", getattr(source, "schema", None)
    if getattr(source, "malformed", None) == "divert":
        options["mode"] = "DROPMALFORMED"
    found = schema or spark.read.parquet(str(place)).schema
    frame = spark.read.schema(found).options(**options).format(kind).load(str(place))
    if "mode" in options:
        # Which rows are malformed depends on the columns that are asked for: all of them are, once.
        frame = frame.cache()
    stream = spark.readStream.schema(found).options(**options).format(kind).load(str(place))
    return batch.Given(frame, stream, order)
