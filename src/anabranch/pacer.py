"""The pacer: decides, for all sources of a pipeline together, which rows belong to which epoch.

It is a leased role. Its decisions are slots of the source channels' ledgers; where it stands follows from them alone,
so a new pacer begins by reading what was decided, and first completes an epoch that its predecessor claimed for some
sources only. A source that has nothing to give, or has ended, gets an empty range: epochs stay aligned.

Positions of sources are noted from time to time, so that old slots can be trimmed.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from anabranch.channel.channel import Channel
from anabranch.channel.manifest import Manifest, Part, Producer
from anabranch.channel.parts import PartWriter
from anabranch.clock import Clock
from anabranch.errors import Corrupt, Deposed, Trimmed
from anabranch.pacing import Instruction, PaceView, decide
from anabranch.settings import Settings
from anabranch.sources import epochs_decided_elsewhere
from anabranch.sources.source import Limit, Planner, Range, Source, TakingPlanner

_POSITION_EVERY = 50
_ROLE = "pacer"
# Numbers the parts that this process copies: a name is never used again, whichever pacer asks.
_COPIES = itertools.count()


@dataclass(frozen=True)
class PacedSource:
    """A source and its channel."""

    source: Source
    channel: Channel


@dataclass(frozen=True)
class Downstream:
    """What the pipeline has done with the epochs: see `PaceView`."""

    taken: int
    received: int
    unkept: bool = False
    behind: int = 0
    patience_s: float = 0.0


class Pacer:
    """Runs in one thread of the node that holds the pacer's lease."""

    def __init__(
        self,
        sources: Mapping[str, PacedSource],
        settings: Settings,
        clock: Clock,
        *,
        run: str,
        generation: int,
        depth: int,
    ) -> None:
        self._sources = sources
        self._settings = settings
        self._clock = clock
        self.generation = generation
        self._producer = Producer(_ROLE, run, generation)
        self._depth = depth
        self._limit = Limit(settings.largest_epoch_rows, settings.largest_epoch_bytes)
        self._elsewhere = any(epochs_decided_elsewhere(paced.source) for paced in sources.values())
        self._planners: dict[str, Planner] = {}
        self._applied: dict[str, int] = {}
        self._last_claim_s = clock.steady_s()
        # Which epoch was last seen taken, and since when.
        self._taken = -1, clock.steady_s()
        self._closed = False
        self._empty_epochs_owed = 0
        self.last_epoch = -1

    def resume(self) -> None:
        """Find out where the sources stand, and complete an epoch that was claimed for some of them only.

        `Deposed`, here and in `step`, if another pacer has gone on meanwhile, so far that epochs are gone by now.
        """
        with _unless_deposed():
            self._resume()

    def _resume(self) -> None:
        for name, paced in self._sources.items():
            planner, last = _replay(paced)
            self._planners[name] = planner
            self._applied[name] = last
            self.last_epoch = max(self.last_epoch, last)
        for name, paced in self._sources.items():
            # Another pacer may have gone on while the sources were replayed one after the other.
            for epoch in range(self._applied[name] + 1, self.last_epoch):
                decided = paced.channel.manifest(epoch)
                if decided is None:
                    raise Corrupt(f"source {name!r} lacks epoch {epoch}, though {self.last_epoch} is there")
                self._planners[name].apply(decided.planned or {})
                self._applied[name] = epoch
        if self.last_epoch >= 0 and not self._claim(self.last_epoch, empty=False):
            self.last_epoch -= 1
        self._empty_epochs_owed = self._owed()

    def close(self) -> None:
        """Take what the sources hold now, and nothing that comes later (a drain)."""
        if not self._closed:
            self._closed = True
            for planner in self._planners.values():
                planner.close(self._clock.now_s())

    def stop_taking(self) -> None:
        """Take nothing more at all; `finish` follows as soon as the empty epochs are claimed (a stop)."""
        self._closed = True
        self._planners = {name: _Exhausted(planner) for name, planner in self._planners.items()}

    def step(self, downstream: Downstream) -> Instruction:
        """Decide and, if so decided, claim one epoch."""
        now_s = self._clock.now_s()
        planners = self._planners.values()
        # An epoch that was decided elsewhere is taken when all sources that lack it can have it.
        lacking = [planner for name, planner in self._planners.items() if self._applied[name] <= self.last_epoch]
        waiting = (all if self._elsewhere else any)(planner.waiting(now_s) for planner in lacking)
        if downstream.taken > self._taken[0]:
            self._taken = downstream.taken, self._clock.steady_s()
        instruction = decide(
            PaceView(
                now_s=self._clock.steady_s(),
                last_claim_s=self._last_claim_s,
                last_epoch=self.last_epoch,
                taken=downstream.taken,
                received=downstream.received,
                waiting=waiting,
                backlogged=waiting and any(planner.backlogged(now_s, self._limit) for planner in planners),
                # What was decided elsewhere ends with the source that ends first.
                finishing=not waiting and (any if self._elsewhere else all)(p.ended(now_s) for p in lacking),
                empty_epochs_owed=self._empty_epochs_owed,
                unkept=downstream.unkept,
                behind=downstream.behind,
                patience_s=downstream.patience_s,
                taken_s=self._taken[1],
                elsewhere=self._elsewhere,
            ),
            self._settings,
        )
        if instruction in ("claim", "claim-empty"):
            with _unless_deposed():
                if not self._claim(self.last_epoch + 1, empty=instruction == "claim-empty"):
                    return "wait"
        return instruction

    def _claim(self, epoch: int, *, empty: bool) -> bool:
        """Claim an epoch for every source that lacks it; whoever claimed first decided.

        False, and nothing is claimed, if it was decided elsewhere and cannot be had just now.
        """
        known = {name: paced.channel.manifest(epoch) for name, paced in self._sources.items()}
        now_s = self._clock.now_s()
        plans = {
            name: {} if empty else self._planners[name].plan(now_s, self._limit)
            for name, decided in known.items()
            if decided is None
        }
        if self._elsewhere and not all(plans.values()):
            return False
        any_rows = False
        for name, found in known.items():
            decided = found or self._release(name, epoch, plans[name])
            if self._applied[name] < epoch:
                # Whoever decided it, the next plan must follow it.
                self._planners[name].apply(decided.planned or {})
                self._applied[name] = epoch
            any_rows = any_rows or bool(decided.planned)
        self.last_epoch = epoch
        self._last_claim_s = self._clock.steady_s()
        self._empty_epochs_owed = self._depth if any_rows else max(0, self._empty_epochs_owed - 1)
        if epoch % _POSITION_EVERY == _POSITION_EVERY - 1:
            self.note_positions()
        return True

    def _release(self, name: str, epoch: int, planned: Range) -> Manifest:
        channel, planner = self._sources[name].channel, self._planners[name]
        parts: tuple[Part, ...] = ()
        rows = _known_rows(planned)
        if planned and isinstance(planner, TakingPlanner):
            parts = self._copied(channel, epoch, planner.taken(planned))
            rows = sum(part.rows for part in parts)
        manifest = Manifest(
            epoch=epoch,
            producer=self._producer,
            released_s=self._clock.now_s(),
            rows=rows,
            parts=parts,
            planned=planned,
            incomplete=bool(planned.get("incomplete")),
        )
        return channel.release(manifest).manifest

    def _copied(self, channel: Channel, epoch: int, rows: list[pa.RecordBatch]) -> tuple[Part, ...]:
        """Write the rows of an epoch as a part, which nobody sees before the epoch is claimed."""
        if not any(batch.num_rows for batch in rows):
            return ()
        path = channel.parts / f"{epoch}-{self._producer.run}-{self.generation}-{next(_COPIES)}.arrow"
        writer = PartWriter(path, channel.spec.schema)
        try:
            for batch in rows:
                writer.write(batch)
            return (writer.close(),)
        except BaseException:
            writer.abandon()
            raise

    def without(self) -> dict[str, list[str]]:
        """Return what sources do without just now, of several places that have the same."""
        now_s = self._clock.now_s()
        taking = {name: planner for name, planner in self._planners.items() if isinstance(planner, TakingPlanner)}
        return {name: missing for name, planner in taking.items() if (missing := planner.without(now_s))}

    def note_positions(self) -> None:
        """Note where every source stands after its last epoch; older notes but one go."""
        for name, paced in self._sources.items():
            # Its own epoch: of one that was claimed for some sources only, these are past it.
            if self._applied[name] >= 0:
                paced.channel.note_position(self._applied[name], self._planners[name].snapshot())

    def _owed(self) -> int:
        """Count how many empty epochs are still to follow the last rows."""
        for back in range(self._depth):
            epoch = self.last_epoch - back
            manifests = [_readable(paced.channel, epoch) for paced in self._sources.values()]
            if any(manifest is not None and manifest.planned for manifest in manifests):
                return self._depth - back
        return 0


@contextlib.contextmanager
def _unless_deposed() -> Iterator[None]:
    """Take the absence of an epoch that this pacer needs for what it means: whoever trimmed it has its place."""
    try:
        yield
    except Trimmed as error:
        raise Deposed(f"another pacer has gone on: {error.message}") from error


class _Exhausted:
    """A planner that gives nothing more."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner

    def waiting(self, now_s: float) -> bool:
        return False

    def backlogged(self, now_s: float, limit: Limit) -> bool:
        return False

    def plan(self, now_s: float, limit: Limit) -> Range:
        return {}

    def apply(self, planned: Range) -> None:
        self._planner.apply(planned)

    def close(self, now_s: float) -> None:
        """Nothing is left to close."""

    def ended(self, now_s: float) -> bool:
        return True

    def snapshot(self) -> dict[str, Any]:
        return self._planner.snapshot()


def _replay(paced: PacedSource) -> tuple[Planner, int]:
    """Bring a planner to where the ledger stands; return it with the last decided epoch."""
    channel = paced.channel
    position = channel.noted_position()
    planner = paced.source.planner(channel.position(position) if position >= 0 else None)
    last = channel.ledger.last()
    if last is None:
        return planner, -1
    for epoch in range(position + 1, last + 1):
        manifest = channel.manifest(epoch)
        if manifest is None:
            raise Corrupt(
                f"source {channel.spec.name!r} lacks epoch {epoch}, though {last} is there",
                hint="restore the ledger from a copy",
            )
        planner.apply(manifest.planned or {})
    return planner, last


def _readable(channel: Channel, epoch: int) -> Manifest | None:
    return channel.manifest(epoch) if epoch > channel.ledger.floor() else None


def _known_rows(planned: Range) -> int | None:
    """Count the rows of a range where it says so; byte ranges do not."""
    if not planned:
        return 0
    start, end = planned.get("start"), planned.get("end")
    return end - start if isinstance(start, int) and isinstance(end, int) else None
