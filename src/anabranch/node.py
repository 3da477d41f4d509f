"""A node: one process with one Spark session, a peer of the other nodes that run the same pipeline.

The main thread looks around, decides and carries out: it takes roles that are free, steps down from those that another
node has taken, starts again what failed here, trims, and ends the node when everything taken has been delivered. Spark
runs the queries in threads of its own; the pacer, every sink and every watched peer have one thread each; the agent
answers from its own. Killing the process at any moment loses nothing: all that counts is in the work directory, and
another node, or the next one, goes on from there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from anabranch import metrics
from anabranch.agent import Agent
from anabranch.assembly import Assembly, with_known_columns
from anabranch.channel.channel import Channel
from anabranch.clock import Clock, SystemClock
from anabranch.detector import Progress, ProgressWatch, Rounds
from anabranch.elsewhere import moved, store_path
from anabranch.errors import AnabranchError
from anabranch.guarantee.verdict import judged, refuse_less
from anabranch.hosting import Hosting
from anabranch.keeping import Keepers
from anabranch.leading import PACER, Leading
from anabranch.lease import Lease
from anabranch.loading import load_pipeline
from anabranch.node_options import NodeOptions
from anabranch.peers import LEAVING, Peers
from anabranch.pipeline import Graph
from anabranch.presence import refuse_if_used
from anabranch.processes import give_way, gives_way
from anabranch.segments import Segment, consumers, cut, guarantees, override, strategies
from anabranch.session import SessionOptions, build_session
from anabranch.setup import Setup
from anabranch.strategies import PassiveStandby, Strategy
from anabranch.takeovers import Takeovers
from anabranch.work import Announcement, Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How often the main thread looks around; failures are noticed this fast.
_LOOK_S = 0.05
_HOUSEKEEPING_S = 1.0
# Sweeping reads every manifest that has parts; orphans are rare and do no harm in the meantime.
_SWEEP_S = 60.0
# How long a node that waits cold gives others to announce themselves before it finds that nobody else is there.
_GATHERING_S = 1.0
# For how long a node that was started again gives way at most once it is up.
_MODEST_S = 20.0


class Node:
    """Runs one pipeline, with others, until it is finished, stopped, or failed."""

    def __init__(self, options: NodeOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        graph = load_pipeline(options.file).graph()
        if options.elsewhere is not None:
            graph = moved(graph, options.elsewhere)
        segments = cut(graph)
        protected = {} if options.replay else _protected(graph, segments, options)
        wanted = {} if options.replay else guarantees(graph, segments)
        self._work = Work.create(options.work)
        graph = with_known_columns(graph, self._work)
        self._life = uuid.uuid4().hex
        self._setup = Setup(
            graph, segments, consumers(graph, segments), protected, self._work, options, self._clock, self._life, wanted
        )
        self._peers = Peers(self._work, options.name, self._clock)
        self._hosting: Hosting | None = None
        self._leading: Leading | None = None
        self._takeovers = Takeovers(self._setup.note)
        self._stop: str | None = None
        # Whether someone ended this node alone, by a signal: the pipeline goes on.
        self.terminated = False
        self._rounds = Rounds(self._clock)
        # Until when it gives way to nodes that went on while it was started again.
        self._modest_until_s: float | None = None
        self._phase = "starting"

    # The whole life

    def run(self) -> None:
        """Run to the end; raises what it failed of."""
        refuse_if_used(self._work, self._options.name, only=self._options.name)
        commands = {"ping": self._ping, "status": self._status, "stop": self._on_stop, "take": self._on_take}
        agent = Agent(self._work.token(), commands, pages={"/metrics": self._metrics})
        agent.start()
        announcement = self._work.announce(
            Announcement(self._options.name, os.getpid(), agent.address, self._life, self._options.zone)
        )
        signal.signal(signal.SIGTERM, lambda *_: self._on_signal())
        # Ctrl-C reaches the whole terminal; the launcher turns it into an orderly stop.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._run()
        finally:
            self._peers.stop()
            agent.stop()
            announcement.unlink(missing_ok=True)

    def _run(self) -> None:
        names = [*self._setup.segments, *self._setup.graph.sinks, PACER]
        leases = {role: self._work.lease(role) for role in names}
        if not self._wait_if_cold(leases):
            return
        spark = self._session()
        assembly = Assembly(spark, self._setup.graph, self._setup.segments, self._work)
        assembly.check(sinks=not self._options.replay)
        assembly.build_all()
        promises = self._settle_protection(assembly)
        kept = {unit: some for unit, some in self._setup.strategies.items() if isinstance(some, PassiveStandby)}
        keepers = Keepers(self._work.path, kept, self._clock, self._setup.note)
        hosting = Hosting(self._setup, spark, assembly, keepers, lambda: self._stop)
        hosting.assemble()
        if not self._options.replay:
            self._work.promise(promises)
        self._hosting = hosting
        self._leading = leading = Leading(self._setup, self._peers, leases, hosting, self._takeovers)
        self._phase = "running"
        # Compiling what the first epochs need takes as much CPU as starting did.
        self._modest_until_s = self._clock.steady_s() + _MODEST_S if gives_way(os.getsid(0)) else None
        self._setup.note("started", node=self._options.name, pid=os.getpid())
        last = max(hosting.channels[name].last_epoch() for name in self._setup.graph.sources)
        in_order = False
        try:
            self._look_after(hosting, leading, last if self._options.replay else None)
            in_order = self._stop != "now"
        finally:
            # Whoever hears that it leaves takes over at once; after an orderly end there is nothing to take.
            self._phase = "stopping" if in_order else LEAVING
            self._stop = "now"
            hosting.end(in_order=in_order)
            spark.stop()

    def _settle_protection(self, assembly: Assembly) -> dict[str, dict[str, str]]:
        """Give segments without a strategy the one that fits; refuse what cannot be kept; return what is promised."""
        built = {name: plan.built for name, plan in assembly.plans.items()}
        # A strategy on the command line is for all segments, also if it is none.
        store = _own_store(self._options) if self._options.strategy is None else None
        verdicts = judged(built, self._setup.strategies, self._setup.wanted, store)
        refuse_less(verdicts)
        protected = {n: one.strategy for n, one in verdicts.items() if one.chosen or n in self._setup.strategies}
        self._setup = replace(self._setup, strategies=protected)
        return {name: verdict.told() for name, verdict in verdicts.items()}

    def _wait_if_cold(self, leases: dict[str, Lease]) -> bool:
        """Wait, without Spark, until this node is needed, if that is what every unit asks for; False: end."""
        protections = [self._setup.strategies.get(name) for name in self._setup.segments]
        idle = threading.Event()
        watch = ColdWatch(self._setup, self._peers, self._clock.steady_s())
        while all(getattr(protection, "temperature", None) == "cold" for protection in protections):
            self._phase = "cold"
            self._peers.look()
            self._rounds.looked()
            if watch.needed(leases, self._clock.steady_s()):
                break
            self._heed_stop()
            if self._stop is not None or self._ended():
                return False
            idle.wait(_LOOK_S)
        self._rounds.left()
        if self._phase == "cold":
            # Nobody else goes on: one that was started again has nobody to give way to.
            give_way(os.getsid(0), 0)
        return True

    def _ended(self) -> bool:
        """Say whether everything that the nodes of this session were to do is done, as far as the ledgers tell."""
        ending = self._work.ending(self._options.session)
        if ending is None:
            return False
        return min(self._work.channel(name).last_epoch() for name in self._setup.segments) >= ending

    def _heed_stop(self) -> None:
        """Stop if the nodes of this session were told to, before this one was started or elsewhere."""
        if self._stop is None and not self._options.replay:
            self._stop = self._work.stopping(self._options.session)

    def _session(self) -> SparkSession:
        settings = self._setup.graph.settings
        return build_session(
            SessionOptions(
                name=f"anabranch {self._setup.graph.name} {self._options.name}",
                master=self._options.master,
                timezone=settings.timezone,
                state_partitions=self._pinned_partitions() or settings.state_partitions,
                settings={**settings.spark, **self._options.settings},
                module_directory=self._options.file.absolute().parent,
                neighbours=self._options.neighbours,
            )
        )

    def _pinned_partitions(self) -> int | None:
        """Return the number of state partitions this directory was made with, unless the pipeline names one."""
        identity = self._work.identity()
        if identity is None or self._setup.graph.settings.state_partitions is not None:
            return None
        return int(identity["state_partitions"])

    # The main thread

    def _look_after(self, hosting: Hosting, leading: Leading, last: int | None) -> None:
        kept_house_s = self._clock.steady_s()
        swept_s = kept_house_s - _SWEEP_S
        idle = threading.Event()
        while self._stop != "now":
            self._heed_stop()
            ending = last if last is not None else self._work.ending(self._options.session)
            if ending is not None and hosting.finished(ending):
                break
            leading.look()
            self._come_forward(hosting, leading)
            with self._rounds.busy():
                hosting.reconcile(leading.led(), leading.elsewhere())
                hosting.look_after()
            now_s = self._clock.steady_s()
            if now_s - kept_house_s >= _HOUSEKEEPING_S:
                sweep = now_s - swept_s >= _SWEEP_S
                with self._rounds.busy() if sweep else contextlib.nullcontext():
                    self._keep_house(hosting, leading, sweep=sweep)
                kept_house_s = now_s
                swept_s = now_s if sweep else swept_s
            idle.wait(_LOOK_S)
        self._keep_house(hosting, leading, sweep=True)

    def _come_forward(self, hosting: Hosting, leading: Leading) -> None:
        """Give way no more, if this node was started again, once it leads something, is warm, or has had its time."""
        if self._modest_until_s is None:
            return
        over = leading.held or hosting.warm() or self._clock.steady_s() >= self._modest_until_s
        if over and give_way(os.getsid(0), 0):
            self._modest_until_s = None

    def _keep_house(self, hosting: Hosting, leading: Leading, *, sweep: bool) -> None:
        hosting.declare_safe()
        if PACER in leading.held and not self._options.replay:
            hosting.upkeep.trim(sweep=sweep)

    # Commands

    def _ping(self, _: dict[str, Any]) -> dict[str, Any]:
        hanging_s = self._rounds.hanging_s()
        return {"name": self._options.name, "pid": os.getpid(), "phase": self._phase, "hanging_s": hanging_s}

    def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        units = [] if self._hosting is None else self._hosting.status()
        return {"name": self._options.name, "pid": os.getpid(), "phase": self._phase, "units": units}

    def _metrics(self) -> tuple[bytes, str]:
        known = {} if self._hosting is None else self._hosting.channels
        channels = []
        for name, channel in known.items():
            segment = self._setup.segments.get(name)
            waiting = min(known[read].last_epoch() for read in segment.inputs) if segment else None
            channels.append({"name": name, "last": channel.last_epoch(), "waiting": waiting})
        return metrics.render(self._status({}), channels, self._takeovers.recoveries), metrics.CONTENT_TYPE

    def _on_take(self, body: dict[str, Any]) -> dict[str, Any]:
        unit = body.get("unit")
        if not isinstance(unit, str) or unit not in self._setup.segments:
            return {"error": f"there is no unit {unit!r}"}
        if self._leading is None:
            return {"error": f"{self._options.name} is not ready yet"}
        self._leading.ask(unit)
        return {"taking": unit}

    def _on_signal(self) -> None:
        self.terminated = True
        self._stop = "now"

    def _on_stop(self, body: dict[str, Any]) -> dict[str, Any]:
        now = bool(body.get("now"))
        # Who dies while it drains is started again, and has to know; but a full disk keeps nobody from ending.
        with contextlib.suppress(OSError):
            self._work.stop(self._options.session, now=now)
        self._stop = "now" if now else self._stop or "drain"
        return {"stopping": self._stop}


def _protected(graph: Graph, segments: dict[str, Segment], options: NodeOptions) -> dict[str, Strategy]:
    if options.strategy is None:
        return strategies(graph, segments)
    return override(options.strategy, segments, _own_store(options))


def _own_store(options: NodeOptions) -> str:
    """Return where checkpoints go if nobody has named a store."""
    return f"log:{options.work / 'store' if options.elsewhere is None else store_path(options.elsewhere)}"


class ColdWatch:
    """Sees, without Spark, whether a node that waits cold is needed: nobody leads, or whoever does is gone or stuck."""

    def __init__(self, setup: Setup, peers: Peers, now_s: float) -> None:
        self._setup = setup
        self._peers = peers
        self._began_s = now_s
        self._channels: dict[str, Channel] = {}
        self._watches: dict[str, ProgressWatch] = {}

    def needed(self, leases: dict[str, Lease], now_s: float) -> bool:
        """Look at every role; to be asked as often as peers are."""
        holders = [lease.holder() for lease in leases.values()]
        # Nodes that start together are not there at the same moment, and the first by name shall begin.
        gathered = now_s - self._began_s >= _GATHERING_S
        if None in holders and gathered and self._peers.first_announced():
            return True
        if any(holder is not None and self._peers.suspicion(holder) is not None for holder in holders):
            return True
        return self._stalled(leases, now_s)

    def _stalled(self, leases: dict[str, Lease], now_s: float) -> bool:
        """Say whether a unit stands still though input waits for it."""
        found = []
        for name, segment in self._setup.segments.items():
            holder = leases[name].holder()
            try:
                waiting = min(self._last(read) for read in segment.inputs)
                published = self._last(name)
            except AnabranchError:
                continue  # nobody has made the channels yet
            if holder is not None:
                seen = Progress(holder.generation, waiting, published)
                watch = self._watches.setdefault(name, ProgressWatch(self._peers.limits, seen, now_s))
                found.append(watch.suspicion(seen, now_s))
        return any(found)

    def _last(self, name: str) -> int:
        if name not in self._channels:
            self._channels[name] = self._setup.work.channel(name)
        return self._channels[name].last_epoch()
