"""Everything that outlives a node: the work directory, the stores, the input, and what was seen of it all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from anabranch.errors import Corrupt
from anabranch.lease import Lease
from anabranch.simulator.heap import Heap
from anabranch.simulator.segments import Model, Row
from anabranch.simulator.storage import Died, MemoryChannel, Run, SavedState, TouchedLedger

if TYPE_CHECKING:
    from anabranch.simulator.node import SimNode
    from anabranch.simulator.unit import SimUnit


@dataclass(frozen=True)
class SimSegment:
    """One segment of the pipeline."""

    name: str
    inputs: tuple[str, ...]
    model: type[Model]


@dataclass(frozen=True)
class StoredVersion:
    """A version in a store: which run came to it, and what it saved."""

    run: str
    saved: SavedState


@dataclass
class Store:
    """One store; while it is away nothing is stored, and nothing can be restored."""

    away: bool = False
    versions: dict[str, StoredVersion] = field(default_factory=dict)


class World:
    """What nodes share."""

    def __init__(self, heap: Heap, source: str, segments: dict[str, SimSegment], sink: str) -> None:
        self.heap = heap
        self.source = source
        self.segments = segments
        self.sink = sink
        storage_s = lambda: 1_000_000.0 + heap.now_s  # noqa: E731
        self.acting: SimNode | None = None
        self.channels = {name: MemoryChannel(name, storage_s, self.touch) for name in (source, *segments)}
        self._leases: dict[str, TouchedLedger] = {}
        self.runs: dict[str, dict[str, Run]] = {name: {} for name in segments}
        self.store = Store()
        self.input: list[Row] = []
        self.delivered: dict[int, tuple[Row, ...]] = {}
        self.history: list[dict[str, Any]] = []
        self.violations: list[str] = []
        self.stuck_until_s: dict[str, float] = {}
        self._numbers = 0

    # What the production code asks of a work directory

    def lease(self, role: str) -> Lease:
        return Lease(self._leases.setdefault(role, TouchedLedger(self.touch)))

    def channel(self, name: str) -> MemoryChannel:
        return self.channels[name]

    def note(self, kind: str, **fields: Any) -> None:  # noqa: ANN401  JSON
        self.history.append({"at_s": round(self.heap.now_s, 3), "kind": kind, **fields})

    # Rows

    def rows(self, channel: MemoryChannel, epoch: int) -> Iterable[Row]:
        """Return the rows of an epoch, read from the source where the epoch is a range of it."""
        manifest = channel.manifest(epoch)
        if manifest is None:
            raise Corrupt(f"epoch {epoch} of {channel.name} is missing")
        if manifest.planned is not None:
            return self.input[manifest.planned["start"] : manifest.planned["end"]] if manifest.planned else []
        try:
            return channel.content(epoch)
        except KeyError as error:
            self.violate(f"part {error} of epoch {epoch} of {channel.name} is gone, though it is named")
            raise Corrupt(f"part {error} is gone") from error

    # Runs

    def new_run(self, unit: str, owner: str, boot: int, *, scratch: bool) -> Run:
        self._numbers += 1
        run = Run(f"r{self._numbers:06d}.{self.heap.chance.randrange(1 << 32):08x}", owner, boot, scratch)
        self.runs[unit][run.name] = run
        return run

    def choose(
        self, unit: SimUnit, restore: Callable[[Run], object], *, owner: str | None, fitting: bool
    ) -> Run | None:
        """Return what a new run goes on from; see `runs.choose`."""
        trusted = self.newest(unit.name, boot=unit.record.boot, owner=owner, fitting=fitting, but=unit.run, sure=True)
        floor = unit.input_floor()
        if trusted is not None and _reaches(trusted, floor):
            return trusted
        restored = Run(f"{unit.run.partition('.')[0]}.00000000", unit.record.owner, unit.record.boot, scratch=False)
        restore(restored)
        if _reaches(restored, floor):
            return restored
        readable = self.newest(unit.name, owner=owner, fitting=fitting, but=unit.run, sure=True)
        if readable is not None and _reaches(readable, floor):
            return readable
        return self.newest(unit.name, owner=owner, fitting=fitting, but=unit.run)

    def newest(
        self,
        unit: str,
        *,
        boot: int | None = None,
        owner: str | None = None,
        fitting: bool = False,
        but: str = "",
        sure: bool = False,
    ) -> Run | None:
        found = [
            run
            for run in self.runs[unit].values()
            if run.name != but
            and run.saved is not None
            and run.whole
            and not run.scratch
            and not (sure and run.doubted == run.saved.epoch)
            and (boot is None or run.boot == boot)
            and (owner is None or run.owner == owner)
            and (not fitting or self._fits(unit, run, run.saved))
        ]
        return max(found, key=lambda run: (run.saved.epoch if run.saved else -1, run.name), default=None)

    def _fits(self, unit: str, run: Run, saved: SavedState) -> bool:
        """Say what `pending.fits` says."""
        output = self.channels[unit]
        published = output.last_epoch()
        for manifest in saved.pending:
            known = output.manifest(manifest.epoch) if manifest.epoch > output.ledger.floor() else None
            if manifest.epoch <= published and known is not None and known.digest != manifest.digest:
                return False
        if saved.epoch > published:
            ahead = [manifest.epoch for manifest in saved.pending if manifest.epoch > published]
            return ahead == list(range(published + 1, saved.epoch + 1))
        known = output.manifest(saved.epoch) if saved.epoch > output.ledger.floor() else None
        return known is not None and (known.producer.run == run.name or run.origin == (known.producer.run, saved.epoch))

    def remove_former(self, unit: str, run: str, node: str) -> bool:
        former = [name for name, old in self.runs[unit].items() if name < run and old.owner == node]
        for name in former:
            del self.runs[unit][name]
        return bool(former)

    def restored(self, unit: str, into: Run, accept: Callable[[StoredVersion], bool]) -> None:
        """Bring a version back from the store."""
        version = self.store.versions.get(unit)
        if version is not None and not self.store.away and accept(version):
            into.saved = version.saved
            into.origin = (version.run, version.saved.epoch)

    def acceptable(self, unit: str, version: StoredVersion) -> bool:
        """Say what `pending.acceptable` says."""
        output = self.channels[unit]
        published = output.last_epoch()
        if version.saved.epoch > published:
            pending = {manifest.epoch for manifest in version.saved.pending}
            return all(epoch in pending for epoch in range(published + 1, version.saved.epoch + 1))
        known = output.manifest(version.saved.epoch) if version.saved.epoch > output.ledger.floor() else None
        return known is not None and known.producer.run == version.run

    # Dying in the middle of something

    def touch(self) -> None:
        """Something is written: whoever does it may be about to die."""
        node = self.acting
        if node is not None and node.dies_after is not None:
            node.dies_after -= 1
            if node.dies_after < 0:
                raise Died

    # Chance

    def batch_s(self, node: SimNode) -> float:
        """Return how long a micro-batch takes."""
        return node.slowness * self.heap.chance.uniform(0.1, 0.5)

    def moment_s(self) -> float:
        """Return the time between two steps that follow each other."""
        return self.heap.chance.uniform(0.001, 0.05)

    # What is seen

    def unit_failed(self, unit: SimUnit, error: BaseException) -> None:
        self.note("unit failed", unit=unit.name, run=unit.run, error=f"{type(error).__name__}: {error}")

    def violate(self, what: str) -> None:
        """Note that a promise was broken."""
        self.violations.append(f"at {self.heap.now_s:.2f} s: {what}")


def _reaches(run: Run, floor: int) -> bool:
    return run.saved is not None and run.saved.epoch >= floor
