"""A replica of a unit: one segment as a running Spark query over a checkpoint directory of its own.

Every start is a new run in a new directory, hard-linked from the newest committed one. In each micro-batch the rows of
one epoch are written and released inside `foreachBatch`, that is before Spark commits. A crash in between makes the
next run execute the epoch again, with the same input and the same state; it finds the slot claimed, compares digests,
and goes on. So every epoch is published once, and the state always agrees with what was published.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from anabranch.channel.channel import Channel
from anabranch.channel.inputs import Gate, Inputs
from anabranch.channel.manifest import Manifest, Producer
from anabranch.channel.writer import (
    PartsPlan,
    Planned,
    Written,
    event_time_column,
    planned_batch,
    writing,
    written,
)
from anabranch.checkpoint import Commit, last_batch, last_commit, link_checkpoint
from anabranch.clock import Clock
from anabranch.durable import TEMPORARY_PREFIX, boot_id, write_advisory
from anabranch.errors import Corrupt, Deposed, Diverged, Trimmed
from anabranch.execution import QueryInternals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from anabranch.plans import BuiltSegment

# A query reads its logs and loads its sources before its first batch; a minute means that it hangs.
_START_TIMEOUT_S = 60.0
OPEN = Gate()
# How soon a standby that withholds an epoch sees that the primary has published it.
_WITHHOLD_POLL_S = 0.01
# In a run's directory: the start of the operating system that the run belongs to.
_BOOT = "boot"
# In a run's directory: the node that runs it. Only that node removes it, when it has begun another.
_OWNER = "owner"
_RUN_NAME = re.compile(r"^r(\d{6})\.[0-9a-f]{8}$")


@dataclass(frozen=True)
class UnitPlace:
    """Where a unit lives: its directory, its input and output channels, and the node that runs it."""

    directory: Path
    inputs: dict[str, Channel]
    output: Channel
    node: str = ""


@dataclass(frozen=True)
class UnitEvents:
    """Whom a unit tells: `released(unit, manifest)` after each epoch, `diverged(error)` when rows were different.

    The manifest is what is published, by whomever; None if that is trimmed already.
    """

    released: Callable[[str, Manifest | None], None]
    diverged: Callable[[Diverged], None]


def new_run(directory: Path) -> str:
    """Return a fresh run id; ids sort by age."""
    numbers = [int(match[1]) for match in map(_RUN_NAME.match, _runs(directory)) if match]
    return f"r{max(numbers, default=-1) + 1:06d}.{uuid.uuid4().hex[:8]}"


def newest_commit(directory: Path, boot: str | None = None) -> tuple[str, Commit] | None:
    """Return the run with the newest committed epoch, None if no run of this unit ever committed.

    With `boot`, only runs of that start of the operating system count: Spark flushes none of its files, so those of
    earlier ones may be torn or gone.
    """
    found: list[tuple[int, str, Commit]] = []
    for run in _runs(directory):
        if boot is not None and _read(directory / "runs" / run / _BOOT) != boot:
            continue
        commit = last_commit(directory / "runs" / run / "checkpoint")
        if commit is not None:
            found.append((commit.epoch, run, commit))
    if not found:
        return None
    _, run, commit = max(found)
    return run, commit


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def _runs(directory: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory / "runs") if _RUN_NAME.match(name))
    except FileNotFoundError:
        return []


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
        self._built = built
        self._place = place
        self._events = events
        self.generation = -1 if generation is None else generation
        self._promoted = threading.Event()
        if generation is not None:
            self._promoted.set()
        self._stopping = False
        self._clock = clock
        self.directory = place.directory / "runs" / self.run
        self._checkpoint = self.directory / "checkpoint"
        self._started = threading.Event()
        self._internals: QueryInternals | None = None
        self._commit: Commit | None = None
        self._epoch = -1
        self._inputs = Inputs(self.directory, {name: place.inputs[name].path for name in built.leaves})
        self.query: StreamingQuery | None = None

    # Starting

    def prepare(self, restore: Callable[[Path], object] = lambda _: None) -> int:
        """Make the run's directory; return the epoch after which it goes on.

        `restore(directory)` is asked for a kept version if no run of this unit is left that can be trusted: it makes
        the directory of a run, or nothing.
        """
        previous = newest_commit(self._place.directory, boot_id()) or self._restored(restore)
        previous = previous or newest_commit(self._place.directory)
        self._make_directory()
        published = self._place.output.ledger.last()
        if previous is None:
            after = self._first_epoch() - 1
            (self.directory / "watermarks").mkdir()
        else:
            run, commit = previous
            after = commit.epoch
            self._commit = commit
            if after > (-1 if published is None else published):
                raise Corrupt(
                    f"unit {self.name!r} has state of epoch {after}, but its output ends at epoch {published}",
                    hint="the output channel was damaged; restore it from a copy",
                )
            old = self._place.directory / "runs" / run
            (self.directory / "watermarks").mkdir()
            _link_watermarks(old, self.directory, commit.batch_id)
            link_checkpoint(old / "checkpoint", self._checkpoint, commit)
        self._epoch = after
        for name, channel in self._place.inputs.items():
            if channel.ledger.floor() > after:
                raise Trimmed(
                    f"unit {self.name!r} would go on after epoch {after}, but its input {name!r} "
                    f"is trimmed up to {channel.ledger.floor()}",
                    hint="its checkpoint was lost; restore it from a copy, or start over with another --work directory",
                )
        return after

    def _make_directory(self) -> None:
        """Make the run's directory; from the first moment it says whose it is."""
        if self.directory.exists():
            raise FileExistsError(errno.EEXIST, "the run exists", str(self.directory))
        unnamed = self.directory.with_name(f"{TEMPORARY_PREFIX}{self.run}")
        unnamed.mkdir(parents=True)
        write_advisory(unnamed / _BOOT, boot_id().encode())
        write_advisory(unnamed / _OWNER, self._place.node.encode())
        unnamed.rename(self.directory)

    def _restored(self, restore: Callable[[Path], object]) -> tuple[str, Commit] | None:
        # Run ids sort by age: this one is older than the run that goes on from it.
        name = f"{self.run.partition('.')[0]}.00000000"
        runs = self._place.directory / "runs"
        runs.mkdir(parents=True, exist_ok=True)
        restore(runs / name)
        commit = last_commit(runs / name / "checkpoint")
        return None if commit is None else (name, commit)

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
        writer = writer.outputMode(self._built.segment.output_mode).foreachBatch(self._batch)
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
                raise Corrupt(
                    f"the query of unit {self.name!r} did not start within {_START_TIMEOUT_S:.0f} s",
                    hint="the machine may be overloaded; run again",
                )
            pause.wait(0.01)

    # One micro-batch

    def _batch(self, statistics: DataFrame, batch_id: int) -> None:
        """Run one epoch; called by Spark, before it commits."""
        if not self._started.wait(_START_TIMEOUT_S):
            raise Corrupt(f"unit {self.name!r} was given a batch before it had started")
        planned = planned_batch(self._checkpoint, batch_id)
        share = written(statistics)
        late_rows = self._note_execution(batch_id)
        if planned.epoch < 0:
            # On a new checkpoint Spark runs a first batch even if its sources have nothing yet. It is no epoch.
            return
        merged, self._epoch = planned.epoch - self._epoch > 1, planned.epoch
        published = self._published(planned.epoch) if share.discarded else self._release(planned, share, late_rows)
        if published is not None and not merged and (published.digest, published.rows) != (share.digest, share.rows):
            self._events.diverged(_divergence(self.name, published, share))
        for channel in self._place.inputs.values():
            channel.acknowledge(self.name, self.run, planned.epoch)
        self._events.released(self.name, published)

    def _release(self, planned: Planned, share: Written, late_rows: int) -> Manifest | None:
        """Publish an epoch as soon as that is this unit's turn; return what is published, None if that is trimmed."""
        while not self._promoted.wait(_WITHHOLD_POLL_S) and not self._place.output.ledger.decided(planned.epoch):
            if self._stopping:
                raise Deposed(f"unit {self.name!r} is stopped while it withholds epoch {planned.epoch}")
        manifest = Manifest(
            epoch=planned.epoch,
            producer=Producer(self.name, self.run, self.generation),
            released_s=self._clock.now_s(),
            rows=share.rows,
            digest=share.digest,
            parts=share.parts,
            event_time_us=share.event_time_us,
            watermark_ms=planned.watermark_ms,
            late_rows=late_rows,
        )
        try:
            return self._place.output.release(manifest).manifest
        except Trimmed:
            return None

    def _published(self, epoch: int) -> Manifest | None:
        try:
            return self._place.output.manifest(epoch)
        except Trimmed:
            return None

    def _note_execution(self, batch_id: int) -> int:
        """Note what Spark would forget in a restart, before it commits; return the rows dropped as late."""
        internals = self._internals
        if internals is None or not self._built.stateful or internals.watermarks == 0:
            return 0
        if internals.watermarks > 1:
            noted = json.dumps(internals.operator_watermarks()).encode()
            directory = self.directory / "watermarks"
            write_advisory(directory / str(batch_id), noted)
            # The batch before last can no longer be the last committed one.
            (directory / str(batch_id - 2)).unlink(missing_ok=True)
        return internals.late_rows()

    # Standing by

    def promote(self, generation: int, at_once: int = -1) -> None:
        """Release from now on, in this generation; what was withheld comes first.

        Opens the gate; epochs up to `at_once`, which others have published, are caught up with in one micro-batch.
        """
        self.generation = generation
        self._promoted.set()
        self._inputs.open_gate(Gate(at_once))

    def follow(self, to: int) -> None:
        """Go on to an epoch that others have published, in one micro-batch, and wait there."""
        self._inputs.open_gate(Gate(to, open=False))

    # Observing

    def committed(self) -> int:
        """Return the epoch of the last committed batch, -1 if there is none; follows `commits/`, nothing else."""
        batch_id = last_batch(self._checkpoint / "commits")
        if batch_id is None:
            return -1
        if self._commit is None or self._commit.batch_id != batch_id:
            self._commit = Commit(batch_id, planned_batch(self._checkpoint, batch_id))
        return self._commit.epoch

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
        for run in _runs(self._place.directory):
            # Run ids sort by age; one that is younger than this has taken its place. Other nodes have their own.
            if run < self.run and _read(self._place.directory / "runs" / run / _OWNER) in (self._place.node, None):
                shutil.rmtree(self._place.directory / "runs" / run, ignore_errors=True)
                for channel in self._place.inputs.values():
                    channel.forget_runs(self.name, self.run)

    def failure(self) -> BaseException | None:
        """Return why the query ended, None while it runs."""
        query = self.query
        if query is None or query.isActive:
            return None
        return query.exception() or RuntimeError("the query ended")

    def stop(self) -> None:
        """End the query; an unfinished epoch is executed again by the next run."""
        self._stopping = True
        if self.query is not None:
            self.query.stop()


def _link_watermarks(old: Path, new: Path, batch_id: int) -> None:
    noted = old / "watermarks" / str(batch_id)
    if noted.exists():
        os.link(noted, new / "watermarks" / str(batch_id))


def _divergence(name: str, published: Manifest, written: Written) -> Diverged:
    return Diverged(
        f"segment {name!r} gave other rows for epoch {published.epoch} when it was executed again "
        f"({written.rows} rows, digest {written.digest[:8]}; published: {published.rows}, {published.digest[:8]})",
        hint="take random values and the current time out of the step, or do not ask for guarantee='precise'",
    )
