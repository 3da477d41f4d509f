"""The other nodes of a work directory, as this one hears them: one thread pings each of them.

Nodes find each other through the files in which they announce themselves. A node is known by its life, not only by its
name: one that died and was started again answers pings, but holds nothing of what it held before.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from anabranch.agent import Line
from anabranch.clock import Clock
from anabranch.detector import Limits, NodeWatch
from anabranch.errors import AgentError, AgentGone
from anabranch.lease import Holder
from anabranch.placement import Host
from anabranch.work import Work

_GONE = "dead: it no longer announces itself"
# What a node answers that ends though the pipeline goes on.
LEAVING = "leaving"


@dataclass
class _Peer:
    """One life of one node."""

    name: str
    life: str
    address: str
    watch: NodeWatch
    zone: str | None = None
    ready: bool = False
    leaving: bool = False

    def suspicion(self, now_s: float) -> str | None:
        return "leaving: it was told to end" if self.leaving else self.watch.suspicion(now_s)


class Peers:
    """Everyone else. `look` in the main loop; pings run beside it."""

    def __init__(self, work: Work, name: str, clock: Clock, limits: Limits | None = None) -> None:
        self._work = work
        self._name = name
        self._clock = clock
        self.limits = limits or Limits()
        self._peers: dict[str, _Peer] = {}
        self._suspicions: dict[str, str | None] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def look(self) -> None:
        """Notice who came and who went, and judge the ones who are there."""
        announced = {node.name: node for node in self._work.announced()}
        with self._lock:
            for name, node in announced.items():
                known = self._peers.get(name)
                if name != self._name and (known is None or known.life != node.life):
                    watch = NodeWatch(self.limits, self._clock.steady_s())
                    peer = _Peer(name, node.life, node.address, watch, node.zone)
                    self._peers[name] = peer
                    threading.Thread(target=self._ping, args=(peer,), name=f"ping {name}", daemon=True).start()
            for name in [name for name in self._peers if name not in announced]:
                del self._peers[name]
            now_s = self._clock.steady_s()
            self._suspicions = {name: peer.suspicion(now_s) for name, peer in self._peers.items()}

    def suspicion(self, holder: Holder) -> str | None:
        """Say why the holder of a role is suspected, None if it is not."""
        peer = self._peers.get(holder.node)
        if peer is None or peer.life != holder.life:
            return _GONE
        return self._suspicions.get(holder.node)

    def since_heard_s(self, holder: Holder) -> float | None:
        """Return how long ago the holder of a role was last heard, None if it is not known."""
        peer = self._peers.get(holder.node)
        if peer is None or peer.life != holder.life:
            return None
        return peer.watch.since_heard_s(self._clock.steady_s())

    def acted(self, holder: Holder) -> None:
        """Note that the holder of a role has done something that can be seen, whether it is heard or not."""
        with self._lock:
            peer = self._peers.get(holder.node)
            if peer is not None and peer.life == holder.life:
                peer.watch.acted()
                self._suspicions[holder.node] = peer.suspicion(self._clock.steady_s())

    def first_announced(self) -> bool:
        """Say whether this node comes first by name of those that are there, ready or not."""
        with self._lock:
            return all(self._name < name for name in self._peers if self._suspicions.get(name) is None)

    def ready(self) -> list[Host]:
        """Return the others that are ready and not suspected."""
        with self._lock:
            peers = [peer for peer in self._peers.values() if peer.ready and self._suspicions.get(peer.name) is None]
        return [Host(peer.name, peer.zone) for peer in peers]

    def first(self) -> bool:
        """Say whether this node comes first by name of those that are ready and not suspected."""
        return all(self._name < host.name for host in self.ready())

    def stop(self) -> None:
        """Ping no more."""
        self._stopping.set()

    def _ping(self, peer: _Peer) -> None:
        line = Line(peer.address, self._work.token())
        while not self._stopping.wait(self.limits.ping_every_s) and self._peers.get(peer.name) is peer:
            asked_s = self._clock.steady_s()
            try:
                answer = line.ask("ping")
                hanging_s, phase = float(answer["hanging_s"]), answer["phase"]
            except AgentGone:
                with self._lock:
                    peer.watch.refused()
            except (AgentError, KeyError, TypeError, ValueError):
                continue
            else:
                with self._lock:
                    now_s = self._clock.steady_s()
                    peer.watch.heard(hanging_s, now_s, now_s - asked_s)
                    peer.ready, peer.leaving = phase == "running", phase == LEAVING
        line.close()
