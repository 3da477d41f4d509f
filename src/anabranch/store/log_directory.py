"""The log files of one directory: which there are, what they hold, and where whole blocks end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from anabranch.durable import TEMPORARY_PREFIX, fsync_directory
from anabranch.errors import Corrupt
from anabranch.store import log_file
from anabranch.store.log_file import Item
from anabranch.store.log_index import INDEX, sweep_segments


@dataclass(frozen=True)
class LogLimits:
    """When to rotate, flush and compact."""

    file_bytes: int = 64 << 20
    unflushed_entries: int = 32_768
    unflushed_bytes: int = 32 << 20
    block_bytes: int = 16 << 20
    # How much is moved out of a file at a time, while others wait.
    moved_bytes: int = 1 << 20
    # A file is emptied when less than this share of it is alive.
    live_share: float = 0.25


class LogDirectory:
    """Names, reads and makes log files; keeps nothing in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file(self, number: int) -> Path:
        """Return the path of a log file."""
        return self.path / log_file.file_name(number)

    def numbers(self) -> list[int]:
        """Return the numbers of the log files that are there, oldest first."""
        names = [name.removesuffix(".log") for name in os.listdir(self.path) if name.endswith(".log")]
        return sorted(int(name) for name in names if name.isdigit())

    def size(self, number: int) -> int:
        """Return the size of a log file in bytes."""
        return self.file(number).stat().st_size

    def content(self, number: int) -> memoryview:
        """Return a log file, memory-mapped."""
        path = self.file(number)
        if path.stat().st_size == 0:
            return memoryview(b"")
        with pa.memory_map(str(path)) as mapped:
            return memoryview(mapped.read_buffer())

    def replay(self, number: int, start: int, note: Callable[[Iterator[Item]], None], *, last: bool) -> int:
        """Give the items of whole blocks from a position on to `note`; return where they end.

        Only the last file may have a torn end: anything else that does not fit is `Corrupt`.
        """
        path = self.file(number)
        content = self.content(number)
        end = 0
        if log_file.check_header(content, number, path):
            end = max(start, log_file.FILE_HEADER.size)
            if end > len(content):
                raise Corrupt(f"{path} is shorter than its index says", hint="restore the file from a copy")
            for begin, stop in log_file.blocks(content, end):
                note(log_file.items(content, begin, stop, path))
                end = stop
        if end < len(content) and (not last or log_file.block_after(content, end)):
            raise Corrupt(f"{path} was altered at byte {end} or after", hint="restore the file from a copy")
        return end

    def create(self, number: int) -> tuple[int, int]:
        """Make a log file; return its descriptor and its end."""
        descriptor = os.open(self.file(number), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            header = log_file.file_header(number)
            write_all(descriptor, header, 0)
            os.fdatasync(descriptor)
            fsync_directory(self.path)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, len(header)

    def go_on(self, number: int, end: int) -> tuple[int, int]:
        """Open the last log file for appending, without its torn end; return its descriptor and its end."""
        descriptor = os.open(self.file(number), os.O_RDWR)
        try:
            size_bytes = os.fstat(descriptor).st_size
            header = log_file.file_header(number)
            if end < len(header):
                # The file was just being made: nothing was ever in it.
                write_all(descriptor, header, 0)
                end = len(header)
            if end < size_bytes:
                os.ftruncate(descriptor, end)
            if end != size_bytes:
                os.fdatasync(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, end

    def sweep(self) -> None:
        """Remove what a crash left; only the writer may, and it is alone."""
        for name in os.listdir(self.path):
            if name.startswith(TEMPORARY_PREFIX):
                os.unlink(self.path / name)
        sweep_segments(self.path)

    def missing(self, number: int) -> Corrupt:
        """Return the error for a log file that ought to be there."""
        return Corrupt(
            f"{self.file(number)} is missing, though {INDEX} refers to it", hint="restore the file from a copy"
        )


def write_all(descriptor: int, content: bytes, offset: int) -> None:
    """Write bytes at a position."""
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view = view[written:]
        offset += written
