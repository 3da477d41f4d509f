"""The keepers of one node: opens the stores of protected units, and brings back what a unit has lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from anabranch.clock import Clock
from anabranch.errors import Corrupt, StoreError, StoreUnavailable
from anabranch.keeper.keeper import Keeper, KeeperOptions
from anabranch.keeper.restoring import ANY_VERSION, Accept, find_versions, restore_unit
from anabranch.keeper.surroundings import Surroundings, upstream_of
from anabranch.keeper.version import Version, run_path
from anabranch.pending import origin_at
from anabranch.store.opening import drop, namespaces, open_store
from anabranch.store.store import Store, without_password
from anabranch.strategies import PassiveStandby

# How long an orderly end waits for stores to take the last version; without it, the next run ships it.
FINISH_S = 30.0


class KeptUnit(Protocol):
    """A run that is kept, and that may wait for it."""

    name: str
    run: str

    def committed(self) -> int:
        """Return the epoch of its last commit, -1 if there is none."""

    def release_shipped(self, up_to: int) -> bool:
        """Publish what waited until every store had its version; say whether the versions of older runs may go.

        As long as this run has published nothing itself, an older one may still be the one that others go on from.
        """


class Keepers:
    """One keeper per protected unit."""

    def __init__(
        self, work: Path, strategies: Mapping[str, PassiveStandby], clock: Clock, note: Callable[..., None]
    ) -> None:
        self._work = work
        self._strategies = strategies
        self._clock = clock
        self._note = note
        self._home = ""
        self._awaited: set[str] = set()
        self._declared: Callable[[str], int] = lambda _: -1
        self._keepers: dict[str, Keeper] = {}
        self._runs: dict[str, KeptUnit] = {}
        self._tidied: set[tuple[str, str]] = set()

    def belong_to(self, pipeline: str, work_id: str) -> None:
        """Say whose versions these are: stores may be shared, and nobody touches what others keep there."""
        self._home = f"{pipeline}-{work_id[:12]}"

    def know(self, awaited: set[str], declared: Callable[[str], int]) -> None:
        """Say whose versions others wait for, and what a unit that is led elsewhere has declared as kept."""
        self._awaited = awaited
        self._declared = declared

    def begin(self, kept: KeptUnit, inputs: tuple[str, ...], surroundings: Surroundings) -> None:
        """Begin to keep a run, in a namespace of its own in every store; does nothing for an unprotected unit."""
        unit, run = kept.name, kept.run
        strategy = self._strategies.get(unit)
        if strategy is None:
            return
        self.end(unit)
        self._runs[unit] = kept
        stores = {url: _Reopened(url, f"{self._home}/{unit}/{run}") for url in strategy.stores}
        for url, store in stores.items():
            try:
                store.open()
            except StoreError as error:
                # A pipeline that goes on does so without its store; one that begins with a store of no use is told.
                if kept.committed() < 0 and not isinstance(error, StoreUnavailable):
                    raise
                self._note("store away", unit=unit, store=without_password(url), error=error.message)
        options = KeeperOptions(
            work=self._work,
            unit=unit,
            run=run,
            trigger=strategy.trigger(len(self._strategies), awaited=unit in self._awaited),
            surroundings=surroundings.files,
            ceiling=lambda: upstream_of(inputs, {name: self.kept_epoch(name) for name in inputs}),
            origin=partial(origin_at, self._work / run_path(unit, run)),
        )
        self._keepers[unit] = Keeper(stores, options, self._clock, shipped=self._on_shipped)
        self._keepers[unit].start()

    def _on_shipped(self, url: str, version: Version) -> None:
        """Publish what waited for this version; drop the former runs of a unit once this one can take their place."""
        kept, keeper = self._runs.get(version.unit), self._keepers.get(version.unit)
        if keeper is None or kept is None or kept.run != version.run:
            return  # another run has its place by now
        settled = kept.release_shipped(keeper.shipped_epoch())
        if takes_place(version, settled=settled) and (url, version.run) not in self._tidied:
            self._tidy(url, version)

    def _tidy(self, url: str, version: Version) -> None:
        """Drop what older runs of a unit left in a store, unless they kept something newer."""
        prefix = f"{self._home}/{version.unit}/"
        try:
            kept = {name.removeprefix(prefix): -1 for name in namespaces(url, prefix)}
            for some in find_versions([url], prefix).get(version.unit, []):
                kept[some.version.run] = max(some.version.epoch, kept.get(some.version.run, -1))
            # One that is still written may be the one that leads: a standby that took over may be older than this run.
            for run in outdated(version, kept):
                drop(url, f"{prefix}{run}")
            if not any(epoch > version.epoch for epoch in kept.values()):
                self._tidied.add((url, version.run))
        except (StoreError, Corrupt) as error:
            self._note("not tidied", unit=version.unit, error=error.message)

    def end(self, unit: str) -> None:
        """Stop keeping a unit's run."""
        keeper = self._keepers.pop(unit, None)
        if keeper is not None:
            keeper.stop()

    def finish(self, *, in_order: bool) -> None:
        """Stop keeping; in order means that the last commits are shipped first, if the stores take them in time."""
        # In the order of the stream: a version waits until those of the units that it reads are stored.
        for unit in [unit for unit in self._strategies if unit in self._keepers]:
            keeper = self._keepers[unit]
            if in_order and not keeper.finish(FINISH_S):
                self._note("not kept", unit=unit, epoch=keeper.shipped_epoch())
        for unit in list(self._keepers):
            self.end(unit)

    def kept_epoch(self, unit: str) -> int | None:
        """Return the epoch that every store of a unit can restore, -1 if none, None if the unit has no store."""
        keeper = self._keepers.get(unit)
        if unit not in self._strategies:
            return None
        # A run that has kept nothing yet goes on from what the ones before it kept.
        return max(-1 if keeper is None else keeper.shipped_epoch(), self._declared(unit))

    def unkept(self, committed: Mapping[str, int]) -> str | None:
        """Name a unit whose stores lack more of what it has committed than may be held for them; None if none does."""
        return too_far_behind(self._strategies, self.kept_epoch, committed)

    def failure(self) -> BaseException | None:
        """Return why a keeper ended by itself, None while all go on."""
        return next(filter(None, (keeper.failure() for keeper in self._keepers.values())), None)

    def status(self, unit: str) -> list[dict[str, Any]]:
        """Return what the stores of a unit hold and how far they are behind."""
        keeper = self._keepers.get(unit)
        if keeper is None:
            return []
        now_s = self._clock.now_s()
        return [
            {
                "store": without_password(url),
                **asdict(counters),
                "lag_epochs": counters.lag_epochs,
                "age_s": None if counters.shipped_at_s is None else now_s - counters.shipped_at_s,
            }
            for url, counters in keeper.counters().items()
        ]

    def restore(self, unit: str, directory: Path, accept: Accept = ANY_VERSION) -> Version | None:
        """Rebuild a unit's directory at the newest acceptable version of any of its stores; None if there is none.

        `StoreUnavailable` if nothing at all is left where versions were kept: a directory is empty while the disk that
        belongs there is not mounted.
        """
        strategy = self._strategies.get(unit)
        if strategy is None:
            return None
        try:
            restored = restore_unit(strategy.stores, self._home, unit, directory, accept)
        except Corrupt as error:
            # There may still be files of a run to go on from, of which a query will say whether they are whole.
            self._note("not restored", unit=unit, error=error.message)
            return None
        kept, prefix = self._declared(unit), f"{self._home}/{unit}/"
        if restored is None and kept >= 0 and not any(namespaces(url, prefix) for url in strategy.stores):
            places = " and ".join(map(without_password, strategy.stores))
            raise StoreUnavailable(
                f"{places} has nothing of {unit!r}, though epoch {kept} was kept there",
                hint="mount what belongs there; if it is lost for good, begin with a new work directory",
            )
        return restored


def too_far_behind(
    strategies: Mapping[str, PassiveStandby], kept_epoch: Callable[[str], int | None], committed: Mapping[str, int]
) -> str | None:
    """Name a unit that has committed more than its stores lack at most; None if there is none. Pure."""
    for unit, strategy in strategies.items():
        kept = kept_epoch(unit)
        if kept is not None and committed.get(unit, -1) - kept > strategy.most_behind:
            return unit
    return None


class Shipped(Protocol):
    """A version that was stored: of which run, at which epoch, and which run came to its state."""

    @property
    def run(self) -> str: ...
    @property
    def made_by(self) -> str: ...
    @property
    def epoch(self) -> int: ...


def takes_place(version: Shipped, *, settled: bool) -> bool:
    """Say whether a version may take the place of those of older runs. Pure.

    Not if it is what the run began with: it is linked from files that may be damaged, which nobody has gone on from.
    """
    return settled and version.run == version.made_by


def outdated(version: Shipped, kept: Mapping[str, int]) -> list[str]:
    """Return the older runs whose versions another's makes superfluous; run ids sort by age. Pure.

    One that is younger may be the one that leads by now, also if it has kept nothing newer yet.
    """
    return [run for run, epoch in kept.items() if run < version.run and epoch <= version.epoch]


class _Reopened:
    """A store that need not be there yet: a pipeline that has its state on disk starts without it, and ships later."""

    def __init__(self, url: str, namespace: str) -> None:
        self._place = url, namespace
        self._store: Store | None = None

    def open(self) -> Store:
        """Open it, unless it is open."""
        if self._store is None:
            self._store = open_store(*self._place)
        return self._store

    def write(self, batch: Mapping[str, bytes | None]) -> None:
        """Write a batch; opens the store first, if that was not possible before.

        A store of which a write failed is let go of: one that does not know how much of it is on disk says so to every
        later write, until it is opened again.
        """
        with self._let_go_of_what_fails():
            self.open().write(batch)

    def read(self, key: str) -> bytes | None:
        """Return a value, as `write` writes one."""
        with self._let_go_of_what_fails():
            return self.open().read(key)

    @contextlib.contextmanager
    def _let_go_of_what_fails(self) -> Iterator[None]:
        try:
            yield
        except StoreError:
            store, self._store = self._store, None
            if store is not None:
                with contextlib.suppress(StoreError, OSError):
                    store.close()
            raise

    def close(self) -> None:
        """Let go of it."""
        if self._store is not None:
            self._store.close()
