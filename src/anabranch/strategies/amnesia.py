"""Amnesia: nothing is kept and nothing executed again; whoever takes over begins with the newest input.

The epochs in between are published as gaps, so that every reader knows. Those that follow are marked incomplete until
the watermark has passed everything that the lost state could have held; and so are those of the segments downstream.

How long that is follows from the newest event time that was lost. For epochs that were executed their manifests say it.
For those in between nobody knows: a row in them may be far ahead of its time. So where epochs may be merged, and state,
if there is any, has an end, they are read together with the newest one, in the same micro-batch: what follows has their
rows, and their times are known, here or to whoever reads this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from anabranch.spans import Span
from anabranch.strategies.strategy import Instruction, Strategy, Takeover, Use, View
from anabranch.strategies.upstream_backup import wait_without_state

# So many epochs that waited are read at once; what is older was in hand for so long that nobody wants to wait for it.
_MOST_AT_ONCE = 100


@dataclass(frozen=True)
class Amnesia(Strategy):
    """Lose what was in hand, and say so."""

    name: ClassVar[str] = "amnesia"
    keeps_state: ClassVar[bool] = False

    def standby(self, view: View) -> Instruction | None:
        """Warm the node up, then wait without state."""
        return wait_without_state(view)

    def takeover(self, view: View) -> Takeover:
        """Begin with the newest input epoch, unless this node still has the whole state."""
        if view.saved >= max(0, view.published - 1):
            return Takeover("newest")
        last = max(view.published, view.waiting - 1)
        use: Use = "nothing" if view.at is None or view.scratch else "standby"
        gaps = (view.published + 1, last) if last > view.published else None
        bounded = not view.span.stateful or view.span.ms is not None
        if gaps is None or not bounded or not view.mergeable:
            return Takeover(use, after=last, lost=True, gaps=gaps)
        after = max(view.published, view.waiting - _MOST_AT_ONCE)
        return Takeover(use, after=after, at_once=view.waiting, lost=True, gaps=gaps)


class Completeness:
    """Follows, epoch by epoch, whether something that was lost may still be missing in what a unit publishes.

    Lost is what an input marks as a gap or as incomplete, and what the state of a predecessor held. How late in event
    time the lost rows were is not always known: they are taken to be no later than everything that was seen
    (`highest_ms` of it before the first epoch), up to and with the first epoch that follows them.
    """

    def __init__(self, span: Span, *, lost: bool = False, highest_ms: int | None = None) -> None:
        self._span = span
        self._lost = lost and span.stateful
        self._unsure = self._lost
        self._highest_ms = self._lost_before_ms = highest_ms
        self._watermark_ms: int | None = None

    def incomplete(self, *, flagged: bool, seen_ms: tuple[int | None, ...], watermark_ms: int | None) -> bool:
        """Say whether the next epoch is incomplete; `flagged` if an input of it is."""
        before_ms, self._watermark_ms = self._watermark_ms, watermark_ms
        seen = [one for one in seen_ms if one is not None]
        if seen:
            self._highest_ms = max(seen if self._highest_ms is None else [self._highest_ms, *seen])
        if not self._span.stateful:
            return flagged
        if flagged:
            self._lost = self._unsure = True
        if not self._lost:
            return False
        if self._unsure:
            self._lost_before_ms = self._highest_ms
            self._unsure = flagged or not seen
        if self._span.ms is None or self._unsure or before_ms is None or self._lost_before_ms is None:
            return True
        # What is emitted now was still open under the watermark of the epoch before.
        self._lost = before_ms - self._span.ms <= self._lost_before_ms
        return self._lost
