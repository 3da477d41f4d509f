"""The work directory, in memory: ledgers, channels and runs with the contracts of the real ones.

A ledger's claims and everything durable survive any crash. What is written without a flush, acknowledgements and the
files of Spark's checkpoints, survives the death of a process, but not a power cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from anabranch.channel.channel import Outcome
from anabranch.channel.manifest import Manifest
from anabranch.choosing import ALWAYS
from anabranch.ledger.ledger import NO_FLOOR, Claim
from anabranch.ledger.memory import MemoryLedger


class Died(BaseException):
    """The process is gone, in the middle of what it did: no handler of the code that is tried may catch this."""


class TouchedLedger(MemoryLedger):
    """A ledger whose user may die just before a claim, or just after it."""

    def __init__(self, touch: Callable[[], None]) -> None:
        super().__init__()
        self._touch = touch

    def claim(self, slot: int, record: bytes) -> Claim:
        self._touch()
        claim = super().claim(slot, record)
        self._touch()
        return claim


class MemoryChannel:
    """The contract of channel.py. `parts` holds what parts contain, `now_s` is the clock of the storage.

    `touch` is called around everything that is written: whoever writes may die there.
    """

    def __init__(self, name: str, now_s: Callable[[], float], touch: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self._touch = touch
        self.ledger = MemoryLedger()
        self._manifests: dict[int, Manifest] = {}
        self.parts: dict[str, Any] = {}
        self._now_s = now_s
        self._acks: dict[str, dict[str, tuple[float, int]]] = {}
        self._safe: dict[str, int] = {}
        self._positions: dict[int, dict[str, Any]] = {}
        # What was ever published, also if it was trimmed since: for the checks.
        self.ever: dict[int, tuple[Manifest, tuple[Any, ...]]] = {}

    def manifest(self, epoch: int) -> Manifest | None:
        return None if self.ledger.read(epoch) is None else self._manifests[epoch]

    def last_epoch(self) -> int:
        last = self.ledger.last()
        return -1 if last is None else last

    def release(self, manifest: Manifest) -> Outcome:
        self._touch()
        claim = self.ledger.claim(manifest.epoch, manifest.producer.run.encode())
        if claim.won:
            self._manifests[manifest.epoch] = manifest
            self.ever[manifest.epoch] = manifest, self.content(manifest.epoch)
        else:
            kept = {part.name for part in self._manifests[manifest.epoch].parts}
            for part in manifest.parts:
                if part.name not in kept:
                    self.parts.pop(part.name, None)
        self._touch()
        return Outcome(claim.won, self._manifests[manifest.epoch])

    def content(self, epoch: int) -> tuple[Any, ...]:
        """Return the rows of an epoch; a missing part is an error, as in the real one."""
        manifest = self.manifest(epoch)
        if manifest is None:
            raise KeyError(epoch)
        return tuple(row for part in manifest.parts for row in self.parts[part.name])

    def write(self, name: str, rows: tuple[Any, ...]) -> None:
        """Write a part; whoever does so may die before and after it."""
        self._touch()
        self.parts[name] = rows
        self._touch()

    def holds(self, epoch: int) -> bool:
        """Say whether the rows of an epoch are there, and still those that were published."""
        try:
            return self.content(epoch) == self.ever[epoch][1]
        except KeyError:
            return False

    def acknowledge(self, unit: str, run: str, received: int) -> None:
        self._touch()
        self._acks.setdefault(unit, {})[run] = (self._now_s(), received)

    def received(self, unit: str) -> int:
        return max(self.received_by_run(unit).values(), default=NO_FLOOR)

    def received_by_run(self, unit: str, since_s: float = float("-inf")) -> dict[str, int]:
        acks = self._acks.get(unit, {})
        return {run: received for run, (at_s, received) in acks.items() if at_s >= since_s}

    def forget_runs(self, unit: str, keep: str) -> None:
        acks = self._acks.get(unit, {})
        for run in [run for run in acks if run != keep]:
            del acks[run]

    def lose_acknowledgements(self) -> None:
        """Forget what was not flushed, as in a power cut."""
        self._acks.clear()

    def declare_safe(self, unit: str, epoch: int) -> None:
        self._touch()
        self._safe[unit] = max(epoch, self.safe(unit))

    def safe(self, unit: str) -> int:
        return self._safe.get(unit, NO_FLOOR)

    def note_position(self, epoch: int, position: dict[str, Any]) -> None:
        self._touch()
        self._positions[epoch] = position
        for old in sorted(self._positions)[:-2]:
            del self._positions[old]

    def noted_position(self) -> int:
        return max(self._positions, default=NO_FLOOR)

    def position(self, epoch: int) -> dict[str, Any]:
        return self._positions[epoch]

    def trim(self, floor: int) -> None:
        last = self.ledger.last()
        if last is None:
            return
        before, floor = self.ledger.floor(), min(floor, last - 1)
        if floor <= before:
            return
        self._touch()
        parts = [part.name for epoch in range(before + 1, floor + 1) for part in self._manifests.pop(epoch).parts]
        self.ledger.trim(floor)
        for name in parts:
            self._touch()
            self.parts.pop(name, None)

    def sweep(self) -> int:
        swept = 0
        for name in list(self.parts):
            epoch = int(name.partition("-")[0])
            if epoch > self.ledger.floor():
                manifest = self._manifests.get(epoch)
                if manifest is None or name in {part.name for part in manifest.parts}:
                    continue
            del self.parts[name]
            swept += 1
        return swept


@dataclass(frozen=True)
class SavedState:
    """What a commit saved: the epoch, the state after it, and what was pending then."""

    epoch: int
    state: Any
    pending: tuple[Manifest, ...] = ()


@dataclass
class Run:
    """The directory of one run; see `choosing.Candidate`."""

    name: str
    owner: str
    boot: int
    scratch: bool
    saved: SavedState | None = None
    before: SavedState | None = None
    origin: tuple[str, int] = ("", -1)
    pending: dict[int, Manifest] = field(default_factory=dict)
    whole_since: int | None = ALWAYS
    # What lies on disk cannot be read; whoever goes on from it finds out when it runs.
    damaged: bool = False
    doubted: int | None = None
    version: tuple[str, int] | None = None

    def committed(self) -> int | None:
        return None if self.saved is None else self.saved.epoch

    def pending_until(self, epoch: int) -> list[Manifest]:
        return [self.pending[number] for number in sorted(self.pending) if number <= epoch]


class MemoryPending:
    """The contract of `Pending`, over a run in memory."""

    def __init__(self, run: Run, touch: Callable[[], None]) -> None:
        self.run = run.name
        self._run = run
        self._touch = touch

    def add(self, manifest: Manifest) -> None:
        self._touch()
        self._run.pending[manifest.epoch] = manifest
        self._touch()

    def manifests(self, up_to: int | None = None) -> list[Manifest]:
        return self._run.pending_until(max(self._run.pending, default=-1) if up_to is None else up_to)

    def remove(self, epoch: int) -> None:
        self._touch()
        self._run.pending.pop(epoch, None)
