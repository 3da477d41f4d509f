"""Makes the runs of units on one node: queries of its Spark session, each over a directory of its own.

Starting a query takes seconds, so `primary` and `standby` are called in a thread of their own (replicas.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from anabranch.assembly import Assembly, Plan
from anabranch.channel.channel import Channel
from anabranch.channel.inputs import Gate
from anabranch.choosing import Wanted, acceptable, fits
from anabranch.keeper.restoring import Accept
from anabranch.keeper.version import Version
from anabranch.pending import note_origin
from anabranch.plans import BuiltSegment
from anabranch.publishing import UnitEvents
from anabranch.runs import RunDirectory, discredited_versions, newest_commit, note_version
from anabranch.setup import Setup
from anabranch.strategies.strategy import WARM_BATCHES, Begin, Takeover, View, merge_end
from anabranch.unit import OPEN, Unit, UnitPlace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Brings a version of a unit back into a directory: name, directory, and which versions are acceptable.
Restore = Callable[..., Version | None]


class Workshop:
    """Knows what a run is made of."""

    def __init__(
        self, setup: Setup, spark: SparkSession, assembly: Assembly, events: UnitEvents, restore: Restore
    ) -> None:
        self._setup = setup
        self._spark = spark
        self._assembly = assembly
        self._events = events
        self._restore = restore
        self._plans: dict[str, Plan] = {}
        self._any_polled = False
        self.channels: dict[str, Channel] = {}

    def assemble(self) -> dict[str, BuiltSegment]:
        """Make or open the channels; return the segments as they were built."""
        self._assembly.make()
        self._plans = dict(self._assembly.plans)
        names = [*self._setup.graph.sources, *self._setup.segments]
        self.channels = {name: self._setup.work.channel(name) for name in names}
        return {name: plan.built for name, plan in self._plans.items()}

    def primary(self, name: str, generation: int, how: Takeover, view: View) -> Unit:
        """Start a run that leads, as a strategy said."""
        strategy = self._setup.strategy(name)
        unit = self._unit(name, generation)
        if how.use == "newest" or view.published < 0:
            owner = None if strategy.keeps_state else self._setup.options.name
            after = unit.prepare(partial(self._restored, name), owner=owner)
            merges = view.mergeable and strategy.policy != "shipped"
            at_once = merge_end(after, view.published, view.late) if merges else -1
            gate = Gate(at_once if at_once > after else -1)
        else:
            unit.prepare_empty()
            unit.begin_after(how.after, compare_from=how.compare_from, lost=how.lost)
            gate = Gate(how.at_once, after=how.after)
        self._start(unit, gate)
        return unit

    def standby(self, name: str, begin: Begin) -> Unit:
        """Start a run that stands by, as a strategy said."""
        unit = self._unit(name, None, scratch=begin.scratch)
        if begin.empty:
            unit.prepare_empty()
            if begin.scratch:
                unit.begin_after(max(unit.input_floor(), self.channels[name].last_epoch() - WARM_BATCHES - 2))
        else:
            unit.prepare()
        self._start(unit, OPEN if begin.open else None)
        return unit

    def newest_saved(self, name: str, *, owner: str | None) -> int:
        """Return the epoch of the newest state that a run could go on from, -1 if there is none."""
        found = newest_commit(self._setup.work.unit_path(name), Wanted(owner), sure=True)
        return -1 if found is None else found[1].epoch

    def _restored(self, name: str, directory: Path, again: bool) -> None:  # noqa: FBT001  a callback
        """Bring back a version of a unit, if a store has one to go on from; `again` also one that was tried in vain."""
        output = self.channels[name] if self._setup.strategy(name).policy == "shipped" else None
        in_vain = set() if again else discredited_versions(self._setup.work.unit_path(name))

        def untried(version: Version) -> bool:
            return (version.run, version.epoch) not in in_vain and (output is None or acceptable(output, version))

        def belongs(restored: Path, version: Version) -> bool:
            note_origin(restored, version.made_by, version.epoch)
            note_version(restored, version.run, version.epoch)
            return output is None or fits(output, RunDirectory(restored), version.epoch)

        self._restore(name, directory, Accept(untried, belongs))

    def _unit(self, name: str, generation: int | None, *, scratch: bool = False) -> Unit:
        plan = self._plans.pop(name, None) or self._assembly.build(name)
        place = UnitPlace(
            directory=self._setup.work.unit_path(name),
            inputs={read: self.channels[read] for read in plan.built.segment.inputs},
            output=self.channels[name],
            node=self._setup.options.name,
            scratch=scratch,
            release=self._setup.strategy(name).policy,
        )
        return Unit(plan.built, place, self._events, run=plan.run, generation=generation, clock=self._setup.clock)

    def _start(self, unit: Unit, gate: Gate | None) -> None:
        """Start a run; one that does not come up is not left running where nobody knows of it."""
        try:
            unit.start(self._spark, gate)
            if not self._any_polled:
                unit.wait_until_polled()
                self._any_polled = True
        except BaseException:
            unit.stop()
            raise
