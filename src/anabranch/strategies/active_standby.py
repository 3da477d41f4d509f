"""Active standby: another node runs the same epochs, and publishes what it withheld as soon as the primary fails.

The cost is twice the processing; taking over costs noticing the failure, and a claim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from anabranch.strategies.strategy import Begin, Instruction, Strategy, Takeover, View


@dataclass(frozen=True)
class ActiveStandby(Strategy):
    """Run every epoch on a second node too."""

    name: ClassVar[str] = "active"

    def standby(self, view: View) -> Instruction | None:
        """Run beside the primary, as soon as there is something to run."""
        return Begin(open=True) if view.at is None and view.published >= 0 else None

    def takeover(self, view: View) -> Takeover:
        """Publish what was withheld, and go on."""
        return Takeover("newest" if view.at is None else "standby")
