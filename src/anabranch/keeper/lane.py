"""One store's lane: takes the newest version that waits, reads its new files, and stores them.

Two bounded queues keep it off the processing path. Before the first one waits at most one version: a newer one takes
its place (it needs everything the older one would have brought, so no chain breaks). Between reading and storing wait a
few pieces of files. A store that does not answer is asked again until it does; meanwhile versions are coalesced. One
that has lost what it was given (its disk was replaced, it came back from an old copy) is given everything anew.

The files of a waiting version are hard-linked, so that Spark's clean-up cannot take them, and let go once stored.
"""

from __future__ import annotations

import os
import queue
import shutil
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from anabranch.clock import Clock
from anabranch.errors import Corrupt, StoreError
from anabranch.keeper.calibration import rest_s
from anabranch.keeper.version import PIECE_BYTES, KeptFile, Version, piece_key, version_key

# How many pieces wait between reading and storing.
_PIECES = 8
# Pieces are stored in batches of about this size; the last one carries the record.
_BATCH_BYTES = 4 << 20
# A store that failed is asked again after this long, doubled up to the longest.
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 5.0
# How often a version that has to wait looks whether it may go.
_CEILING_LOOK_S = 0.05


class Target(Protocol):
    """What a lane needs of a store."""

    def write(self, batch: Mapping[str, bytes | None]) -> None:
        """Write a batch, whole or not at all."""

    def read(self, key: str) -> bytes | None:
        """Return a value, None if there is none."""

    def close(self) -> None:
        """Let go of it."""


@dataclass(frozen=True)
class Waiting:
    """A version on its way: which files it needs, by path; their content is read later."""

    unit: str
    run: str
    epoch: int
    batch_id: int
    committed_s: float
    paths: tuple[str, ...]
    origin: str = ""


@dataclass(frozen=True)
class Counters:
    """What a lane has done, and how far it is behind."""

    versions: int = 0
    coalesced: int = 0
    files: int = 0
    size_bytes: int = 0
    shipped_epoch: int = -1
    waiting_epoch: int = -1
    shipped_at_s: float | None = None
    latency_s: float = 0.0
    busy_s: float = 0.0
    error: str | None = None

    @property
    def lag_epochs(self) -> int:
        """How many epochs the store is behind."""
        return max(0, self.waiting_epoch - self.shipped_epoch)


@dataclass(frozen=True)
class LaneOptions:
    """How a lane works: where files are, where it links them, and how many versions the store keeps.

    A version above the `ceiling` waits until that has come up to it; None: there is none.
    """

    root: Path
    links: Path
    keep_versions: int = 2
    ceiling: Callable[[], int | None] = lambda: None


class Lane:
    """Ships versions of one run to one store; two threads."""

    def __init__(
        self, store: Target, options: LaneOptions, clock: Clock, shipped: Callable[[Version], None] = lambda _: None
    ) -> None:
        self._store = store
        self._options = options
        self._clock = clock
        self._on_shipped = shipped
        self._changed = threading.Condition()
        self._waiting: Waiting | None = None
        self._stopping = False
        self._failure: BaseException | None = None
        self._pieces: queue.Queue[tuple[str, bytes] | _Closing | None] = queue.Queue(_PIECES)
        self._shipped: dict[str, KeptFile] = {}
        self._versions: list[Version] = []
        self._hurried = False
        self.counters = Counters()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=f"keeper {work.__name__}", daemon=True)
            for work in (self._read_all, self._store_all)
        ]

    def start(self) -> None:
        """Begin shipping."""
        for thread in self._threads:
            thread.start()

    def offer(self, waiting: Waiting) -> None:
        """Let a version wait in place of the one that waits; its files are linked before this returns."""
        with self._changed:
            for path in waiting.paths:
                if path not in self._shipped:
                    _link(self._options.root / path, self._options.links / path)
            coalesced = self._waiting is not None
            self._waiting = waiting
            self._count(waiting_epoch=waiting.epoch, coalesced=self.counters.coalesced + coalesced)
            self._changed.notify_all()

    @property
    def held_back(self) -> bool:
        """Whether a version waits for the ceiling; another one in its place would wait even longer."""
        waiting, ceiling = self._waiting, self._options.ceiling()
        return waiting is not None and ceiling is not None and waiting.epoch > ceiling

    def failure(self) -> BaseException | None:
        """Return why the lane ended by itself, None while it works."""
        return self._failure

    def wait_until_shipped(self, epoch: int, timeout_s: float) -> bool:
        """Wait until the store holds a version at or after an epoch, without rests; False if it does not in time."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self.counters.shipped_epoch >= epoch or self._stopping, timeout_s)

    def stop(self) -> None:
        """End; a version that is not stored whole is left out."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._store.close()
        shutil.rmtree(self._options.links, ignore_errors=True)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  handed to the node, which decides
            self._failure = error
            self._count(error=str(error))

    # Reading

    def _read_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._hurried or self._stopping, rest_s(self.counters.busy_s))
                self._changed.wait_for(lambda: self._waiting is not None or self._stopping)
                while self.held_back and not self._stopping:
                    self._changed.wait(_CEILING_LOOK_S)
                waiting, self._waiting = self._waiting, None
            if waiting is None or self._stopping:
                return
            self._read(waiting)

    def _read(self, waiting: Waiting) -> None:
        started_s = self._clock.steady_s()
        files = []
        try:
            for path in waiting.paths:
                files.append(self._shipped.get(path) or self._read_file(path))
                if self._stopping:
                    return
        except FileNotFoundError as error:
            # A file that the store let go of is needed again, and Spark has removed it: the next version will do.
            self._count(error=f"version {waiting.epoch} is left out: {error.filename} is gone")
            self._put(None)
            return
        version = Version(
            unit=waiting.unit,
            run=waiting.run,
            epoch=waiting.epoch,
            batch_id=waiting.batch_id,
            at_s=waiting.committed_s,
            files=tuple(files),
            origin=waiting.origin,
        )
        closing = _Closing(version, started_s)
        self._put(closing)
        while not closing.done.wait(0.2):
            if self._stopping or self._failure is not None:
                return
        self._let_go()

    def _read_file(self, path: str) -> KeptFile:
        pieces = crc = size_bytes = 0
        _link(self._options.root / path, self._options.links / path)
        with (self._options.links / path).open("rb") as file:
            while True:
                content = file.read(PIECE_BYTES)
                if not content and pieces:
                    break
                self._put((piece_key(path, pieces), content))
                pieces += 1
                crc = zlib.crc32(content, crc)
                size_bytes += len(content)
                if len(content) < PIECE_BYTES:
                    break
        return KeptFile(path, size_bytes, crc)

    def _put(self, piece: tuple[str, bytes] | _Closing | None) -> None:
        while not self._stopping and self._failure is None:
            try:
                self._pieces.put(piece, timeout=0.2)
            except queue.Full:
                continue
            return

    def _let_go(self) -> None:
        """Unlink what the store has now, and what a version that was replaced had linked."""
        with self._changed:
            needed = set(self._waiting.paths) if self._waiting is not None else set()
            for directory, _, names in os.walk(self._options.links):
                for name in names:
                    path = os.path.relpath(os.path.join(directory, name), self._options.links)
                    if path in self._shipped or path not in needed:
                        os.unlink(os.path.join(directory, name))

    # Storing

    def _store_all(self) -> None:
        """Store pieces in batches, and what closes a version with the last of them; None takes pieces back."""
        batch: dict[str, bytes | None] = {}
        size_bytes = 0
        loose: list[str] = []
        while not self._stopping:
            try:
                piece = self._pieces.get(timeout=0.2)
            except queue.Empty:
                continue
            if piece is None or isinstance(piece, _Closing):
                if piece is not None:
                    self._close(piece, batch, loose[-1:])
                elif loose:
                    self._write(dict.fromkeys(loose))
                batch, size_bytes, loose = {}, 0, []
                continue
            key, content = piece
            batch[key] = content
            size_bytes += len(content)
            if size_bytes >= _BATCH_BYTES:
                self._write(batch)
                loose += batch
                batch, size_bytes = {}, 0

    def _close(self, closing: _Closing, batch: dict[str, bytes | None], loose: list[str]) -> None:
        """Write the record with the last pieces, and take away what no kept version names.

        What was written before for this version, and the version before it, must still be there: else it would be
        called kept with holes in it.
        """
        version = closing.version
        kept = [*self._versions, version][-self._options.keep_versions :]
        dropped = [some for some in [*self._versions, version] if some not in kept]
        named = {file.path for some in kept for file in some.files}
        gone = [file for path, file in self._shipped.items() if path not in named]
        batch |= {key: None for file in gone for key in file.keys()}  # noqa: SIM118  a method
        batch |= {version_key(some.epoch): None for some in dropped}
        batch[version.key] = version.encode()
        if not self._write(batch, [*(some.key for some in self._versions[-1:]), *loose]):
            closing.done.set()
            return
        new = [file for file in version.files if file.path not in self._shipped]
        self._shipped = {path: file for path, file in self._shipped.items() if path in named}
        self._shipped |= {file.path: file for file in new}
        self._versions = kept
        self._count(
            versions=self.counters.versions + 1,
            files=self.counters.files + len(new),
            size_bytes=self.counters.size_bytes + sum(file.size_bytes for file in new),
            shipped_epoch=version.epoch,
            shipped_at_s=version.at_s,
            latency_s=self._clock.now_s() - version.at_s,
            busy_s=self._clock.steady_s() - closing.started_s,
        )
        closing.done.set()
        self._on_shipped(version)

    def _write(self, batch: Mapping[str, bytes | None], there: Iterable[str] = ()) -> bool:
        """Write until the store takes it; False if the lane is stopped first, or if something is not `there`."""
        pause_s = _FIRST_PAUSE_S
        while not self._stopping:
            try:
                if any(self._store.read(key) is None for key in there):
                    self._begin_anew()
                    return False
                self._store.write(batch)
            except Corrupt:
                raise
            except StoreError as error:
                self._count(error=str(error))
                with self._changed:
                    self._changed.wait_for(lambda: self._stopping, pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            if self.counters.error is not None:
                self._count(error=None)
            return True
        return False

    def _begin_anew(self) -> None:
        """Ship everything with the next version: the store has lost what it was given."""
        with self._changed:
            self._shipped, self._versions = {}, []
            self._count(shipped_epoch=-1, error="the store lost what it was given; the next version brings all")

    def _count(self, **changes: Any) -> None:  # noqa: ANN401  fields by name
        with self._changed:
            self.counters = replace(self.counters, **changes)
            self._changed.notify_all()


class _Closing:
    """The end of a version in the queue of pieces."""

    def __init__(self, version: Version, started_s: float) -> None:
        self.version = version
        self.started_s = started_s
        self.done = threading.Event()


def _link(source: Path, target: Path) -> None:
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(source, target)
