"""Part files: the rows of an epoch as Arrow IPC, written by Spark tasks, read by memory map.

A part is written under its final name, because that name is never reused (epoch, run, task, attempt) and nobody looks
at a part before a manifest names it. The checksum is taken while writing and checked whenever the part is read.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from anabranch.channel.manifest import Part
from anabranch.errors import Corrupt


class _CheckedFile:
    """A file that keeps a running checksum of what goes through it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self.crc = 0
        self.size_bytes = 0
        self.closed = False

    def write(self, data: bytes) -> int:
        view = memoryview(data).cast("B")
        self.crc = zlib.crc32(view, self.crc)
        self.size_bytes += len(view)
        written = len(view)
        while view:
            view = view[os.write(self._descriptor, view) :]
        return written

    def flush(self) -> None:
        """Nothing is buffered here."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            try:
                os.fsync(self._descriptor)
            finally:
                os.close(self._descriptor)


class PartWriter:
    """Writes one part; durable, apart from its name, after `close`."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._file = _CheckedFile(path)
        self._sink = pa.PythonFile(self._file, mode="w")
        self._writer = pa.ipc.new_file(self._sink, schema)
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        self._writer.write_batch(batch)
        self._rows += batch.num_rows

    def close(self) -> Part:
        """Finish the file, flush it, and describe it."""
        self._writer.close()
        self._file.close()
        return Part(name=self._path.name, rows=self._rows, size_bytes=self._file.size_bytes, crc=self._file.crc)

    def abandon(self) -> None:
        """Remove a part that will not be finished, such as one that hit a full disk."""
        if not self._file.closed:
            os.close(self._file._descriptor)  # noqa: SLF001  same module; an fsync would fail again
            self._file.closed = True
        self._path.unlink(missing_ok=True)


def read_part(directory: Path, part: Part) -> Iterator[pa.RecordBatch]:
    """Yield a part's batches, memory-mapped, after checking size and checksum."""
    path = directory / part.name
    try:
        mapped = pa.memory_map(str(path))
    except FileNotFoundError as error:
        raise Corrupt(
            f"part {path} is named by its manifest but missing", hint="restore the file from a copy"
        ) from error
    with mapped:
        content = mapped.read_buffer()
        if content.size != part.size_bytes or zlib.crc32(content) != part.crc:
            raise Corrupt(
                f"part {path} was altered: its size or checksum is not the manifest's",
                hint="restore the file from a copy",
            )
        reader = pa.ipc.open_file(content)
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)
