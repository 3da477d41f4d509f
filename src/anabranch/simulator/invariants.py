"""What must be true after every event, whatever happens next; the rest is judged at the end (checks.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from anabranch.simulator.world import World
from anabranch.strategies import PassiveStandby, Strategy

if TYPE_CHECKING:
    from anabranch.simulator.node import SimNode


class Invariants:
    """Looks at the world and at what every node believes of itself."""

    def __init__(self, world: World, nodes: Callable[[], Iterable[SimNode]], strategies: dict[str, Strategy]) -> None:
        self._world = world
        self._nodes = nodes
        self._strategies = strategies
        self._floors = dict.fromkeys(world.channels, -1)
        self._contents: dict[str, int] = dict.fromkeys(world.channels, 0)

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
        """See that what is published of an epoch never changes."""
        for name, channel in self._world.channels.items():
            if len(channel.ever) == self._contents[name]:
                continue
            self._contents[name] = len(channel.ever)
            last = channel.last_epoch()
            if last >= 0 and channel.content(last) != channel.ever[last][1]:
                self._world.violate(f"epoch {last} of {name} was published twice, with other rows")

    def _nothing_needed_is_gone(self) -> None:
        """See that what was trimmed is behind a state that every unit reading it can be brought back to."""
        for name, channel in self._world.channels.items():
            floor = channel.ledger.floor()
            if floor == self._floors[name]:
                continue
            self._floors[name] = floor
            for unit, segment in self._world.segments.items():
                reached = self._recoverable(unit)
                if name in segment.inputs and reached < floor:
                    self._world.violate(
                        f"{name} is trimmed to {floor}, but {unit} can be brought back only to {reached}"
                    )

    def _recoverable(self, unit: str) -> int:
        """Return the newest epoch whose state survives the loss of every node that could lose it."""
        strategy = self._strategies[unit]
        if not strategy.keeps_state:
            return self._world.channels[unit].last_epoch() + 1
        if isinstance(strategy, PassiveStandby):
            version = self._world.store.versions.get(unit)
            return -1 if version is None else version.saved.epoch
        run = self._world.newest(unit)
        return -1 if run is None or run.saved is None else run.saved.epoch
