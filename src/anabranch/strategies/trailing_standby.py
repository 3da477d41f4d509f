"""Trailing standby: another node follows the primary in few large micro-batches, and catches up when it fails.

A micro-batch costs far more than its rows, so following every second or two costs a fraction of the primary's work.
Taking over costs one micro-batch for what is missing, and the last published epoch alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from anabranch.spans import Span
from anabranch.strategies.strategy import (
    WARM_BATCHES,
    Begin,
    Follow,
    Instruction,
    Strategy,
    Takeover,
    View,
    check_positive,
    merge_end,
)


@dataclass(frozen=True)
class TrailingStandby(Strategy):
    """Follow the primary every `every_s` seconds."""

    every_s: float = 2.0
    name: ClassVar[str] = "trailing"

    def __post_init__(self) -> None:
        check_positive("TrailingStandby", every_s=self.every_s)

    def standby(self, view: View) -> Instruction | None:
        """Follow at times; at first epoch by epoch, because a node is fast only after some micro-batches."""
        if view.at is None:
            return Begin() if view.published >= 0 else None
        if view.batches < WARM_BATCHES:
            return Follow(view.at + 1) if view.at + 1 < view.published else None
        end = merge_end(view.at, view.published, view.late)
        return Follow(end) if end > view.at and view.since_s >= self.every_s else None

    def takeover(self, view: View) -> Takeover:
        """Catch up in one micro-batch, and go on epoch by epoch."""
        if view.at is None:
            return Takeover("newest")
        return Takeover("standby", at_once=merge_end(view.at, view.published, view.late))

    def refusal(self, span: Span, unmergeable: str | None) -> str | None:
        """Refuse what merging epochs could change."""
        return unmergeable and f"it cannot be followed in large micro-batches: it uses {unmergeable}"
