"""A ledger in this process's memory: for tests and for simulation.

One lock makes every call atomic, so a claimer cannot sleep through a trim here. Nothing survives the process.
"""

from __future__ import annotations

import threading

from anabranch.errors import Trimmed
from anabranch.ledger.ledger import NO_FLOOR, Claim


class MemoryLedger:
    """The contract over a dictionary; safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[int, bytes] = {}
        self._last: int | None = None
        self._floor = NO_FLOOR

    def claim(self, slot: int, record: bytes) -> Claim:
        with self._lock:
            self._check(slot)
            won = slot not in self._records
            self._last = slot if self._last is None else max(self._last, slot)
            return Claim(won=won, record=self._records.setdefault(slot, record))

    def read(self, slot: int) -> bytes | None:
        with self._lock:
            self._check(slot)
            return self._records.get(slot)

    def decided(self, slot: int) -> bool:
        """Say whether nobody can claim a slot any more: it is claimed, or at or below the floor."""
        with self._lock:
            return slot in self._records or slot <= self._floor

    def slots(self) -> list[int]:
        with self._lock:
            return sorted(self._records)

    def last(self) -> int | None:
        with self._lock:
            return self._last

    def floor(self) -> int:
        with self._lock:
            return self._floor

    def trim(self, floor: int) -> None:
        with self._lock:
            if floor <= self._floor:
                return
            if self._last is None or floor >= self._last:
                raise ValueError(f"a floor of {floor} would trim the newest slot, {self._last}")
            for slot in [slot for slot in self._records if slot <= floor]:
                del self._records[slot]
            self._floor = floor

    def _check(self, slot: int) -> None:
        if slot < 0:
            raise ValueError(f"slot {slot} is negative")
        if slot <= self._floor:
            raise Trimmed(
                f"slot {slot} is at or below the floor {self._floor}", hint=f"go on from slot {self._floor + 1}"
            )
