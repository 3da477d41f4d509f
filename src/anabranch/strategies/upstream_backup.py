"""Upstream backup: no state is kept for anyone; whoever takes over executes again what the state was made of.

The inputs keep their epochs from the first one that still contributes to the state, the low epoch. Normal running costs
nothing but their storage; taking over costs the replay of a window or so. Where nothing bounds the state (a running
count) there is no low epoch, and the strategy is refused.

Which epoch that is follows from what the unit's own manifests say of every epoch: the newest event time it brought, the
watermark that was in force, and whether rows were dropped as late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from anabranch.spans import Span
from anabranch.strategies.passive_standby import Temperature, check_temperature
from anabranch.strategies.strategy import (
    WARM_BATCHES,
    Begin,
    Follow,
    Instruction,
    Past,
    Renew,
    Strategy,
    Takeover,
    Use,
    View,
    merge_end,
)


@dataclass(frozen=True)
class UpstreamBackup(Strategy):
    """Keep the inputs from the low epoch on."""

    temperature: Temperature = "gated"
    name: ClassVar[str] = "upstream"
    keeps_state: ClassVar[bool] = False
    replays: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_temperature("UpstreamBackup", self.temperature)

    def replay_from(self, view: View) -> int:
        """Return the low epoch: what came before it is in no window that is still open."""
        # Without state nothing is executed again; and nothing of the unit's own output is kept that could tell more.
        return low_epoch(known_past(view), view.span) if view.span.stateful else view.published + 1

    def standby(self, view: View) -> Instruction | None:
        """Warm the node up, then wait without state."""
        return wait_without_state(view) if self.temperature == "gated" else None

    def takeover(self, view: View) -> Takeover:
        """Start without state at the low epoch; the last published epoch proves that the state is right again."""
        low = self.replay_from(view)
        if view.saved >= max(low - 1, 0):
            return Takeover("newest")
        use: Use = "nothing" if view.at is None or view.scratch else "standby"
        at_once = -1
        if view.mergeable and low <= view.published:
            at_once = merge_end(low - 1, view.published - 1, view.late)
        return Takeover(use, at_once=at_once, after=low - 1, compare_from=view.published)

    def refusal(self, span: Span, unmergeable: str | None) -> str | None:
        """Refuse what has no low epoch."""
        return f"no epoch can ever be forgotten: it uses {span.reason}" if span.ms is None else None


def wait_without_state(view: View) -> Instruction | None:
    """Let a node run some micro-batches, whose state is thrown away, and then wait with an empty query."""
    if view.at is None:
        if view.published < 0:
            return None
        return Begin(empty=True, scratch=view.batches < WARM_BATCHES)
    if not view.scratch:
        return None
    if view.batches >= WARM_BATCHES:
        return Renew()
    return Follow(view.at + 1) if view.at + 1 < view.published else None


def known_past(view: View) -> list[Past]:
    """Return what is known of the published epochs up to the last one, oldest first."""
    found: list[Past] = []
    epoch = view.published
    while epoch >= max(0, view.first):
        past = view.past(epoch)
        if past is None:
            break
        found.append(past)
        epoch -= 1
    return found[::-1]


def low_epoch(past: Sequence[Past], span: Span) -> int:
    """Return the first epoch that a replay has to execute so that the last one comes out as it was published.

    The last epoch emits what the watermark passed since the one before it. So the replay needs every row that the
    state could hold under the watermark of the epoch before the last; and, wherever rows were dropped as late, and at
    the end, an epoch that brings the watermark to where it was. Spark drops with the watermark of the epoch before,
    and evicts with the present one.
    """
    if not past:
        return 0
    first, last = past[0].epoch, past[-1].epoch
    before = past[-2] if len(past) > 1 else None
    if before is None or before.watermark_ms is None or span.ms is None:
        return first
    oldest_ms = before.watermark_ms - span.ms
    needed = [one.epoch for one in past if any(seen is not None and seen >= oldest_ms for seen in one.seen_ms)]
    low = min([*needed, last - 1])
    leaders = _leaders(past)
    while True:
        dropped = [one.epoch for one in past if one.late_rows and one.epoch > low]
        reproduced = [*(epoch - 1 for epoch in dropped), *dropped, last - 1, last, last + 1]
        moved = min(low, *(leaders[epoch] for epoch in reproduced if epoch in leaders))
        if moved == low:
            return max(low, first)
        low = moved


def _leaders(past: Sequence[Past]) -> dict[int, int]:
    """Return, for every epoch and the one to come, since when its watermark has been what it was.

    That is the newest epoch before it that reached the highest event time so far; the oldest such one if there are
    several watermarks. An epoch before which nothing was seen needs none but itself.
    """
    highest: dict[int, tuple[int, int]] = {}
    leaders = {}
    for one in past:
        leaders[one.epoch] = min((epoch for _, epoch in highest.values()), default=one.epoch)
        for operator, seen in enumerate(one.seen_ms):
            if seen is not None and seen >= highest.get(operator, (seen, 0))[0]:
                highest[operator] = (seen, one.epoch)
    last = past[-1].epoch
    leaders[last + 1] = min((epoch for _, epoch in highest.values()), default=last + 1)
    return leaders
