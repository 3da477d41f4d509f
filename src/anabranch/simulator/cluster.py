"""Nodes, the network between them, and what goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from anabranch.errors import AnabranchError
from anabranch.launcher import AWAY_S, LOCAL_ERRORS
from anabranch.settings import Settings
from anabranch.simulator.node import SimNode
from anabranch.simulator.world import World
from anabranch.strategies import Strategy

_RESTART_S = (0.5, 8.0)


class Cluster:
    """Some nodes over one world. A node that died is started again, unless that is over."""

    def __init__(self, world: World, settings: Settings, names: list[str], strategies: dict[str, Strategy]) -> None:
        self.world = world
        self.settings = settings
        self.leave_s = world.heap.chance.choice([0.0, 1.0, 5.0, 60.0])
        self.nodes = {name: SimNode(self, name, strategies) for name in names}
        self.loss = 0.0
        self._lives: dict[str, str] = {}
        self._gone: set[str] = set()
        self._away: set[str] = set()
        self._cut: set[frozenset[str]] = set()

    def start(self) -> None:
        """Start all nodes, one after the other."""
        for node in self.nodes.values():
            self.world.heap.after(self.world.heap.chance.uniform(0.0, 2.0), partial(self._start, node))

    def _start(self, node: SimNode) -> None:
        if not node.alive:
            self._away.discard(node.name)
            node.start()
            self._lives[node.name] = node.life

    def announced(self) -> dict[str, str]:
        """Return the lives that nodes announced; the dead announce nothing new, and what they said stays."""
        return dict(self._lives)

    # Messages

    def ping(
        self, asker: SimNode, name: str, life: str, heard: Callable[..., None], refused: Callable[[], None]
    ) -> None:
        """Carry a ping and its answer, if nothing is in the way."""
        chance = self.world.heap.chance
        asked = self.nodes[name]

        def travels() -> bool:
            return frozenset((asker.name, name)) not in self._cut and chance.random() >= self.loss

        def answer() -> None:
            if travels():
                hanging_s = asked.hanging_s()
                asker.later(chance.uniform(0.001, 0.03), lambda: heard(hanging_s, ready=True))

        def arrive() -> None:
            if not asked.alive or asked.life != life:
                asker.later(0.001, refused)
            else:
                asked.later(0.0, answer)

        if travels():
            self.world.heap.after(chance.uniform(0.001, 0.03), arrive)

    # Faults

    def kill(self, node: SimNode, *, for_good: bool = False) -> None:
        """Kill a node; it comes again after a while, unless it is gone for good: then another one always remains."""
        if not node.alive:
            return
        node.kill()
        if for_good and len(self._gone) + 1 < len(self.nodes):
            self._gone.add(node.name)
            return
        chance = self.world.heap.chance
        self.world.heap.after(chance.uniform(*_RESTART_S), partial(self._start, node))

    def ended(self, node: SimNode, error: AnabranchError) -> None:
        """Let a node end with an error that starting it again does not heal; see `Fleet`."""
        self.world.note("node ended", node=node.name, error=f"{type(error).__name__}: {error}")
        node.kill()
        self._away.add(node.name)
        if error.exit_code not in LOCAL_ERRORS or len(self._away | self._gone) == len(self.nodes):
            self.world.violate(f"the pipeline ended: {type(error).__name__}: {error}")
        self.world.heap.after(AWAY_S, partial(self._start, node))

    def move(self, unit: str, node: SimNode) -> None:
        """Ask a node to take a unit from a holder that is well."""
        if node.alive and unit not in node.leading.held:
            node.leading.ask(unit)

    def pause(self, node: SimNode, seconds: float) -> None:
        """Pause a node for a while."""
        if node.alive and not node.paused:
            node.pause()
            life = node.life
            self.world.heap.after(seconds, lambda: node.resume() if node.life == life and node.alive else None)

    def cut(self, one: SimNode, other: SimNode, seconds: float) -> None:
        """Let no message pass between two nodes for a while."""
        pair = frozenset((one.name, other.name))
        self._cut.add(pair)
        self.world.heap.after(seconds, lambda: self._cut.discard(pair))

    def lose(self, share: float, seconds: float) -> None:
        """Lose some of the messages for a while."""
        self.loss = share
        self.world.heap.after(seconds, lambda: setattr(self, "loss", 0.0))

    def power_cut(self) -> None:
        """All machines lose power: what was not flushed is gone, or may be."""
        chance = self.world.heap.chance
        for channel in self.world.channels.values():
            channel.lose_acknowledgements()
        for runs in self.world.runs.values():
            for name, run in list(runs.items()):
                fate = chance.choice(("gone", "torn", "older", "whole"))
                if fate == "gone" or (fate == "older" and run.before is None):
                    del runs[name]
                elif fate == "torn":
                    run.damaged = True
                elif fate == "older":
                    run.saved = run.before
        for node in self.nodes.values():
            node.boot += 1
            self.kill(node)

    def settled(self) -> bool:
        """Say whether everything that came in has been delivered."""
        world = self.world
        last = world.channels[world.source].last_epoch()
        if last < 0 or max(world.delivered, default=-1) < last:
            return False
        taken = [manifest.planned for manifest, _ in world.channels[world.source].ever.values() if manifest.planned]
        return bool(taken) and max(planned["end"] for planned in taken) == len(world.input)

    def state(self) -> dict[str, Any]:
        """Return what is where, for whoever reads a failure."""
        return {
            name: {
                "alive": node.alive,
                "paused": node.paused,
                "held": list(node.leading.held) if node.life else [],
                "primaries": {u: unit.committed() for u, unit in node.replicas.primaries.items()} if node.life else {},
                "standbys": {u: s.unit.committed() for u, s in node.replicas.standbys.items()} if node.life else {},
            }
            for name, node in self.nodes.items()
        }
