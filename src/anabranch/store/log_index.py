"""The index of the log: where the newest value of every key is.

What was written lately is a dictionary. From time to time it is frozen into a segment: arrays sorted by the hash of
the key, written as an Arrow file, opened again by memory map. So a million keys are ready as fast as a file can be
mapped and its checksum taken. Segments are merged whenever the last is at least half as large as the one before, so
there are few of them, and every entry is rewritten only a logarithmic number of times however many keys there are.

    index.json         position in the log up to which the index goes, its segments, and what each log file still holds
    segment-N.arrow    hash, key, file, offset, length, crc; the newest segment that has a key is right

A removed key stays as an entry of its own until no older file could bring its value back.

Rejected: one large index file (a flush would cost more the more keys there are), and keys in a dictionary after opening
(building one of a million keys takes a second).
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.durable import fsync_directory, write_atomic, write_temporary
from anabranch.errors import Corrupt

FORMAT = 1
_SCHEMA = pa.schema(
    [
        ("hash", pa.uint64()),
        ("key", pa.large_binary()),
        ("file", pa.uint64()),
        ("offset", pa.uint64()),
        ("length", pa.int64()),
        ("crc", pa.uint32()),
    ]
)
# A segment is merged into the one before it unless that one is at least this many times as large.
_MERGE_RATIO = 2
_REMOVED_LENGTH = -1
INDEX = "index.json"


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
        self._hashes = _numbers(batch, "hash")
        self._places = [_numbers(batch, name) for name in Entry._fields]
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

    def of_file(self, file: int) -> tuple[Any, pa.Array, list[Entry]]:
        """Return hashes, keys and entries whose values are in a log file."""
        rows = np.flatnonzero(self._places[0] == file)
        entries = map(Entry._make, zip(*(values[rows].tolist() for values in self._places), strict=True))
        return self._hashes[rows], self.batch.column("key").take(pa.array(rows)), list(entries)

    def let_go(self, positions: Any, held: dict[int, Held]) -> None:  # noqa: ANN401  a numpy array
        """Count the entries at some positions no longer."""
        files, _, lengths, _ = (values[positions] for values in self._places)
        for file in np.unique(files).tolist():
            mine = lengths[files == file]
            values = mine[mine != _REMOVED_LENGTH]
            some = held.setdefault(file, Held())
            some.values -= len(values)
            some.value_bytes -= int(values.sum())
            some.removals -= len(mine) - len(values)


@dataclass
class Index:
    """Segments and recent entries. Not thread-safe: the store holds its lock."""

    segments: list[Segment] = field(default_factory=list)
    recent: dict[str, Entry] = field(default_factory=dict)
    held: dict[int, Held] = field(default_factory=dict)
    position: tuple[int, int] = (0, 0)

    def get(self, key: str) -> Entry | None:
        """Return the newest entry of a key, also if it says removed; None if there is none."""
        entry = self.recent.get(key)
        if entry is not None or not self.segments:
            return entry
        name = key.encode()
        hashed = _hash(name)
        for segment in reversed(self.segments):
            found = segment.get(name, hashed)
            if found is not None:
                return found
        return None

    def put(self, key: str, entry: Entry) -> None:
        """Note where a key is now. What a segment says of it counts until the next flush, which looks."""
        before = self.recent.get(key)
        if before is not None:
            self._count(before, -1)
        self._count(entry, 1)
        self.recent[key] = entry

    def _count(self, entry: Entry, change: int) -> None:
        held = self.held.setdefault(entry.file, Held())
        if entry.removed:
            held.removals += change
        else:
            held.values += change
            held.value_bytes += change * entry.length

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that have values, sorted."""
        found: dict[str, bool] = {}
        for segment in self.segments:
            keys, lengths = segment.batch.column("key"), segment.batch.column("length")
            if prefix:
                mask = pc.starts_with(keys, prefix.encode())
                keys, lengths = keys.filter(mask), lengths.filter(mask)
            present = pc.greater_equal(lengths, 0).to_pylist()
            found.update(zip((key.decode() for key in keys.to_pylist()), present, strict=True))
        found.update((key, not entry.removed) for key, entry in self.recent.items() if key.startswith(prefix))
        return sorted(key for key, present in found.items() if present)

    def entries_of(self, file: int) -> list[tuple[str, Entry]]:
        """Return the keys whose newest entry is in a log file, in the order of that file."""
        found = {key: entry for key, entry in self.recent.items() if entry.file == file}
        for number, segment in enumerate(self.segments):
            hashes, keys, entries = segment.of_file(file)
            hidden = np.zeros(len(entries), bool)
            for newer in self.segments[number + 1 :]:
                hidden |= newer.find(hashes, keys) >= 0
            for key, entry, old in zip(keys.to_pylist(), entries, hidden.tolist(), strict=True):
                name = key.decode()
                if not old and name not in self.recent:
                    found[name] = entry
        return sorted(found.items(), key=lambda pair: pair[1].offset)

    # Segments

    def flush(self, directory: Path, position: tuple[int, int], lock: AbstractContextManager[Any]) -> None:
        """Write recent entries as a segment, merge, and make `index.json` point to the result; durable on return.

        If it fails, the index is as it was. Nobody may write meanwhile; readers are kept out, by `lock`, for a moment.
        """
        segments = list(self.segments)
        written: list[str] = []
        try:
            held = self.held
            if self.recent:
                fresh = _frozen(self.recent)
                held = self._held_without_replaced(fresh)
                segments.append(self._save(directory, fresh, written))
            while len(segments) > 1 and len(segments[-2]) < _MERGE_RATIO * len(segments[-1]):
                oldest = min(held, default=0) if len(segments) == 2 else -1  # noqa: PLR2004  the last two
                merged = _merged(segments[-2].batch, segments[-1].batch, forget_removals_before=oldest)
                segments[-2:] = [self._save(directory, merged, written)]
            content: dict[str, Any] = {
                "format": FORMAT,
                "position": list(position),
                "segments": [[segment.name, len(segment), segment.crc] for segment in segments],
                "held": {str(file): [some.values, some.value_bytes, some.removals] for file, some in held.items()},
            }
            content["crc"] = _json_crc(content)
            write_atomic(directory / INDEX, json.dumps(content).encode())
        except BaseException:
            named = _named(directory)
            if named is not None:
                _remove(directory, set(written) - named)
            raise
        old = {segment.name for segment in self.segments} | set(written)
        with lock:
            self.segments, self.recent, self.position, self.held = segments, {}, position, held
        _remove(directory, old - {segment.name for segment in segments})

    def _held_without_replaced(self, fresh: pa.RecordBatch) -> dict[int, Held]:
        """Return what log files hold once the entries that fresh ones replace no longer count."""
        held = {file: replace(some) for file, some in self.held.items()}
        hashes, keys = _numbers(fresh, "hash"), fresh.column("key")
        for segment in reversed(self.segments):
            found = segment.find(hashes, keys)
            segment.let_go(found[found >= 0], held)
            hashes, keys = hashes[found < 0], keys.filter(pa.array(found < 0))
        return held

    def _save(self, directory: Path, batch: pa.RecordBatch, written: list[str]) -> Segment:
        numbers = [_number(name) for name in os.listdir(directory) if name.startswith("segment-")]
        name = f"segment-{max(numbers, default=0) + 1}.arrow"
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, _SCHEMA) as writer:
            writer.write_batch(batch)
        content = sink.getvalue()
        temporary = write_temporary(directory, memoryview(content))
        try:
            os.rename(temporary, directory / name)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        written.append(name)
        fsync_directory(directory)
        return Segment(batch, name, zlib.crc32(content))

    @classmethod
    def load(cls, directory: Path) -> Index | None:
        """Open the flushed index, None if there is none; `FileNotFoundError` if a segment has just been replaced."""
        path = directory / INDEX
        try:
            content = json.loads(path.read_bytes())
            crc = content.pop("crc")
            if content["format"] != FORMAT:
                raise Corrupt(
                    f"{path} has format {content['format']}, this version reads {FORMAT}",
                    hint="use a newer version of Anabranch",
                )
            if crc != _json_crc(content):
                raise Corrupt(f"{path} was altered: its checksum does not fit")
            held = {int(file): Held(*numbers) for file, numbers in content["held"].items()}
            segments = [_open_segment(directory / name, rows, crc) for name, rows, crc in content["segments"]]
            return cls(segments, {}, held, (content["position"][0], content["position"][1]))
        except FileNotFoundError:
            if path.exists():
                raise
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"{path} is unreadable: {error}") from error


def _numbers(batch: pa.RecordBatch, name: str) -> Any:  # noqa: ANN401  a numpy array
    return batch.column(name).to_numpy(zero_copy_only=True)


def sweep_segments(directory: Path) -> None:
    """Remove segments that the index does not name: a crash left them."""
    named = _named(directory)
    if named is not None:
        _remove(directory, [n for n in os.listdir(directory) if n.startswith("segment-") and n not in named])


def _named(directory: Path) -> set[str] | None:
    try:
        return {name for name, _, _ in json.loads((directory / INDEX).read_bytes())["segments"]}
    except FileNotFoundError:
        return set()
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remove(directory: Path, names: Iterable[str]) -> None:
    for name in names:
        (directory / name).unlink(missing_ok=True)


def _number(name: str) -> int:
    digits = name.removeprefix("segment-").removesuffix(".arrow")
    return int(digits) if digits.isdigit() else 0


def _open_segment(path: Path, rows: int, crc: int) -> Segment:
    with pa.memory_map(str(path)) as mapped:
        content = mapped.read_buffer()
    if zlib.crc32(content) != crc:
        raise Corrupt(f"{path} was altered: its checksum does not fit")
    table = pa.ipc.open_file(content)
    batch = table.get_batch(0)
    if batch.num_rows != rows or not batch.schema.equals(_SCHEMA):
        raise Corrupt(f"{path} is not the segment that the index names")
    return Segment(batch, path.name, crc)


def _frozen(recent: dict[str, Entry]) -> pa.RecordBatch:
    keys = [key.encode() for key in recent]
    hashes = np.fromiter(map(_hash, keys), np.uint64, len(keys))
    order = np.argsort(hashes, kind="stable")
    columns: list[Any] = [pa.array(hashes), pa.array(keys, pa.large_binary())]
    for name, values in zip(Entry._fields, zip(*recent.values(), strict=True), strict=True):
        columns.append(pa.array(values, _SCHEMA.field(name).type))
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA).take(pa.array(order))


def _merged(older: pa.RecordBatch, newer: pa.RecordBatch, *, forget_removals_before: int) -> pa.RecordBatch:
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


def _hash(key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


def _json_crc(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
