"""A store of one file per key: simple, and good to look at.

    items/a/b/c~      the value of key a/b/c: 4 bytes CRC-32, then the value
    intents/decided   a batch of several keys that is decided, and perhaps not carried out yet
    writer            locked by the process that writes

A batch of one value is a file that is written aside, flushed and renamed. A batch of several is written aside too; then
one intent file names every key with its new file, and from that moment the batch is there: readers look at the intent
before they look at the items. The writer then renames the files into place and removes the intent. A crash leaves an
intent that the next writer carries out, or files that nobody names, which it removes.

Every save costs two flushes and a change of a directory, more of them the more files there are: the indexed log exists
because of that.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from anabranch.durable import TEMPORARY_PREFIX, fsync_directory, write_atomic, write_temporary
from anabranch.errors import Corrupt, StoreError, StoreUnavailable
from anabranch.store.framing import framed, unframed
from anabranch.store.store import Durability, check_batch, check_key, not_written
from anabranch.store.writer_lock import WriterLock

FORMAT = 1
# Ends the name of an item's file, so that key `a` and key `a/b` can both exist; no segment of a key contains it.
_LEAF = "~"
_INTENT = "decided"
# A reader that finds a batch begun or ended while it looked looks again, this often.
_ATTEMPTS = 100


class FilePerKeyStore:
    """A handle on a directory. Opened for writing it holds a lock; readers need none."""

    durability = Durability("device", "every file and its name are flushed before a save returns")

    def __init__(self, directory: Path, *, writing: bool = True) -> None:
        self._items = directory / "items"
        self._intents = directory / "intents"
        self._turn = _Turn()
        self._known_directories: set[Path] = set()
        self._unfinished = False
        self._writer: WriterLock | None = None
        if writing:
            self._writer = WriterLock(directory)
            for path in (self._items, self._intents):
                path.mkdir(exist_ok=True)
            fsync_directory(directory)
            self._recover()

    def write(self, batch: Mapping[str, bytes | None]) -> None:
        check_batch(batch)
        if self._writer is None:
            raise StoreError(f"{self._items.parent} is open for reading only")
        if not batch:
            return
        try:
            if len(batch) > 1 or None in batch.values() or not self._write_single(*next(iter(batch.items()))):
                with self._turn.alone():
                    self._recover_unfinished()
                    self._write_several(batch)
        except OSError as error:
            raise not_written(self._items.parent, error) from error

    def _write_single(self, key: str, value: bytes | None) -> bool:
        """Write one value beside others; not while a batch is decided but not carried out, which would undo it."""
        with self._turn.shared():
            if self._unfinished:
                return False
            path = self._path(key)
            self._make_directories(path.parent)
            write_atomic(path, framed(value or b""))
            return True

    def _recover_unfinished(self) -> None:
        if self._unfinished:
            self._recover()

    def _write_several(self, batch: Mapping[str, bytes | None]) -> None:
        aside: dict[str, str | None] = {}
        try:
            for key, value in batch.items():
                aside[key] = None if value is None else write_temporary(self._intents, framed(value)).name
            fsync_directory(self._intents)
            write_atomic(self._intents / _INTENT, json.dumps({"format": FORMAT, "items": aside}).encode())
        except BaseException:
            if not (self._intents / _INTENT).exists():
                for name in aside.values():
                    if name is not None:
                        (self._intents / name).unlink(missing_ok=True)
            raise
        self._unfinished = True
        self._carry_out(aside)

    def _carry_out(self, aside: Mapping[str, str | None]) -> None:
        """Bring a decided batch to its places; may be repeated from any point."""
        touched = set()
        for key, name in aside.items():
            path = self._path(key)
            if name is None:
                path.unlink(missing_ok=True)
            else:
                self._make_directories(path.parent)
                try:
                    os.replace(self._intents / name, path)
                except FileNotFoundError:
                    continue  # carried out before
            touched.add(path.parent)
        for directory in touched:
            if directory.exists():
                fsync_directory(directory)
        (self._intents / _INTENT).unlink()
        # Before the next batch: an intent that came back after a power cut would remove keys that exist again.
        fsync_directory(self._intents)
        self._unfinished = False

    def _recover(self) -> None:
        aside = _intent(self._intents)
        if aside:
            self._carry_out(aside)
        self._unfinished = False
        for directory, _, names in os.walk(self._items.parent):
            for name in names:
                if name.startswith(TEMPORARY_PREFIX):
                    os.unlink(os.path.join(directory, name))

    def read(self, key: str) -> bytes | None:
        check_key(key)
        for _ in range(_ATTEMPTS):
            aside = _intent(self._intents)
            path = self._path(key)
            if key in aside:
                name = aside[key]
                if name is None:
                    return None
                path = self._intents / name if (self._intents / name).exists() else path
            try:
                return unframed(path.read_bytes(), str(path))
            except (FileNotFoundError, NotADirectoryError):
                if path == self._path(key) and _intent(self._intents) == aside:
                    return None
        raise StoreUnavailable(f"{self._items} changed {_ATTEMPTS} times while {key!r} was read")

    def keys(self, prefix: str = "") -> list[str]:
        for _ in range(_ATTEMPTS):
            aside = _intent(self._intents)
            found = set(self._walk())
            if _intent(self._intents) == aside:
                found |= aside.keys()
                found -= {key for key, name in aside.items() if name is None}
                return sorted(key for key in found if key.startswith(prefix))
        raise StoreUnavailable(f"{self._items} changed {_ATTEMPTS} times while it was listed")

    def close(self) -> None:
        if self._writer is not None:
            self._writer.release()
            self._writer = None

    def _walk(self) -> Iterator[str]:
        for directory, _, names in os.walk(self._items):
            for name in names:
                if name.endswith(_LEAF):
                    yield os.path.relpath(os.path.join(directory, name[: -len(_LEAF)]), self._items)

    def _path(self, key: str) -> Path:
        return self._items / f"{key}{_LEAF}"

    def _make_directories(self, directory: Path) -> None:
        if directory in self._known_directories:
            return
        missing = []
        while not directory.exists():
            missing.append(directory)
            directory = directory.parent
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            fsync_directory(path.parent)
        self._known_directories.update(missing or [directory])


class _Turn:
    """Many single values at a time, or one batch alone."""

    def __init__(self) -> None:
        self._alone = threading.Lock()
        self._sharing = 0
        self._changed = threading.Condition()

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self._alone, self._changed:
            self._sharing += 1
        try:
            yield
        finally:
            with self._changed:
                self._sharing -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._alone:
            with self._changed:
                self._changed.wait_for(lambda: self._sharing == 0)
            yield


def _intent(directory: Path) -> dict[str, str | None]:
    path = directory / _INTENT
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise Corrupt(f"{path} has format {content['format']}, this version reads {FORMAT}")
        items: dict[str, str | None] = content["items"]
        for key in items:
            check_key(key)
        return items
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(f"{path} is unreadable: {error}", hint="restore it from a copy") from error
