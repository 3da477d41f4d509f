r"""Text files, record by record: where a piece may end, and how its lines become Arrow strings.

Records end as in Spark's text reader: at `\n`, `\r\n` or a lone `\r`, and a byte-order mark at the start of a file
is no part of the first. A *piece* ends after a `\n` only, because `\r` may turn out to be half of `\r\n`. So what
is not yet terminated stays in the file until it is, or until the source is closed and it counts as a record. If such
a file goes on with a line end, that is skipped; if the record itself goes on, it was read too early: `SourceError`.

Each piece carries the CRC-32 of its bytes, checked when it is read, and once more before the file's next piece is
planned: a file that was rewritten under its name is found even when it grew.

Lines are found with vector operations; no Python runs per row. Rejected: `str.splitlines` (100 times slower, and it
also splits at form feeds), and pieces of whole files (the first epoch of a backlog would be as large as its files).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.errors import SourceError
from anabranch.sources.files import Entry, FilePlanner, Piece, check_location, list_files, shrunk, split_pieces
from anabranch.sources.source import Range

#: Small enough to share an epoch between tasks, large enough that a row costs nothing beside parsing it.
PIECE_BYTES = 1 << 20
#: A record beyond this is a file of another kind: it would have to fit into memory several times over.
LONGEST_RECORD_BYTES = 256 << 20
BATCH_ROWS = 65_536
# Batches below this are put together: thousands of tiny files must not become thousands of tiny batches.
_SMALL_ROWS = 8_192
_SMALL_BYTES = 256 << 10
_LF, _CR = 10, 13
_MARK = b"\xef\xbb\xbf"
# What Java's `trim` removes; Spark decides with it whether a line of CSV is blank.
TRIMMED_BYTES = bytes(range(33))

VALUE_SCHEMA = pa.schema([pa.field("value", pa.string())])
LOCATED_SCHEMA = pa.schema([*VALUE_SCHEMA, pa.field("file", pa.string()), pa.field("offset", pa.int64())])


@dataclass(frozen=True)
class LineCutter:
    """Cuts at line ends. With `record_first`, the first piece of a file holds a line that is not blank (a header)."""

    record_first: bool = False
    written_once: bool = False

    def unread(self, entry: Entry, last: Piece | None) -> bool:
        taken_bytes = last["end"] if last is not None else 0
        if entry.size_bytes < taken_bytes:
            raise shrunk(entry, taken_bytes)
        return entry.size_bytes > taken_bytes

    def cut(self, entry: Entry, last: Piece | None, room_bytes: int, *, closed: bool) -> list[Piece]:
        pieces: list[Piece] = []
        with _opened(entry.path) as descriptor:
            start = 0 if last is None else _resumed(descriptor, entry, last)
            while start < entry.size_bytes and room_bytes > 0:
                data = self._take(descriptor, entry, start, min(room_bytes, PIECE_BYTES), closed=closed)
                if not data:
                    break
                end = start + len(data)
                pieces.append({"file": entry.name, "start": start, "end": end, "crc": zlib.crc32(data)})
                room_bytes -= len(data)
                start = end
        return pieces

    def _take(self, descriptor: int, entry: Entry, start: int, wanted: int, *, closed: bool) -> bytes:
        """Return the bytes of whole records from `start`: about `wanted`, more if a record is longer, or none."""
        data = bytearray()
        while start + len(data) < entry.size_bytes:
            if len(data) > LONGEST_RECORD_BYTES:
                raise SourceError(
                    f"the record at byte {start} of {entry.path} is longer than {LONGEST_RECORD_BYTES >> 20} MiB",
                    hint="records end with a newline; is this a text file?",
                )
            block = os.pread(descriptor, min(wanted, entry.size_bytes - start - len(data)), start + len(data))
            if not block and closed:
                raise shrunk(replace(entry, size_bytes=start + len(data)), entry.size_bytes)
            if not block:
                return b""  # what was not yet taken may still change
            end = block.rfind(b"\n") + 1
            whole = len(data) + end
            data += block
            if end and not (self.record_first and start == 0 and _is_blank(data[:whole])):
                return bytes(data[:whole])
            wanted = PIECE_BYTES
        return bytes(data) if closed else b""


def _is_blank(data: bytearray) -> bool:
    return not data.removeprefix(_MARK).strip(TRIMMED_BYTES)


def _resumed(descriptor: int, entry: Entry, last: Piece) -> int:
    """Return where the next record starts, after checking that the last piece is still what it was."""
    taken = _read_exactly(descriptor, entry.path, last)
    end: int = last["end"]
    if taken.endswith(b"\n"):
        return end
    ahead = os.pread(descriptor, min(2, entry.size_bytes - end), end)
    if taken.endswith(b"\r"):
        return end + ahead.startswith(b"\n")
    if ahead == b"\r":
        return entry.size_bytes  # half of a line end, perhaps: wait for what follows
    if ahead.startswith((b"\n", b"\r")):
        return end + (2 if ahead == b"\r\n" else 1)
    raise SourceError(
        f"the last line of {entry.path} was read as a record up to byte {end}, and has grown since",
        hint="finish writing a file before draining, or end its last line with a newline",
    )


@contextmanager
def _opened(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read_exactly(descriptor: int, path: str, piece: Piece) -> bytes:
    """Return the bytes of a piece; `SourceError` if they are not what was planned."""
    start, end = piece["start"], piece["end"]
    data = os.pread(descriptor, end - start, start)
    while len(data) < end - start:  # a signal cut the call short, or there is no more
        block = os.pread(descriptor, end - start - len(data), start + len(data))
        if not block:
            raise SourceError(
                f"{path} has shrunk: bytes {start} to {end} were planned, and it ends at {start + len(data)}",
                hint="files may only grow; put the old content back",
            )
        data += block
    if zlib.crc32(data) != piece["crc"]:
        raise SourceError(
            f"{path} was changed after bytes {start} to {end} of it were planned",
            hint="files may only grow; put the old content back",
        )
    return data


def read_piece(directory: str, piece: Piece) -> bytes:
    """Return the bytes of a piece, verified; `SourceError` naming the file and the range if they are not there."""
    path = os.path.join(directory, piece["file"])
    try:
        with _opened(path) as descriptor:
            return _read_exactly(descriptor, path, piece)
    except OSError as error:
        raise SourceError(
            f"bytes {piece['start']} to {piece['end']} of {path} were planned, and it cannot be read: {error.strerror}",
            hint="put it back; files may go once the epochs that hold them are safe",
        ) from error


@dataclass(frozen=True)
class Lines:
    """The records of some bytes: `text` without line ends, where each begins in it, and where in the bytes."""

    text: bytes
    offsets: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]


def split_lines(data: bytes) -> Lines:
    """Find the records; the last one need not be terminated."""
    raw = np.frombuffer(data, dtype=np.uint8)
    if b"\r" in data:
        dropped = np.flatnonzero((raw == _LF) | (raw == _CR))
        # The second half of a `\r\n` ends nothing; as `data` has a `\r`, there is at least one.
        second = np.zeros(len(dropped) + 1, dtype=np.bool_)
        second[1:-1] = (raw[dropped[1:]] == _LF) & (raw[dropped[:-1]] == _CR) & (np.diff(dropped) == 1)
        ending = np.flatnonzero(~second[:-1])
        ends = dropped[ending] - ending
        nexts = dropped[ending] + 1 + second[ending + 1]
        text = data.translate(None, b"\r\n")
    else:
        dropped = np.flatnonzero(raw == _LF)
        ends = dropped - np.arange(len(dropped))
        nexts = dropped + 1
        text = data.replace(b"\n", b"")
    starts = np.concatenate(([0], nexts))
    offsets = np.concatenate(([0], ends))
    if starts[-1] < len(data):
        offsets = np.append(offsets, len(text))
    else:
        starts = starts[:-1]
    return Lines(text, offsets.astype(np.int32), starts)


def filled(lines: Lines, blank: bytes) -> npt.NDArray[np.bool_] | None:
    """Say which records hold more than the bytes in `blank`; None if all do."""
    begins, ends = lines.offsets[:-1], lines.offsets[1:]
    keep = ends > begins
    text = np.frombuffer(lines.text, dtype=np.uint8)
    is_blank = np.zeros(256, dtype=np.bool_)
    is_blank[list(blank)] = True
    # Only where a record begins with a blank can it be nothing else, and few do.
    if is_blank[text[begins[keep]]].any():
        solid = np.concatenate(([0], np.cumsum(~is_blank[text], dtype=np.int64)))
        keep = solid[ends] > solid[begins]
    return None if keep.all() else keep


@dataclass(frozen=True, kw_only=True)
class LineSource:
    """What text, JSON lines and CSV share: everything but the meaning of a record."""

    directory: str
    pattern: str = "*"
    with_location: bool = False

    kind: ClassVar[str]
    #: Records of nothing but these bytes are dropped; None keeps them all.
    blank: ClassVar[bytes | None] = None

    def __post_init__(self) -> None:
        check_location(self.directory, self.pattern)

    @property
    def skips_header(self) -> bool:
        """Whether the first record of every file is no row."""
        return False

    def spec(self) -> dict[str, Any]:
        return {"kind": self.kind, "version": 1, **asdict(self)}

    def check(self) -> None:
        list_files(self.directory, self.pattern)

    def raw_schema(self) -> pa.Schema:
        return LOCATED_SCHEMA if self.with_location else VALUE_SCHEMA

    def located(self) -> Self:
        """Return this source with raw rows that also carry `file` and `offset`, the byte where the record starts."""
        return replace(self, with_location=True)

    def planner(self, snapshot: dict[str, Any] | None = None) -> FilePlanner:
        return FilePlanner(self.directory, self.pattern, LineCutter(self.skips_header), snapshot)

    def split(self, planned: Range, ways: int) -> list[Range]:
        return split_pieces(planned, ways)

    def read(self, planned: Range) -> Iterator[pa.RecordBatch]:
        return gathered(batch for piece in planned.get("pieces", []) for batch in self._piece_batches(piece))

    def _piece_batches(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        data = read_piece(self.directory, piece)
        start: int = piece["start"]
        at_beginning = start == 0
        if at_beginning and data.startswith(_MARK):
            data = data[len(_MARK) :]
            start = len(_MARK)
        lines = split_lines(data)
        rows = len(lines.starts)
        columns = [pa.StringArray.from_buffers(rows, pa.py_buffer(lines.offsets), pa.py_buffer(lines.text))]
        if self.with_location:
            # A name need not be UTF-8, a column must be.
            name = os.fsencode(piece["file"]).decode("utf-8", "replace")
            columns += [pa.repeat(name, rows), pa.array(lines.starts + start)]
        batch = pa.RecordBatch.from_arrays(columns, schema=self.raw_schema())
        keep = None if self.blank is None else filled(lines, self.blank)
        if keep is not None:
            batch = batch.filter(pa.array(keep))
        if at_beginning and self.skips_header:
            batch = batch.slice(1)
        for first in range(0, batch.num_rows, BATCH_ROWS):
            yield batch.slice(first, BATCH_ROWS)


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Put small neighbours together; none grows beyond `BATCH_ROWS`."""
    waiting: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        if waiting and rows + batch.num_rows > BATCH_ROWS:
            yield _together(waiting)
            waiting, rows, size_bytes = [], 0, 0
        waiting.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
        if rows >= _SMALL_ROWS or size_bytes >= _SMALL_BYTES:
            yield _together(waiting)
            waiting, rows, size_bytes = [], 0, 0
    if rows:
        yield _together(waiting)


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (combined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return combined
