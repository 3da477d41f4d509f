"""What a node runs: replicas of units, sinks and the pacer, each begun and ended by itself.

A unit whose lease the node holds is a primary. A unit that another node holds may have a standby here, which runs the
same epochs and withholds what it has until it is promoted. Sinks and the pacer run only where their lease is.

Everything here is carried out, nothing decided: who holds what is the node's business, when to claim an epoch the
pacer's, what a failure means is in failures.py.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anabranch.assembly import Assembly
from anabranch.channel.channel import Channel
from anabranch.channel.manifest import Manifest
from anabranch.delivery import Delivery
from anabranch.durable import write_atomic
from anabranch.errors import Deposed, Diverged, Superseded
from anabranch.failures import MALFORMED, Failure, judge, of_files, poison, sink_failure
from anabranch.keeper.surroundings import Surroundings
from anabranch.keeping import Keepers
from anabranch.leading import PACER
from anabranch.pacer import PacedSource, Pacer
from anabranch.pending import pending_files
from anabranch.plans import spark_message
from anabranch.publishing import UnitEvents
from anabranch.replicas import Replicas
from anabranch.segments import awaited, depth
from anabranch.setup import Setup
from anabranch.sinks.sink import Delivery as SinkDelivery
from anabranch.sources.locate import locate_record, malformed_record
from anabranch.strategies.strategy import WARM_BATCHES
from anabranch.unit import Unit
from anabranch.upkeep import Upkeep
from anabranch.workshop import Workshop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How often it is looked whether every replica that is read can be.
_LOOK_FOR_REPLICAS_S = 5.0
_PACE_POLL_S = 0.01
# How long a pacer that found another's work waits before it looks whether the role is still its own.
_PACE_AGAIN_S = 0.5
# What a standby is doing, by strategy; all others wait at their gate.
_TEMPERATURES = {"active": "active", "trailing": "trailing", "ksafe": "racing"}


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
        self._kept: dict[str, str] = {}
        self._pacing: threading.Event | None = None
        events = UnitEvents(released=self._on_release, diverged=self._on_divergence)
        self.replicas = Replicas(setup, Workshop(setup, spark, assembly, events, keepers.restore))
        self.upkeep = Upkeep(setup, self.replicas, keepers)
        self.error: BaseException | None = None
        self.deliveries: dict[str, Delivery] = {}
        # When each unit that is led here first published something of its own.
        self.first_output_s: dict[str, float] = {}

    def assemble(self) -> None:
        """Make or open the channels of what was built."""
        self.replicas.assemble()
        self._keepers.belong_to(self._setup.graph.name, self._assembly.work_id)
        segments = self._setup.segments
        self._keepers.know(
            awaited(segments, self._setup.strategies),
            lambda unit: min(self.channels[name].safe(unit) for name in segments[unit].inputs),
        )

    @property
    def channels(self) -> dict[str, Channel]:
        """The channels of the pipeline."""
        return self.replicas.channels

    @property
    def running(self) -> dict[str, str]:
        """The runs that lead here, by unit."""
        return {name: unit.run for name, unit in self.replicas.primaries.items()}

    def runs(self, unit: str) -> set[str]:
        """Return the runs of a unit that are here."""
        return self.replicas.runs(unit)

    # Roles

    def begin(self, role: str, generation: int) -> None:
        """Do what a role is there for; units are begun when they are reconciled."""
        if self._setup.options.replay or role in self._setup.segments:
            return
        if role == PACER:
            self.begin_pacer(generation)
        else:
            self.begin_sink(role, generation)

    def end_role(self, role: str) -> None:
        """Do it no more."""
        if role == PACER:
            self.end_pacer()
        elif role not in self._setup.segments:
            self.end_sink(role)

    # Units

    def reconcile(self, held: Mapping[str, int], elsewhere: Mapping[str, bool]) -> None:
        """Bring the replicas towards what this node leads, and keep the primaries in their stores."""
        self.replicas.reconcile(held, elsewhere)
        for name, unit in self.replicas.primaries.items():
            if self._kept.get(name) != unit.run:
                self._kept[name] = unit.run
                sources = tuple(self.channels[source] for source in self._setup.graph.sources)
                output = self.channels[name]
                around = Surroundings(
                    self._setup.work.path,
                    sources,
                    output,
                    self._setup.consumers[name],
                    pending=partial(pending_files, unit.release.pending, output),
                )
                self._keepers.begin(unit, self._setup.segments[name].inputs, around)
        for name in [name for name in self._kept if name not in self.replicas.primaries]:
            del self._kept[name]
            self.first_output_s.pop(name, None)
            self._keepers.end(name)

    def _on_release(self, name: str, manifest: Manifest | None) -> None:
        unit = self.replicas.primaries.get(name)
        if manifest is not None and unit is not None and manifest.producer.run == unit.run:
            # Progress. An epoch that was only executed again is none: its commit may be what fails.
            self._failures_path(name).unlink(missing_ok=True)
            self.first_output_s.setdefault(name, self._setup.clock.now_s())
        with self._wake:
            self._wake.notify_all()

    def _on_divergence(self, error: Diverged) -> None:
        if self._assembly.plans[error.unit].built.classification.draws:
            return
        self._setup.note("diverged", message=error.message)
        if self._setup.wanted.get(error.unit) == "precise":
            raise error

    def _failures_path(self, unit: str) -> Path:
        return self._setup.work.unit_path(unit) / "failures.json"

    # Failures

    def look_after(self) -> None:
        """Start again what failed here, if that makes sense; raise if it does not."""
        if self.error is not None:
            raise self.error
        for name, unit in list(self.replicas.primaries.items()):
            failure = unit.failure()
            if failure is not None and self._stop() != "now":
                self._on_failure(name, unit, failure)
        for delivery in self.deliveries.values():
            failure = delivery.failure()
            if failure is not None:
                raise sink_failure(delivery.name, delivery.delivered + 1, failure, spark_message(failure))
        failure = self._keepers.failure()
        if failure is not None:
            raise failure

    def _on_failure(self, name: str, unit: Unit, error: BaseException) -> None:
        if isinstance(error, Superseded):
            # Its state is nobody's; the next run goes on from that of the run that was published.
            self._setup.note("superseded", unit=name, reason=error.message)
            self.replicas.end(name)
            return
        failure = Failure(unit.run, unit.committed() + 1, self._explained(unit, error), proven=unit.proven)
        path = self._failures_path(name)
        history = [Failure(**past) for past in json.loads(path.read_bytes())] if path.exists() else []
        verdict = judge(history, failure, floor=unit.input_floor())
        kind = "overtaken" if verdict == "overtaken" else "failed"
        self._setup.note(kind, unit=name, epoch=failure.epoch, error=failure.error)
        if verdict == "fail":
            raise poison(name, history, failure) from error
        if verdict == "restart":
            if of_files(failure.error):
                unit.doubt_base()
            write_atomic(path, json.dumps([asdict(past) for past in [*history, failure]]).encode())
        self.replicas.end(name)

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
        """Pace until the role ends. A pacer that finds another's work goes on behind it, while the role is here."""
        while not ended.is_set() and self._stop() != "now":
            if self._pace_once(ended, generation):
                return
            ended.wait(_PACE_AGAIN_S)

    def _pace_once(self, ended: threading.Event, generation: int) -> bool:
        """Pace until the end or until another pacer is found; True if there is nothing more to do."""
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
        except Deposed as error:
            # The main loop finds the newer generation, if there is one, and steps down.
            self._setup.note("deposed", role="pacer", node=self._setup.options.name, reason=error.message)
            return False
        except Exception as error:  # noqa: BLE001  handed to the main thread, which ends the node
            self.error = error
        return True

    def _pace_until_finished(self, pacer: Pacer, ended: threading.Event) -> None:
        stopping = False
        told: dict[str, list[str]] = {}
        looked_s = self._setup.clock.steady_s()
        while self._stop() != "now" and not ended.is_set():
            if self._setup.clock.steady_s() - looked_s >= _LOOK_FOR_REPLICAS_S:
                looked_s = self._setup.clock.steady_s()
                told = self._tell_replicas(pacer, told)
            if self._stop() == "drain" and not stopping:
                stopping = True
                pacer.stop_taking()
            instruction = pacer.step(self.upkeep.downstream(self.delivered()))
            if instruction == "finish":
                self._tell_replicas(pacer, told)
                pacer.note_positions()
                self._setup.work.end_with(pacer.last_epoch, self._setup.options.session)
                return
            if instruction == "wait":
                with self._wake:
                    self._wake.wait(_PACE_POLL_S)

    def _tell_replicas(self, pacer: Pacer, told: dict[str, list[str]]) -> dict[str, list[str]]:
        """Note which replicas each source does without, where that changed; return it."""
        without = pacer.without()
        for name in {*told, *without}:
            if told.get(name) != without.get(name):
                self._setup.note("replicas", source=name, without=without.get(name, []))
        return without

    # Keeping it bounded

    def declare_safe(self) -> None:
        """Tell every channel what the primaries and sinks here will never need again."""
        self.upkeep.declare_safe()
        for delivery in self.deliveries.values():
            delivery.declare_safe()

    # The end

    def finished(self, last: int) -> bool:
        """Say whether everything up to an epoch is published, committed here, and delivered."""
        published = [self.channels[name].last_epoch() for name in self._setup.segments]
        committed = [unit.committed() for unit in self.replicas.primaries.values()]
        delivered = [] if self._setup.options.replay else self.delivered()
        return min([*published, *committed, *delivered]) >= last

    def end(self, *, in_order: bool) -> None:
        """End everything; in order means that the last commits are shipped first."""
        self.end_pacer()
        for name in list(self.deliveries):
            self.end_sink(name)
        self.replicas.end_all()
        self._keepers.finish(in_order=in_order)

    def warm(self) -> bool:
        """Say whether every unit stands by here, and has run enough for that."""
        return all(
            name in self.replicas.standbys and self.replicas.batches(name) >= WARM_BATCHES
            for name in self._setup.segments
        )

    def status(self) -> list[dict[str, Any]]:
        """Return what is known of the replicas here."""
        primaries = [
            {
                **_replica(name, "primary", unit),
                "generation": unit.generation,
                "temperature": None,
                "stores": self._keepers.status(name),
            }
            for name, unit in dict(self.replicas.primaries).items()
        ]
        standbys = [
            {
                **_replica(name, "standby" if self._setup.strategy(name).copies is None else "replica", standby.unit),
                "batches": self.replicas.batches(name),
                "generation": None,
                "temperature": _TEMPERATURES.get(self._setup.strategy(name).name, "gated"),
                "stores": [],
            }
            for name, standby in dict(self.replicas.standbys).items()
        ]
        return [*primaries, *standbys]


def _replica(name: str, role: str, unit: Unit) -> dict[str, Any]:
    return {"unit": name, "role": role, "epoch": unit.committed(), "scratch": unit.scratch}
