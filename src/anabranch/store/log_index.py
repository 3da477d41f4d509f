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

import json
import os
import zlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.durable import fsync_directory, write_atomic, write_temporary
from anabranch.errors import Corrupt
from anabranch.store.log_segment import (
    SCHEMA,
    Entry,
    Held,
    Segment,
    freeze_entries,
    hash_of,
    merged,
    numbers,
    open_segment,
)

FORMAT = 1
# A segment is merged into the one before it unless that one is at least this many times as large.
_MERGE_RATIO = 2
INDEX = "index.json"


@dataclass(frozen=True)
class Frozen:
    """What a flush writes: everything up to a position in the log, and what the log files held then."""

    position: tuple[int, int]
    held: dict[int, Held]


@dataclass
class Index:
    """Segments, entries that are being frozen into one, and recent entries, which count most.

    Not thread-safe: the store holds its lock, and flushes one at a time.
    """

    segments: list[Segment] = field(default_factory=list)
    recent: dict[str, Entry] = field(default_factory=dict)
    freezing: dict[str, Entry] = field(default_factory=dict)
    held: dict[int, Held] = field(default_factory=dict)
    position: tuple[int, int] = (0, 0)

    def get(self, key: str) -> Entry | None:
        """Return the newest entry of a key, also if it says removed; None if there is none."""
        entry = self.recent.get(key) or self.freezing.get(key)
        if entry is not None or not self.segments:
            return entry
        name = key.encode()
        hashed = hash_of(name)
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
        held = self.held.get(entry.file)
        if held is None:
            held = self.held[entry.file] = Held()
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
        for entries in (self.freezing, self.recent):
            found.update((key, not entry.removed) for key, entry in entries.items() if key.startswith(prefix))
        return sorted(key for key, present in found.items() if present)

    def entries_of(self, file: int) -> list[tuple[str, Entry]]:
        """Return the keys whose newest entry is in a log file, in the order of that file. Not during a flush."""
        found = [(key, entry) for key, entry in self.recent.items() if entry.file == file]
        for number, segment in enumerate(self.segments):
            found += segment.of_file(file, self.segments[number + 1 :])
        return sorted(found, key=lambda pair: pair[1].offset)

    def replaced(self, key: str, entry: Entry) -> bool:
        """Say whether something else was noted for a key since the last flush."""
        return self.recent.get(key, entry) != entry

    # Segments

    def freeze(self, position: tuple[int, int]) -> Frozen:
        """Set aside what is recent, and what log files hold, as of a position in the log; a flush follows."""
        self.freezing, self.recent = self.recent, {}
        return Frozen(position, {file: replace(some) for file, some in self.held.items()})

    def flush(self, directory: Path, frozen: Frozen, lock: AbstractContextManager[Any]) -> None:
        """Write frozen entries as a segment, merge, and make `index.json` point to the result; durable on return.

        If it fails, the index is as if nothing had been frozen. Reads and saves go on meanwhile; they are kept out, by
        `lock`, for a moment at the end.
        """
        segments = list(self.segments)
        written: list[str] = []
        replaced: dict[int, Held] = {}
        try:
            if self.freezing:
                fresh = freeze_entries(self.freezing)
                replaced = self._replaced(fresh)
                segments.append(self._save(directory, fresh, written))
            held = _less(frozen.held, replaced)
            while len(segments) > 1 and len(segments[-2]) < _MERGE_RATIO * len(segments[-1]):
                oldest = min(held, default=0) if len(segments) == 2 else -1  # noqa: PLR2004  the last two
                joined = merged(segments[-2].batch, segments[-1].batch, forget_removals_before=oldest)
                segments[-2:] = [self._save(directory, joined, written)]
            content: dict[str, Any] = {
                "format": FORMAT,
                "position": list(frozen.position),
                "segments": [[segment.name, len(segment), segment.crc] for segment in segments],
                "held": {str(file): [some.values, some.value_bytes, some.removals] for file, some in held.items()},
            }
            content["crc"] = _json_crc(content)
            write_atomic(directory / INDEX, json.dumps(content).encode())
        except BaseException:
            with lock:
                self._thaw()
            named = _named(directory)
            if named is not None:
                _remove(directory, set(written) - named)
            raise
        old = {segment.name for segment in self.segments} | set(written)
        with lock:
            self.segments, self.freezing, self.position = segments, {}, frozen.position
            self.held = _less(self.held, replaced)
        _remove(directory, old - {segment.name for segment in segments})

    def _thaw(self) -> None:
        """Take back what was frozen; what came since counts, and not what it replaced."""
        for key in self.freezing.keys() & self.recent.keys():
            self._count(self.freezing[key], -1)
        self.recent, self.freezing = {**self.freezing, **self.recent}, {}

    def _replaced(self, fresh: pa.RecordBatch) -> dict[int, Held]:
        """Return what log files hold of the entries that fresh ones replace."""
        replaced: dict[int, Held] = {}
        hashes, keys = numbers(fresh, "hash"), fresh.column("key")
        for segment in reversed(self.segments):
            found = segment.find(hashes, keys)
            segment.count(found[found >= 0], replaced)
            hashes, keys = hashes[found < 0], keys.filter(pa.array(found < 0))
        return replaced

    def _save(self, directory: Path, batch: pa.RecordBatch, written: list[str]) -> Segment:
        numbers = [_number(name) for name in os.listdir(directory) if name.startswith("segment-")]
        name = f"segment-{max(numbers, default=0) + 1}.arrow"
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, SCHEMA) as writer:
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
            segments = [open_segment(directory / name, rows, crc) for name, rows, crc in content["segments"]]
            return cls(segments, {}, {}, held, (content["position"][0], content["position"][1]))
        except FileNotFoundError:
            if path.exists():
                raise
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"{path} is unreadable: {error}") from error


def _less(held: dict[int, Held], replaced: dict[int, Held]) -> dict[int, Held]:
    """Return what log files hold without what was replaced."""
    rest = dict(held)
    for file, gone in replaced.items():
        some = rest.get(file, Held())
        rest[file] = Held(some.values - gone.values, some.value_bytes - gone.value_bytes, some.removals - gone.removals)
    return rest


def is_segment(path: str) -> bool:
    """Say whether a path is that of a segment."""
    return os.path.basename(path).startswith("segment-")


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


def _json_crc(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
