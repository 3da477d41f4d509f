"""Growing directories: which bytes of which files belong to the next epoch.

A range is a list of *pieces*: a file's name, where the piece starts and ends, and a checksum of what was there. The
position is the last piece taken of every file, by name: a file that comes late is new whatever its name or time, and
nothing is decided by "newer than". What a piece is, and where one may end, is the format's business (`Cutter`).

Fairness: files wait in a queue, by name among those seen first together. A file's turn covers the size it had when it
joined, so one that grows all the time does not starve the others, and a backlog is read file after file.

Failure model: files may grow, appear and, once taken, vanish. A file that shrank or changed below what was taken, or
vanished with rows waiting, is a `SourceError` that names it. Not seen: a file renamed after it was taken (its rows
come again under the new name), and a change before the last piece that leaves size and last piece as they were.

Rejected: recursive listing, and change notification (a network file system sends none).
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from anabranch.errors import Corrupt, PipelineError, SourceError
from anabranch.sources.source import Limit, Range

Piece = dict[str, Any]

#: An epoch is a JSON record in a ledger: with more pieces than this it would take seconds to plan and to read.
MOST_PIECES = 4096
# To list a file costs 5 to 15 µs, its name alone 1 µs, so this keeps listing near a tenth of a core, however many there
# are. Files that are never written again are looked at thoroughly now and then, to see that this is so.
_SHORTEST_INTERVAL_S = 0.02
_INTERVAL_PER_FILE_S = 0.000_1
_INTERVAL_PER_NAME_S = 0.000_01
_THOROUGH_INTERVAL_S = 1.0
_HIDDEN = (".", "_")


@dataclass(frozen=True)
class Entry:
    """A file as it was when the directory was listed."""

    path: str
    name: str
    size_bytes: int
    modified_ns: int


class Cutter(Protocol):
    """How a format cuts a file into pieces. Stateless; `written_once` says that a file never changes."""

    @property
    def written_once(self) -> bool: ...

    def unread(self, entry: Entry, last: Piece | None) -> bool:
        """Say, by sizes alone, whether the file may hold more than was taken; `SourceError` if it changed."""
        ...

    def cut(self, entry: Entry, last: Piece | None, room_bytes: int, *, closed: bool) -> list[Piece]:
        """Return the next pieces of a file up to the size in `entry`, `[]` if no complete record is there.

        Takes at most about `room_bytes`: a first piece is given even if it is larger. `closed` says that the file will
        not grow. Raises `FileNotFoundError`, or `SourceError` if the file is not what was taken.
        """
        ...


def check_location(directory: str, pattern: str) -> None:
    """Raise `PipelineError` if these arguments cannot name files."""
    if not os.path.isabs(directory):
        raise PipelineError(
            f"directory {directory!r} is not absolute", hint="use the constructors in anabranch.sources"
        )
    if not isinstance(pattern, str) or not pattern or "/" in pattern:
        raise PipelineError(
            f"pattern is {pattern!r}", hint="a pattern matches file names in the directory itself, as in '*.jsonl'"
        )


def absolute(directory: str | os.PathLike[str]) -> str:
    """Return a directory as it is meant where the pipeline is defined."""
    if not isinstance(directory, (str, os.PathLike)) or not os.fspath(directory):
        raise PipelineError(f"directory is {directory!r}", hint="give the path of a directory")
    return os.path.abspath(os.path.expanduser(os.fspath(directory)))


def list_files(directory: str, pattern: str, known: Mapping[str, Entry] | None = None) -> dict[str, Entry]:
    """Return the files of a directory by name, in that order; `.x` and `_x` do not count, as in Spark.

    A file that is known is not looked at again.
    """
    found = []
    known = known or {}
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name in known:
                    found.append(known[entry.name])
                    continue
                if entry.name.startswith(_HIDDEN) or not fnmatch.fnmatchcase(entry.name, pattern):
                    continue
                try:
                    if entry.is_file():
                        status = entry.stat()
                        found.append(Entry(entry.path, entry.name, status.st_size, status.st_mtime_ns))
                except FileNotFoundError:
                    continue  # it vanished while the directory was read
    except FileNotFoundError:
        raise SourceError(f"the directory {directory} does not exist", hint="create it, or correct the path") from None
    except OSError as error:
        raise SourceError(
            f"the directory {directory} cannot be listed: {error.strerror}", hint="it must be a readable directory"
        ) from error
    return {entry.name: entry for entry in sorted(found, key=lambda entry: entry.name)}


def _due(last_s: float | None, now_s: float, interval_s: float) -> bool:
    """Say whether to look again; a wall clock may be set back: then at once."""
    return last_s is None or not 0 <= now_s - last_s < interval_s


def split_pieces(planned: Range, ways: int) -> list[Range]:
    """Cut a range between pieces into runs of about equal size; the order of pieces stays."""
    pieces: list[Piece] = planned.get("pieces", [])
    total = sum(map(weight, pieces))
    runs: dict[int, list[Piece]] = {}
    before = 0
    for piece in pieces:
        # A piece goes where its middle falls, so that no run is longer than its share by more than half a piece.
        middle = before + weight(piece) / 2
        runs.setdefault(min(int(middle * ways / max(total, 1)), ways - 1), []).append(piece)
        before += weight(piece)
    return [{"pieces": run} for run in runs.values()]


def weight(piece: Piece) -> int:
    """Return how many bytes it takes to read a piece."""
    return int(piece["bytes"] if "bytes" in piece else piece["end"] - piece["start"])


class FilePlanner:
    """The planner of every source that reads a directory."""

    def __init__(self, directory: str, pattern: str, cutter: Cutter, snapshot: dict[str, Any] | None) -> None:
        self._directory = directory
        self._pattern = pattern
        self._cutter = cutter
        self._last = _restored(directory, snapshot)
        self._entries: dict[str, Entry] = {}
        self._held: dict[str, Entry] | None = None
        # Files with something unread, each as it was when it joined: dictionaries keep their order.
        self._queue: dict[str, Entry] = {}
        # Files in which no complete record was found, each as it was then: not opened again until it changes.
        self._barren: dict[str, Entry] = {}
        # Files that were taken whole and do not change.
        self._done: dict[str, Entry] = {}
        self._listed_s: float | None = None
        self._thorough_s: float | None = None

    def waiting(self, now_s: float) -> bool:
        """Judge by sizes: an unfinished line counts until `plan` has looked at it. True also if `plan` would raise."""
        done = len(self._done)
        cost_s = _INTERVAL_PER_FILE_S * (len(self._entries) - done) + _INTERVAL_PER_NAME_S * done
        if _due(self._listed_s, now_s, max(_SHORTEST_INTERVAL_S, cost_s)):
            try:
                self._look(now_s)
            except SourceError:
                return True
        return bool(self._queue)

    def backlogged(self, now_s: float, limit: Limit) -> bool:
        """Count files that nothing was taken of yet; of the others it is not known how much is left."""
        return (
            sum(entry.size_bytes for name, entry in self._queue.items() if name not in self._last) >= limit.size_bytes
        )

    def plan(self, now_s: float, limit: Limit) -> Range:
        self._look(now_s)
        pieces: list[Piece] = []
        room_bytes = limit.size_bytes
        for name in list(self._queue):
            if room_bytes <= 0 or len(pieces) >= MOST_PIECES:
                break
            cut = self._cut(name, room_bytes)[: MOST_PIECES - len(pieces)]
            pieces.extend(cut)
            room_bytes -= sum(map(weight, cut))
        return {"pieces": pieces} if pieces else {}

    def apply(self, planned: Range) -> None:
        for piece in planned.get("pieces", []):
            name = piece["file"]
            last = self._last.get(name)
            # From 0 again is a new file under the name of one that was removed and forgotten.
            if last is not None and 0 < piece["start"] < last["end"]:
                raise Corrupt(
                    f"a range takes {name} in {self._directory} from {piece['start']}, but {last['end']} are taken",
                    hint="restore the source's ledger from a copy",
                )
            self._last[name] = {key: value for key, value in piece.items() if key != "file"}
        self._enqueue()

    def close(self, now_s: float) -> None:
        """Hold on to the files and sizes of this moment. Not part of a snapshot: whoever goes on closes again."""
        if self._held is None:
            self._look(now_s)
            self._held = self._entries
            # Turns that began with smaller files would end their tails too early.
            self._queue.clear()
            self._barren.clear()
            self._enqueue()

    def ended(self, now_s: float) -> bool:
        return self._held is not None and not self._queue

    def snapshot(self) -> dict[str, Any]:
        """Return the last piece of every file that still exists; this planner forgets the others too."""
        present = list_files(self._directory, self._pattern)
        kept = {name: last for name, last in self._last.items() if name in present}
        # All gone at once looks like a file system that is not mounted: its files would be read again.
        if kept or present:
            self._last = kept
        return {"files": dict(self._last)}

    def _look(self, now_s: float) -> None:
        """List the directory, and put files with something new into the queue."""
        if _due(self._thorough_s, now_s, max(_THOROUGH_INTERVAL_S, _INTERVAL_PER_FILE_S * len(self._done))):
            self._done.clear()
            self._thorough_s = now_s
        found = list_files(self._directory, self._pattern, self._done)
        self._listed_s = now_s
        for name, joined in list(self._queue.items()):
            if name in found:
                continue
            if name in self._last or self._held is not None:
                raise SourceError(
                    f"{joined.path} was removed while rows of it were waiting",
                    hint="put it back, or start again to go on without them",
                )
            del self._queue[name]
        self._entries = found if self._held is None else self._held
        self._enqueue()

    def _enqueue(self) -> None:
        """Bring the queue up to date with what was listed and what was taken."""
        for name, entry in self._entries.items():
            if name in self._done:
                continue
            last = self._last.get(name)
            joined = self._queue.get(name)
            if joined is not None and not self._cutter.unread(joined, last):
                del self._queue[name]
                joined = None
            if joined is None and self._barren.get(name) != entry:
                if self._cutter.unread(entry, last):
                    self._queue[name] = entry
                elif self._cutter.written_once:
                    self._done[name] = entry

    def _cut(self, name: str, room_bytes: int) -> list[Piece]:
        """Cut pieces of a file whose turn it is; one without a complete record leaves the queue until it changes."""
        joined, entry, last = self._queue[name], self._entries[name], self._last.get(name)
        closed = self._held is not None
        try:
            pieces = self._cutter.cut(joined, last, room_bytes, closed=closed)
            if not pieces and entry != joined:
                self._queue[name] = entry
                pieces = self._cutter.cut(entry, last, room_bytes, closed=closed)
        except FileNotFoundError:
            if last is not None or closed:
                raise SourceError(
                    f"{entry.path} was removed while rows of it were waiting", hint="put it back"
                ) from None
            pieces = []
        except OSError as error:
            raise SourceError(f"{entry.path} cannot be read: {error.strerror}", hint="it must be readable") from error
        if not pieces:
            self._barren[name] = entry
            del self._queue[name]
        return pieces


def shrunk(entry: Entry, taken_bytes: int) -> SourceError:
    """Say that a file is smaller than what was taken of it."""
    return SourceError(
        f"{entry.path} has shrunk to {entry.size_bytes} bytes, but {taken_bytes} bytes of it belong to this source",
        hint="files may only grow; put the old content back, or write new rows under a new name",
    )


def _restored(directory: str, snapshot: dict[str, Any] | None) -> dict[str, Piece]:
    if snapshot is None:
        return {}
    try:
        needed = ("start", "end", "crc")
        return {name: {**last, **{key: int(last[key]) for key in needed}} for name, last in snapshot["files"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"the position of the source {directory} is damaged: {error!r}", hint="restore it") from error
