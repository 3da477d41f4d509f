"""A store of append-only files and an index in memory: for many saves and few reads.

    000000000001.log …   blocks of items (log_file.py); the last one grows
    index.json, segment-N.arrow   the index as of some position in the log (log_index.py)
    writer               locked by the process that writes

A save appends one block and flushes it. Threads that save at the same time share a block and a flush: one leads, saves
what all have queued, and calls them. Opening reads the flushed index and the log after it; a torn last block
is cut off. Without an index the whole log is read: the index is a shortcut, never the truth.

A log file to which no key refers is removed; one that is mostly dead is emptied first, by appending what is still alive
in it. The index is flushed before a file goes, so it never names a file that is gone. A removal keeps its file until
that file is the oldest: until then an older value could come back if the index were lost.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import threading
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from anabranch.errors import Corrupt, StoreError, StoreUnavailable
from anabranch.store import log_file
from anabranch.store.log_directory import LogDirectory, LogLimits, write_all
from anabranch.store.log_file import Encoded, Item
from anabranch.store.log_index import Index, is_segment
from anabranch.store.log_segment import Entry, Held, removal
from anabranch.store.store import FULL, Durability, check_batch, check_key, not_written
from anabranch.store.writer_lock import WriterLock

# This many times over the limits, whoever saves waits for the flush that is under way.
_FAR_BEHIND = 4
# A reader that finds a file replaced while it opened the store opens it again, this often.
_ATTEMPTS = 20


class _Save:
    """One caller's batch on its way; the caller sleeps until it is called, because it is done or because it leads."""

    __slots__ = ("_called", "done", "encoded", "error")

    def __init__(self, encoded: Encoded) -> None:
        self.encoded = encoded
        self.done = False
        self.error: BaseException | None = None
        self._called = threading.Lock()
        self._called.acquire()

    def sleep(self) -> None:
        self._called.acquire()

    def call(self) -> None:
        self._called.release()


class IndexedLogStore:
    """A handle on a directory. Opened for writing it holds a lock; readers need none."""

    durability = Durability("device", "a save is appended and flushed before it returns")

    def __init__(self, directory: Path, *, writing: bool = True, limits: LogLimits | None = None) -> None:
        self._files = LogDirectory(directory)
        self._limits = limits or LogLimits()
        self._writer = WriterLock(directory) if writing else None
        self._queue: list[_Save] = []
        self._led = False
        self._queue_lock = threading.Lock()
        # Taken in this order: `_writing` by whoever appends, `_lock` for as long as index or descriptors change.
        self._writing = threading.Lock()
        self._lock = threading.Lock()
        # Held by whoever flushes the index and empties files, before the two above.
        self._maintaining = threading.Lock()
        self._damaged: set[int] = set()
        self._broken: BaseException | None = None
        self._descriptors: dict[int, int] = {}
        self._active = 0
        self._end = 0
        self._index = Index()
        try:
            if writing:
                self._files.sweep()
            self._open()
        except BaseException:
            self._let_go()
            raise

    # Saving

    def write(self, batch: Mapping[str, bytes | None]) -> None:
        check_batch(batch)
        if self._writer is None:
            raise StoreError(f"{self._files.path} is open for reading only")
        save = _Save(log_file.encode(batch))
        with self._queue_lock:
            self._queue.append(save)
            leads, self._led = not self._led, True
        if not leads:
            save.sleep()
        if not save.done:
            self._lead(save)
        if save.error is not None:
            raise save.error

    def _lead(self, mine: _Save) -> None:
        """Save what is queued, mine first, call its owners, and leave the lead to the first that came meanwhile."""
        group: list[_Save] = []
        try:
            with self._writing:
                with self._queue_lock:
                    group = self._take_group()
                self._save_group(group)
        finally:
            with self._queue_lock:
                next_leader = self._queue[0] if self._queue else None
                self._led = next_leader is not None
            for save in group:
                if save is not mine:
                    save.call()
            if next_leader is not None:
                next_leader.call()
        if mine.error is None:
            self._keep_bounded()

    def _take_group(self) -> list[_Save]:
        size_bytes = 0
        for number, save in enumerate(self._queue):
            size_bytes += len(save.encoded.content)
            if size_bytes > self._limits.block_bytes and number > 0:
                group, self._queue = self._queue[:number], self._queue[number:]
                return group
        group, self._queue = self._queue, []
        return group

    def _save_group(self, group: list[_Save]) -> None:
        try:
            self._append([save.encoded for save in group if save.encoded.items])
        except BaseException as error:  # noqa: BLE001  every caller of the group is told
            for save in group:
                save.error = not_written(self._files.path, error) if isinstance(error, OSError) else error
        for save in group:
            save.done = True

    def _append(self, batches: list[Encoded], *, moving: bool = False) -> None:
        """Append one block, flush it, and note its items."""
        if self._broken is not None:
            what = f"{self._files.path} failed before: {self._broken}"
            raise StoreError(what, hint="open it again once the cause is gone")
        if not batches:
            return
        if self._active == 0 or self._end >= self._limits.file_bytes:
            self._rotate()
        content = log_file.block([batch.content for batch in batches])
        descriptor = self._descriptors[self._active]
        if os.fstat(descriptor).st_nlink == 0:  # nobody would ever find what is written now
            raise FileNotFoundError(errno.ENOENT, "its files were removed")
        try:
            write_all(descriptor, content, self._end)
        except BaseException:
            self._cut_back(descriptor)
            raise
        try:
            os.fdatasync(descriptor)
        except BaseException as error:
            # What the device holds now is not known, and asking again would not tell.
            self._broken = error
            raise
        base = self._end + log_file.BLOCK_HEADER.size
        self._end += len(content)
        with self._lock:
            for batch in batches:
                self._note(self._active, batch.items, base, moving=moving)
                base += len(batch.content)

    def _cut_back(self, descriptor: int) -> None:
        """Take back a block that did not fit on the device."""
        try:
            os.ftruncate(descriptor, self._end)
        except OSError as error:
            self._broken = error

    def _note(self, file: int, items: Iterable[Item], base: int = 0, *, moving: bool = False) -> None:
        """Take items into the index; a removal counts only if there was something to remove, or if it is moved."""
        for item in items:
            offset = base + item.offset
            if not item.removed:
                self._index.put(item.key, Entry(file, offset, item.length, item.crc))
            elif moving or ((before := self._index.get(item.key)) is not None and not before.removed):
                self._index.put(item.key, removal(file, offset))

    def _rotate(self) -> None:
        number = max([self._active, *self._files.numbers()], default=0) + 1
        descriptor, end = self._files.create(number)
        with self._lock:
            self._descriptors[number] = descriptor
            self._active, self._end = number, end
            self._index.held.setdefault(number, Held())

    # Keeping it bounded

    def _keep_bounded(self) -> None:
        """Flush the index, and remove or empty files, when it is time; others save meanwhile.

        A device that is full loses nothing here: it is tried again after the next save.
        """
        behind = max(
            self._unflushed_bytes() / self._limits.unflushed_bytes,
            len(self._index.recent) / self._limits.unflushed_entries,
        )
        if behind < 1 or not self._maintaining.acquire(blocking=behind > _FAR_BEHIND):
            return
        try:
            self._maintain()
        except OSError as error:
            if error.errno not in FULL:
                raise not_written(self._files.path, error) from error
        finally:
            self._maintaining.release()

    def _maintain(self) -> None:
        self._flush()
        file = self._mostly_dead()
        if file is not None:
            if not self._empty(file):
                self._damaged.add(file)
            self._flush()
        self._remove_dead()

    def _unflushed_bytes(self) -> int:
        file, offset = self._index.position
        return self._end - offset if file == self._active else self._end + self._limits.file_bytes

    def _flush(self) -> None:
        with self._writing, self._lock:
            position = (self._active, self._end)
            if self._index.position == position:
                return
            frozen = self._index.freeze(position)
        self._index.flush(self._files.path, frozen, self._lock)

    def _mostly_dead(self) -> int | None:
        """Return a closed file worth emptying: little of it is alive."""
        with self._lock:
            for file, held in sorted(self._index.held.items()):
                closed = file != self._active and file not in self._damaged
                if closed and held.values and held.value_bytes < self._limits.live_share * self._files.size(file):
                    return file
        return None

    def _empty(self, file: int) -> bool:
        """Append what is still alive in a file, so that nothing refers to it any more.

        What cannot be read any more stays where it is, reads of it say why, and the answer is False.
        """
        with self._lock:
            descriptor = self._descriptor(file)
            entries = self._index.entries_of(file)
        whole = True
        batch: dict[str, tuple[Entry, bytes | None]] = {}
        size_bytes = 0
        for key, entry in entries:
            value = None if entry.removed else os.pread(descriptor, entry.length, entry.offset)
            if value is not None and not _fits(value, entry):
                whole = False
                continue
            batch[key] = entry, value
            size_bytes += len(value or b"")
            if size_bytes > self._limits.moved_bytes:
                self._move(batch)
                batch, size_bytes = {}, 0
        self._move(batch)
        return whole

    def _move(self, batch: dict[str, tuple[Entry, bytes | None]]) -> None:
        """Append values again whose keys still have the entries they had."""
        with self._writing:
            same = {key: value for key, (entry, value) in batch.items() if not self._index.replaced(key, entry)}
            if same:
                self._append([log_file.encode(same)], moving=True)

    def _remove_dead(self) -> None:
        with self._lock:
            for file in sorted(self._index.held):
                held = self._index.held[file]
                oldest = file == min(self._index.held)
                if file < self._index.position[0] and not held.values and (oldest or not held.removals):
                    self._forget(file)
                    del self._index.held[file]
                    self._files.file(file).unlink(missing_ok=True)

    def _forget(self, file: int) -> None:
        descriptor = self._descriptors.pop(file, None)
        if descriptor is not None:
            os.close(descriptor)

    # Reading

    def read(self, key: str) -> bytes | None:
        check_key(key)
        for _ in range(_ATTEMPTS):
            with self._lock:
                entry = self._index.get(key)
                if entry is None or entry.removed:
                    return None
                try:
                    value = os.pread(self._descriptor(entry.file), entry.length, entry.offset)
                except FileNotFoundError:
                    if self._writer is not None:
                        raise self._files.missing(entry.file) from None
                    self._open()
                    continue
            if not _fits(value, entry):
                path = self._files.file(entry.file)
                raise Corrupt(
                    f"{path} was altered: the value of {key!r} at byte {entry.offset} does not fit its checksum",
                    hint="restore the file from a copy",
                )
            return value
        raise StoreUnavailable(f"{self._files.path} changed {_ATTEMPTS} times while {key!r} was read")

    def keys(self, prefix: str = "") -> list[str]:
        with self._lock:
            return self._index.keys(prefix)

    def _descriptor(self, file: int) -> int:
        if file not in self._descriptors:
            self._descriptors[file] = os.open(self._files.file(file), os.O_RDONLY)
        return self._descriptors[file]

    def close(self) -> None:
        with self._maintaining:
            if self._writer is not None and self._broken is None:
                # The index is a shortcut: without it, the next one to open reads more of the log.
                with contextlib.suppress(OSError):
                    self._flush()
            with self._writing:
                self._let_go()

    def _let_go(self) -> None:
        with self._lock:
            for file in list(self._descriptors):
                self._forget(file)
        if self._writer is not None:
            self._writer.release()
            self._writer = None

    # Opening

    def _open(self) -> None:
        vanished = ""
        for attempt in range(_ATTEMPTS):
            # A writer replaces segments; one that stays away is lost, and then the log itself is read.
            lost = attempt == _ATTEMPTS - 1 and is_segment(vanished)
            for file in list(self._descriptors):
                self._forget(file)
            try:
                self._load(Index() if lost else self._flushed_index())
            except FileNotFoundError as error:
                if self._writer is not None:
                    raise
                vanished = error.filename
                continue  # the writer replaced a file while we looked
            return
        raise Corrupt(f"{vanished} is missing, though the index refers to it", hint="restore the file from a copy")

    def _load(self, index: Index) -> None:
        self._index = index
        numbers = self._files.numbers()
        first, offset = self._index.position
        for file, held in self._index.held.items():
            if held.values and file not in numbers:
                if self._writer is not None:
                    raise self._files.missing(file)
                raise FileNotFoundError(errno.ENOENT, "missing", str(self._files.file(file)))
        for file in numbers:
            if file >= first:
                note = functools.partial(self._note, file)
                end = self._files.replay(file, offset if file == first else 0, note, last=file == numbers[-1])
            self._index.held.setdefault(file, Held())
        if numbers:
            self._active, self._end = numbers[-1], end
            if self._writer is not None:
                self._descriptors[self._active], self._end = self._files.go_on(self._active, self._end)

    def _flushed_index(self) -> Index:
        try:
            return Index.load(self._files.path) or Index()
        except (Corrupt, FileNotFoundError) as error:
            if isinstance(error, FileNotFoundError) and self._writer is None:
                raise  # the writer replaced a segment while we looked
            # The log holds everything: read it whole, unless it is of a newer format, which it says itself.
            return Index()


def _fits(value: bytes, entry: Entry) -> bool:
    return len(value) == entry.length and zlib.crc32(value) == entry.crc
