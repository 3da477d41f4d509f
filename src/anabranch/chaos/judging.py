"""Whether the promise was kept: what was delivered, against both oracles. Nothing here asks the nodes.

The first oracle runs the recorded plans of the sources again on one node without faults, epoch by epoch; the second
runs the pipeline's steps as plain batch queries over the same input. Amnesia promises less: every epoch that differs is
named as missing or incomplete.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.elsewhere import input_path, output_path
from anabranch.node_options import NodeOptions
from anabranch.oracle import batch
from anabranch.oracle.compare import NOTHING, Verdict, compare
from anabranch.oracle.reference import replay
from anabranch.pipeline import Graph
from anabranch.sources import CsvFiles, JsonlFiles, ParquetFiles, TextFiles
from anabranch.work import Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Judgement:
    """What both oracles say. `differing` are the epochs that are not as they should be, by sink."""

    reference: Verdict
    differing: dict[str, list[int]]
    batch: dict[str, batch.Compared]

    @property
    def exact(self) -> bool:
        """Whether nothing differs."""
        compared = [one.verdict for one in self.batch.values() if one.verdict is not None]
        return self.reference.exact and all(verdict.exact for verdict in compared)


def judge(
    graph: Graph, options: NodeOptions, scratch: Path, recorded: Work, order: Mapping[str, list[str]]
) -> Judgement:
    """Run both oracles over what a run left behind."""
    again = replay(replace(options, work=recorded.path, elsewhere=scratch, name="reference"), scratch / "reference")
    verdict, differing = NOTHING, {}
    for name, node in graph.sinks.items():
        one, epochs = _by_reference(again, node.stream, output_path(scratch, name))
        verdict += one
        differing[name] = epochs
    return Judgement(verdict, differing, _by_batch(graph, options, scratch, again, order))


def _by_reference(reference: Work, stream: str, directory: Path) -> tuple[Verdict, list[int]]:
    """Compare every epoch that was delivered with the same epoch of the run without faults."""
    channel = reference.channel(stream)
    files = {int(path.stem.removeprefix("epoch-")): path for path in directory.glob("epoch-*.parquet")}
    verdict, differing = NOTHING, []
    empty = channel.spec.schema.empty_table()
    for epoch in range(max([*files, channel.last_epoch()]) + 1):
        expected = channel.table(epoch)
        found = pq.read_table(files[epoch]) if epoch in files else empty
        one = compare(empty if expected is None else expected, found, where=f"{stream} epoch {epoch}")
        verdict += one
        if not one.exact:
            differing.append(epoch)
    return verdict, differing


def _by_batch(
    graph: Graph, options: NodeOptions, scratch: Path, again: Work, order: Mapping[str, list[str]]
) -> dict[str, batch.Compared]:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.sql.session.timeZone", "UTC")
    for key, value in {**graph.settings.spark, **options.settings}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        given = {
            name: batch.Given(_frame(spark, node.source, scratch, name, again), tuple(order.get(name, ())))
            for name, node in graph.sources.items()
        }
        delivered = {name: output_path(scratch, name) for name in graph.sinks}
        return batch.check(spark, graph, given, delivered)
    finally:
        spark.stop()


def _frame(spark: SparkSession, source: Any, scratch: Path, name: str, again: Work) -> DataFrame:  # noqa: ANN401
    """Return everything that a source was given, read by Spark itself where it can."""
    place = str(input_path(scratch, name))
    if isinstance(source, JsonlFiles):
        return spark.read.schema(source.schema).json(place)
    if isinstance(source, CsvFiles):
        return spark.read.schema(source.schema).csv(place, header=source.header, sep=source.delimiter)
    if isinstance(source, ParquetFiles):
        reader = spark.read if source.schema is None else spark.read.schema(source.schema)
        return reader.parquet(place)
    if isinstance(source, TextFiles):
        return spark.read.text(place)
    channel = again.channel(name)
    tables = [table for epoch in range(channel.last_epoch() + 1) if (table := channel.table(epoch)) is not None]
    rows = pa.concat_tables(tables) if tables else channel.spec.schema.empty_table()
    (scratch / "made").mkdir(exist_ok=True)
    pq.write_table(rows, scratch / "made" / f"{name}.parquet")
    return spark.read.parquet(str(scratch / "made" / f"{name}.parquet"))
