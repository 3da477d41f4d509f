"""Everything that outlives a node: the work directory, the stores, the input, and what was seen of it all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from anabranch.choosing import acceptable, discredited, fits
from anabranch.errors import Corrupt, StoreUnavailable
from anabranch.failures import Failure
from anabranch.keeper.version import preference
from anabranch.keeping import outdated
from anabranch.lease import Lease
from anabranch.simulator.heap import Heap
from anabranch.simulator.segments import Model, Row
from anabranch.simulator.storage import Died, MemoryChannel, Run, SavedState, TouchedLedger

# In one history of four, some queries fail for a reason that is none of their files: this likely in a first batch.
_WITH_MISHAPS, _MISHAP_FIRST, _MISHAP_LATER = 3, 0.2, 0.005

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
    """A version in a store: which run came to it, and what it saved. See `choosing.Kept`.

    It is `damaged` if what it was kept from was.
    """

    unit: str
    run: str
    made_by: str
    saved: SavedState
    damaged: bool = False

    @property
    def epoch(self) -> int:
        return self.saved.epoch

    @property
    def pending(self) -> set[int]:
        return {manifest.epoch for manifest in self.saved.pending}


@dataclass
class Store:
    """One store; while it is away nothing is stored, and nothing can be restored.

    It has the newest version of every run of every unit; which may go is decided by the production code.
    """

    away: bool = False
    runs: dict[str, dict[str, StoredVersion]] = field(default_factory=dict)

    def newest_first(self, unit: str) -> list[StoredVersion]:
        versions = self.runs.get(unit, {}).values()
        return sorted(versions, key=lambda some: preference(some.epoch, some.run, some.made_by), reverse=True)

    def whole(self, unit: str, epoch: int) -> bool:
        """Say whether there is a version of that epoch, or a newer one, that can be gone on from."""
        return any(version.epoch >= epoch and not version.damaged for version in self.runs.get(unit, {}).values())

    def keep(self, version: StoredVersion, *, tidy: bool) -> None:
        """Store a version; older runs go if it may take their place."""
        runs = self.runs.setdefault(version.unit, {})
        if version.run not in runs or runs[version.run].epoch <= version.epoch:
            runs[version.run] = version
        if tidy:
            for run in outdated(version, {run: some.epoch for run, some in runs.items()}):
                del runs[run]


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
        # What each unit failed of since it last published something; production has a file of it.
        self.failures: dict[str, list[Failure]] = {}
        self._numbers = 0
        # How many queries still fail for a reason of their own. Chance of its own: other histories stay as they were.
        self._mishaps = heap.mishaps.choice([1, 2, 3]) if heap.seed % 4 == _WITH_MISHAPS else 0

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
            return self.ever_rows(channel.name, epoch)
        try:
            return channel.content(epoch)
        except KeyError as error:
            self.violate(f"part {error} of epoch {epoch} of {channel.name} is gone, though it is named")
            raise Corrupt(f"part {error} is gone") from error

    def ever_rows(self, name: str, epoch: int) -> Iterable[Row]:
        """Return the rows of an epoch, also if it is trimmed by now."""
        manifest, rows = self.channels[name].ever[epoch]
        if manifest.planned is not None:
            return self.input[manifest.planned["start"] : manifest.planned["end"]] if manifest.planned else []
        return rows

    # Runs

    def new_run(self, unit: str, owner: str, boot: int, *, scratch: bool) -> Run:
        self._numbers += 1
        run = Run(f"r{self._numbers:06d}.{self.heap.chance.randrange(1 << 32):08x}", owner, boot, scratch)
        self.runs[unit][run.name] = run
        return run

    def others(self, unit: str, but: str) -> list[Run]:
        """Return the runs of a unit, except one that is just being made."""
        return [run for run in self.runs[unit].values() if run.name != but]

    def remove_former(self, unit: str, run: str, node: str) -> bool:
        former = [name for name, old in self.runs[unit].items() if name < run and old.owner == node]
        for name in former:
            del self.runs[unit][name]
        return bool(former)

    def restored(self, unit: str, into: Run, output: MemoryChannel | None, *, again: bool) -> None:
        """Bring back the newest version from the store that belongs to the output, if one is given."""
        if self.store.away:
            raise StoreUnavailable("the store is away")
        in_vain = set() if again else discredited(self.runs[unit].values())
        for version in self.store.newest_first(unit):
            if (version.run, version.epoch) in in_vain or (output is not None and not acceptable(output, version)):
                continue
            into.saved, into.damaged = version.saved, version.damaged
            into.pending = {manifest.epoch: manifest for manifest in version.saved.pending}
            into.origin, into.version = (version.made_by, version.epoch), (version.run, version.epoch)
            if output is None or fits(output, into, version.epoch):
                return
            into.saved, into.pending, into.damaged, into.version = None, {}, False, None

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

    def mishap(self, *, first: bool) -> bool:
        """Say whether a query fails now, for a reason that is none of its files; mostly one that has just begun."""
        if self._mishaps and self.heap.mishaps.random() < (_MISHAP_FIRST if first else _MISHAP_LATER):
            self._mishaps -= 1
            return True
        return False

    def unit_failed(self, unit: SimUnit, error: BaseException) -> None:
        self.note("unit failed", unit=unit.name, run=unit.run, error=f"{type(error).__name__}: {error}")

    def violate(self, what: str) -> None:
        """Note that a promise was broken."""
        self.violations.append(f"at {self.heap.now_s:.2f} s: {what}")
