"""A replica of a unit: one segment as a running Spark query over a checkpoint directory of its own.

Every start is a new run in a new directory, hard-linked from the newest committed one. In each micro-batch the rows of
one epoch are written and released inside `foreachBatch`, that is before Spark commits. A crash in between makes the
next run execute the epoch again, with the same input and the same state; it finds the slot claimed, compares digests,
and goes on. So every epoch is published once, and the state always agrees with what was published.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from anabranch.channel.channel import Channel
from anabranch.channel.inputs import Gate, Inputs
from anabranch.channel.manifest import Producer
from anabranch.channel.writer import (
    PartsPlan,
    event_time_column,
    planned_batch,
    writing,
    written,
)
from anabranch.checkpoint import Commit, last_batch
from anabranch.choosing import Wanted
from anabranch.clock import Clock
from anabranch.durable import write_advisory
from anabranch.errors import Corrupt, Trimmed
from anabranch.execution import QueryInternals
from anabranch.pending import Pending
from anabranch.publishing import Publishing, Seen, UnitEvents
from anabranch.releasing import Releasing
from anabranch.runs import Restoring, choose_run, doubt, link_run, make_run, note_whole, remove_former
from anabranch.strategies.strategy import Release, Takeover

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from anabranch.plans import BuiltSegment

# A query reads its logs and loads its sources before its first batch; a minute means that it hangs.
_START_TIMEOUT_S = 60.0
OPEN = Gate()
# What Spark takes for an interruption of a query that is stopped inside `foreachBatch`. It looks for it with a regular
# expression that takes several stack frames for every character: on what a cancelled job says, plan and all, the thread
# of the query died of a stack overflow, and left a thousand lines in the log each time a replica was ended.
_INTERRUPTED = "py4j.protocol.Py4JJavaError: An error occurred while calling o0.stop.\n: java.lang.InterruptedException"


@dataclass(frozen=True)
class UnitPlace:
    """Where a unit lives: its directory, its input and output channels, and the node that runs it.

    The run is a scratch one if it only warms the node up: its state is nobody's. `release` says when an epoch is
    published: by the holder of the lease, by whoever has written it first, or once its checkpoint is in the store.
    """

    directory: Path
    inputs: dict[str, Channel]
    output: Channel
    node: str = ""
    scratch: bool = False
    release: Release = "leader"


def _weakly(method: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """Return a function that calls a method of something without keeping it alive.

    The JVM holds what it calls, and Python, through its handle of the query, the JVM's query: each would keep the other
    for ever. Every run that ended would leave a megabyte in both, and a standby is replaced every few seconds.
    """
    known = weakref.WeakMethod(method)

    def call(frame: DataFrame, batch_id: int) -> None:
        found = known()
        if found is None:
            raise RuntimeError(_INTERRUPTED)
        found(frame, batch_id)

    return call


class Unit:
    """One run of one unit. Made, started once, stopped once."""

    def __init__(
        self,
        built: BuiltSegment,
        place: UnitPlace,
        events: UnitEvents,
        *,
        run: str,
        generation: int | None,
        clock: Clock,
    ) -> None:
        self.name = built.segment.name
        self.run = run
        self.directory = place.directory / "runs" / self.run
        self._built = built
        self._place = place
        self._events = events
        self.release = Releasing(place.output, Pending(self.directory), place.release, clock)
        if generation is not None:
            self.release.promote(generation)
        self._clock = clock
        self.scratch = place.scratch
        self.batches = 0
        self._after = -1
        self._publishing = Publishing(
            self.name, place.inputs, self.release, events, span=built.span, scratch=place.scratch
        )
        self._checkpoint = self.directory / "checkpoint"
        self._started = threading.Event()
        self._stopping = False
        self._internals: QueryInternals | None = None
        self._commit: Commit | None = None
        self._base: tuple[Path, int] | None = None
        self._inputs = Inputs(self.directory, {name: place.inputs[name].path for name in built.leaves})
        self.query: StreamingQuery | None = None

    # Starting

    def prepare(self, restore: Restoring | None = None, *, owner: str | None = None) -> int:
        """Make the run's directory; return the epoch after which it goes on.

        `restore(directory, again)` is asked for a kept version if no run of this unit is left that can be trusted: it
        makes the directory of a run, or nothing; None for a standby. With `owner`, only that node's runs count.
        """
        home, output = self._place.directory, self._place.output
        before = output.last_epoch()
        shipped = self._place.release == "shipped"
        wanted = Wanted(owner, output if shipped else None)
        base = choose_run(home, self.run, restore, wanted, floor=self.input_floor(), node=self._place.node)
        make_run(home, self.run, self._place.node, scratch=self.scratch)
        published = output.last_epoch()
        if base is None:
            after = self._first_epoch() - 1
        else:
            run, self._commit = base
            self._base = home / "runs" / run, self._commit.epoch
            after = self._commit.epoch
            if after > published and not shipped:
                raise Corrupt(
                    f"unit {self.name!r} has state of epoch {after}, but its output has {published + 1} epochs",
                    hint="the output channel was damaged; restore it from a copy",
                )
            link_run(home / "runs" / run, self.directory, self._commit)
            # What was published since the choice may contradict what is pending: that is found out when it is released.
            self.release.pending.inherit(home / "runs" / run, self._commit, before)
        # What was published since the choice is no loss: executing it again is found out, and the run is superseded.
        if shipped and after < before and self.generation >= 0:
            raise Corrupt(
                f"unit {self.name!r} has no state of epoch {before}, and must not execute again what is published",
                hint="its stores lost a version; restore them from a copy",
            )
        self._refuse_trimmed(after)
        self._publishing.go_on_after(after)
        return after

    def prepare_empty(self) -> None:
        """Make the run's directory, without state; where it begins is said when it is begun or promoted."""
        make_run(self._place.directory, self.run, self._place.node, scratch=self.scratch)

    def begin_after(self, epoch: int, *, compare_from: int = 0, lost: bool = False) -> None:
        """Say where a run without state begins, and whether its predecessor's state is lost."""
        self._refuse_trimmed(epoch)
        self._after = epoch
        self._publishing.begin_after(epoch, compare_from=compare_from, lost=lost)
        note_whole(self.directory, self._publishing.whole_since)

    def _refuse_trimmed(self, after: int) -> None:
        for name, channel in self._place.inputs.items():
            if channel.ledger.floor() > after:
                raise Trimmed(
                    f"unit {self.name!r} would go on after epoch {after}, but its input {name!r} "
                    f"is trimmed up to {channel.ledger.floor()}",
                    hint="its checkpoint was lost; restore it from a copy, or start over with another --work directory",
                )

    def _first_epoch(self) -> int:
        """Return where a unit without state begins: at zero, but rejects with what is left of their source."""
        if self._built.segment.steps[0].function is not None:
            return 0
        floor = max(channel.ledger.floor() for channel in self._place.inputs.values())
        producer = Producer(self.name, self.run, self.generation)
        self._place.output.begin_after(floor, producer, self._clock.now_s())
        return floor + 1

    def start(self, spark: SparkSession, gate: Gate | None = OPEN) -> None:
        """Start the query, restore its watermarks, and let data in, as far as a gate allows; None: not at all yet."""
        self._inputs.save()
        output = self._place.output
        plan = PartsPlan(
            directory=str(output.parts),
            run=self.run,
            checkpoint=str(self._checkpoint),
            schema=output.spec.schema.serialize().to_pybytes(),
            event_time=event_time_column(self._built.frame),
        )
        writer = writing(self._built.frame, plan).writeStream.queryName(f"{self.name} {self.run}")
        writer = writer.outputMode(self._built.segment.output_mode).foreachBatch(_weakly(self._batch))
        self.query = writer.option("checkpointLocation", str(self._checkpoint)).start()
        self._internals = QueryInternals(spark, self.query)
        if self._internals.watermarks > 1 and self._commit is not None:
            self._restore_watermarks(self._internals, self._commit.batch_id)
        self._started.set()
        if gate is not None:
            self._inputs.open_gate(gate)

    def wait_until_polled(self) -> None:
        """Wait until Spark has asked the first source for data.

        Spark's source runners put settings into a map that all queries of a session share, without a lock. Two that
        do so for the first time at the same moment corrupt it, and from then on no task of the session can be read.
        Once one has done it, the others only write the same keys again.
        """
        self._wait_for((self.directory / "seat-0").exists)

    def _restore_watermarks(self, internals: QueryInternals, batch_id: int) -> None:
        self._wait_for(internals.initialised)
        noted = json.loads((self.directory / "watermarks" / str(batch_id)).read_bytes())
        internals.restore_operator_watermarks(noted)

    def _wait_for(self, ready: Callable[[], bool]) -> None:
        deadline_s = self._clock.steady_s() + _START_TIMEOUT_S
        pause = threading.Event()
        while not ready() and self.failure() is None:
            if self._clock.steady_s() > deadline_s:
                # No error of ours: starting the node again may heal it.
                raise TimeoutError(f"the query of unit {self.name!r} did not start within {_START_TIMEOUT_S:.0f} s")
            pause.wait(0.01)

    # One micro-batch

    def _batch(self, statistics: DataFrame, batch_id: int) -> None:
        """Run one epoch; called by Spark, before it commits."""
        try:
            self._execute(statistics, batch_id)
        except BaseException:
            if self._stopping:
                raise RuntimeError(_INTERRUPTED) from None
            raise

    def _execute(self, statistics: DataFrame, batch_id: int) -> None:
        if not self._started.wait(_START_TIMEOUT_S):
            raise Corrupt(f"unit {self.name!r} was given a batch before it had started")
        planned = planned_batch(self._checkpoint, batch_id)
        share = written(statistics)
        self.batches += 1
        seen = self._note_execution(batch_id)
        if planned.epoch < 0:
            # On a new checkpoint Spark runs a first batch even if its sources have nothing yet. It is no epoch.
            return
        before = self._publishing.whole_since
        batch = self._publishing.executed(planned, share, seen)
        if self._publishing.whole_since != before:
            note_whole(self.directory, self._publishing.whole_since)
        if share.discarded:
            published = self.release.published(planned.epoch)
        else:
            published = self.release(self._publishing.manifest(batch))
        self._publishing.settle(batch, published)

    def _note_execution(self, batch_id: int) -> Seen:
        """Note what Spark would forget in a restart, before it commits; return what it knows of the batch."""
        internals = self._internals
        if internals is None or not self._built.stateful or internals.watermarks == 0:
            return Seen()
        if internals.watermarks > 1:
            noted = json.dumps(internals.operator_watermarks()).encode()
            directory = self.directory / "watermarks"
            write_advisory(directory / str(batch_id), noted)
            # The batch before last can no longer be the last committed one.
            (directory / str(batch_id - 2)).unlink(missing_ok=True)
        return Seen(internals.seen_ms(), internals.late_rows(), watermarked=True)

    # Standing by

    def promote(self, generation: int, how: Takeover) -> None:
        """Release from now on, in this generation; what was withheld comes first. Opens the gate."""
        self.release.promote(generation)
        self._inputs.open_gate(Gate(how.at_once, after=self._after))

    def lead_on(self, generation: int) -> None:
        """Publish in this generation, and otherwise go on."""
        if self.release.generation != generation:
            self.release.promote(generation)

    def follow(self, to: int, *, go_on: bool = False) -> None:
        """Go on to an epoch that others have published, in one micro-batch; then wait, or go on epoch by epoch."""
        self._inputs.open_gate(Gate(to, open=go_on, after=self._after))

    # Observing

    @property
    def generation(self) -> int:
        """The generation in which it publishes, -1 if it does not."""
        return self.release.generation

    def release_shipped(self, up_to: int) -> bool:
        """Publish what waited for its checkpoint to be stored; say whether older runs may go. Called by the keeper."""
        for published in self.release.shipped(up_to):
            self._events.released(self.name, published)
        return self.release.settled and self.release.superseded is None

    def input_floor(self) -> int:
        """Return up to which epoch an input is trimmed."""
        return max(channel.ledger.floor() for channel in self._place.inputs.values())

    def committed(self) -> int:
        """Return the epoch of the last committed batch, -1 if there is none; follows `commits/`, nothing else."""
        batch_id = last_batch(self._checkpoint / "commits")
        if batch_id is None:
            return self._after
        if self._commit is None or self._commit.batch_id != batch_id:
            self._commit = Commit(batch_id, planned_batch(self._checkpoint, batch_id))
        return max(self._commit.epoch, self._after)

    def declare_safe(self, kept: int | None = None) -> None:
        """Tell every input what this unit will never need again, and drop the runs that this one replaces.

        `kept` is what its stores can restore; an epoch is safe only up to there. None: it has no store.
        """
        epoch = self.committed()
        if epoch < 0:
            return
        for channel in self._place.inputs.values():
            channel.declare_safe(self.name, epoch if kept is None else min(epoch, kept))
        self.remove_former_runs()

    def remove_former_runs(self) -> None:
        """Remove the runs of this node that this one replaces: it has linked what it needs of them."""
        if remove_former(self._place.directory, self.run, self._place.node):
            for channel in self._place.inputs.values():
                channel.forget_runs(self.name, self.run)

    def failure(self) -> BaseException | None:
        """Return why the query ended, None while it runs."""
        query = self.query
        if self.release.superseded is not None:
            return self.release.superseded
        if query is None or query.isActive:
            return None
        return query.exception() or RuntimeError("the query ended")

    @property
    def proven(self) -> bool:
        """Whether the files that this run went on from are good: it has run something, or there are none."""
        return self._base is None or self.batches > 0

    def doubt_base(self) -> None:
        """Doubt the files that this run went on from, if it failed before it had run anything."""
        if self._base is not None and not self.proven:
            base, epoch = self._base
            doubt(base, epoch)
            doubt(self.directory, epoch)

    def stop(self) -> None:
        """End the query; an unfinished epoch is executed again by the next run."""
        self._stopping = True
        self.release.stop()
        if self.query is not None:
            self.query.stop()
