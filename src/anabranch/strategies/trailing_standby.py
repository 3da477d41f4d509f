"""Trailing standby: another node follows the primary in few large micro-batches, and catches up when it fails.

A micro-batch costs far more than its rows, so following every second or two costs a fraction of the primary's work.
Taking over costs one micro-batch for what is missing, and the last published epoch alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from anabranch.errors import PipelineError


@dataclass(frozen=True)
class TrailingStandby:
    """Follow the primary every `every_s` seconds."""

    every_s: float = 2.0

    def __post_init__(self) -> None:
        if not self.every_s > 0:
            raise PipelineError(f"TrailingStandby: every_s is {self.every_s!r}", hint="every_s must be more than zero")


def merge_end(at: int, published: int, late: Callable[[int], bool]) -> int:
    """Return the last epoch of the next micro-batch of a follower that is at `at`; `at` if it has to wait. Pure.

    Spark drops and evicts rows with the watermark of the batch before. So the last published epoch is left alone: it
    runs by itself, after a batch that ends where the primary's batch before it ended, with the watermark that was in
    force for it. And where rows came late, which of them are dropped depends on where batches end: epochs with late
    rows, and those before them, are not merged.
    """
    if published - 1 <= at:
        return at
    end = at + 1
    if late(at + 1) or late(at + 2):
        return end
    while end + 1 < published and not late(end + 2):
        end += 1
    return end
