"""Active standby: another node runs the same epochs, and publishes what it withheld as soon as the primary fails.

The cost is twice the processing; taking over costs noticing the failure, and a claim.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ActiveStandby:
    """Run every epoch on a second node too."""
