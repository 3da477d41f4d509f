"""What hears the other nodes on virtual time: whom to suspect is decided by the production code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch.detector import Limits, NodeWatch
from anabranch.lease import Holder
from anabranch.placement import Host

if TYPE_CHECKING:
    from anabranch.simulator.cluster import Cluster
    from anabranch.simulator.node import SimNode


# Seldom enough that messages are not most of what happens.
LIMITS = Limits(ping_every_s=0.25, silent_s=0.75)


class SimPeers:
    """Hears the others by messages that take their time, or are lost."""

    def __init__(self, node: SimNode, cluster: Cluster) -> None:
        self._node = node
        self._cluster = cluster
        self.limits = LIMITS
        self._watches: dict[str, tuple[str, NodeWatch]] = {}
        self._ready: set[str] = set()
        self._suspicions: dict[str, str | None] = {}

    def look(self) -> None:
        now_s = self._node.clock.steady_s()
        announced = self._cluster.announced()
        for name, life in announced.items():
            known = self._watches.get(name)
            if name != self._node.name and (known is None or known[0] != life):
                self._watches[name] = life, NodeWatch(self.limits, now_s)
                self._ping(name, life)
        for name in [name for name in self._watches if name not in announced]:
            del self._watches[name]
        self._suspicions = {name: watch.suspicion(now_s) for name, (_, watch) in self._watches.items()}

    def _ping(self, name: str, life: str) -> None:
        known = self._watches.get(name)
        if known is None or known[0] != life:
            return
        sent_s = self._node.clock.steady_s()

        def heard(hanging_s: float, *, ready: bool) -> None:
            now_s = self._node.clock.steady_s()
            known[1].heard(hanging_s, now_s, now_s - sent_s)
            (self._ready.add if ready else self._ready.discard)(name)

        self._cluster.ping(self._node, name, life, heard, known[1].refused)
        self._node.later(self.limits.ping_every_s, lambda: self._ping(name, life))

    def suspicion(self, holder: Holder) -> str | None:
        if holder.node == self._node.name and holder.life == self._node.life:
            return None
        known = self._watches.get(holder.node)
        if known is None or known[0] != holder.life:
            return "dead: it no longer announces itself"
        return self._suspicions.get(holder.node)

    def since_heard_s(self, holder: Holder) -> float | None:
        del holder
        return None

    def acted(self, holder: Holder) -> None:
        known = self._watches.get(holder.node)
        if known is not None and known[0] == holder.life:
            known[1].acted()
            self._suspicions[holder.node] = known[1].suspicion(self._node.clock.steady_s())

    def ready(self) -> list[Host]:
        trusted = [name for name in self._watches if name in self._ready and self._suspicions.get(name) is None]
        return [Host(name) for name in trusted]

    def first(self) -> bool:
        return all(self._node.name < host.name for host in self.ready())
