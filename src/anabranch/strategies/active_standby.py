"""Active standby: another node runs the same epochs, and publishes what it withheld as soon as the primary fails.

The cost is twice the processing; taking over costs noticing the failure, and a claim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from anabranch.strategies.strategy import (
    Begin,
    Follow,
    Instruction,
    Release,
    Renew,
    Strategy,
    Takeover,
    View,
    check_release,
    merge_end,
)

# A standby that is further behind than this reads several epochs at once, if it may.
_MOST_BEHIND = 2
# If it may not, a new one is begun from the newest checkpoint.
_RENEW_BEHIND = 10
_RENEW_S = 10.0
# One that was told to read several epochs at once, and has not come to their end after this long, hangs.
_HANGS_S = 30.0


@dataclass(frozen=True)
class ActiveStandby(Strategy):
    """Run every epoch on a second node too.

    With `release="written"` both publish as soon as they can, and the first one wins: for segments that give the same
    rows whoever executes them.
    """

    release: Literal["leader", "written"] = "leader"
    name: ClassVar[str] = "active"
    patience_s: ClassVar[float] = 0.6

    def __post_init__(self) -> None:
        check_release("ActiveStandby", self.release, ("leader", "written"))

    @property
    def policy(self) -> Release:
        """When an epoch is published."""
        return self.release

    def standby(self, view: View) -> Instruction | None:
        """Run beside the primary."""
        return beside(view)

    def takeover(self, view: View) -> Takeover:
        """Publish what was withheld, and go on."""
        return promoted(view)


def beside(view: View) -> Instruction | None:
    """Run every epoch, as soon as there is something to run; one that has fallen behind catches up.

    It would not do so by itself: on a busy machine it is as slow as the others.
    """
    if view.at is None:
        return Begin(open=True) if view.published >= 0 else None
    behind = view.published - view.at
    hangs = view.at < view.told_to and view.since_s >= _HANGS_S
    if hangs or (not view.mergeable and behind > _RENEW_BEHIND and view.since_s >= _RENEW_S):
        return Renew(open=True)
    if view.mergeable and behind > _MOST_BEHIND:
        end = merge_end(view.at, view.published, view.late)
        return Follow(end, open=True) if end > view.at + 1 else None
    return None


def promoted(view: View) -> Takeover:
    """Go on from what runs here, at once up to what is published."""
    if view.at is None:
        return Takeover("newest")
    return Takeover("standby", at_once=merge_end(view.at, view.published, view.late) if view.mergeable else -1)
