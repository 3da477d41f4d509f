"""Parquet files: written once, taken whole.

A file is complete once its footer is there, and until then it is left alone. A piece is a run of row groups of about
16 MiB, so that large files are shared between tasks and epochs. It carries the file's size and a CRC-32 over the
bytes of its row groups and the footer, which is everything that reading it depends on; both are checked when it is
read. A file whose size differs from what was planned was replaced: `SourceError`.

Reading is pyarrow's own, from a memory map, without its threads: Spark runs one task per core already. Columns are
cast to the declared types where they differ; a value that would change is an error, except for time beyond
microseconds, which Spark does not have.

Rejected: a checksum over the whole file (each task would read what others read), and merging of schemas (a column
that is missing is more often a mistake than a null).
"""

from __future__ import annotations

import functools
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import from_arrow_type

from anabranch.errors import PipelineError, SourceError
from anabranch.sources import ddl
from anabranch.sources.files import Entry, FilePlanner, Piece, absolute, check_location, list_files, split_pieces
from anabranch.sources.source import Range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PIECE_BYTES = 16 << 20
BATCH_ROWS = 65_536
_MAGIC = b"PAR1"
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
# Magic at both ends, and the length of the footer before the last.
_SMALLEST_FILE_BYTES = 12


def read_parquet(directory: str | os.PathLike[str], *, schema: str | None = None, pattern: str = "*") -> ParquetFiles:
    """Return a source of the rows of the Parquet files in a directory, to which files may be added.

    Without `schema` the columns are those of the first file, by name, when the pipeline starts. Every file must have
    the declared columns; other columns are ignored.
    """
    return ParquetFiles(directory=absolute(directory), schema=schema, pattern=pattern)


@dataclass(frozen=True, kw_only=True)
class ParquetFiles:
    """The source; made by `read_parquet`. Its `spec` always names the columns: once inferred, they are pinned there."""

    directory: str
    schema: str | None = None
    pattern: str = "*"

    def __post_init__(self) -> None:
        check_location(self.directory, self.pattern)
        if self.schema is not None:
            ddl.parse(self.schema)

    @functools.cached_property
    def _declared(self) -> str:
        """The schema as text, inferred when it is first needed; this object stays with what it found."""
        if self.schema is not None:
            return self.schema
        for entry in list_files(self.directory, self.pattern).values():
            try:
                footer = _footer(entry, closed=False)
            except FileNotFoundError:
                continue  # it vanished after the listing
            if footer is not None:
                return ddl.render(_inferred(entry.path, footer))
        raise SourceError(
            f"{self.directory} holds no complete Parquet file, so the columns are not known",
            hint='put a file there, or declare them: schema="ts timestamp, …"',
        )

    def spec(self) -> dict[str, Any]:
        return {
            "kind": "parquet",
            "version": 1,
            "directory": self.directory,
            "schema": self._declared,
            "pattern": self.pattern,
        }

    def check(self) -> None:
        list_files(self.directory, self.pattern)
        self.raw_schema()

    def raw_schema(self) -> pa.Schema:
        return ddl.to_arrow(ddl.parse(self._declared))

    def shape(self, raw: DataFrame) -> DataFrame:
        return raw

    def planner(self, snapshot: dict[str, Any] | None = None) -> FilePlanner:
        cutter = RowGroupCutter(tuple(self.raw_schema().names))
        return FilePlanner(self.directory, self.pattern, cutter, snapshot)

    def split(self, planned: Range, ways: int) -> list[Range]:
        return split_pieces(planned, ways)

    def read(self, planned: Range) -> Iterator[pa.RecordBatch]:
        schema = self.raw_schema()
        for piece in planned.get("pieces", []):
            yield from _piece_batches(os.path.join(self.directory, piece["file"]), piece, schema)


@dataclass(frozen=True)
class RowGroupCutter:
    """Cuts a complete file into runs of row groups. Checks that it has the columns, before an epoch depends on it."""

    columns: tuple[str, ...]
    written_once: bool = True

    def unread(self, entry: Entry, last: Piece | None) -> bool:
        if last is None:
            return True
        if entry.size_bytes != last["size"]:
            raise _replaced(entry.path, last, entry.size_bytes)
        return bool(last["end"] < last["groups"])

    def cut(self, entry: Entry, last: Piece | None, room_bytes: int, *, closed: bool) -> list[Piece]:
        footer = _footer(entry, closed=closed)
        if footer is None:
            return []
        _check_columns(entry.path, footer.schema.to_arrow_schema(), self.columns)
        groups = footer.num_row_groups
        pieces: list[Piece] = []
        start = last["end"] if last is not None else 0
        with pa.memory_map(entry.path) as mapped:
            content = memoryview(mapped.read_buffer(entry.size_bytes))
            while start < groups and room_bytes > 0:
                end, size_bytes = _run(footer, start, min(room_bytes, PIECE_BYTES))
                crc = _checksum(content, footer, start, end)
                piece = {"file": entry.name, "start": start, "end": end, "groups": groups}
                pieces.append({**piece, "size": entry.size_bytes, "bytes": size_bytes, "crc": crc})
                room_bytes -= size_bytes
                start = end
        return pieces


def _run(footer: pq.FileMetaData, start: int, wanted_bytes: int) -> tuple[int, int]:
    """Return the end and the bytes of a run of row groups: at least one, more while they fit."""
    end, total_bytes = start, 0
    while end < footer.num_row_groups:
        first, last = _extent(footer, end)
        if end > start and total_bytes + last - first > wanted_bytes:
            break
        total_bytes += last - first
        end += 1
    return end, total_bytes


def _extent(footer: pq.FileMetaData, group: int) -> tuple[int, int]:
    """Return where the column chunks of a row group begin and end in the file."""
    row_group = footer.row_group(group)
    chunks = [row_group.column(index) for index in range(row_group.num_columns)]
    begins = [min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset) for chunk in chunks]
    ends = [begin + chunk.total_compressed_size for begin, chunk in zip(begins, chunks, strict=True)]
    return min(begins, default=0), max(ends, default=0)


def _checksum(content: memoryview, footer: pq.FileMetaData, start: int, end: int) -> int:
    """Return the CRC-32 of a run of row groups and of the footer that describes them."""
    crc = 0
    for group in range(start, end):
        first, last = _extent(footer, group)
        crc = zlib.crc32(content[first:last], crc)
    return zlib.crc32(content[len(content) - footer.serialized_size - 8 :], crc)


def _footer(entry: Entry, *, closed: bool) -> pq.FileMetaData | None:
    """Return the footer of a complete file; None while it is being written, which ends when the source is closed."""
    with open(entry.path, "rb") as file:
        begin = file.read(len(_MAGIC))
        file.seek(max(0, entry.size_bytes - len(_MAGIC)))
        end = file.read(len(_MAGIC))
        if not _MAGIC.startswith(begin):
            raise SourceError(f"{entry.path} is not a Parquet file", hint='choose files by name: pattern="*.parquet"')
        if end != _MAGIC or entry.size_bytes < _SMALLEST_FILE_BYTES:
            if not closed:
                return None
            raise SourceError(f"{entry.path} has no footer: it is not complete", hint="finish writing it, or remove it")
        try:
            return pq.read_metadata(file)
        except (pa.ArrowException, OSError) as error:
            raise SourceError(f"{entry.path} is a damaged Parquet file: {error}", hint="write it again") from error


def _replaced(path: str, piece: Piece, size_bytes: int) -> SourceError:
    return SourceError(
        f"{path} was changed after its row groups {piece['start']} to {piece['end']} were planned: "
        f"it had {piece['size']} bytes, now {size_bytes}",
        hint="Parquet files are written once; put the old file back, and write new rows under a new name",
    )


def _check_columns(path: str, found: pa.Schema, columns: tuple[str, ...]) -> None:
    for column in columns:
        if found.get_field_index(column) < 0:
            raise SourceError(
                f"{path} has no column {column!r} (or several): it has {', '.join(found.names)}",
                hint="every file needs the declared columns, spelled alike; declare fewer, or narrow the pattern",
            )


def _piece_batches(path: str, piece: Piece, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a piece, verified against what was planned."""
    try:
        mapped = pa.memory_map(path)
    except OSError as error:
        raise SourceError(
            f"{path} cannot be read, though its row groups {piece['start']} to {piece['end']} were planned: {error}",
            hint="put it back; files may go once the epochs that hold them are safe",
        ) from error
    with mapped:
        if mapped.size() != piece["size"]:
            raise _replaced(path, piece, mapped.size())
        content = mapped.read_buffer(piece["size"])
        altered = SourceError(
            f"{path} was changed after its row groups {piece['start']} to {piece['end']} were planned",
            hint="Parquet files are written once; put the old file back",
        )
        try:
            file = pq.ParquetFile(pa.BufferReader(content), coerce_int96_timestamp_unit="us")
        except (pa.ArrowException, OSError) as error:
            raise altered from error
        with file:
            if _checksum(memoryview(content), file.metadata, piece["start"], piece["end"]) != piece["crc"]:
                raise altered
            _check_columns(path, file.schema_arrow, tuple(schema.names))
            # A dot in a name would be read as a path into a struct: then all columns are read.
            columns = None if any("." in name for name in schema.names) else schema.names
            groups = range(piece["start"], piece["end"])
            for batch in file.iter_batches(BATCH_ROWS, row_groups=groups, columns=columns, use_threads=False):
                yield _fitted(path, batch, schema)


def _fitted(path: str, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the declared columns, in their order and of their types."""
    columns = []
    for field in schema:
        column = batch.column(field.name)
        if column.type != field.type:
            try:
                column = column.cast(options=pc.CastOptions(field.type, allow_time_truncate=True))
            except pa.ArrowException as error:
                raise SourceError(
                    f"column {field.name!r} of {path} is {column.type} and does not fit {field.type}: {error}",
                    hint="declare the type that the files have, and convert in a step",
                ) from error
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _inferred(path: str, footer: pq.FileMetaData) -> spark.StructType:
    """Return the columns of a file as Spark sees them: as Spark noted them there, else from the Arrow types."""
    noted = (footer.metadata or {}).get(_SPARK_SCHEMA)
    try:
        if noted is not None:
            schema = spark.StructType.fromJson(json.loads(noted))
        else:
            schema = spark.StructType(
                [spark.StructField(field.name, from_arrow_type(field.type)) for field in _spark_arrow(footer)]
            )
        return ddl.parse(ddl.render(schema))
    except (PipelineError, PySparkException, ValueError, KeyError) as error:
        raise SourceError(
            f"the columns of {path} cannot be taken over: {error}", hint='declare the ones you need: schema="…"'
        ) from error


def _spark_arrow(footer: pq.FileMetaData) -> list[pa.Field]:
    """Return the Arrow fields of a file, with INT96 times as instants, which is what Spark, Hive and Impala mean."""
    instants = {
        footer.schema.column(index).path
        for index in range(len(footer.schema))
        if footer.schema.column(index).physical_type == "INT96"
    }
    return [
        field.with_type(pa.timestamp("us", tz="UTC")) if field.name in instants else field
        for field in footer.schema.to_arrow_schema()
    ]
