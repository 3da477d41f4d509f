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
from anabranch.errors import Diverged, Superseded
from anabranch.failures import MALFORMED, Failure, judge, poison, sink_failure
from anabranch.keeper.surroundings import Surroundings
from anabranch.keeping import Keepers
from anabranch.pacer import Downstream, PacedSource, Pacer, noted_position
from anabranch.pacing import Recent, trim_floor
from anabranch.pending import pending_files
from anabranch.plans import spark_message
from anabranch.replicas import Replicas
from anabranch.segments import awaited, depth
from anabranch.setup import Setup
from anabranch.sinks.sink import Delivery as SinkDelivery
from anabranch.sources.locate import locate_record, malformed_record
from anabranch.unit import Unit, UnitEvents

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACE_POLL_S = 0.01
# How often the pacer looks whether active standbys are in step, how old what they say may be, and what is out of reach.
_LOOK_AT_LAGS_S = 0.02
_FRESH_S = 1.5
_MOST_LAG = 5
# What was published lately is left for standbys: a trailing one is seconds behind, a gated one more.
_FOR_STANDBYS_S = 60.0
# What a standby is doing, by strategy; all others wait at their gate.
_TEMPERATURES = {"active": "active", "trailing": "trailing"}


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
        self._unkept: str | None = None
        self._pacing: threading.Event | None = None
        self._recent: dict[str, Recent] = {}
        self._lag = 0
        # Units that a planned generation takes over, and the last such generation that has.
        self._moving: set[str] = set()
        self._moved: dict[str, int] = {}
        self._looked_at_lags_s = 0.0
        events = UnitEvents(released=self._on_release, diverged=self._on_divergence)
        self.replicas = Replicas(setup, spark, assembly, events, keepers.restore)
        self.error: BaseException | None = None
        self.deliveries: dict[str, Delivery] = {}
        # When each unit that is led here first published something of its own.
        self.first_output_s: dict[str, float] = {}

    def assemble(self) -> None:
        """Build every segment, and make or open the channels."""
        self._assembly.check(sinks=not self._setup.options.replay)
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

    # Units

    def reconcile(self, held: Mapping[str, int]) -> None:
        """Bring the replicas towards what this node leads, and keep the primaries in their stores."""
        self.replicas.reconcile(held)
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
        failure = Failure(unit.run, unit.committed() + 1, self._explained(unit, error))
        path = self._failures_path(name)
        history = [Failure(**past) for past in json.loads(path.read_bytes())] if path.exists() else []
        self._setup.note("failed", unit=name, epoch=failure.epoch, error=failure.error)
        if judge(history, failure) == "fail":
            raise poison(name, failure) from error
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
        behind = self._behind(released)
        return Downstream(taken=min(first), received=received, unkept=unkept is not None, behind=behind)

    def _behind(self, released: Mapping[str, int]) -> int:
        """Return by how many epochs a standby lags that should keep in step; one that is far behind is left alone."""
        now_s = self._setup.clock.steady_s()
        if now_s - self._looked_at_lags_s >= _LOOK_AT_LAGS_S:
            self._looked_at_lags_s = now_s
            lags = [
                lag
                for name in self._setup.segments
                if self.replicas.strategy(name).in_step or name in self._moving
                for lag in self.lags(name, released[name]).values()
            ]
            self._lag = max((lag for lag in lags if lag <= _MOST_LAG), default=0)
        return self._lag

    def moving(self, name: str, to: int | None) -> None:
        """Give a planned generation, if there is one, time to come to where its predecessor is, until it publishes."""
        if to is not None and self._moved.get(name) != to:
            last = self.channels[name].last_epoch()
            manifest = self.channels[name].manifest(last) if last >= 0 else None
            if manifest is None or manifest.producer.generation < to:
                self._moving.add(name)
                return
            self._moved[name] = to
        self._moving.discard(name)

    def lags(self, name: str, published: int) -> dict[str, int]:
        """Return by how many epochs each live run of a unit, on any node, is behind what is published."""
        channel = self.channels[self._setup.segments[name].inputs[0]]
        received = channel.received_by_run(name, self._setup.clock.now_s() - _FRESH_S)
        return {run: published - epoch for run, epoch in received.items()}

    # Keeping it bounded

    def declare_safe(self) -> None:
        """Tell every channel what the primaries and sinks here will never need again."""
        for name, unit in self.replicas.primaries.items():
            strategy = self.replicas.strategy(name)
            if strategy.replays:
                low = strategy.replay_from(self.replicas.view(name))
                # What tells where a replay begins is in the unit's own manifests: it is a reader of its own output.
                self.channels[name].declare_safe(name, low - 1)
                unit.declare_safe(low - 1)
            else:
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
            elif self.replicas.strategy(name).replays:
                safe.append(channel.safe(name))
            last = channel.last_epoch()
            if any(reader in self._setup.strategies for reader in readers):
                recent = self._recent.setdefault(name, Recent(_FOR_STANDBYS_S))
                safe.append(recent.before(last, self._setup.clock.steady_s()))
            exits = not any(reader in self._setup.segments for reader in readers) or any(
                reader in graph.sinks for reader in readers
            )
            kept = retain if exits or retain is None else 1
            channel.trim(trim_floor(safe=safe, last=last, retain=kept))
            if sweep:
                channel.sweep()

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
                **_replica(name, "standby", standby.unit),
                "batches": self.replicas.batches(name),
                "generation": None,
                "temperature": _TEMPERATURES.get(self.replicas.strategy(name).name, "gated"),
                "stores": [],
            }
            for name, standby in dict(self.replicas.standbys).items()
        ]
        return [*primaries, *standbys]


def _replica(name: str, role: str, unit: Unit) -> dict[str, Any]:
    return {"unit": name, "role": role, "epoch": unit.committed(), "scratch": unit.scratch}
