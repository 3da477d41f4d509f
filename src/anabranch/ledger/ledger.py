"""The ledger: numbered slots, each written at most once.

`claim(slot, record)` writes a record into an empty slot, or returns the record that is already there. First writer
wins, forever. Channels, leases and source plans are all ledgers; if this contract holds, everything above it does.

The floor: slots at or below it are gone for good. It is raised, durably, before slots are removed, and a claimer looks
at it after writing. So a claimer that slept through a trim cannot bring back a slot that everyone else has forgotten.

Rejected: locks (a holder that dies must be found out first), and compare-and-set on a mutable record (every use here
is "decide once").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

#: The floor of a ledger that was never trimmed.
NO_FLOOR = -1


@dataclass(frozen=True)
class Claim:
    """What a claim found: whether this caller's record is the one in the slot, and the record that is."""

    won: bool
    record: bytes


class Ledger(Protocol):
    """Slots 0, 1, 2, …; safe for many threads, processes and, where the medium is shared, machines."""

    def claim(self, slot: int, record: bytes) -> Claim:
        """Write `record` into `slot` if it is empty.

        Atomic: among any number of callers exactly one wins, and every loser gets the winner's record. Durable on
        return, for winner and loser. Idempotent only in effect: a caller that repeats its own claim after a crash is
        told that it lost, to a record equal to its own. Raises `Trimmed` if the slot is at or below the floor (also
        when the floor rose during the call), `Corrupt` if the record in the slot is damaged, `ValueError` for a
        negative slot. Slots need not be claimed in order; a ledger does not promise that it has no holes.
        """
        ...

    def read(self, slot: int) -> bytes | None:
        """Return the record of a slot, or None if it is empty.

        Raises `Trimmed` at or below the floor, `Corrupt` (naming the place) if the record is damaged.
        """
        ...

    def slots(self) -> list[int]:
        """Return the claimed slots above the floor, ascending; a moment's picture, claims may follow at once."""
        ...

    def last(self) -> int | None:
        """Return the newest claimed slot above the floor, or None."""
        ...

    def floor(self) -> int:
        """Return the floor; `NO_FLOOR` if the ledger was never trimmed."""
        ...

    def trim(self, floor: int) -> None:
        """Raise the floor and remove the slots at or below it.

        The floor is durable before the first slot goes. Idempotent; a floor below the present one changes nothing.
        The newest claimed slot is never trimmed: `ValueError` if `floor` reaches it. A crash in between leaves slots
        that nobody can see and the next trim removes.
        """
        ...
