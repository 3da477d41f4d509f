"""The keepers of one node: opens the stores of protected units, and brings back what a unit has lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from anabranch.clock import Clock
from anabranch.errors import StoreError, StoreUnavailable
from anabranch.keeper.calibration import Trigger
from anabranch.keeper.keeper import Keeper, KeeperOptions
from anabranch.keeper.restoring import find_versions, restore_unit
from anabranch.keeper.surroundings import Surroundings, upstream_of
from anabranch.keeper.version import Version, run_path
from anabranch.pending import origin_at
from anabranch.store.opening import drop, open_store
from anabranch.store.store import Store, without_password
from anabranch.strategies import PassiveStandby

# How long an orderly end waits for stores to take the last version; without it, the next run ships it.
FINISH_S = 30.0


class KeptUnit(Protocol):
    """A run that is kept, and that may wait for it."""

    name: str
    run: str

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
        for store in stores.values():
            with contextlib.suppress(StoreUnavailable):
                store.open()
        options = KeeperOptions(
            work=self._work,
            unit=unit,
            run=run,
            trigger=Trigger() if unit in self._awaited else strategy.trigger,
            surroundings=surroundings.files,
            ceiling=lambda: upstream_of(inputs, {name: self.kept_epoch(name) for name in inputs}),
            origin=partial(origin_at, self._work / run_path(unit, run)),
        )
        self._keepers[unit] = Keeper(stores, options, self._clock, shipped=self._on_shipped)
        self._keepers[unit].start()

    def _on_shipped(self, url: str, version: Version) -> None:
        """Publish what waited for this version; drop the former runs of a unit once this one can take their place."""
        kept, keeper = self._runs.get(version.unit), self._keepers.get(version.unit)
        current = keeper is not None and kept is not None and kept.run == version.run
        if current and not kept.release_shipped(keeper.shipped_epoch()):  # type: ignore[union-attr]  # both are there
            return
        own = f"{self._home}/{version.unit}/{version.run}"
        if (url, own) in self._tidied:
            return
        try:
            former = find_versions([url], f"{self._home}/{version.unit}/").get(version.unit, [])
            newer = {some.namespace for some in former if some.version.epoch > version.epoch}
            for namespace in {some.namespace for some in former} - newer - {own}:
                drop(url, namespace)
            if not newer:
                self._tidied.add((url, own))
        except StoreError as error:
            self._note("not tidied", unit=version.unit, error=error.message, at=self._clock.now_s())

    def end(self, unit: str) -> None:
        """Stop keeping a unit's run."""
        keeper = self._keepers.pop(unit, None)
        if keeper is not None:
            keeper.stop()

    def finish(self, *, in_order: bool) -> None:
        """Stop keeping; in order means that the last commits are shipped first, if the stores take them in time."""
        for unit, keeper in self._keepers.items():
            if in_order and not keeper.finish(FINISH_S):
                self._note("not kept", unit=unit, epoch=keeper.shipped_epoch(), at=self._clock.now_s())
        for unit in list(self._keepers):
            self.end(unit)

    def kept_epoch(self, unit: str) -> int | None:
        """Return the epoch that every store of a unit can restore, -1 if none, None if the unit has no store."""
        keeper = self._keepers.get(unit)
        if keeper is not None:
            return keeper.shipped_epoch()
        return self._declared(unit) if unit in self._strategies else None

    def unkept(self, committed: Mapping[str, int]) -> str | None:
        """Name a unit whose stores lack more of what it has committed than may be held for them; None if none does."""
        for unit, strategy in self._strategies.items():
            kept = self.kept_epoch(unit)
            if kept is not None and committed.get(unit, -1) - kept > strategy.most_behind:
                return unit
        return None

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

    def restore(self, unit: str, directory: Path, accept: Callable[[Version], bool] = lambda _: True) -> Version | None:
        """Rebuild a unit's directory at the newest acceptable version of any of its stores; None if there is none."""
        strategy = self._strategies.get(unit)
        return None if strategy is None else restore_unit(strategy.stores, self._home, unit, directory, accept)


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
        """Write a batch; opens the store first, if that was not possible before."""
        self.open().write(batch)

    def close(self) -> None:
        """Let go of it."""
        if self._store is not None:
            self._store.close()
