"""What must be true after every event, whatever happens next; the rest is judged at the end (checks.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from anabranch.choosing import newest
from anabranch.simulator.world import World
from anabranch.strategies import Amnesia, PassiveStandby, Strategy

if TYPE_CHECKING:
    from anabranch.simulator.node import SimNode


class Invariants:
    """Looks at the world and at what every node believes of itself."""

    def __init__(self, world: World, nodes: Callable[[], Iterable[SimNode]], strategies: dict[str, Strategy]) -> None:
        self._world = world
        self._nodes = nodes
        self._strategies = strategies
        self._sizes: dict[str, tuple[int, int]] = {}
        self._left: dict[tuple[str, str], tuple[int, int]] = {}

    def look(self) -> None:
        """Note whatever is not as it must be."""
        self._one_holder()
        self._one_content()
        self._nothing_needed_is_gone()

    def _one_holder(self) -> None:
        """See that at most one node was given a generation of a role."""
        given: dict[tuple[str, int], str] = {}
        for node in self._nodes():
            if node.alive:
                for role, mine in node.leading.held.items():
                    other = given.setdefault((role, mine.generation), node.name)
                    if other != node.name:
                        self._world.violate(f"{other} and {node.name} both hold generation {mine.generation} of {role}")

    def _one_content(self) -> None:
        """See that what is published of an epoch never changes, and is there until it is trimmed."""
        for name, channel in self._world.channels.items():
            size = len(channel.ever), len(channel.parts)
            if size == self._sizes.get(name):
                continue
            self._sizes[name] = size
            for epoch in range(channel.ledger.floor() + 1, channel.last_epoch() + 1):
                if epoch in channel.ever and not channel.holds(epoch):
                    self._world.violate(f"epoch {epoch} of {name} is published, and its rows are gone or others")

    def _nothing_needed_is_gone(self) -> None:
        """See that every unit can be brought back from what is left: of its inputs, of its runs, and in the store."""
        runs = {unit: len(runs) for unit, runs in self._world.runs.items()}
        for name, channel in self._world.channels.items():
            floor = channel.ledger.floor()
            for unit, segment in self._world.segments.items():
                if name not in segment.inputs or self._left.get((name, unit)) == (floor, runs[unit]):
                    continue
                self._left[name, unit] = floor, runs[unit]
                if floor >= 0 and not self._recoverable(unit, floor):
                    self._world.violate(f"{name} is trimmed to {floor}, and {unit} can no longer be brought back")

    def _recoverable(self, unit: str, floor: int) -> bool:
        """Say whether the state of a unit survives the loss of every node, if its inputs begin after a floor."""
        strategy = self._strategies[unit]
        if isinstance(strategy, Amnesia):
            return True
        if strategy.replays:
            return replayed(self._world, unit, floor)
        if isinstance(strategy, PassiveStandby):
            return self._world.store.whole(unit, floor)
        run = newest(run for run in self._world.runs[unit].values() if not run.damaged)
        return run is not None and run.saved is not None and run.saved.epoch >= floor


def replayed(world: World, unit: str, floor: int) -> bool:
    """Say whether executing what is left of the inputs comes to the state that belongs to what is published."""
    segment, published = world.segments[unit], world.channels[unit].last_epoch()
    right, again = segment.model(), segment.model()
    for epoch in range(published + 1):
        rows = [row for name in segment.inputs for row in world.ever_rows(name, epoch)]
        right.batch(rows, world.heap.chance)
        if epoch > floor:
            again.batch(rows, world.heap.chance)
    return right.alike(again)
