"""Reading a channel in Spark: a Python data source whose offsets are epochs.

`latestOffset` answers the next epoch once its slot is claimed, so every micro-batch is exactly one epoch. It runs in
one long-lived Python process per source and query; `read` runs in Spark's Python workers, on copies of this object.
Batches are Arrow, memory-mapped from parts, or generated or parsed from a source's planned range.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from anabranch import sources
from anabranch.channel.channel import Channel
from anabranch.channel.inputs import Alignment
from anabranch.channel.manifest import Manifest, Part
from anabranch.channel.parts import read_part
from anabranch.errors import Corrupt, Trimmed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMAT_NAME = "anabranch"


@dataclass(frozen=True)
class ReadOptions:
    """What a reader must know. `source` is set where the channel holds planned ranges, `ways` is the number of tasks.

    `source` need not be the channel's own: a source's rejects are another view of the same ranges.
    """

    channel: Path
    ways: int
    source: dict[str, Any] | None = None
    run_directory: Path | None = None
    input_name: str = ""
    after: int = -1

    def to_spark(self) -> dict[str, str]:
        """Return the data source options that `from_spark` reads."""
        return {
            "channel": str(self.channel),
            "ways": str(self.ways),
            "source": json.dumps(self.source),
            "run_directory": str(self.run_directory or ""),
            "input_name": self.input_name,
            "after": str(self.after),
        }

    @classmethod
    def from_spark(cls, options: Mapping[str, str]) -> ReadOptions:
        """Read the options in the process that Spark started."""
        return cls(
            channel=Path(options["channel"]),
            ways=int(options["ways"]),
            source=json.loads(options["source"]),
            run_directory=Path(options["run_directory"]) if options["run_directory"] else None,
            input_name=options["input_name"],
            after=int(options["after"]),
        )


class PartsShare(InputPartition):
    """Some parts of an epoch, for one task."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts


class RangeShare(InputPartition):
    """Shares of a source's planned ranges, for one task: one of every epoch of the micro-batch."""

    def __init__(self, planned: list[dict[str, Any]]) -> None:
        self.planned = planned


class _Epochs:
    """Planning and reading of epochs, the same for streaming and for batch."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def shares(self, manifests: Sequence[Manifest]) -> list[InputPartition]:
        """Cut epochs into about `ways` shares of equal size; an empty epoch has none."""
        ways = self._options.ways
        ranges: list[list[dict[str, Any]]] = [[] for _ in range(ways)]
        parts: list[Part] = []
        for manifest in manifests:
            parts.extend(manifest.parts)
            if manifest.planned and not manifest.parts:
                source = sources.from_spec(self._source_spec())
                for planned in source.split(manifest.planned, ways):
                    min(ranges, key=len).append(planned)
        shares: list[InputPartition] = [RangeShare(some) for some in ranges if some]
        bins: list[list[Part]] = [[] for _ in range(min(ways, len(parts)))]
        for part in sorted(parts, key=lambda part: -part.rows):
            min(bins, key=lambda some: sum(other.rows for other in some)).append(part)
        shares.extend(PartsShare(some) for some in bins)
        return shares

    def read(self, share: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(share, PartsShare):
            for part in share.parts:
                yield from read_part(self._options.channel / "parts", part)
        elif isinstance(share, RangeShare):
            source = sources.from_spec(self._source_spec())
            for planned in share.planned:
                yield from source.read(planned)

    def _source_spec(self) -> dict[str, Any]:
        if self._options.source is None:
            raise Corrupt(f"channel {self._options.channel} holds a planned range but no source is known")
        return self._options.source


class ChannelStreamReader(DataSourceStreamReader):
    """One epoch per micro-batch."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._epochs = _Epochs(options)
        self._alignment: Alignment | None = None
        self._channel: Channel | None = None

    def initialOffset(self) -> dict[str, int]:
        return {"epoch": self._options.after}

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:
        return {"epoch": self._aligned().next_epoch(int(start["epoch"]))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        if self._channel is None:
            self._channel = Channel.open(self._options.channel)
        first = self._aligned().first_epoch(start["epoch"])
        manifests = [_published(self._channel, epoch) for epoch in range(first, end["epoch"] + 1)]
        return self._epochs.shares(manifests)

    def _aligned(self) -> Alignment:
        if self._alignment is None:
            if self._options.run_directory is None:
                raise Corrupt("a stream reader needs its run directory")
            self._alignment = Alignment(self._options.run_directory)
        return self._alignment

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from self._epochs.read(partition)


class ChannelBatchReader(DataSourceReader):
    """One epoch as a plain DataFrame, for sinks that are user functions."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._epochs = _Epochs(options)

    def partitions(self) -> Sequence[InputPartition]:
        channel = Channel.open(self._options.channel)
        shares = self._epochs.shares([_published(channel, self._options.after + 1)])
        return shares or [PartsShare([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from self._epochs.read(partition)


class ChannelDataSource(DataSource):
    """`format("anabranch")`; registered in every session that a node makes."""

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> StructType:
        return from_arrow_schema(Channel.open(ReadOptions.from_spark(self.options).channel).spec.schema)

    def streamReader(self, schema: StructType) -> ChannelStreamReader:
        return ChannelStreamReader(ReadOptions.from_spark(self.options))

    def reader(self, schema: StructType) -> ChannelBatchReader:
        return ChannelBatchReader(ReadOptions.from_spark(self.options))


def _published(channel: Channel, epoch: int) -> Manifest:
    manifest = channel.manifest(epoch)
    if manifest is None:
        raise Trimmed(f"epoch {epoch} of channel {channel.spec.name!r} is not published")
    return manifest


def stream(spark: SparkSession, options: ReadOptions, schema: pa.Schema) -> DataFrame:
    """Return a streaming frame over a channel, which need not exist yet; a source's rows are given their shape."""
    reader = spark.readStream.format(FORMAT_NAME).options(**options.to_spark())
    return _shaped(reader.schema(from_arrow_schema(schema)).load(), options.source)


def epoch_frame(spark: SparkSession, channel: Channel, epoch: int, ways: int) -> DataFrame:
    """Return one published epoch as a plain DataFrame."""
    options = ReadOptions(channel=channel.path, ways=ways, source=channel.spec.source, after=epoch - 1)
    reader = spark.read.format(FORMAT_NAME).options(**options.to_spark())
    return _shaped(reader.schema(from_arrow_schema(channel.spec.schema)).load(), options.source)


def _shaped(raw: DataFrame, source: dict[str, Any] | None) -> DataFrame:
    return raw if source is None else sources.from_spec(source).shape(raw)
