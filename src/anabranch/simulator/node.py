"""One node on virtual time: what node.py, hosting.py and peers.py do with threads and sockets, done by events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from anabranch.channel.channel import Channel
from anabranch.channel.manifest import Manifest
from anabranch.errors import AnabranchError, Deposed, Diverged, Superseded
from anabranch.failures import Failure, judge, of_files, poison
from anabranch.leading import PACER, Leading
from anabranch.node_options import NodeOptions
from anabranch.pacer import PacedSource, Pacer
from anabranch.pipeline import Graph
from anabranch.publishing import UnitEvents
from anabranch.replicas import Replicas
from anabranch.segments import Segment
from anabranch.setup import Setup
from anabranch.simulator.heap import SkewedClock
from anabranch.simulator.keeping import SimKeepers
from anabranch.simulator.peers import SimPeers
from anabranch.simulator.source import SimSource
from anabranch.simulator.storage import Died, MemoryChannel
from anabranch.simulator.unit import SimUnit
from anabranch.simulator.workshop import SimExecutor, SimWorkshop
from anabranch.simulator.world import World
from anabranch.strategies import Strategy
from anabranch.takeovers import Takeovers
from anabranch.upkeep import Upkeep
from anabranch.work import Work
from anabranch.workshop import Workshop

if TYPE_CHECKING:
    from anabranch.simulator.cluster import Cluster

_LOOK_S = 0.2
_HOUSEKEEPING_S = 1.0


class SimNode:
    """A node: alive, paused or dead; each life has its own leading, replicas and pacer."""

    def __init__(self, cluster: Cluster, name: str, strategies: dict[str, Strategy]) -> None:
        self.cluster = cluster
        self.world: World = cluster.world
        self.name = name
        self.clock = SkewedClock(self.world.heap)
        self.boot = 0
        self.slowness = 1.0
        self.life = ""
        self.alive = False
        self.paused = False
        # How many more writes it lives to see; None: as many as it likes.
        self.dies_after: int | None = None
        # The main loop hangs until then, though the agent answers.
        self.hangs_until_s = 0.0
        self._looked_s = 0.0
        self._deferred: list[Callable[[], None]] = []
        self._strategies = strategies
        self._number = 0
        self.events = UnitEvents(released=self._released, diverged=self._diverged)

    # Living and dying

    def start(self) -> None:
        """Begin a new life."""
        self._number += 1
        self.life = f"{self.name}.{self._number}"
        self.alive, self.paused, self._deferred = True, False, []
        self.dies_after = None
        self._looked_s = self.clock.steady_s()
        world = self.world
        consumers = {name: tuple(u for u, s in world.segments.items() if name in s.inputs) for name in world.channels}
        last = list(world.segments)[-1]
        consumers[last] = (*consumers[last], world.sink)
        graph = SimpleNamespace(sources={world.source: None}, sinks={world.sink: None}, settings=self.cluster.settings)
        options = NodeOptions(file=cast(Any, None), work=cast(Any, None), name=self.name, leave_s=self.cluster.leave_s)
        self.setup = Setup(
            cast(Graph, graph),
            cast("dict[str, Segment]", world.segments),
            consumers,
            self._strategies,
            cast(Work, world),
            options,
            self.clock,
            self.life,
        )
        self.keepers = SimKeepers(self)
        self.replicas = Replicas(self.setup, cast(Workshop, SimWorkshop(self)), SimExecutor(self))
        self.upkeep = Upkeep(self.setup, self.replicas, self.keepers)
        self.first_output_s: dict[str, float] = {}
        self._pacer: Pacer | None = None
        self._delivering = False
        self._kept_house_s = self.clock.steady_s()
        leases = {role: world.lease(role) for role in (*world.segments, world.sink, PACER)}
        peers = SimPeers(self, self.cluster)
        self.leading = Leading(self.setup, peers, leases, self, Takeovers(lambda *_, **__: None))
        self.replicas.assemble()
        world.note("started", node=self.name)
        self.later(0.0, self._look)

    def kill(self) -> None:
        """Die at once; nothing that was in hand goes on."""
        self.alive = False

    def pause(self) -> None:
        """Stand still, with everything in hand."""
        self.paused = True

    def resume(self) -> None:
        """Go on as if nothing had been."""
        self.paused = False
        deferred, self._deferred = self._deferred, []
        for action in deferred:
            self.later(self.world.moment_s() / 10, action)

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something in this life; not while paused, and never once it is over."""
        life = self.life

        def act() -> None:
            if not self.alive or self.life != life:
                return
            if self.paused:
                self._deferred.append(action)
                return
            self.world.acting = self
            try:
                action()
            except Died:
                self.cluster.kill(self)
            except AnabranchError as error:
                self.cluster.ended(self, error)
            finally:
                self.world.acting = None

        self.world.heap.after(delay_s, act)

    # The main loop

    def hanging_s(self) -> float:
        """Return for how long the main loop has not come round."""
        return self.clock.steady_s() - self._looked_s

    def _look(self) -> None:
        if self.clock.steady_s() < self.hangs_until_s:
            self.later(_LOOK_S, self._look)
            return
        self._looked_s = self.clock.steady_s()
        self.leading.look()
        self.replicas.reconcile(self.leading.led(), self.leading.elsewhere())
        self._look_after()
        self.keepers.look(cast("dict[str, SimUnit]", self.replicas.primaries))
        now_s = self.clock.steady_s()
        if now_s - self._kept_house_s >= _HOUSEKEEPING_S:
            self._kept_house_s = now_s
            self._keep_house()
        self.later(self.world.heap.chance.uniform(0.5, 1.0) * _LOOK_S, self._look)

    def _look_after(self) -> None:
        for name, unit in list(self.replicas.primaries.items()):
            error = unit.failure()
            if error is None:
                continue
            if not isinstance(error, Superseded):
                told = f"{type(error).__name__}: {error}"
                failure = Failure(unit.run, unit.committed() + 1, told, proven=unit.proven)
                history = self.world.failures.setdefault(name, [])
                verdict = judge(history, failure, floor=unit.input_floor())
                if verdict == "fail":
                    raise poison(name, history, failure)
                if verdict == "restart":
                    if of_files(failure.error):
                        unit.doubt_base()
                    history.append(failure)
            self.replicas.end(name)

    def _keep_house(self) -> None:
        self.upkeep.declare_safe()
        if self.world.sink in self.leading.held:
            output = list(self.world.segments)[-1]
            self.channels[output].declare_safe(self.world.sink, max(self.world.delivered, default=-1))
        if PACER in self.leading.held:
            self.upkeep.trim(sweep=True)

    # The roles, as hosting.py carries them out

    @property
    def channels(self) -> Mapping[str, Channel]:
        return cast("Mapping[str, Channel]", self.world.channels)

    @property
    def running(self) -> dict[str, str]:
        return {name: unit.run for name, unit in self.replicas.primaries.items()}

    def runs(self, unit: str) -> set[str]:
        return self.replicas.runs(unit)

    def begin(self, role: str, generation: int) -> None:
        if role == PACER:
            channel = cast(Channel, self.world.channels[self.world.source])
            source = PacedSource(cast(Any, SimSource(self.world)), channel)
            settings = self.cluster.settings
            depth = len(self.world.segments)
            pacer = Pacer(
                {self.world.source: source}, settings, self.clock, run=self.life, generation=generation, depth=depth
            )
            self._pacer = pacer
            self.later(self.world.moment_s(), lambda: self._resume(pacer))
        elif role == self.world.sink:
            self._delivering = True
            self.later(0.0, self._deliver)

    def end_role(self, role: str) -> None:
        if role == PACER:
            self._pacer = None
        elif role == self.world.sink:
            self._delivering = False

    def _resume(self, pacer: Pacer) -> None:
        try:
            pacer.resume()
        except Deposed:
            self._pace_again(pacer)
        else:
            self._pace(pacer)

    def _pace_again(self, pacer: Pacer) -> None:
        """Go on behind another pacer, while the role is here."""
        self.later(0.5, lambda: self.begin(PACER, pacer.generation) if self._pacer is pacer else None)

    def _pace(self, pacer: Pacer) -> None:
        # A pacer that was paused, and does not know yet that it was deposed, still takes one step.
        if self._pacer is pacer:
            delivered = max(self.world.delivered, default=-1)
            try:
                pacer.step(self.upkeep.downstream([delivered]))
            except Deposed:
                self._pace_again(pacer)
                return
            self.later(self.world.heap.chance.uniform(0.02, 0.1), lambda: self._pace(pacer))

    def _deliver(self) -> None:
        if not self._delivering:
            return
        output: MemoryChannel = self.world.channels[list(self.world.segments)[-1]]
        epoch = max(self.world.delivered, default=-1) + 1
        if output.manifest(epoch) is not None:
            self.world.delivered.setdefault(epoch, tuple(self.world.rows(output, epoch)))
        self.later(self.world.heap.chance.uniform(0.02, 0.2), self._deliver)

    def _released(self, name: str, manifest: Manifest | None) -> None:
        if manifest is not None and manifest.producer.run == self.running.get(name):
            self.world.failures.pop(name, None)

    def _diverged(self, error: Diverged) -> None:
        self.world.note("diverged", node=self.name, error=error.message)
        self.world.violate(f"diverged: {error.message}")
