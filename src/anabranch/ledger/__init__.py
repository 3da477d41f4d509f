"""Ledgers: the contract, and one implementation per mechanism."""

from anabranch.ledger.directory import DirectoryLedger
from anabranch.ledger.ledger import NO_FLOOR, Claim, Ledger
from anabranch.ledger.memory import MemoryLedger

__all__ = ["NO_FLOOR", "Claim", "DirectoryLedger", "Ledger", "MemoryLedger"]
