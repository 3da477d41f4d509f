"""Segments of a log's index: entries of many keys in arrays sorted by the hash of the key, as Arrow files.

A segment never changes. It is opened by memory map, found by binary search, and merged with others as arrays.
"""

from __future__ import annotations

import errno
import hashlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.errors import Corrupt

SCHEMA = pa.schema(
    [
        ("hash", pa.uint64()),
        ("key", pa.large_binary()),
        ("file", pa.uint64()),
        ("offset", pa.uint64()),
        ("length", pa.int64()),
        ("crc", pa.uint32()),
    ]
)
_REMOVED_LENGTH = -1


class Entry(NamedTuple):
    """Where a key's newest value is; a removed key has length -1 and the place of its removal."""

    file: int
    offset: int
    length: int
    crc: int

    @property
    def removed(self) -> bool:
        """Whether the key was removed."""
        return self.length == _REMOVED_LENGTH


def removal(file: int, offset: int) -> Entry:
    """Return the entry of a removed key."""
    return Entry(file, offset, _REMOVED_LENGTH, 0)


@dataclass
class Held:
    """What of a log file is still referred to."""

    values: int = 0
    value_bytes: int = 0
    removals: int = 0


class Segment:
    """Entries of many keys, sorted by hash, not changed any more."""

    def __init__(self, batch: pa.RecordBatch, name: str, crc: int) -> None:
        self.batch = batch
        self.name = name
        self.crc = crc
        self._hashes = numbers(batch, "hash")
        self._places = [numbers(batch, name) for name in Entry._fields]
        _, ends, content = batch.column("key").buffers()
        self._ends = np.frombuffer(ends, np.int64)
        self._content = memoryview(content or b"")
        self._first = batch.column("key").offset

    def __len__(self) -> int:
        return len(self._hashes)

    def get(self, key: bytes, hashed: int) -> Entry | None:
        position = self._behind(int(self._hashes.searchsorted(np.uint64(hashed))), key, hashed)
        return None if position < 0 else Entry(*(int(values[position]) for values in self._places))

    def find(self, hashes: Any, keys: pa.Array) -> Any:  # noqa: ANN401  numpy arrays
        """Return the position of each key, -1 where it is not here."""
        at = np.minimum(self._hashes.searchsorted(hashes), len(self._hashes) - 1)
        found = np.where(self._hashes[at] == hashes, at, -1)
        hits = np.flatnonzero(found >= 0)
        alike = pc.equal(self.batch.column("key").take(pa.array(at[hits])), keys.take(pa.array(hits)))
        for row in hits[~alike.to_numpy(zero_copy_only=False)].tolist():
            found[row] = self._behind(int(at[row]), keys[row].as_py(), int(hashes[row]))
        return found

    def _behind(self, position: int, key: bytes, hashed: int) -> int:
        """Return where a key is among those of its hash, which begin at a position; -1 if it is not there."""
        while position < len(self._hashes) and int(self._hashes[position]) == hashed:
            begin, end = self._ends[self._first + position : self._first + position + 2]
            if self._content[begin:end] == key:
                return position
            position += 1
        return -1

    def of_file(self, file: int, newer: Sequence[Segment]) -> Iterator[tuple[str, Entry]]:
        """Yield keys and entries whose values are in a log file, without those that a newer segment has too."""
        rows = np.flatnonzero(self._places[0] == file)
        for segment in newer:
            found = segment.find(self._hashes[rows], self.batch.column("key").take(pa.array(rows)))
            rows = rows[found < 0]
        entries = map(Entry._make, zip(*(values[rows].tolist() for values in self._places), strict=True))
        for key, entry in zip(self.batch.column("key").take(pa.array(rows)).to_pylist(), entries, strict=True):
            yield key.decode(), entry

    def count(self, positions: Any, held: dict[int, Held]) -> None:  # noqa: ANN401  a numpy array
        """Count the entries at some positions, by log file."""
        files, _, lengths, _ = (values[positions] for values in self._places)
        for file in np.unique(files).tolist():
            mine = lengths[files == file]
            values = mine[mine != _REMOVED_LENGTH]
            some = held.setdefault(file, Held())
            some.values += len(values)
            some.value_bytes += int(values.sum())
            some.removals += len(mine) - len(values)


def numbers(batch: pa.RecordBatch, name: str) -> Any:  # noqa: ANN401  a numpy array
    """Return a column of numbers as an array, without a copy."""
    return batch.column(name).to_numpy(zero_copy_only=True)


def open_segment(path: Path, rows: int, crc: int) -> Segment:
    """Open a segment; `Corrupt` if it is not the one that the index names."""
    try:
        with pa.memory_map(str(path)) as mapped:
            content = mapped.read_buffer()
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "missing", str(path)) from None
    if zlib.crc32(content) != crc:
        raise Corrupt(f"{path} was altered: its checksum does not fit")
    table = pa.ipc.open_file(content)
    batch = table.get_batch(0)
    if batch.num_rows != rows or not batch.schema.equals(SCHEMA):
        raise Corrupt(f"{path} is not the segment that the index names")
    return Segment(batch, path.name, crc)


def freeze_entries(recent: dict[str, Entry]) -> pa.RecordBatch:
    """Return entries as a segment's batch."""
    keys = [key.encode() for key in recent]
    hashes = np.fromiter(map(hash_of, keys), np.uint64, len(keys))
    order = np.argsort(hashes, kind="stable")
    columns: list[Any] = [pa.array(hashes), pa.array(keys, pa.large_binary())]
    for name, values in zip(Entry._fields, zip(*recent.values(), strict=True), strict=True):
        columns.append(pa.array(values, SCHEMA.field(name).type))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA).take(pa.array(order))


def merged(older: pa.RecordBatch, newer: pa.RecordBatch, *, forget_removals_before: int) -> pa.RecordBatch:
    """Merge two segments: of a key in both, the newer entry stays.

    Removals in files before the one given are forgotten, if there is no other segment whose entries they hide.
    """
    both = pa.concat_batches([newer, older])
    hashes = both.column("hash").to_numpy()
    # Stable: of equal hashes, those of the newer segment come first.
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    keep = np.ones(len(order), bool)
    same = np.flatnonzero(hashes[1:] == hashes[:-1]) + 1
    keys = both.column("key")
    alike = pc.equal(keys.take(pa.array(order[same])), keys.take(pa.array(order[same - 1])))
    if pc.all(alike).as_py() is not False:
        keep[same] = False
    else:
        keep = _first_of_each(keys, order, hashes)
    chosen = order[keep]
    if forget_removals_before >= 0:
        lengths = both.column("length").to_numpy()[chosen]
        files = both.column("file").to_numpy()[chosen]
        chosen = chosen[(lengths != _REMOVED_LENGTH) | (files >= forget_removals_before)]
    return both.take(pa.array(chosen))


def _first_of_each(keys: pa.Array, order: Any, hashes: Any) -> Any:  # noqa: ANN401  numpy arrays
    """Keep the first entry of each key; two keys share a hash, which is rare enough for a plain loop."""
    seen: set[tuple[int, bytes]] = set()
    keep = np.ones(len(order), bool)
    for position, (row, hashed) in enumerate(zip(order.tolist(), hashes.tolist(), strict=True)):
        mark = (hashed, keys[row].as_py())
        keep[position] = mark not in seen
        seen.add(mark)
    return keep


def hash_of(key: bytes) -> int:
    """Return the hash by which segments are sorted."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
