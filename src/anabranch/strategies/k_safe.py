"""k-safe replication: k+1 nodes run every epoch, and all of them race to publish it.

No detection and no takeover stands between a failure and the next result: whoever is left publishes it. The lease only
says who trims and whose checkpoints are kept. The cost is k+1 times the processing; only segments whose rows are the
same whoever executes them may race, which is asked before anything runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from anabranch.errors import PipelineError
from anabranch.strategies.active_standby import beside, promoted
from anabranch.strategies.strategy import Instruction, Release, Strategy, Takeover, View


@dataclass(frozen=True)
class KSafe(Strategy):
    """Survive the loss of any k nodes at once, without a gap: k+1 replicas, each on its own node (and zone)."""

    k: int = 1
    name: ClassVar[str] = "ksafe"
    # Enough for equals to stay level; one that is slow must not be waited for.
    patience_s: ClassVar[float] = 0.1

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or isinstance(self.k, bool) or self.k < 1:
            raise PipelineError(f"KSafe: k is {self.k!r}", hint="k is how many nodes may be lost at once: 1, 2, …")

    @property
    def policy(self) -> Release:
        """When an epoch is published."""
        return "written"

    @property
    def copies(self) -> int:
        """How many nodes run the unit."""
        return self.k + 1

    def standby(self, view: View) -> Instruction | None:
        """Run beside the others; one that has fallen behind catches up, or is begun again from a checkpoint."""
        return beside(view)

    def takeover(self, view: View) -> Takeover:
        """Go on: nothing was withheld."""
        return promoted(view)
