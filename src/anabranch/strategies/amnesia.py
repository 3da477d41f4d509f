"""Amnesia: nothing is kept and nothing executed again; whoever takes over begins with the newest input.

The epochs in between are published as gaps, so that every reader knows. Those that follow are marked incomplete until
the watermark has passed everything that the lost state could have held; and so are those of the segments downstream.

How long that is follows from the newest event time that was lost. For epochs that were executed their manifests say it.
For those in between nobody knows: a row in them may be far ahead of its time. So where state has an end, and epochs may
be merged, they are read together with the newest one, in the same micro-batch: what follows has their rows, and their
times are known.
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
        bounded = view.span.stateful and view.span.ms is not None
        if gaps is None or not bounded or not view.mergeable:
            return Takeover(use, after=last, lost=True, gaps=gaps)
        after = max(view.published, view.waiting - _MOST_AT_ONCE)
        return Takeover(use, after=after, at_once=view.waiting, lost=True, gaps=gaps)


class Completeness:
    """Follows, epoch by epoch, whether something that was lost may still be missing in what a unit publishes.

    Lost is what an input marks as a gap or as incomplete, and what the state of a predecessor held (`lost_before`: the
    newest event time that is known of it, if any). How late in event time the lost rows were is not always known; the
    first epoch that follows them is taken to be as late.
    """

    def __init__(self, span: Span, *, lost: bool = False, lost_before_ms: int | None = None) -> None:
        self._span = span
        self._lost = lost and span.stateful
        self._unsure = self._lost
        self._high_ms = lost_before_ms
        self._watermark_ms: int | None = None

    @classmethod
    def after(cls, span: Span, highest_ms: int | None) -> Completeness:
        """Begin after an epoch that was lost or incomplete, or whose state is lost; with the newest event time yet."""
        return cls(span, lost=True, lost_before_ms=highest_ms)

    def incomplete(self, *, flagged: bool, seen_ms: tuple[int | None, ...], watermark_ms: int | None) -> bool:
        """Say whether the next epoch is incomplete; `flagged` if an input of it is."""
        before_ms, self._watermark_ms = self._watermark_ms, watermark_ms
        if not self._span.stateful:
            return flagged
        if flagged:
            self._lost = self._unsure = True
        if not self._lost:
            return False
        seen = [one for one in seen_ms if one is not None]
        if self._unsure and seen:
            self._high_ms = max(seen if self._high_ms is None else [self._high_ms, *seen])
            self._unsure = flagged
        if self._span.ms is None or self._unsure or before_ms is None or self._high_ms is None:
            return True
        # What is emitted now was still open under the watermark of the epoch before.
        self._lost = before_ms - self._span.ms <= self._high_ms
        return self._lost
