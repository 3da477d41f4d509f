"""Leases: who may act in a role, by generation number.

A lease is a ledger whose slots are generations. Taking over is claiming the next slot; losing that claim means that
someone else took over. A holder that finds a newer generation steps down. Lease ledgers are never trimmed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from anabranch.errors import Corrupt, Deposed
from anabranch.ledger.ledger import Ledger


@dataclass(frozen=True)
class Holder:
    """Who holds a generation: a node, in one of its lives. A node that was started again is not the one that died.

    `planned` says that it took over from a holder that was well: that one goes on until the successor is ready.
    """

    generation: int
    node: str
    life: str = ""
    planned: bool = False


class Lease:
    """One role's lease."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        # A generation never changes hands, and this is asked many times a second.
        self._known: Holder | None = None

    def holder(self) -> Holder | None:
        """Return the present holder, None if the role was never taken."""
        generation = self._ledger.last()
        if generation is None:
            return None
        if self._known is None or self._known.generation != generation:
            self._known = self._read(generation)
        return self._known

    def _read(self, generation: int) -> Holder:
        record = self._ledger.read(generation)
        try:
            fields = json.loads(record or b"")
            return Holder(generation, str(fields["node"]), str(fields.get("life", "")), fields.get("planned") is True)
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"generation {generation} of a lease is unreadable: {error}") from error

    def take(self, node: str, *, after: Holder | None, life: str = "", planned: bool = False) -> Holder:
        """Claim the generation after the one that was seen; `Deposed` if another node was faster."""
        generation = after.generation + 1 if after is not None else 0
        record = {"node": node, "life": life, "planned": planned}
        claim = self._ledger.claim(generation, json.dumps(record).encode())
        if not claim.won:
            raise Deposed(f"generation {generation} was taken by {json.loads(claim.record)['node']!r}")
        return Holder(generation, node, life, planned)

    def held_by(self, holder: Holder) -> bool:
        """Say whether a holder's generation is still the newest."""
        return self._ledger.last() == holder.generation
