"""What one run publishes: the manifest of each micro-batch, and what follows from what is published in its stead.

Which epochs a micro-batch holds comes from its plan, what it gave from its tasks; nothing here knows Spark. `executed`
says what the run has, its release policy says when (releasing.py), `settle` compares and tells everyone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from anabranch.channel.channel import Channel
from anabranch.channel.manifest import Manifest, Producer
from anabranch.channel.writer import Planned, Written
from anabranch.errors import Diverged
from anabranch.releasing import Releasing
from anabranch.spans import Span
from anabranch.strategies.amnesia import Completeness


@dataclass(frozen=True)
class Seen:
    """What Spark knows of a micro-batch: the newest event times, rows dropped as late, whether it has watermarks."""

    times_ms: tuple[int | None, ...] = ()
    late_rows: int = 0
    watermarked: bool = False


@dataclass(frozen=True)
class Executed:
    """A micro-batch that was run: what was planned, what its tasks wrote, what Spark knows of it."""

    planned: Planned
    share: Written
    seen: Seen
    incomplete: bool

    @property
    def epoch(self) -> int:
        """The newest epoch in it."""
        return self.planned.epoch


@dataclass(frozen=True)
class UnitEvents:
    """Whom a unit tells: `released(unit, manifest)` after each epoch, `diverged(error)` when rows were different.

    The manifest is what is published, by whomever; None if that is trimmed already.
    """

    released: Callable[[str, Manifest | None], None]
    diverged: Callable[[Diverged], None]


class Publishing:
    """Follows one run, epoch by epoch. A scratch run is compared with nothing: its state is nobody's."""

    def __init__(
        self,
        unit: str,
        inputs: Mapping[str, Channel],
        release: Releasing,
        events: UnitEvents,
        *,
        span: Span,
        scratch: bool = False,
    ) -> None:
        self._unit = unit
        self._inputs = inputs
        self._release = release
        self._events = events
        self._span = span
        self._scratch = scratch
        # Epochs before this one need not agree with what is published when they are executed again.
        self._compare_from = 0
        # Since which epoch the state is what it would be if nothing had ever failed; None: it is not yet.
        self.whole_since: int | None = 0
        self._completeness = Completeness(span)
        # The next micro-batch is the first after something was lost.
        self._begins_lost = False
        self._highest_ms: int | None = None
        self._epoch = -1

    def go_on_after(self, epoch: int) -> None:
        """Begin with the state after an epoch, which may be incomplete."""
        self._epoch = epoch
        self._highest_ms = self._highest_until(epoch)
        known = self._known_from(epoch) if epoch >= 0 else None
        lost = known is not None and (known.gap or known.incomplete)
        self._completeness = Completeness(self._span, lost=lost, highest_ms=self._highest_ms)

    def begin_after(self, epoch: int, *, compare_from: int = 0, lost: bool = False) -> None:
        """Begin without state, after an epoch; say whether the state of a predecessor is lost."""
        self._epoch = epoch
        self._compare_from = self.whole_since = compare_from
        self._highest_ms = self._highest_until(max(epoch, self._release.last_published()) if lost else epoch)
        if lost and epoch >= 0:
            self.whole_since = None
            self._begins_lost = True
        self._completeness = Completeness(self._span, lost=lost and epoch >= 0, highest_ms=self._highest_ms)

    def _known_from(self, epoch: int) -> Manifest | None:
        """Return what is published of an epoch, or of the first one after it that is not trimmed; None if nothing is.

        Where state never expires, what is incomplete stays so: a later epoch tells it as well.
        """
        last = self._release.last_published()
        while (known := self._release.published(epoch)) is None and epoch < last:
            epoch += 1
        return known

    def _highest_until(self, epoch: int) -> int | None:
        """Return the newest event time up to an epoch, as far as anyone knows: gaps know none."""
        while epoch >= 0 and (known := self._release.published(epoch)) is not None:
            if known.highest_ms is not None:
                return known.highest_ms
            epoch -= 1
        return None

    def executed(self, planned: Planned, share: Written, seen: Seen) -> Executed:
        """Note that the next micro-batch was run; return what it comes to."""
        first, self._epoch = self._epoch + 1, planned.epoch
        if planned.epoch > first:
            # What several epochs in one micro-batch would have evicted comes with the epoch after them.
            self._compare_from = max(self._compare_from, planned.epoch + (2 if seen.watermarked else 1))
        times_ms = [time for time in (self._highest_ms, *seen.times_ms) if time is not None]
        self._highest_ms = max(times_ms, default=None)
        incomplete = self._completeness.incomplete(
            flagged=self._flagged(range(first, planned.epoch + 1)),
            seen_ms=seen.times_ms,
            watermark_ms=planned.watermark_ms,
        )
        # The rows of the gaps before it are in it too.
        incomplete = incomplete or (self._begins_lost and planned.epoch > first)
        self._begins_lost = False
        if self.whole_since is None and not incomplete:
            self.whole_since = planned.epoch
        return Executed(planned, share, seen, incomplete)

    def manifest(self, batch: Executed) -> Manifest:
        """Return what would be published of a micro-batch."""
        planned, share, seen = batch.planned, batch.share, batch.seen
        return Manifest(
            epoch=batch.epoch,
            producer=Producer(self._unit, self._release.run, self._release.generation),
            released_s=0.0,  # said when it is released
            rows=share.rows,
            digest=share.digest,
            parts=share.parts,
            event_time_us=share.event_time_us,
            watermark_ms=planned.watermark_ms,
            seen_ms=seen.times_ms,
            highest_ms=self._highest_ms,
            late_rows=seen.late_rows,
            incomplete=batch.incomplete,
        )

    def settle(self, batch: Executed, published: Manifest | None) -> None:
        """Compare what the run has with what is published, if anything is, and acknowledge its inputs."""
        if published is not None and self._differs(batch, published):
            self._release.refuse_other_history(published)
            self._events.diverged(_divergence(self._unit, batch.share, published))
        for channel in self._inputs.values():
            channel.acknowledge(self._unit, self._release.run, batch.epoch)
        self._events.released(self._unit, published)

    def _differs(self, batch: Executed, published: Manifest) -> bool:
        """Say whether what was executed is not what is published, where it should be."""
        if self._scratch or batch.incomplete or published.epoch < self._compare_from:
            return False
        if published.gap or published.incomplete:
            return False
        return (published.digest, published.rows) != (batch.share.digest, batch.share.rows)

    def _flagged(self, epochs: range) -> bool:
        """Say whether an input marks one of some epochs as lost or incomplete."""
        for channel in self._inputs.values():
            for epoch in epochs:
                manifest = channel.manifest(epoch)
                if manifest is not None and (manifest.gap or manifest.incomplete):
                    return True
        return False


def _divergence(unit: str, share: Written, published: Manifest) -> Diverged:
    return Diverged(
        f"segment {unit!r} gave other rows for epoch {published.epoch} when it was executed again "
        f"({share.rows} rows, digest {share.digest[:8]}; published: {published.rows}, {published.digest[:8]})",
        unit=unit,
        hint="take random values and the current time out of the step, or do not ask for guarantee='precise'",
    )
