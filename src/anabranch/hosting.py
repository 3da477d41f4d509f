"""What a node runs: replicas of units, sinks and the pacer, each begun and ended by itself.

A unit whose lease the node holds is a primary. A unit that another node holds may have a standby here, which runs the
same epochs and withholds what it has until it is promoted. Sinks and the pacer run only where their lease is.

Everything here is carried out, nothing decided: who holds what is the node's business, when to claim an epoch the
pacer's, what a failure means is in failures.py.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anabranch.assembly import Assembly, Plan
from anabranch.channel.channel import Channel
from anabranch.channel.manifest import Manifest
from anabranch.clock import Clock
from anabranch.delivery import Delivery
from anabranch.durable import write_atomic
from anabranch.errors import AnabranchError, Diverged, Trimmed
from anabranch.failures import MALFORMED, Failure, judge, poison, sink_failure
from anabranch.keeper.surroundings import Surroundings
from anabranch.keeping import Keepers
from anabranch.merging import refuse_unmergeable
from anabranch.node_options import NodeOptions
from anabranch.pacer import Downstream, PacedSource, Pacer, noted_position
from anabranch.pacing import trim_floor
from anabranch.pipeline import Graph
from anabranch.plans import spark_message
from anabranch.segments import Segment, depth
from anabranch.sinks.sink import Delivery as SinkDelivery
from anabranch.sources.locate import locate_record, malformed_record
from anabranch.strategies import Strategy, TrailingStandby
from anabranch.strategies.trailing_standby import merge_end
from anabranch.unit import OPEN, Unit, UnitEvents, UnitPlace
from anabranch.work import Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACE_POLL_S = 0.01
# A standby that could not be begun is tried again after this long.
_NO_STANDBY_S = 5.0


@dataclass(frozen=True)
class Setup:
    """What a node knows before it hosts anything."""

    graph: Graph
    segments: dict[str, Segment]
    consumers: dict[str, tuple[str, ...]]
    strategies: dict[str, Strategy]
    work: Work
    options: NodeOptions
    clock: Clock
    life: str

    def note(self, kind: str, **fields: Any) -> None:  # noqa: ANN401  JSON
        """Append one line to the history."""
        self.work.note(kind, **fields, at=self.clock.now_s())


class Hosting:
    """The replicas, sinks and pacer of one node."""

    def __init__(
        self, setup: Setup, spark: SparkSession, assembly: Assembly, keepers: Keepers, stop: Callable[[], str | None]
    ) -> None:
        self._setup = setup
        self._spark = spark
        self._assembly = assembly
        self._keepers = keepers
        self._stop = stop
        self._wake = threading.Condition()
        self._built: dict[str, Plan] = {}
        self._no_standby_until_s: dict[str, float] = {}
        self._followed_s: dict[str, float] = {}
        self._unkept: str | None = None
        self._pacing: threading.Event | None = None
        self.error: BaseException | None = None
        self.primaries: dict[str, Unit] = {}
        self.standbys: dict[str, Unit] = {}
        self.deliveries: dict[str, Delivery] = {}
        self.channels: dict[str, Channel] = {}

    def assemble(self) -> None:
        """Build every segment, and make or open the channels."""
        self._assembly.check(sinks=not self._setup.options.replay)
        self._built = self._assembly.build_all()
        for name, plan in self._built.items():
            if isinstance(self._setup.strategies.get(name), TrailingStandby):
                refuse_unmergeable(name, plan.built.frame)
        self._keepers.belong_to(self._setup.graph.name, self._assembly.work_id)
        names = [*self._setup.graph.sources, *self._setup.segments]
        self.channels = {name: self._setup.work.channel(name) for name in names}

    # Units

    def begin_primary(self, name: str, generation: int) -> None:
        """Run a unit from where any run of it got to, or go on with the standby that is here."""
        unit = self.standbys.pop(name, None)
        if unit is not None and unit.failure() is None:
            unit.promote(generation, self._merge_end(name, unit) if name in self._followed_s else -1)
        else:
            unit = self._unit(name, generation)
            unit.prepare(lambda directory: self._keepers.restore(name, directory))
            unit.start(self._spark)
        self.primaries[name] = unit
        sources = tuple(self.channels[source] for source in self._setup.graph.sources)
        around = Surroundings(self._setup.work.path, sources, self.channels[name], self._setup.consumers[name])
        self._keepers.begin(name, unit.run, self._setup.segments[name].inputs, around)
        if len(self.primaries) + len(self.standbys) == 1:
            unit.wait_until_polled()

    def stand_by(self, name: str) -> None:
        """Run a unit beside its primary: an active standby withholds what it has, a trailing one follows at times.

        If it cannot be begun there is none for a while: the primary's files may go while they are linked.
        """
        now_s = self._setup.clock.steady_s()
        if now_s < self._no_standby_until_s.get(name, now_s):
            return
        try:
            self._begin_standby(name)
        except (OSError, AnabranchError) as error:
            self._no_standby_until_s[name] = now_s + _NO_STANDBY_S
            self._setup.note("standby failed", unit=name, error=str(error))

    def _begin_standby(self, name: str) -> None:
        unit = self._unit(name, None)
        unit.prepare()
        unit.remove_former_runs()
        trails = isinstance(self._setup.strategies.get(name), TrailingStandby)
        unit.start(self._spark, None if trails else OPEN)
        if trails:
            self._followed_s[name] = self._setup.clock.steady_s()
        self.standbys[name] = unit
        if len(self.primaries) + len(self.standbys) == 1:
            unit.wait_until_polled()

    def follow(self) -> None:
        """Let trailing standbys follow their primaries, if it is time."""
        now_s = self._setup.clock.steady_s()
        for name, unit in self.standbys.items():
            strategy = self._setup.strategies.get(name)
            if isinstance(strategy, TrailingStandby) and now_s - self._followed_s[name] >= strategy.every_s:
                end = self._merge_end(name, unit)
                if end > unit.committed():
                    unit.follow(end)
                    self._followed_s[name] = now_s

    def _merge_end(self, name: str, unit: Unit) -> int:
        channel = self.channels[name]

        def late(epoch: int) -> bool:
            try:
                manifest = channel.manifest(epoch)
            except Trimmed:
                return True  # nobody knows
            return manifest is None or manifest.late_rows > 0

        return merge_end(unit.committed(), channel.last_epoch(), late)

    def _unit(self, name: str, generation: int | None) -> Unit:
        plan = self._built.pop(name, None) or self._assembly.build(name)
        place = UnitPlace(
            directory=self._setup.work.unit_path(name),
            inputs={read: self.channels[read] for read in plan.built.segment.inputs},
            output=self.channels[name],
            node=self._setup.options.name,
        )
        events = UnitEvents(released=self._on_release, diverged=self._on_divergence)
        return Unit(plan.built, place, events, run=plan.run, generation=generation, clock=self._setup.clock)

    def end_unit(self, name: str) -> None:
        """End whatever replica of a unit is here."""
        self._keepers.end(name)
        self._followed_s.pop(name, None)
        for replicas in (self.primaries, self.standbys):
            unit = replicas.pop(name, None)
            if unit is not None:
                unit.stop()

    def _on_release(self, name: str, manifest: Manifest | None) -> None:
        unit = self.primaries.get(name)
        if manifest is not None and unit is not None and manifest.producer.run == unit.run:
            # Progress. An epoch that was only executed again is none: its commit may be what fails.
            self._failures_path(name).unlink(missing_ok=True)
        with self._wake:
            self._wake.notify_all()

    def _on_divergence(self, error: Diverged) -> None:
        self._setup.note("diverged", message=error.message)
        if self._setup.graph.guarantee == "precise":
            raise error

    def _failures_path(self, unit: str) -> Path:
        return self._setup.work.unit_path(unit) / "failures.json"

    # Failures

    def look_after(self) -> None:
        """Start again what failed here, if that makes sense; raise if it does not."""
        if self.error is not None:
            raise self.error
        for name, unit in list(self.primaries.items()):
            failure = unit.failure()
            if failure is not None and self._stop() != "now":
                self._on_failure(name, unit, failure)
        for name, unit in list(self.standbys.items()):
            failure = unit.failure()
            if failure is not None and self._stop() != "now":
                self._setup.note("standby failed", unit=name, error=spark_message(failure))
                self.end_unit(name)
                self.stand_by(name)
        for delivery in self.deliveries.values():
            failure = delivery.failure()
            if failure is not None:
                raise sink_failure(delivery.name, delivery.delivered + 1, failure, spark_message(failure))
        failure = self._keepers.failure()
        if failure is not None:
            raise failure

    def _on_failure(self, name: str, unit: Unit, error: BaseException) -> None:
        failure = Failure(unit.run, unit.committed() + 1, self._explained(unit, error))
        path = self._failures_path(name)
        history = [Failure(**past) for past in json.loads(path.read_bytes())] if path.exists() else []
        self._setup.note("failed", unit=name, epoch=failure.epoch, error=failure.error)
        if judge(history, failure) == "fail":
            raise poison(name, failure) from error
        write_atomic(path, json.dumps([asdict(past) for past in [*history, failure]]).encode())
        self.end_unit(name)
        self.begin_primary(name, unit.generation)

    def _explained(self, unit: Unit, error: BaseException) -> str:
        """Say why a query failed; a malformed record is looked up, so that people need not."""
        message = spark_message(error)
        record = malformed_record(message)
        for name in self._setup.segments[unit.name].inputs if record else ():
            node = self._setup.graph.sources.get(name)
            manifest = self.channels[name].manifest(unit.committed() + 1)
            if node is not None and manifest is not None and record:
                place = locate_record(node.source, manifest.planned or {}, record)
                if place is not None:
                    return f"{MALFORMED} in source {name!r} ({place}): {record}"
        return message

    # Sinks

    def begin_sink(self, name: str, generation: int) -> None:
        """Deliver what was published and not delivered yet."""
        node = self._setup.graph.sinks[name]
        channel = self.channels[node.stream]
        context = SinkDelivery(self._spark, channel, self._assembly.work_id, generation)
        run = f"n{self._setup.life[:8]}"
        self.deliveries[name] = Delivery(name, channel, node.sink.deliverer(context), run=run, wake=self._wake)
        self.deliveries[name].start()

    def end_sink(self, name: str) -> None:
        """End a sink after the epoch in hand."""
        delivery = self.deliveries.pop(name, None)
        if delivery is not None:
            delivery.stop()

    def delivered(self) -> list[int]:
        """Return what every sink has delivered, wherever it runs."""
        return [
            self.deliveries[name].delivered
            if name in self.deliveries
            else max(self.channels[node.stream].received(name), self.channels[node.stream].safe(name))
            for name, node in self._setup.graph.sinks.items()
        ]

    # The pacer

    def begin_pacer(self, generation: int) -> None:
        """Claim epochs, in a thread, until the end."""
        self._pacing = threading.Event()
        arguments = (self._pacing, generation)
        threading.Thread(target=self._pace, args=arguments, name="pacer", daemon=True).start()

    def end_pacer(self) -> None:
        """Claim no more."""
        if self._pacing is not None:
            self._pacing.set()

    def _pace(self, ended: threading.Event, generation: int) -> None:
        try:
            graph = self._setup.graph
            pacer = Pacer(
                {name: PacedSource(node.source, self.channels[name]) for name, node in graph.sources.items()},
                graph.settings,
                self._setup.clock,
                run=f"n{self._setup.life[:8]}",
                generation=generation,
                depth=depth(self._setup.segments),
            )
            pacer.resume()
            if self._setup.options.drain:
                pacer.close()
            self._pace_until_finished(pacer, ended)
        except Exception as error:  # noqa: BLE001  handed to the main thread, which ends the node
            self.error = error

    def _pace_until_finished(self, pacer: Pacer, ended: threading.Event) -> None:
        stopping = False
        while self._stop() != "now" and not ended.is_set():
            if self._stop() == "drain" and not stopping:
                stopping = True
                pacer.stop_taking()
            instruction = pacer.step(self._downstream())
            if instruction == "finish":
                pacer.note_positions()
                self._setup.work.end_with(pacer.last_epoch, self._setup.options.session)
                return
            if instruction == "wait":
                with self._wake:
                    self._wake.wait(_PACE_POLL_S)

    def _downstream(self) -> Downstream:
        released = {name: self.channels[name].last_epoch() for name in self._setup.segments}
        first = [
            released[name]
            for name, segment in self._setup.segments.items()
            if any(read in self._setup.graph.sources for read in segment.inputs)
        ]
        unkept = self._keepers.unkept(released)
        if unkept != self._unkept:
            self._unkept = unkept
            self._setup.note("held up" if unkept else "going on", unit=unkept, reason="its store is too far behind")
        received = min([*released.values(), *self.delivered()])
        return Downstream(taken=min(first), received=received, unkept=unkept is not None)

    # Keeping it bounded

    def declare_safe(self) -> None:
        """Tell every channel what the primaries and sinks here will never need again."""
        for name, unit in self.primaries.items():
            unit.declare_safe(self._keepers.kept_epoch(name))
        for delivery in self.deliveries.values():
            delivery.declare_safe()

    def trim(self, *, sweep: bool) -> None:
        """Remove epochs that nobody needs; the pacer's node does it for all."""
        graph, options = self._setup.graph, self._setup.options
        asked = options.retain_epochs or graph.settings.retain_epochs
        retain = None if asked == "all" else asked
        for name, channel in self.channels.items():
            readers = self._setup.consumers[name]
            safe = [channel.safe(unit) for unit in readers]
            if name in graph.sources:
                safe.append(noted_position(channel))
            exits = not any(reader in self._setup.segments for reader in readers) or any(
                reader in graph.sinks for reader in readers
            )
            kept = retain if exits or retain is None else 1
            channel.trim(trim_floor(safe=safe, last=channel.last_epoch(), retain=kept))
            if sweep:
                channel.sweep()

    # The end

    def finished(self, last: int) -> bool:
        """Say whether everything up to an epoch is published, committed here, and delivered."""
        published = [self.channels[name].last_epoch() for name in self._setup.segments]
        committed = [unit.committed() for unit in self.primaries.values()]
        delivered = [] if self._setup.options.replay else self.delivered()
        return min([*published, *committed, *delivered]) >= last

    def end(self, *, in_order: bool) -> None:
        """End everything; in order means that the last commits are shipped first."""
        self.end_pacer()
        for name in list(self.deliveries):
            self.end_sink(name)
        for unit in [*self.primaries.values(), *self.standbys.values()]:
            unit.stop()
        self._keepers.finish(in_order=in_order)

    def status(self) -> list[dict[str, Any]]:
        """Return what is known of the replicas here."""
        replicas = [("primary", dict(self.primaries)), ("standby", dict(self.standbys))]
        return [
            {
                "unit": name,
                "role": role,
                "generation": unit.generation if role == "primary" else None,
                "epoch": unit.committed(),
                "temperature": ("trailing" if name in self._followed_s else "active") if role == "standby" else None,
                "stores": self._keepers.status(name) if role == "primary" else [],
            }
            for role, units in replicas
            for name, unit in units.items()
        ]
