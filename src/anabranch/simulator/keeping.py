"""What ships versions on virtual time: when one is due is decided by the production code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from anabranch.choosing import made_by
from anabranch.keeper.calibration import due
from anabranch.keeper.surroundings import upstream_of
from anabranch.keeping import takes_place, too_far_behind
from anabranch.segments import awaited
from anabranch.simulator.unit import SimUnit
from anabranch.simulator.world import StoredVersion
from anabranch.strategies import PassiveStandby

if TYPE_CHECKING:
    from anabranch.simulator.node import SimNode


class SimKeepers:
    """Ships versions of what is led here; the store takes its time."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self._offered: dict[str, tuple[str, int, float]] = {}
        self._kept: dict[str, int] = {}
        self._awaited = awaited(node.setup.segments, node.setup.strategies)

    def look(self, primaries: Mapping[str, SimUnit]) -> None:
        """Offer what is due."""
        for name in [name for name in self._kept if name not in primaries]:
            del self._kept[name]
        for name, unit in primaries.items():
            strategy = self._node.setup.strategy(name)
            saved = unit.record.saved
            if not isinstance(strategy, PassiveStandby) or saved is None or saved.epoch < 0:
                continue
            now_s = self._node.clock.steady_s()
            run, epoch, at_s = self._offered.get(name, ("", -1, now_s))
            if run != unit.run:
                epoch, self._kept[name] = -1, -1
            ceiling = upstream_of(self._node.world.segments[name].inputs, self._ceilings())
            if ceiling is not None and saved.epoch > ceiling:
                continue
            trigger = strategy.trigger(len(self._ceilings()), awaited=name in self._awaited)
            made = made_by(unit.record, saved.epoch)
            if due(trigger, epochs=saved.epoch - epoch, seconds=now_s - at_s, inherited=made != unit.run):
                self._offered[name] = (unit.run, saved.epoch, now_s)
                version = StoredVersion(name, unit.run, made, saved, unit.record.damaged)
                self._node.later(self._node.world.heap.chance.uniform(0.01, 1.0), self._storing(unit, version))

    def _ceilings(self) -> dict[str, int | None]:
        return {
            name: self.kept_epoch(name)
            for name in self._node.world.segments
            if isinstance(self._node.setup.strategy(name), PassiveStandby)
        }

    def _storing(self, unit: SimUnit, version: StoredVersion) -> Callable[[], None]:
        def store() -> None:
            world = self._node.world
            if world.store.away:
                self._node.later(0.5, store)
                return
            world.store.keep(version, tidy=False)
            if unit.name not in self._kept or self._node.running.get(unit.name) != unit.run:
                return
            self._kept[unit.name] = max(version.epoch, self._kept[unit.name])
            for _ in unit.release.shipped(version.epoch):
                pass
            world.touch()
            settled = unit.release.settled and unit.release.superseded is None
            world.store.keep(version, tidy=takes_place(version, settled=settled))

        return store

    def unkept(self, released: Mapping[str, int]) -> str | None:
        strategies = {
            name: strategy
            for name, strategy in self._node.setup.strategies.items()
            if isinstance(strategy, PassiveStandby)
        }
        return too_far_behind(strategies, self.kept_epoch, released)

    def kept_epoch(self, name: str) -> int | None:
        if not isinstance(self._node.setup.strategy(name), PassiveStandby):
            return None
        world = self._node.world
        declared = min(world.channels[read].safe(name) for read in world.segments[name].inputs)
        return max(self._kept.get(name, -1), declared)
