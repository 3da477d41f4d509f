"""A node: one process with one Spark session that hosts units, sinks and, if it holds the lease, the pacer.

The main thread carries out what is decided: it starts units, notices failures, trims, and ends the node when
everything taken has been delivered. Spark runs the queries in threads of its own; the pacer and every sink have one
thread each; the agent answers from its own. Killing the process at any moment loses nothing: all that counts is in
the work directory, and the next node goes on from there.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from anabranch.agent import Agent
from anabranch.assembly import Assembly, Plan
from anabranch.channel.channel import Channel
from anabranch.channel.manifest import Manifest
from anabranch.clock import Clock, SystemClock
from anabranch.delivery import Delivery
from anabranch.durable import write_atomic
from anabranch.errors import Deposed, Diverged
from anabranch.failures import MALFORMED, Failure, judge, poison, sink_failure
from anabranch.keeper.surroundings import Surroundings
from anabranch.keeping import Keepers
from anabranch.lease import Holder
from anabranch.loading import load_pipeline
from anabranch.pacer import Downstream, PacedSource, Pacer, noted_position
from anabranch.pacing import trim_floor
from anabranch.plans import spark_message
from anabranch.presence import refuse_if_used
from anabranch.segments import consumers, cut, depth, strategies
from anabranch.session import SessionOptions, build_session
from anabranch.sinks.sink import Delivery as SinkDelivery
from anabranch.sources.locate import locate_record, malformed_record
from anabranch.unit import Unit, UnitEvents, UnitPlace
from anabranch.work import Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How often the main thread looks around; failures of local queries are noticed this fast.
_LOOK_S = 0.05
_HOUSEKEEPING_S = 1.0
# Sweeping reads every manifest that has parts; orphans are rare and do no harm in the meantime.
_SWEEP_S = 60.0
_PACE_POLL_S = 0.01
_PACER = "pacer"


@dataclass(frozen=True)
class NodeOptions:
    """How a node is started. A replay runs the epochs that are recorded, claims none, and delivers nothing."""

    file: Path
    work: Path
    name: str = "node-1"
    master: str = "local[*]"
    drain: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    retain_epochs: int | Literal["all"] | None = None
    replay: bool = False


class Node:
    """Runs one pipeline until it is finished, stopped, or failed."""

    def __init__(self, options: NodeOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._graph = load_pipeline(options.file).graph()
        self._segments = cut(self._graph)
        self._consumers = consumers(self._graph, self._segments)
        protected = {} if options.replay else strategies(self._graph, self._segments)
        self._work = Work.create(options.work)
        self._keepers = Keepers(self._work.path, protected, self._clock, self._work.note)
        self._wake = threading.Condition()
        self._units: dict[str, Unit] = {}
        self._deliveries: dict[str, Delivery] = {}
        self._channels: dict[str, Channel] = {}
        self._leases: dict[str, Holder] = {}
        self._stop: str | None = None
        self._last_epoch: int | None = None
        self._error: BaseException | None = None
        self._unkept: str | None = None
        self._phase = "starting"

    # The whole life

    def run(self) -> None:
        """Run to the end; raises what it failed of."""
        refuse_if_used(self._work, self._options.name)
        agent = Agent(self._work.token(), {"ping": self._ping, "status": self._status, "stop": self._on_stop})
        agent.start()
        announcement = self._work.path / "nodes" / f"{self._options.name}.json"
        record = {"name": self._options.name, "pid": os.getpid(), "address": agent.address, "zone": None}
        write_atomic(announcement, json.dumps(record).encode())
        signal.signal(signal.SIGTERM, lambda *_: self._on_stop({"now": True}))
        # Ctrl-C reaches the whole terminal; the launcher turns it into an orderly stop.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._run()
        finally:
            agent.stop()
            announcement.unlink(missing_ok=True)

    def _run(self) -> None:
        spark = self._session()
        assembly = Assembly(spark, self._graph, self._segments, self._work)
        assembly.check(sinks=not self._options.replay)
        plans = assembly.build_all()
        self._keepers.belong_to(self._graph.name, assembly.work_id)
        self._channels = {name: self._work.channel(name) for name in [*self._graph.sources, *self._segments]}
        self._take_leases()
        for channel in self._channels.values():
            channel.sweep()
        for number, plan in enumerate(plans.values()):
            self._start_unit(spark, plan)
            if number == 0:
                self._units[plan.built.segment.name].wait_until_polled()
        run = f"n{uuid.uuid4().hex[:8]}"
        if self._options.replay:
            self._last_epoch = max(_last(self._channels[name]) for name in self._graph.sources)
        else:
            self._start_deliveries(spark, assembly.work_id, run)
            threading.Thread(target=self._pace, args=(run,), name="pacer", daemon=True).start()
        self._phase = "running"
        self._work.note("started", node=self._options.name, at=self._clock.now_s(), pid=os.getpid())
        try:
            self._look_after(spark, assembly)
        finally:
            self._phase = "stopping"
            self._stop = self._stop or "now"
            for delivery in self._deliveries.values():
                delivery.stop()
            for unit in self._units.values():
                unit.stop()
            self._keepers.finish(in_order=self._stop == "drain" or self._last_epoch is not None)
            spark.stop()

    def _session(self) -> SparkSession:
        settings = self._graph.settings
        return build_session(
            SessionOptions(
                name=f"anabranch {self._graph.name} {self._options.name}",
                master=self._options.master,
                timezone=settings.timezone,
                state_partitions=self._pinned_partitions() or settings.state_partitions,
                settings={**settings.spark, **self._options.settings},
                module_directory=self._options.file.absolute().parent,
            )
        )

    def _pinned_partitions(self) -> int | None:
        """Return the number of state partitions this directory was made with, unless the pipeline names one."""
        identity = self._work.identity()
        if identity is None or self._graph.settings.state_partitions is not None:
            return None
        return int(identity["state_partitions"])

    def _take_leases(self) -> None:
        for role in [_PACER, *self._segments, *self._graph.sinks]:
            lease = self._work.lease(role)
            self._leases[role] = lease.take(self._options.name, after=lease.holder())

    # Units

    def _start_unit(self, spark: SparkSession, plan: Plan) -> None:
        name = plan.built.segment.name
        place = UnitPlace(
            directory=self._work.unit_path(name),
            inputs={read: self._channels[read] for read in plan.built.segment.inputs},
            output=self._channels[name],
        )
        events = UnitEvents(released=self._on_release, diverged=self._on_divergence)
        unit = Unit(
            plan.built, place, events, run=plan.run, generation=self._leases[name].generation, clock=self._clock
        )
        unit.prepare(lambda directory: self._keepers.restore(name, directory))
        self._units[name] = unit
        unit.start(spark)
        sources = tuple(self._channels[source] for source in self._graph.sources)
        around = Surroundings(self._work.path, sources, place.output, self._consumers[name])
        self._keepers.begin(name, plan.run, plan.built.segment.inputs, around)

    def _on_release(self, unit: str, manifest: Manifest) -> None:
        if manifest.producer.run == self._units[unit].run:
            # Progress. An epoch that was only executed again is none: its commit may be what fails.
            self._failures_path(unit).unlink(missing_ok=True)
        with self._wake:
            self._wake.notify_all()

    def _on_divergence(self, error: Diverged) -> None:
        self._work.note("diverged", message=error.message, at=self._clock.now_s())
        if self._graph.guarantee == "precise":
            raise error

    def _failures_path(self, unit: str) -> Path:
        return self._work.unit_path(unit) / "failures.json"

    def _on_failure(self, spark: SparkSession, assembly: Assembly, unit: Unit, error: BaseException) -> None:
        failure = Failure(unit.run, unit.committed() + 1, self._explained(unit, error))
        path = self._failures_path(unit.name)
        history = [Failure(**past) for past in json.loads(path.read_bytes())] if path.exists() else []
        self._work.note("failed", unit=unit.name, epoch=failure.epoch, error=failure.error, at=self._clock.now_s())
        if judge(history, failure) == "fail":
            raise poison(unit.name, failure) from error
        write_atomic(path, json.dumps([asdict(past) for past in [*history, failure]]).encode())
        unit.stop()
        self._start_unit(spark, assembly.build(unit.name))

    def _explained(self, unit: Unit, error: BaseException) -> str:
        """Say why a query failed; a malformed record is looked up, so that people need not."""
        message = spark_message(error)
        record = malformed_record(message)
        for name in self._segments[unit.name].inputs if record else ():
            node = self._graph.sources.get(name)
            manifest = self._channels[name].manifest(unit.committed() + 1)
            if node is not None and manifest is not None and record:
                place = locate_record(node.source, manifest.planned or {}, record)
                if place is not None:
                    return f"{MALFORMED} in source {name!r} ({place}): {record}"
        return message

    # Sinks

    def _start_deliveries(self, spark: SparkSession, work_id: str, run: str) -> None:
        for name, node in self._graph.sinks.items():
            channel = self._channels[node.stream]
            context = SinkDelivery(spark, channel, work_id, self._leases[name].generation)
            deliverer = node.sink.deliverer(context)
            self._deliveries[name] = Delivery(name, channel, deliverer, run=run, wake=self._wake)
        for delivery in self._deliveries.values():
            delivery.start()

    # The pacer's thread

    def _pace(self, run: str) -> None:
        try:
            sources = {
                name: PacedSource(node.source, self._channels[name]) for name, node in self._graph.sources.items()
            }
            pacer = Pacer(
                sources,
                self._graph.settings,
                self._clock,
                run=run,
                generation=self._leases[_PACER].generation,
                depth=depth(self._segments),
            )
            pacer.resume()
            if self._options.drain:
                pacer.close()
            self._pace_until_finished(pacer)
        except Exception as error:  # noqa: BLE001  handed to the main thread, which ends the node
            self._error = error

    def _pace_until_finished(self, pacer: Pacer) -> None:
        stopping = False
        while self._stop != "now":
            if self._stop == "drain" and not stopping:
                stopping = True
                pacer.stop_taking()
            instruction = pacer.step(self._downstream())
            if instruction == "finish":
                pacer.note_positions()
                self._last_epoch = pacer.last_epoch
                return
            if instruction == "wait":
                with self._wake:
                    self._wake.wait(_PACE_POLL_S)

    def _downstream(self) -> Downstream:
        released = {name: _last(self._channels[name]) for name in self._segments}
        first = [
            released[name]
            for name, segment in self._segments.items()
            if any(read in self._graph.sources for read in segment.inputs)
        ]
        delivered = [delivery.delivered for delivery in self._deliveries.values()]
        unkept = self._keepers.unkept(released)
        if unkept != self._unkept:
            self._unkept = unkept
            kind = "held up" if unkept else "going on"
            self._work.note(kind, unit=unkept, reason="its store is too far behind", at=self._clock.now_s())
        received = min([*released.values(), *delivered])
        return Downstream(taken=min(first), received=received, unkept=unkept is not None)

    # The main thread

    def _look_after(self, spark: SparkSession, assembly: Assembly) -> None:
        kept_house_s = swept_s = self._clock.steady_s()
        idle = threading.Event()
        while self._stop != "now" and not self._finished():
            if self._error is not None:
                raise self._error
            for unit in list(self._units.values()):
                failure = unit.failure()
                if failure is not None and self._stop != "now":
                    self._on_failure(spark, assembly, unit, failure)
            for delivery in self._deliveries.values():
                failure = delivery.failure()
                if failure is not None:
                    raise sink_failure(delivery.name, delivery.delivered + 1, failure, spark_message(failure))
            failure = self._keepers.failure()
            if failure is not None:
                raise failure
            now_s = self._clock.steady_s()
            if now_s - kept_house_s >= _HOUSEKEEPING_S:
                self._check_leases()
                self._trim(sweep=now_s - swept_s >= _SWEEP_S)
                swept_s = now_s if now_s - swept_s >= _SWEEP_S else swept_s
                kept_house_s = now_s
            idle.wait(_LOOK_S)
        self._check_leases()
        self._trim(sweep=True)

    def _finished(self) -> bool:
        if self._last_epoch is None:
            return False
        committed = [unit.committed() for unit in self._units.values()]
        delivered = [delivery.delivered for delivery in self._deliveries.values()]
        return min([*committed, *delivered]) >= self._last_epoch

    def _check_leases(self) -> None:
        for role, holder in self._leases.items():
            if not self._work.lease(role).held_by(holder):
                raise Deposed(f"another node holds {role!r} now", hint="`anabranch status` shows which")

    def _trim(self, *, sweep: bool) -> None:
        for unit in self._units.values():
            unit.declare_safe(self._keepers.kept_epoch(unit.name))
        for delivery in self._deliveries.values():
            delivery.declare_safe()
        if self._options.replay:
            return
        asked = self._options.retain_epochs or self._graph.settings.retain_epochs
        retain = None if asked == "all" else asked
        for name, channel in self._channels.items():
            safe = [channel.safe(unit) for unit in self._consumers[name]]
            if name in self._graph.sources:
                safe.append(noted_position(channel))
            exits = not any(reader in self._segments for reader in self._consumers[name]) or any(
                reader in self._graph.sinks for reader in self._consumers[name]
            )
            kept = retain if exits or retain is None else 1
            floor = trim_floor(safe=safe, last=_last(channel), retain=kept)
            channel.trim(floor)
            if sweep:
                channel.sweep()

    # Commands

    def _ping(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"name": self._options.name, "pid": os.getpid(), "phase": self._phase}

    def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        units = [
            {
                "unit": name,
                "role": "primary",
                "generation": self._leases[name].generation,
                "epoch": unit.committed(),
                "temperature": None,
                "stores": self._keepers.status(name),
            }
            for name, unit in dict(self._units).items()
        ]
        return {"name": self._options.name, "pid": os.getpid(), "phase": self._phase, "units": units}

    def _on_stop(self, body: dict[str, Any]) -> dict[str, Any]:
        self._stop = "now" if body.get("now") else self._stop or "drain"
        return {"stopping": self._stop}


def _last(channel: Channel) -> int:
    last = channel.ledger.last()
    return -1 if last is None else last
